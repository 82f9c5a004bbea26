"""Requests arrive as their law says, and earlier ones do not depend on later ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from moesim.errors import InputError
from moesim.streams import stream
from moesim.workload.arrivals import (
    ARRIVALS,
    BatchArrivals,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from moesim.workload.traces import Trace

MANY = 40_000
TRACE = Trace(np.array([0.0, 1.0, 1.0, 5.0]), np.full(4, 8), np.full(4, 2))
LAWS = {
    "poisson": PoissonArrivals(3.0),
    "bursty": GammaArrivals(3.0, 0.25),
    "steady": GammaArrivals(3.0, 9.0),
    "constant": ConstantArrivals(3.0),
    "batch": BatchArrivals(),
    "trace": TraceArrivals(TRACE, speedup=2.0),
}

every_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


def times(law, n, seed=0):
    return law.times(n, stream(seed, "arrivals"))


def gaps(law):
    return np.diff(times(law, MANY), prepend=0.0)


@every_law
def test_times_ascend_from_zero_on(law):
    found = times(law, 4)

    assert found.shape == (4,)
    assert found.dtype == np.float64
    assert found[0] >= 0
    assert (np.diff(found) >= 0).all()


@every_law
@given(short=st.integers(1, 4), seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_more_requests_leave_the_earlier_ones_alone(law, short, seed):
    """The first of a longer run are the shorter run, to the bit."""
    assert times(law, 4, seed)[:short].tolist() == times(law, short, seed).tolist()


@pytest.mark.parametrize("name", ["poisson", "bursty", "steady", "constant"])
def test_the_mean_gap_is_one_over_the_rate(name):
    """Within four standard errors of the steepest law (cv 2)."""
    assert gaps(LAWS[name]).mean() == pytest.approx(1 / 3, rel=4 * 2 / MANY**0.5)


def test_the_first_request_waits_for_its_gap_too():
    """The process does not begin with an arrival: over seeds, its mean is a gap's."""
    first = [times(PoissonArrivals(3.0), 1, seed)[0] for seed in range(400)]

    assert np.mean(first) == pytest.approx(1 / 3, rel=4 / 400**0.5)


def test_poisson_gaps_are_exponential():
    """Kolmogorov-Smirnov: the whole law, not only its mean."""
    assert kstest(gaps(PoissonArrivals(3.0)), "expon", args=(0, 1 / 3)).pvalue > 0.01


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 1.0, 4.0])
def test_gamma_gaps_have_squared_variation_one_over_burstiness(burstiness):
    """As vLLM means it: the shape of the gaps, less is burstier."""
    found = gaps(GammaArrivals(3.0, burstiness))

    assert kstest(found * 3 * burstiness, "gamma", args=(burstiness,)).pvalue > 0.01
    assert found.var() / found.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.06)


def test_gamma_of_burstiness_one_is_poisson():
    """Not only in law: the same seed gives the same times."""
    gamma = times(GammaArrivals(3.0, 1.0), 100)

    np.testing.assert_allclose(gamma, times(PoissonArrivals(3.0), 100), rtol=1e-12)


def test_another_rate_is_the_same_traffic_on_another_clock():
    slow, fast = times(PoissonArrivals(2.0), 50), times(PoissonArrivals(4.0), 50)

    np.testing.assert_allclose(slow, 2 * fast, rtol=1e-12)


def test_constant_arrivals_start_at_zero_and_keep_their_gap():
    assert times(ConstantArrivals(4.0), 4).tolist() == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("law", [PoissonArrivals, GammaArrivals, ConstantArrivals])
def test_an_infinite_rate_is_all_at_zero(law):
    assert not times(law(np.inf), 5).any()


def test_a_batch_is_all_at_zero():
    assert times(BatchArrivals(), 3).tolist() == [0.0, 0.0, 0.0]


def test_a_trace_is_replayed_that_many_times_faster():
    assert times(TraceArrivals(TRACE, speedup=2.0), 4).tolist() == [0, 0.5, 0.5, 2.5]


@given(n=st.integers(3, 4), rate=st.floats(0.01, 1000))
@settings(max_examples=25, deadline=None)
def test_a_trace_at_a_rate_has_exactly_that_mean_rate(n, rate):
    """Of the requests taken, however many: ``(n - 1)`` gaps over their sum."""
    found = times(TraceArrivals(TRACE, request_rate=rate), n)

    assert (n - 1) / (found[-1] - found[0]) == pytest.approx(rate, rel=1e-12)


def test_a_trace_too_short_is_refused():
    with pytest.raises(InputError, match="5 requests asked, but the trace has 4"):
        times(TraceArrivals(TRACE), 5)


def test_a_trace_takes_one_pace_only():
    with pytest.raises(InputError, match="either speedup or request_rate"):
        TraceArrivals(TRACE, speedup=2.0, request_rate=3.0)


@pytest.mark.parametrize(
    "rate",
    [0, -1, float("nan"), -np.inf, "3", None, True, 1e-9, 10**5000],
    ids=["0", "-1", "nan", "-inf", "text", "none", "true", "rare", "huge"],
)
@pytest.mark.parametrize("name", ["poisson", "gamma", "constant"])
def test_a_bad_rate_is_refused_by_its_key(name, rate):
    with pytest.raises(InputError) as caught:
        ARRIVALS[name](rate)

    assert [problem.key for problem in caught.value.problems] == ["request_rate"]


def test_every_mistake_is_told_at_once():
    with pytest.raises(InputError) as caught:
        GammaArrivals(-1.0, 0.0)

    assert [p.key for p in caught.value.problems] == ["request_rate", "burstiness"]


def test_every_law_has_its_name():
    assert list(ARRIVALS) == ["poisson", "gamma", "constant", "batch", "trace"]
