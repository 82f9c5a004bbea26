"""Lengths are whole numbers of tokens, as their law says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.streams import stream
from moesim.workload.lengths import (
    LENGTHS,
    ConstantLength,
    EmpiricalLength,
    GeometricLength,
    LogLength,
    LognormalLength,
    NormalLength,
    TraceLength,
    UniformLength,
    lengths,
)

MANY = 40_000
LAWS = {
    "constant": ConstantLength(7),
    "uniform": UniformLength(3, 9),
    "normal": NormalLength(20.0, 30.0, max=64),
    "lognormal": LognormalLength(mean=500.0, cv=1.5),
    "median": LognormalLength(median=500.0, sigma=1.0, min=16, max=4096),
    "geometric": GeometricLength(4.0),
    "empirical": EmpiricalLength([5, 1, 9]),
    "trace": TraceLength(np.arange(1, MANY + 1)),
}

every_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


def draw(law, n=MANY, seed=0):
    return law.draw(n, stream(seed, "lengths"))


@every_law
def test_lengths_are_whole_and_at_least_one(law):
    found = draw(law)

    assert found.shape == (MANY,)
    assert found.dtype == np.int64
    assert found.min() >= 1


@every_law
@given(short=st.integers(1, 60), seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_more_requests_leave_the_earlier_ones_alone(law, short, seed):
    assert draw(law, 60, seed)[:short].tolist() == draw(law, short, seed).tolist()


def test_uniform_takes_every_value_equally_often_with_both_ends():
    """Each of 7 values: n/7 within four standard deviations."""
    values, counts = np.unique(draw(UniformLength(3, 9)), return_counts=True)

    assert values.tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert np.abs(counts - MANY / 7).max() < 4 * (MANY * 6 / 49) ** 0.5


def test_normal_has_its_mean_and_spread():
    found = draw(NormalLength(1000.0, 50.0))

    assert found.mean() == pytest.approx(1000, abs=4 * 50 / MANY**0.5)
    assert found.std() == pytest.approx(50, rel=0.02)


def test_values_beyond_a_bound_become_the_bound():
    """P(X < 46.5) is P(Z < -0.35): that much is rounded or clipped to 46."""
    found = draw(NormalLength(50.0, 10.0, min=46, max=54))

    assert (found.min(), found.max()) == (46, 54)
    assert (found == 46).mean() == pytest.approx(0.3632, abs=0.01)


def test_lognormal_has_its_mean_and_variation():
    found = draw(LognormalLength(mean=500.0, cv=0.5))

    assert found.mean() == pytest.approx(500, rel=4 * 0.5 / MANY**0.5)
    assert found.std() / found.mean() == pytest.approx(0.5, rel=0.03)


def test_lognormal_has_its_median_and_sigma():
    found = draw(LognormalLength(median=500.0, sigma=0.8))

    assert np.median(found) == pytest.approx(500, rel=0.02)
    assert np.log(found).std() == pytest.approx(0.8, rel=0.02)


def test_the_two_ways_to_say_a_lognormal_agree():
    """``mean = median exp(sigma^2 / 2)`` and ``cv^2 = exp(sigma^2) - 1``."""
    mean, cv = 300 * np.exp(0.7**2 / 2), np.sqrt(np.exp(0.7**2) - 1)

    assert LognormalLength(mean=mean, cv=cv).shape == pytest.approx((300, 0.7))


def test_geometric_stops_after_each_token_with_one_probability():
    """P(length = 1) is ``1 / mean``, and the mean is the mean."""
    found = draw(GeometricLength(4.0))

    assert found.mean() == pytest.approx(4.0, rel=0.02)
    assert (found == 1).mean() == pytest.approx(0.25, abs=0.01)


def test_empirical_draws_with_replacement():
    values, counts = np.unique(draw(EmpiricalLength([5, 1, 9, 9])), return_counts=True)

    assert values.tolist() == [1, 5, 9]
    assert counts / MANY == pytest.approx([0.25, 0.25, 0.5], abs=0.01)


def test_a_trace_keeps_its_order():
    assert draw(TraceLength([5, 1, 9]), 2).tolist() == [5, 1]


def test_a_trace_too_short_is_refused():
    with pytest.raises(InputError, match="4 requests asked, but only 3"):
        draw(TraceLength([5, 1, 9]), 4)


def test_a_law_keeps_its_own_copy():
    """Whoever gave the array may go on using it."""
    values = np.array([5, 1, 9])
    law = TraceLength(values)
    values[0] = 77

    assert draw(law, 1).tolist() == [5]


def test_lengths_of_a_log_need_a_log():
    with pytest.raises(InputError, match="need a routing log"):
        draw(LogLength(), 1)


@pytest.mark.parametrize("value", [512, np.int64(512)])
def test_a_bare_number_is_that_constant(value):
    assert lengths(value) == ConstantLength(512)


@pytest.mark.parametrize("value", [True, "512", 5.0, None, 0])
def test_what_is_no_length_is_refused(value):
    with pytest.raises(InputError, match="expected a whole number"):
        lengths(value)


@pytest.mark.parametrize(
    ("name", "given_", "keys"),
    [
        ("constant", {"value": 0}, ["value"]),
        ("constant", {"value": 2.5}, ["value"]),
        ("uniform", {"min": 9, "max": 3}, ["max"]),
        ("uniform", {"min": 0, "max": "x"}, ["min", "max"]),
        ("normal", {"mean": float("nan"), "std": -1}, ["mean", "std"]),
        ("geometric", {"mean": 0.5}, ["mean"]),
        ("lognormal", {"mean": 5.0}, [""]),
        ("lognormal", {"mean": 5.0, "sigma": 1.0}, [""]),
        ("lognormal", {"mean": 5.0, "cv": 1.0, "median": 3.0}, [""]),
        ("lognormal", {"median": 0.0, "sigma": 1e9}, ["median", "sigma"]),
        ("empirical", {"values": []}, ["values"]),
        ("empirical", {"values": [3, 0]}, ["values"]),
        ("empirical", {"values": [3.0]}, ["values"]),
        ("empirical", {"values": [[1], [2, 3]]}, ["values"]),
        ("trace", {"values": [10**30]}, ["values"]),
    ],
)
def test_bad_parameters_are_told_by_key(name, given_, keys):
    with pytest.raises(InputError) as caught:
        LENGTHS[name](**given_)

    assert [problem.key for problem in caught.value.problems] == keys


def test_an_unbelievable_draw_is_clipped_not_wrapped():
    """exp of a large number is beyond any integer."""
    found = draw(LognormalLength(median=1e9, sigma=100.0))

    assert found.min() >= 1
    assert found.max() == 1_000_000_000
