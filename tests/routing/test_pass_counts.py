"""Counts of a pass: whole tokens, each expert's own law, and the spread of the busiest."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from moesim.errors import InputError
from moesim.routing.catalogue import SOURCES
from moesim.routing.inclusion import group_inclusion, inclusion
from moesim.routing.pass_counts import PassCounts
from moesim.routing.source import TokenKeys, count
from moesim.routing.synthetic import Lognormal, RushHour, Uniform, Zipf

SIZES = {"layers": 2, "experts": 64, "top_k": 6}


def counts_of(weights, k, groups=1, top_groups=1, seed=0):
    return PassCounts(
        inclusion(weights, k, groups, top_groups),
        group_inclusion(weights, groups, top_groups),
        seed,
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    number=st.integers(0, 10**6),
    tokens=st.integers(1, 3000),
    shape=st.sampled_from([(1, 1), (4, 2), (8, 4), (4, 4)]),
    sigma=st.sampled_from([0.0, 1.0, 6.0]),
)
def test_every_token_is_counted_k_times(seed, number, tokens, shape, sigma):
    """Each layer sums to T k, no expert has fewer than none or more than all."""
    rng = np.random.default_rng(seed)
    weights = np.exp(sigma * rng.standard_normal((3, 16)))

    counts = counts_of(weights, 4, *shape, seed=seed).draw(number, tokens)

    assert counts.shape == (3, 16)
    assert (counts.sum(axis=1) == 4 * tokens).all()
    assert counts.min() >= 0
    assert counts.max() <= tokens


def test_a_pass_is_told_by_its_number_and_the_seed():
    """The same number gives the same counts; another number or seed gives others."""
    weights = np.ones((2, 64))
    one, other = counts_of(weights, 6, seed=1), counts_of(weights, 6, seed=2)

    assert (one.draw(7, 500) == counts_of(weights, 6, seed=1).draw(7, 500)).all()
    assert (one.draw(7, 500) != one.draw(8, 500)).any()
    assert (one.draw(7, 500) != other.draw(7, 500)).any()


@pytest.mark.parametrize("tokens", [150, 2000])
def test_each_expert_has_its_binomial_law(tokens):
    """Mean and variance within noise, and the whole distribution of hot and cold."""
    weights = np.random.default_rng(3).lognormal(0, 1, (1, 64))
    counts = counts_of(weights, 6)
    chance = inclusion(weights, 6)[0]

    drawn = np.stack([counts.draw(number, tokens)[0] for number in range(4000)])

    spread = np.sqrt(tokens * chance * (1 - chance))
    z = (drawn.mean(axis=0) - tokens * chance) / (spread / np.sqrt(len(drawn)))
    assert np.abs(z).max() < 4.2
    np.testing.assert_allclose(drawn.std(axis=0) / spread, 1.0, atol=0.06)
    for expert in (int(chance.argmax()), int(chance.argmin())):
        law = stats.binom(tokens, chance[expert])
        edges = np.unique(law.ppf(np.linspace(0.1, 0.9, 9)))
        seen = np.bincount(np.searchsorted(edges, drawn[:, expert]), minlength=10)
        shares = np.diff(law.cdf(edges), prepend=0.0, append=1.0)
        seen = seen[: len(shares)]
        distance = np.abs(np.cumsum(seen / len(drawn) - shares)).max()
        assert distance < 0.035


@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (8, 4)])
@pytest.mark.parametrize(
    "source",
    [
        Uniform(**SIZES),
        Zipf(**SIZES, exponent=0.8),
        Lognormal(**SIZES, sigma=1.0),
    ],
    ids=lambda source: type(source).__name__,
)
def test_the_busiest_rank_is_as_busy_as_with_tokens(source, groups, top_groups):
    """Max over mean of 8 ranks: the mean within 1 %, its 99th percentile within 4 %.

    The 4 % are two steps of the ratio at 200 tokens, and the noise of 1,500 passes.
    """
    source = type(source)(
        **SIZES,
        groups=groups,
        top_groups=top_groups,
        seed=3,
        **{
            key: getattr(source, key)
            for key in ("exponent", "sigma")
            if hasattr(source, key)
        },
    )
    passes, tokens = 1500, 200
    request = np.repeat(np.arange(passes), tokens)
    position = np.tile(np.arange(tokens), passes)
    ids = source.route(TokenKeys(request, 0 * request, position))
    routed = np.stack(
        [count(ids[i * tokens : (i + 1) * tokens], 64) for i in range(passes)]
    )
    counts = source.pass_counts()
    drawn = np.stack([counts.draw(number, tokens) for number in range(passes)])

    def busiest(loads):
        ranks = loads.reshape(passes, 2, 8, 8).sum(axis=3)
        return ranks.max(axis=2) / ranks.mean(axis=2)

    ours, theirs = busiest(drawn), busiest(routed)
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), rtol=0.01)
    high = [np.quantile(each, 0.99, axis=0) for each in (ours, theirs)]
    np.testing.assert_allclose(*high, rtol=0.04)


@pytest.mark.parametrize("name", ["latent", "rush_hour"])
def test_counts_need_tokens_that_are_drawn_alike(name):
    """A source whose requests differ says so."""
    options = {"hot": ((0, 1),)} if SOURCES[name] is RushHour else {}

    with pytest.raises(InputError, match="counts need tokens that are all drawn alike"):
        SOURCES[name](**SIZES, draw="counts", **options)


def test_a_draw_is_one_of_two_words():
    """Anything else is named, with what is expected."""
    with pytest.raises(InputError, match="expected tokens or counts"):
        Uniform(**SIZES, draw="count")
