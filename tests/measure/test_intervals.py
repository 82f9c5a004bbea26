"""Intervals cover what they say they cover, and tests alarm as seldom as they say.

Oracles S02 and S03: distribution-free intervals of the 99th percentile.
"""

from math import isnan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student
from scipy.stats import ttest_rel

from moesim.measure.intervals import (
    holm,
    holm_levels,
    paired_difference,
    quantile_interval,
    quantile_ranks,
    replications_needed,
    samples_for_quantile,
    student_interval,
)

SETS = 2000
SLACK = 4 * sqrt(0.05 * 0.95 / SETS)
"""Four standard errors of a share of 0.95 among `SETS`."""
values = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20)
p_values = st.lists(st.floats(1e-9, 1), min_size=1, max_size=12)


@pytest.fixture
def rng():
    return np.random.default_rng(20261129)


def covers(interval, truth):
    return interval[0] <= truth <= interval[1]


def test_student_interval_is_the_textbook_one():
    """Ten values of mean 5 and standard deviation 2: 5 +- 2.262157 * 2 / sqrt(10)."""
    sample = np.linspace(-1, 1, 10)
    sample = 5 + 2 * sample / sample.std(ddof=1)

    reach = 2.262157 * 2 / sqrt(10)
    assert student_interval(sample) == pytest.approx((5 - reach, 5 + reach), rel=1e-6)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_student_interval_covers_as_often_as_it_says(rng, level):
    samples = rng.normal(3.0, 2.0, (SETS, 6))

    share = np.mean([covers(student_interval(row, level), 3.0) for row in samples])
    assert share == pytest.approx(level, abs=4 * sqrt(level * (1 - level) / SETS))


@pytest.mark.parametrize("sample", [[], [1.0], [1.0, float("nan")], [1.0, np.inf]])
def test_too_little_gives_no_interval(sample):
    assert all(isnan(end) for end in student_interval(sample))


def test_equal_values_have_an_interval_of_no_width():
    """0.1 has no exact double: a careless mean would show 1e-17 of spread."""
    low, high = student_interval([0.1] * 7)

    assert low == high == pytest.approx(0.1)


@given(values, st.data())
def test_paired_difference_is_the_paired_t_test(before, data):
    """Against SciPy's."""
    size = len(before)
    after = data.draw(st.lists(st.floats(-1e6, 1e6), min_size=size, max_size=size))
    gaps = np.subtract(after, before)
    if np.ptp(gaps) <= 1e-3 or (np.abs(gaps) < 1e-3).any():
        return  # SciPy has no answer without spread
    ours, theirs = paired_difference(after, before), ttest_rel(after, before)

    assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-6)
    theirs_interval = tuple(theirs.confidence_interval(0.95))
    assert ours.interval() == pytest.approx(theirs_interval, rel=1e-6, abs=1e-9)


@given(values)
def test_the_same_runs_do_not_differ(sample):
    found = paired_difference(sample, sample)

    assert (found.mean, found.p_value, found.interval()) == (0.0, 1.0, (0.0, 0.0))


def test_rounding_is_no_difference():
    """The same work summed in another order is the same work."""
    before = np.array([0.1, 0.7, 1.3, 2.9])

    assert (
        paired_difference(before * (1 + 2e-16 * np.arange(1, 5)), before).p_value == 1
    )


def test_a_difference_without_spread_is_certain():
    found = paired_difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])

    assert (found.mean, found.p_value, found.interval(0.999)) == (2.0, 0.0, (2.0, 2.0))


@pytest.mark.parametrize(("after", "before"), [([], []), ([1.0, np.nan], [1.0, 2.0])])
def test_missing_values_give_no_difference(after, before):
    found = paired_difference(after, before)

    assert isnan(found.mean)
    assert isnan(found.p_value)


def test_one_pair_has_a_difference_but_no_interval():
    found = paired_difference([3.0], [1.0])

    assert found.mean == 2.0
    assert all(isnan(end) for end in found.interval())


@pytest.mark.parametrize(
    ("n", "ranks"),
    [(1000, (983, 997)), (10_000, (9880, 9920)), (100_000, (98_938, 99_062))],
)
def test_ranks_around_the_99th_percentile(n, ranks):
    """Oracle S03."""
    assert quantile_ranks(n, 0.99) == ranks


def test_samples_that_bracket_the_99th_percentile():
    """Oracle S02: 368 are enough on both sides, 367 are not."""
    assert samples_for_quantile(0.99) == 368
    assert quantile_ranks(368, 0.99) is not None
    assert quantile_ranks(367, 0.99) is None


@given(st.floats(0.02, 0.98), st.sampled_from([0.5, 0.9, 0.99]))
def test_samples_for_quantile_are_the_fewest(share, level):
    n = samples_for_quantile(share, level)

    assert quantile_ranks(n, share, level) is not None
    assert quantile_ranks(n - 1, share, level) is None


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_quantile_interval_covers_at_least_as_often_as_it_says(rng, share):
    """Whatever the law; ranks are whole, so it may be a little more often."""
    samples = rng.exponential(1.0, (SETS, 500))

    hits = np.mean(
        [covers(quantile_interval(x, share), -np.log(1 - share)) for x in samples]
    )
    assert 0.95 - SLACK <= hits <= 0.985


def test_quantile_interval_takes_its_ranks_from_sorted_values(rng):
    """Of 1 to 1000 in any order, the ranks are the values."""
    assert quantile_interval(rng.permutation(1000) + 1.0, 0.99) == (983.0, 997.0)


def test_too_few_values_have_no_quantile_interval():
    assert all(isnan(end) for end in quantile_interval(np.arange(100.0), 0.99))


def test_holm_follows_its_steps():
    """Worked by hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, then never less than before."""
    adjusted = holm([0.01, 0.04, 0.03, 0.005])

    assert adjusted == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(p_values)
def test_levels_reject_what_holm_rejects(p):
    """A test is rejected exactly when its p-value is within its interval's level."""
    levels = holm_levels(p)

    rejected = np.array(p) <= (1 - levels) * (1 + 1e-12)
    assert rejected.tolist() == (holm(p) <= 0.05 * (1 + 1e-12)).tolist()


def test_holm_stops_at_the_first_test_it_keeps():
    """0.04 is within 5 %, but 0.03 is not within 2.5 %: neither is rejected."""
    assert holm_levels([0.04, 0.03]) == pytest.approx([0.975, 0.975])
    assert holm_levels([0.04, 0.02]) == pytest.approx([0.95, 0.975])


@given(p_values)
def test_levels_lie_between_one_test_and_all(p):
    levels = holm_levels(p)

    assert (levels >= 0.95 - 1e-12).all()
    assert (levels <= 1 - 0.05 / len(p) + 1e-12).all()


@given(st.floats(0.01, 100), st.floats(0.1, 50), st.sampled_from([0.9, 0.95, 0.999]))
def test_replications_needed_are_the_fewest(spread, width, level):
    """One run fewer and the interval is too wide."""
    n = replications_needed(spread, width, level)

    def reach(runs):
        return student.ppf((1 + level) / 2, runs - 1) * spread / sqrt(runs)

    assert reach(n) <= width * (1 + 1e-9)
    assert n == 2 or reach(n - 1) > width * (1 - 1e-9)


def test_no_spread_needs_two_replications():
    assert replications_needed(0.0, 0.1) == 2


def test_hopeless_precision_ends_at_the_limit():
    assert replications_needed(1e9, 1e-9) == 10**9


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan")])
def test_no_width_is_an_error_of_the_caller(width):
    with pytest.raises(ValueError, match="above 0"):
        replications_needed(1.0, width)
