"""Gaps between tokens: all of them while they are few, honest figures when not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.measure import gaps as gaps_module
from moesim.measure.gaps import BINS, RELATIVE_ERROR, Gaps, bin_of
from moesim.measure.latencies import distribution, itl_binned
from moesim.measure.metrics import summarise
from moesim.measure.tables import Tables

SHARES = np.array([0.01, 0.5, 0.9, 0.99, 1.0])
waits = st.lists(st.integers(1, 2**62), min_size=1, max_size=60)


def filled(values, owners=None, arrival=None, since=0, at_once=7):
    """Return gaps written down a few at a time."""
    made = Gaps()
    made.since = since
    values = np.array(values, np.int64)
    owners = np.zeros(len(values), np.int64) if owners is None else np.array(owners)
    arrival = np.zeros(owners.max(initial=0) + 1) if arrival is None else arrival
    for begin in range(0, len(values), at_once):
        part = slice(begin, begin + at_once)
        made.add(owners[part], values[part], arrival)
    return made


@given(waits)
@settings(max_examples=200)
def test_a_quantile_is_near_the_gap_of_its_rank(values):
    """Within the stated error of the smallest gap that so many do not exceed."""
    made = filled(values)
    ranks = np.maximum(np.ceil(SHARES * len(values)), 1).astype(int)
    exact = np.sort(np.array(values))[ranks - 1].astype(float)

    found = made.quantiles(SHARES)

    assert (np.abs(found - exact) <= exact * RELATIVE_ERROR * (1 + 1e-9)).all()
    assert (found <= made.largest).all()


@given(waits)
@settings(max_examples=200)
def test_count_sum_and_largest_are_exact(values):
    made = filled([value >> 10 for value in values])
    values = [value >> 10 for value in values]

    assert (made.count, made.largest) == (len(values), max(values))
    assert made.total == sum(values)
    assert made.deviation == pytest.approx(np.std(values), rel=1e-6, abs=1e-6)


@given(st.integers(1, 2**63 - 1))
def test_every_gap_has_a_bin(value):
    """From one picosecond to more than any run lasts."""
    (index,) = bin_of(np.array([value])).tolist()

    assert 0 <= index < BINS


@given(st.integers(1, 2**61), st.integers(1, 2**61))
def test_longer_gaps_are_in_no_lower_bin(one, other):
    low, high = sorted((one, other))

    assert bin_of(np.array([low]))[0] <= bin_of(np.array([high]))[0]


def test_nothing_has_no_quantile_and_no_spread():
    made = Gaps()
    made.add(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))

    assert np.isnan(made.quantiles(SHARES)).all()
    assert (made.count, made.deviation) == (0, 0.0)


def test_the_spread_of_long_equal_gaps_is_nothing():
    """Squares of picoseconds have more digits than a float."""
    assert filled([10**17 + 1] * 1000).deviation == 0.0


def test_gaps_of_the_warm_up_are_kept_but_not_summed_up():
    made = filled([10, 20, 30], owners=[0, 1, 1], arrival=np.array([4, 5]), since=5)

    assert made.part(slice(None))[1].tolist() == [10, 20, 30]
    assert (made.count, made.total) == (2, 50)


def test_one_gap_too_many_and_none_is_kept(monkeypatch):
    """A part of them would be those of the first requests."""
    monkeypatch.setattr(gaps_module, "KEPT", 9)
    few, many = filled([5] * 9), filled([5] * 10)

    assert (few.kept, len(few)) == (True, 9)
    assert (many.kept, len(many)) == (False, 0)
    assert many.part(slice(None))[0].tolist() == []
    assert (many.count, many.total) == (10, 50)


def test_the_busiest_second_is_that_with_most_tokens():
    made = Gaps()
    for tokens, now in ((3, 0), (4, 10**12 - 1), (5, 10**12), (2, 3 * 10**12)):
        made.tokens(tokens, now)

    assert made.busiest_second == 7


FACTS = {"num_gpus": 1, "span_s": 1.0, "warmup_s": 0.0, "slo_ms": {}}


def test_the_record_says_how_far_off_percentiles_may_be():
    """0 where all gaps were kept; the figures of the histogram else."""
    rng = np.random.default_rng(0)
    values = rng.lognormal(24, 0.5, 5000).astype(np.int64)
    made = filled(values, at_once=500)
    made.kept = False

    exact = distribution(values / 1e9, "itl")
    record = summarise(Tables.empty(), FACTS | {"gaps": made})

    assert record["itl_percentile_error_frac"] == RELATIVE_ERROR
    assert summarise(Tables.empty(), FACTS)["itl_percentile_error_frac"] == 0.0
    for key, value in exact.items():
        off = 1e-9 if key.startswith(("mean", "std")) else RELATIVE_ERROR + 1e-3
        assert record[key] == pytest.approx(value, rel=off), key


def test_a_histogram_that_knows_no_warm_up_is_refused():
    """Silence would mix in what the other figures leave out."""
    with pytest.raises(AssertionError, match="warm-up"):
        itl_binned(Gaps(), 3.0)


def test_both_ways_of_summing_up_have_the_same_keys():
    made = filled([5])
    made.kept = False

    kept = summarise(Tables.empty(), FACTS | {"gaps": Gaps()})
    assert list(summarise(Tables.empty(), FACTS | {"gaps": made})) == list(kept)
