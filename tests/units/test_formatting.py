"""How quantities are printed for people."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.units import (
    format_bandwidth,
    format_binary_bytes,
    format_bytes,
    format_count,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_duration,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2.5e-10, "0.25 ns"),
        (1.5e-6, "1.5 us"),
        (0.0123456, "12.3 ms"),
        (0.9996, "1 s"),
        (59, "59 s"),
        (90, "1.5 min"),
        (5400, "1.5 h"),
        (3.6e9, "1000000 h"),
        (-0.5, "-500 ms"),
    ],
)
def test_durations_take_the_largest_unit_that_fits(seconds, text):
    """Rounding comes before choosing the unit: never '1000 ms'."""
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "decimal", "binary"),
    [
        (512, "512 B", "512 B"),
        (1000, "1 kB", "1000 B"),
        (1020, "1.02 kB", "1020 B"),
        (1024, "1.02 kB", "1 KiB"),
        (70272, "70.3 kB", "68.6 KiB"),
        (80e9, "80 GB", "74.5 GiB"),
        (80 * 2**30, "85.9 GB", "80 GiB"),
        (0, "0 B", "0 B"),
    ],
)
def test_powers_of_1000_and_1024_have_their_own_printers(count, decimal, binary):
    """The same number of bytes reads 7 % smaller in GiB."""
    assert (format_bytes(count), format_binary_bytes(count)) == (decimal, binary)


@pytest.mark.parametrize(
    ("count", "text"),
    [(7, "7"), (128_000, "128K"), (46.7e9, "46.7B"), (1.04e12, "1.04T")],
)
def test_counts_take_a_suffix_without_blank(count, text):
    """As model names write them."""
    assert format_count(count) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_has_no_value_prints_as_such(value):
    """A quantity that does not exist is not printed as a number."""
    assert format_seconds(value) == "n/a"


@settings(max_examples=150, deadline=None)
@given(st.floats(1e-9, 1e12))
def test_printed_quantities_can_be_parsed_again(value):
    """Parsing what was printed gives the value back to three digits."""
    pairs = [
        (format_seconds, parse_duration),
        (format_bytes, parse_bytes),
        (format_binary_bytes, parse_bytes),
        (format_bandwidth, parse_bandwidth),
    ]

    for show, parse in pairs:
        assert parse(show(value)) == pytest.approx(value, rel=0.0051)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**14))
def test_printed_counts_can_be_parsed_again(count):
    """Three digits survive."""
    assert parse_count(format_count(count)) == pytest.approx(count, rel=0.0051)
