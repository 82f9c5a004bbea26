"""What the parsers of quantities accept, and how they refuse the rest."""

from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.units import (
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_flops,
    parse_number,
)

QUANTITIES = [parse_duration, parse_bytes, parse_bandwidth, parse_flops]
PARSERS = [*QUANTITIES, parse_count, parse_number]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ns", 5e-7),
        ("5us", 5e-6),
        ("5ms", 0.005),
        ("5 ms", 0.005),
        ("2s", 2.0),
        ("1.5 min", 90.0),
        ("2h", 7200.0),
        ("1e-3s", 0.001),
        (".5s", 0.5),
        ("  3s ", 3.0),
    ],
)
def test_durations_come_back_in_seconds(text, seconds):
    """Every unit of time has its own factor, and blanks do not matter."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1kB", 1e3),
        ("1MB", 1e6),
        ("1GB", 1e9),
        ("1TB", 1e12),
        ("1KiB", 2**10),
        ("1MiB", 2**20),
        ("1GiB", 2**30),
        ("1TiB", 2**40),
        ("8 B", 8),
    ],
)
def test_memory_keeps_powers_of_1000_and_1024_apart(text, count):
    """GB is 10^9 bytes, GiB is 2^30."""
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400 Gb/s", 50e9),
        ("400 GB/s", 400e9),
        ("1 GiB/s", 2**30),
        ("8 Mb/s", 1e6),
        ("8 kb/s", 1e3),
        ("8 b/s", 1.0),
        ("3.35 TB/s", 3.35e12),
    ],
)
def test_bits_and_bytes_per_second_are_never_confused(text, bytes_per_s):
    """A small b counts bits, eight to the byte."""
    assert parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "flops"),
    [("989 TFLOPS", 989e12), ("1.5PFLOPS", 1.5e15), ("3 GFLOPS", 3e9)],
)
def test_arithmetic_speed_comes_back_in_operations_per_second(text, flops):
    """TFLOPS are 10^12 operations per second."""
    assert parse_flops(text) == flops


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (2000, 2000),
        ("2000", 2000),
        (2e3, 2000),
        ("1e6", 10**6),
        ("128K", 128_000),
        ("128k", 128_000),
        ("1.5M", 1_500_000),
        ("46.7B", 46_700_000_000),
        ("1.04T", 1_040_000_000_000),
        (2**62 + 1, 2**62 + 1),
        (0, 0),
    ],
)
def test_counts_are_exact_whole_numbers(value, count):
    """Suffixes are powers of 1000; nothing passes through a rounded float."""
    assert parse_count(value) == count


def test_counts_are_integers_even_when_written_as_floats():
    """A count indexes arrays, so its type matters."""
    assert type(parse_count(2.0)) is int


@pytest.mark.parametrize(("value", "number"), [(0.8, 0.8), ("-1.5", -1.5), (3, 3.0)])
def test_plain_numbers_may_have_either_sign(value, number):
    """An exponent or a share has no unit and may be negative."""
    assert parse_number(value) == number


@pytest.mark.parametrize("parse", QUANTITIES)
@pytest.mark.parametrize("zero", [0, 0.0, "0", -0.0])
def test_zero_needs_no_unit(parse, zero):
    """Nothing is nothing in every unit, and minus nothing is plain nothing."""
    assert str(parse(zero)) == "0.0"


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        [],
        {},
        float("nan"),
        float("inf"),
        "nan",
        "inf",
        ".inf",
        "",
        "   ",
        "-",
        "ms",
        "\u0661\u0662\u0663",
        "1\u00a0ms",
        "5 \u00b5s",
        "1_000",
        "1,000",
        "0x10",
        "1e999",
        "1e308 h",
        "1e308 GB",
        "1e308 TFLOPS",
        "1e308 GB/s",
        pytest.param("1" * 5000, id="5000 digits"),
        pytest.param(10**5000, id="a huge integer"),
        "5 ms 3",
    ],
)
def test_what_is_no_quantity_is_refused_by_all(parse, value):
    """Bad input raises ValueError with a sentence, whatever it is."""
    with pytest.raises(ValueError, match=r"[a-z]"):
        parse(value)


@pytest.mark.parametrize("parse", QUANTITIES)
@pytest.mark.parametrize("value", [5, 5.0, "5", 1e9])
def test_a_number_without_unit_is_refused(parse, value):
    """5 of what?"""
    with pytest.raises(ValueError, match="has no unit"):
        parse(value)


@pytest.mark.parametrize(
    ("parse", "value"),
    [
        (parse_duration, "-5ms"),
        (parse_bytes, "-1GB"),
        (parse_bandwidth, "-1 GB/s"),
        (parse_flops, "-1 TFLOPS"),
        (parse_count, -1),
    ],
)
def test_negative_quantities_are_refused(parse, value):
    """No duration, size, speed or count is below zero."""
    with pytest.raises(ValueError, match="negative"):
        parse(value)


@pytest.mark.parametrize(
    ("parse", "value", "hint"),
    [
        (parse_bytes, "80G", "GB .*GiB .*Gb"),
        (parse_bytes, "80Gb", "gigabits"),
        (parse_bytes, "80gb", "'GB'"),
        (parse_bytes, "80KB", "kB"),
        (parse_bandwidth, "400G", "GB .*GiB .*Gb"),
        (parse_bandwidth, "400Gbps", "'Gb/s' for bits"),
        (parse_bandwidth, "400GB", "'GB/s'"),
        (parse_bandwidth, "400 gb/s", "'GB/s' or 'Gb/s'"),
        (parse_duration, "5m", "'min' or 'ms'"),
        (parse_duration, "5 MS", "'ms'"),
        (parse_duration, "5 sec", "'s'"),
        (parse_flops, "989 TFLOP/s", "'TFLOPS'"),
        (parse_count, "7G", "'B' for 10\\^9"),
        (parse_count, "7Ki", "'K'"),
        (parse_number, "0.5s", "unit 's'"),
        (parse_count, "1,000", "','"),
        (parse_count, "1_000", "'_'"),
    ],
)
def test_a_wrong_unit_is_answered_with_what_was_meant(parse, value, hint):
    """The message names the right spelling, or both meanings."""
    with pytest.raises(ValueError, match=hint):
        parse(value)


@pytest.mark.parametrize("value", [1.5, "1.5", "0.5K1", "0.0005K"])
def test_a_fraction_is_no_count(value):
    """There is no half request."""
    with pytest.raises(ValueError, match=r"not whole|unknown unit"):
        parse_count(value)


def test_counts_beyond_64_bits_are_refused():
    """Every count is stored in an int64 sooner or later."""
    with pytest.raises(ValueError, match="too large"):
        parse_count(2**63)


def test_a_message_never_repeats_hostile_text_whole():
    """Control characters are escaped and long values are cut."""
    with pytest.raises(ValueError, match="cannot be read") as refused:
        parse_duration("\x1b[31m" + "x" * 10_000)

    assert len(str(refused.value)) < 200
    assert "\x1b" not in str(refused.value)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=12),
        st.from_regex(r"-?[0-9.,_eE+]{0,8} ?[A-Za-z/]{0,6}", fullmatch=True),
        st.floats(),
        st.integers(),
        st.booleans(),
        st.none(),
    ),
    st.sampled_from(PARSERS),
)
def test_any_value_is_parsed_or_refused_with_a_value_error(value, parse):
    """No other exception escapes, and what comes back is finite and not NaN."""
    try:
        result = parse(value)
    except ValueError:
        return

    assert isfinite(result)
