"""Each class has its own favourites, as the Dirichlet law says."""

import numpy as np
import pytest

from moesim.errors import InputError
from moesim.routing.by_class import ByClass
from moesim.routing.source import TokenKeys, count

SIZES = (4, 32, 2)


def keys(tokens, klass):
    every = np.arange(tokens)
    return TokenKeys(np.full(tokens, klass), np.full(tokens, klass), every)


def test_first_choices_follow_the_popularity_of_the_class():
    """5000 tokens of one expert each: within five standard deviations."""
    source = ByClass(4, 32, 1, classes=3, seed=2)
    for klass in range(3):
        share = count(source.route(keys(5000, klass)), 32) / 5000
        wanted = source.popularity[klass]
        assert (np.abs(share - wanted) < 5 * np.sqrt(wanted / 5000) + 1e-3).all()


def test_classes_differ_and_repeat():
    source = ByClass(*SIZES, classes=2)
    same = source.route(keys(50, 0)), ByClass(*SIZES, classes=2).route(keys(50, 0))

    assert (same[0] == same[1]).all()
    assert not (source.popularity[0] == source.popularity[1]).any()
    assert (source._rows(keys(1, 2)) == source._rows(keys(1, 0))).all()


@pytest.mark.parametrize("concentration", [0.01, 0.5, 100.0])
def test_concentration_sets_how_uneven_experts_are(concentration):
    """The variance of a share is (1/E)(1-1/E) / (E c + 1)."""
    source = ByClass(64, 32, 2, classes=64, concentration=concentration)
    variance = source.popularity.var()

    assert variance == pytest.approx(
        1 / 32 * (31 / 32) / (32 * concentration + 1), rel=0.1
    )


@pytest.mark.parametrize(
    "bad", [{"classes": 0}, {"concentration": 0}, {"classes": 1.5}]
)
def test_senseless_parameters_are_refused(bad):
    (name,) = bad
    with pytest.raises(InputError, match=name):
        ByClass(*SIZES, **bad)
