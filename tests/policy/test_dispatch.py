"""Dispatch sends a token to a slot that holds its expert, as each rule says."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.policy import dispatch
from moesim.policy.dispatch import LocalFirst, RoundRobinReplica
from moesim.spec.placement import Placement

BOTH = [RoundRobinReplica(), LocalFirst()]


def random_placement(rng, layers, experts, gpus, slots):
    """Return a placement in which every expert has at least one slot."""
    rows = []
    for _ in range(layers):
        spare = rng.integers(0, experts, gpus * slots - experts)
        rows.append(rng.permutation(np.concatenate([np.arange(experts), spare])))
    return Placement(np.stack(rows), gpus)


def random_world(seed):
    rng = np.random.default_rng(seed)
    layers, gpus, slots = int(rng.integers(1, 4)), int(rng.integers(1, 5)), 4
    experts = int(rng.integers(2, gpus * slots + 1))
    placement = random_placement(rng, layers, experts, gpus, slots)
    tokens, top_k = int(rng.integers(0, 12)), int(rng.integers(1, min(experts, 3) + 1))
    ids = np.argsort(rng.random((tokens, layers, experts)), axis=-1)[..., :top_k]
    return placement, ids.astype(np.uint16), rng.integers(0, gpus, tokens)


@pytest.mark.parametrize("role", BOTH)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_slot_holds_the_expert_it_is_chosen_for(role, seed):
    """In every layer, for every choice of every token."""
    placement, ids, source = random_world(seed)

    slots = role.slots(ids, source, placement)

    assert slots.shape == ids.shape
    for layer in range(ids.shape[1]):
        held = placement.phy2log[layer][slots[:, layer]]
        assert (held == ids[:, layer]).all()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_local_first_stays_on_the_gpu_when_it_can(seed):
    """And a source always sends an expert's tokens to the same replica."""
    placement, ids, source = random_world(seed)

    slots = LocalFirst().slots(ids, source, placement)

    chosen = {}
    for token, layer, choice in np.ndindex(ids.shape):
        expert, gpu = int(ids[token, layer, choice]), int(source[token])
        mine = placement.phy2log[layer, 4 * gpu : 4 * gpu + 4]
        slot = int(slots[token, layer, choice])
        if expert in mine:
            assert slot // 4 == gpu
        assert chosen.setdefault((layer, expert, gpu), slot) == slot


def test_without_a_local_replica_sources_take_turns():
    """GPU g takes replica g mod count: two remote replicas get two sources each."""
    placement = Placement(np.array([[0, 1, 0, 1, 2, 3, 2, 3]]), 4)
    ids = np.zeros((4, 1, 1), np.uint16)

    slots = LocalFirst().slots(ids, np.arange(4), placement)

    assert slots[:, 0, 0].tolist() == [0, 2, 0, 2]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_round_robin_goes_by_the_place_in_the_batch(seed):
    """Choice j of token t takes replica (t k + j) mod count of its expert."""
    placement, ids, source = random_world(seed)
    top_k = ids.shape[2]

    slots = RoundRobinReplica().slots(ids, source, placement)

    for token, layer, choice in np.ndindex(ids.shape):
        expert = int(ids[token, layer, choice])
        replicas = np.flatnonzero(placement.phy2log[layer] == expert)
        turn = (token * top_k + choice) % len(replicas)

        assert slots[token, layer, choice] == replicas[turn]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_local_first_takes_the_lowest_slot_of_its_gpu_or_its_turn(seed):
    """The plain rule, choice by choice."""
    placement, ids, source = random_world(seed)

    slots = LocalFirst().slots(ids, source, placement)

    for token, layer, choice in np.ndindex(ids.shape):
        expert, gpu = int(ids[token, layer, choice]), int(source[token])
        replicas = np.flatnonzero(placement.phy2log[layer] == expert)
        mine = [slot for slot in replicas if slot // 4 == gpu]
        expected = mine[0] if mine else replicas[gpu % len(replicas)]

        assert slots[token, layer, choice] == expected


@pytest.mark.parametrize("role", BOTH)
@pytest.mark.parametrize("cells", [1, 7, 30, 1000])
def test_how_many_are_handled_at_once_does_not_show(role, cells, monkeypatch):
    """Whatever the size of a piece, and however the ids lie in memory."""
    rng = np.random.default_rng(cells)
    placement = random_placement(rng, 5, 9, 4, 4)
    ids = rng.integers(0, 9, (40, 5, 3)).astype(np.uint16)
    source = rng.integers(0, 4, 40)
    whole = role.slots(ids, source, placement)
    monkeypatch.setattr(dispatch, "_CELLS", cells)

    assert (role.slots(ids, source, placement) == whole).all()
    assert (role.slots(ids.T.copy().T, source, placement) == whole).all()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_without_a_table_the_turns_are_the_same(seed):
    """A table that would be too large is not made, and changes nothing."""
    placement, ids, source = random_world(seed)
    by_table = RoundRobinReplica().slots(ids, source, placement)

    with patch.object(dispatch, "MOST_ENTRIES", 0):
        assert (RoundRobinReplica().slots(ids, source, placement) == by_table).all()


@pytest.mark.parametrize("tokens", [1, 6, 7, 8])
def test_round_robin_spreads_a_hot_expert_evenly(tokens):
    """Replicas of the one expert of all tokens differ by one token at most."""
    placement = Placement(np.array([[0, 1, 0, 2, 0, 3]]), 3)
    ids = np.zeros((tokens, 1, 1), np.uint16)

    slots = RoundRobinReplica().slots(ids, np.zeros(tokens, int), placement)

    counts = np.bincount(slots.ravel(), minlength=6)[[0, 2, 4]]
    assert counts.sum() == tokens
    assert counts.max() - counts.min() <= 1
