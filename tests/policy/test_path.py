"""Predictors learn what has passed, and look ahead only as well as they say."""

import numpy as np
import pytest

from moesim.policy.path import (
    TRUST,
    EvenSpread,
    Lookahead,
    Popularity,
    Seen,
    Watched,
    by_expert,
    on_slots,
    predictor_of,
    seen_of,
)
from moesim.policy.view import Foresight
from moesim.routing.by_class import ByClass
from moesim.routing.source import TokenKeys, count
from moesim.spec.placement import Placement

SOURCE = ByClass(3, 16, 2, classes=2, concentration=0.3, seed=5)


def keys(tokens, klass=0, request=0):
    every = np.arange(tokens)
    return TokenKeys(np.full(tokens, request), np.full(tokens, klass), every)


def truth(asked):
    return count(SOURCE.route(asked), 16)


def learnt(predictor, tokens=4000):
    for klass in (0, 1):
        asked = keys(tokens, klass, request=9 + klass)
        predictor.learn(seen_of(SOURCE.route(asked), asked.klass, 2, 16))
    return predictor


@pytest.mark.parametrize("name", ["uniform", "global", "by_class", "lookahead"])
def test_every_predictor_conserves_tokens(name):
    """Over a layer the experts' tokens sum to tokens x k, before and after learning."""
    foresight = Foresight("predicted", name, hit_rate=0.5)
    predictor = predictor_of(foresight, SOURCE, 2, 1)

    for _ in range(2):
        total = predictor.expect(keys(50, 1)).sum(axis=1)
        np.testing.assert_allclose(total, 100)
        learnt(predictor)


def test_nothing_seen_is_even():
    even = EvenSpread(SOURCE).expect(keys(32))

    np.testing.assert_allclose(even, 4.0)
    for name in ("global", "by_class"):
        fresh = predictor_of(Foresight("predicted", name), SOURCE, 2, 0)
        np.testing.assert_allclose(fresh.expect(keys(32)), even)


def test_by_class_learns_each_class_and_global_their_mean():
    """After many tokens: near the truth of the class, or of both together."""
    tokens = 4000
    own, other = (truth(keys(tokens, klass, 50 + klass)) for klass in (0, 1))
    by_class = learnt(Popularity(SOURCE, 2))
    both = learnt(Popularity(SOURCE, 1))

    def error(found, wanted):
        return np.abs(found - wanted).sum() / wanted.sum()

    assert error(by_class.expect(keys(tokens, 0)), own) < 0.08
    assert error(by_class.expect(keys(tokens, 1)), other) < 0.08
    assert error(both.expect(keys(tokens, 0)), (own + other) / 2) < 0.08
    assert error(both.expect(keys(tokens, 0)), own) > 0.3


def test_a_class_not_seen_is_like_all_together():
    seen = np.zeros((2, 1, 4), int)
    seen[0, 0] = [600, 0, 0, 0]
    source = ByClass(1, 4, 1, classes=2)
    popularity = Popularity(source, 2)
    popularity.learn(Seen(seen))

    together = (600 + TRUST / 4) / (600 + TRUST)
    assert popularity.shares[1, 0, 0] == pytest.approx(together)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
def test_a_lookahead_is_right_as_often_as_it_says(rate):
    """Hit rate 1 is the truth, 0 popularity; between, in proportion."""
    asked = keys(3000, 0)
    found = learnt(Lookahead(SOURCE, rate, 7)).expect(asked)
    blind = learnt(Lookahead(SOURCE, 0.0, 7)).expect(asked)
    wanted = rate * truth(asked) + (1 - rate) * blind

    assert np.abs(found - wanted).max() < 5 * 3000**0.5
    if rate in (0.0, 1.0):
        assert (found == wanted).all()


def test_a_lookahead_guesses_each_token_alike_in_any_batch():
    asked = keys(40, 1, request=3)
    predictor = learnt(Lookahead(SOURCE, 0.5, 7))
    parts = [
        TokenKeys(asked.request[part], asked.klass[part], asked.position[part])
        for part in (slice(0, 13), slice(13, 40))
    ]

    whole = predictor.expect(asked)

    assert (whole == sum(predictor.expect(part) for part in parts)).all()


def test_knowledge_beats_the_predictors_name():
    """Counts and present guess evenly; an oracle is an oracle."""
    for knowledge in ("counts", "present"):
        made = predictor_of(Foresight(knowledge, "oracle"), SOURCE, 2, 0)
        assert isinstance(made, EvenSpread)
    oracle = predictor_of(Foresight("oracle", "global"), SOURCE, 2, 0)
    assert (oracle.expect(keys(20)) == truth(keys(20))).all()


def test_replicas_share_and_slots_add_up_again():
    """Slots are GPU-major; what replicas get is what their experts had."""
    placement = Placement(np.array([[0, 1, 2, 3, 0, 1]]), 2)
    slots = on_slots(np.array([[4.0, 6.0, 1.0, 3.0]]), placement)

    assert slots.tolist() == [[[2.0, 3.0], [3.0, 2.0], [1.0, 3.0]]]
    assert by_expert(slots.astype(int), placement).total.tolist() == [[4, 6, 1, 3]]


def test_a_watched_source_tells_what_it_routed_once():
    watched = Watched(SOURCE, 2)
    asked = TokenKeys(np.zeros(8, int), np.array([0, 1] * 4), np.arange(8))
    ids = watched.route(asked)

    seen = watched.take()
    assert (seen.by_class[1] == count(ids[1::2], 16)).all()
    assert watched.take() is None
