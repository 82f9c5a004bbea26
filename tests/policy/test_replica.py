"""Which copy takes a token: slots are right, shares are level, the optimum is one."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.policy.dispatch import DISPATCHES, RoundRobinReplica
from moesim.policy.replica import (
    LeastLoaded,
    LinearProgram,
    RandomReplica,
    least_maximum,
    levelled,
)
from moesim.policy.shares import Copies, deal, level, turns, whole
from moesim.spec.placement import Placement


def random_world(seed, most_tokens=40):
    """Return a placement with copies anywhere, ids of skewed popularity, sources."""
    rng = np.random.default_rng(seed)
    layers, gpus = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    width = int(rng.integers(1, 5))
    slots = gpus * width
    experts = int(rng.integers(1, slots + 1))
    every = np.tile(np.arange(experts), (layers, 1))
    spare = rng.integers(0, experts, (layers, slots - experts))
    rows = rng.permuted(np.concatenate([every, spare], axis=1), axis=1)
    tokens, top_k = int(rng.integers(0, most_tokens)), int(rng.integers(1, 4))
    score = rng.random((tokens, layers, experts)) * rng.lognormal(0, 1, experts)
    ids = np.argsort(-score, axis=-1)[..., :top_k].astype(np.uint16)
    return Placement(rows, gpus), ids, rng.integers(0, gpus, tokens)


def gpu_counts(slots, placement):
    """Return ``(L, G)``: tokens of each GPU."""
    gpu = slots // placement.slots_per_gpu
    return np.stack(
        [
            np.bincount(gpu[:, layer].ravel(), minlength=placement.gpus)
            for layer in range(gpu.shape[1])
        ]
    )


@pytest.mark.parametrize("name", DISPATCHES)
@settings(max_examples=80)
@given(seed=st.integers(0, 10**6))
def test_a_slot_holds_the_expert_it_is_chosen_for(name, seed):
    """Whatever the choice, the work is the same: each token meets its own experts."""
    placement, ids, source = random_world(seed)

    slots = DISPATCHES[name]().slots(ids, source, placement)

    assert slots.shape == ids.shape
    layer = np.arange(ids.shape[1])[None, :, None]
    assert (placement.phy2log[layer, slots] == ids).all()


@pytest.mark.parametrize("name", ["random", "least_loaded", "lp"])
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_the_batch_does_not_matter(name, seed):
    """GPUs get the same numbers of tokens; by chance, each token even the same slots."""
    placement, ids, source = random_world(seed)
    order = np.random.default_rng(seed).permutation(len(ids))
    role = DISPATCHES[name]()

    slots = role.slots(ids, source, placement)
    again = role.slots(ids[order], source[order], placement)

    assert (gpu_counts(slots, placement) == gpu_counts(again, placement)).all()
    flat = ids.reshape(len(ids), ids.shape[1] * ids.shape[2])
    words = np.concatenate([flat, source[:, None]], axis=1)
    if name == "random" and len(np.unique(words, axis=0)) == len(words):
        assert (slots[order] == again).all()


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=5
    ).filter(lambda cells: any(usable for _, usable in cells)),
    st.integers(0, 20),
)
def test_water_finds_its_level(cells, tokens):
    """All of it is poured, and wherever it went is at most 1 above any other place."""
    load = np.array([[height for height, _ in cells]])
    usable = np.array([[free for _, free in cells]])

    poured = level(load, np.array([tokens]), usable)

    assert poured.sum() == tokens
    assert (poured >= 0).all()
    assert not poured[~usable].any()
    if tokens:
        after = load + poured
        assert after[poured > 0].max() <= after[usable].min() + 1


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6))
def test_busiest_gpus_by_rule(seed):
    """Linear program <= least loaded <= even split, layer by layer."""
    placement, ids, _ = random_world(seed, most_tokens=120)
    copies = Copies(ids, placement)
    shares, least = least_maximum(copies)

    level_ = copies.gpu_load(levelled(copies)).max(axis=1)
    even = copies.gpu_load(copies.even()).max(axis=1)

    assert (least <= level_ + 1e-6).all()
    assert (level_ <= even).all()
    np.testing.assert_allclose(shares.sum(axis=2), copies.tokens, atol=1e-6)
    np.testing.assert_allclose(copies.gpu_load(shares).max(axis=1), least, atol=1)


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6))
def test_no_choice_beats_the_linear_program(seed):
    """And whole tokens cost it at most one for each slot of a GPU."""
    placement, ids, source = random_world(seed, most_tokens=120)
    _, least = least_maximum(Copies(ids, placement))

    for kind in DISPATCHES.values():
        slots = kind().slots(ids, source, placement)
        busiest = gpu_counts(slots, placement).max(axis=1)
        assert (busiest >= least - 1e-6).all()
    slots = LinearProgram().slots(ids, source, placement)
    busiest = gpu_counts(slots, placement).max(axis=1)
    assert (busiest <= least + placement.slots_per_gpu).all()


def best_of_all(copies):
    """Return the least load of the busiest GPU in layer 0: every split is tried."""
    ways = []
    for tokens, gpus, usable in zip(
        copies.tokens[0], copies.gpu[0], copies.usable[0], strict=True
    ):
        places = gpus[usable].tolist()
        every = product(range(tokens + 1), repeat=len(places))
        ways.append([(places, s) for s in every if sum(s) == tokens])
    best = np.inf
    for choice in product(*ways):
        load = np.zeros(copies.gpus)
        for places, split in choice:
            load[places] += split
        best = min(best, load.max())
    return best


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_tiny_batches_are_dealt_as_well_as_can_be(seed):
    """Whole tokens: the optimum is the linear program's, rounded up."""
    rng = np.random.default_rng(seed)
    placement = Placement(np.array([rng.permutation([0, 1, 2, 0, 1, 2])]), 3)
    ids = rng.choice(3, (7, 1, 1), p=[0.6, 0.3, 0.1]).astype(np.uint16)
    copies = Copies(ids, placement)

    best = best_of_all(copies)

    _, least = least_maximum(copies)
    assert best == np.ceil(least[0] - 1e-6)
    assert copies.gpu_load(levelled(copies)).max() <= best + 1


def test_a_hot_expert_avoids_the_gpu_that_is_busy_anyway():
    """GPU 0 has 6 tokens of expert 1 alone: the 6 of expert 0 go to its other copy."""
    placement = Placement(np.array([[0, 1, 0, 2]]), 2)
    ids = np.array([1] * 6 + [0] * 6, np.uint16).reshape(12, 1, 1)
    source = np.zeros(12, int)

    for role in (LeastLoaded(), LinearProgram()):
        counts = gpu_counts(role.slots(ids, source, placement), placement)
        assert counts.tolist() == [[6, 6]]
    counts = gpu_counts(RoundRobinReplica().slots(ids, source, placement), placement)
    assert counts.tolist() == [[9, 3]]


def test_two_copies_on_one_gpu_relieve_nobody():
    """The second one stays empty."""
    placement = Placement(np.array([[0, 0, 0, 1]]), 2)
    copies = Copies(np.zeros((9, 1, 1), np.uint16), placement)

    assert copies.usable[0, 0].tolist() == [True, False, True]
    assert levelled(copies)[0, 0].tolist() == [5, 0, 4]
    assert copies.even()[0, 0].tolist() == [5, 0, 4]


def test_shares_are_rounded_by_largest_remainder():
    """3.5, 3.5, 0: of equal remainders the first gets the token."""
    shares = np.array([[[3.5, 3.5, 0.0], [1.2, 0.9, 0.9]]])

    assert whole(shares, np.array([[7, 3]])).tolist() == [[[4, 3, 0], [1, 1, 1]]]


def test_tokens_are_dealt_in_the_order_of_the_batch():
    placement = Placement(np.array([[0, 1, 0, 2]]), 2)
    ids = np.array([0, 2, 0, 0, 1], np.uint16).reshape(5, 1, 1)
    shares = np.array([[[1, 2], [1, 0], [1, 0]]])

    assert deal(ids, placement, shares).ravel().tolist() == [0, 3, 2, 2, 1]


@given(st.lists(st.integers(0, 70_000), max_size=60))
def test_turns_count_equal_keys_before(keys):
    expected = [keys[:n].count(key) for n, key in enumerate(keys)]

    assert turns(np.array(keys, np.int64)).tolist() == expected


def test_chance_uses_all_copies_alike():
    """Of an expert with 4 copies each gets a quarter: within 4 standard deviations."""
    placement = Placement(np.array([[0, 1, 0, 2, 0, 3, 0, 1]] * 2), 4)
    rng = np.random.default_rng(0)
    ids = np.stack([np.zeros(20_000, int), rng.integers(0, 4, 20_000)], axis=1)
    slots = RandomReplica().slots(
        ids[:, :, None].astype(np.uint16), np.zeros(20_000, int), placement
    )

    counts = np.bincount(slots[:, 0, 0], minlength=8)[[0, 2, 4, 6]]
    assert np.abs(counts - 5000).max() < 4 * (20_000 * 0.25 * 0.75) ** 0.5
    turns_of_twins = slots[:, 0, 0].reshape(-1, 2)
    alike = (turns_of_twins[:, 0] == turns_of_twins[:, 1]).mean()
    assert 0.22 < alike < 0.28


def test_chance_is_independent_between_layers():
    """The same expert's copies in two layers: 4 x 4 cells, none off by 5 deviations."""
    placement = Placement(np.array([[0, 0, 0, 0]] * 2), 4)
    ids = np.zeros((16_000, 2, 1), np.uint16)
    slots = RandomReplica().slots(ids, np.arange(16_000) % 4, placement)

    cells = np.bincount(slots[:, 0, 0] * 4 + slots[:, 1, 0], minlength=16)
    assert np.abs(cells - 1000).max() < 5 * 1000**0.5
