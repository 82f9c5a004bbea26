"""Waits are counted exactly, and their quantiles are as near as promised."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.measure.waits import (
    BINS,
    BINS_PER_OCTAVE,
    FLOOR_PS,
    OCTAVES,
    RELATIVE_ERROR,
    WaitColumns,
    bin_of,
    pooled_quantiles,
    quantiles,
)

SHARES = np.array([0.01, 0.25, 0.5, 0.9, 0.99, 1.0])
above_floor = st.lists(st.integers(FLOOR_PS, 10**13), min_size=1, max_size=60)


def columns_of(waits, cells=None, count=1):
    columns = WaitColumns(count)
    rows = np.zeros(len(waits), int) if cells is None else np.array(cells, int)
    columns.extend(rows, np.asarray(waits, np.int64))
    return columns


def quantiles_of(waits):
    columns = columns_of(waits)
    return quantiles(columns.histogram, columns.maximum, SHARES)[0]


def exact(waits):
    return np.quantile(waits, SHARES, method="inverted_cdf")


@settings(max_examples=300, deadline=None)
@given(above_floor)
def test_quantiles_are_within_the_stated_error(waits):
    """Of the exact order statistic, for waits over a nanosecond."""
    off = np.abs(quantiles_of(waits) / exact(waits) - 1)

    assert (off <= RELATIVE_ERROR * (1 + 1e-9)).all()


@pytest.mark.parametrize("law", ["exponential", "lognormal", "uniform"])
def test_quantiles_of_long_columns_are_within_the_stated_error(law):
    rng = np.random.default_rng(1)
    drawn = {
        "exponential": rng.exponential(50e6, 20_000),
        "lognormal": np.exp(rng.normal(16, 2, 20_000)),
        "uniform": rng.uniform(0, 3e9, 20_000),
    }[law]
    waits = FLOOR_PS + drawn.astype(np.int64)

    off = np.abs(quantiles_of(waits) / exact(waits) - 1)

    assert (off <= RELATIVE_ERROR * (1 + 1e-9)).all()


def test_the_stated_error_is_half_a_bin():
    """Eight bins to a doubling: 4.4 per cent."""
    assert BINS_PER_OCTAVE == 8
    assert pytest.approx(0.0443, abs=1e-4) == RELATIVE_ERROR


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 10**14), min_size=1, max_size=40))
def test_quantiles_rise_and_end_at_or_below_the_maximum(waits):
    found = quantiles_of(waits)

    assert (np.diff(found) >= 0).all()
    assert found[-1] <= max(waits)


def test_jobs_that_did_not_wait_have_no_wait():
    """Zero has its own bin: with half of the jobs at 0 the median is exactly 0."""
    found = quantiles_of([0, 0, 5 * 10**6, 5 * 10**6])

    assert found[2] == 0.0
    assert found[3] == pytest.approx(5e6, rel=RELATIVE_ERROR)


def test_short_waits_share_one_bin_and_are_never_above_the_maximum():
    assert bin_of(np.array([0, 1, FLOOR_PS - 1, FLOOR_PS])).tolist() == [0, 1, 1, 1]
    assert quantiles_of([3, 3]).tolist() == [3.0] * len(SHARES)


def test_bins_are_eighths_of_a_doubling():
    """A minute is far from where logarithms of whole numbers lose their last place."""
    for octave in range(1, 35):
        first = 1 + BINS_PER_OCTAVE * octave
        edge = FLOOR_PS << octave

        assert bin_of(np.array([edge - 1, edge])).tolist() == [first - 1, first]


def test_the_longest_waits_share_the_last_bin():
    assert bin_of(np.array([FLOOR_PS << OCTAVES, 2**62])).tolist() == [BINS - 1] * 2


def test_no_jobs_have_no_quantiles():
    assert np.isnan(quantiles_of([])).all()


def test_quantiles_keep_leading_axes_apart():
    """Each cell has its own."""
    columns = columns_of([10**6, 10**9], cells=[0, 2], count=3)

    found = quantiles(columns.histogram, columns.maximum, np.array([0.5]))

    assert found.shape == (3, 1)
    assert found[[0, 2], 0] == pytest.approx([1e6, 1e9], rel=RELATIVE_ERROR)
    assert np.isnan(found[1, 0])


jobs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**12)), max_size=50)


@settings(max_examples=100, deadline=None)
@given(jobs)
def test_counts_sums_and_maxima_are_exact(rows):
    columns = columns_of([w for _, w in rows], [c for c, _ in rows], 4)

    for cell in range(4):
        mine = [wait for c, wait in rows if c == cell]

        assert columns.count[cell] == len(mine)
        assert columns.total[cell] == sum(mine)
        assert columns.maximum[cell] == max(mine, default=0)


@settings(max_examples=100, deadline=None)
@given(jobs)
def test_one_by_one_is_the_same_as_all_at_once(rows):
    """However the waits are divided over calls."""
    single = WaitColumns(4)
    together = columns_of([w for _, w in rows], [c for c, _ in rows], 4)
    for cell, wait in rows:
        single.extend(np.array([cell]), np.array([wait]))

    assert (single.count == together.count).all()
    assert (single.total == together.total).all()
    assert (single.maximum == together.maximum).all()
    assert (single.histogram == together.histogram).all()


def test_cells_put_together_are_one_histogram(monkeypatch):
    """Replicas of an expert count as one, however many are looked at together."""
    monkeypatch.setattr("moesim.measure.waits.AT_ONCE", 3)
    rng = np.random.default_rng(0)
    cells, waits = rng.integers(0, 16, 4000), rng.lognormal(17, 2, 4000).astype(int)
    group = rng.permutation(np.arange(16) % 8)
    group[group == 7] = 6
    apart, together = WaitColumns(16), WaitColumns(8)
    apart.extend(cells, waits)
    together.extend(group[cells], waits)

    found = pooled_quantiles(apart, group, 8, SHARES)

    expected = quantiles(together.histogram, together.maximum, SHARES)
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(found[7]).all()
    assert (apart.count == apart.histogram.sum(axis=1)).all()


def test_some_of_the_cells_are_what_they_were():
    """In the order that is asked for."""
    rng = np.random.default_rng(3)
    cells, waits = rng.integers(0, 9, 500), rng.integers(0, 10**9, 500)
    columns = WaitColumns(9)
    columns.extend(cells, waits)
    asked = np.array([7, 2, 4])

    some = columns.only(asked)

    for name in ("count", "total", "maximum", "histogram"):
        assert (getattr(some, name) == getattr(columns, name)[asked]).all()
    assert some.total.tolist() == [int(waits[cells == cell].sum()) for cell in asked]
