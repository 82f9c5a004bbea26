"""Placements by load: the published examples, plain re-tellings, optima of tiny cases."""

from heapq import heapify, heappop, heappush
from itertools import combinations_with_replacement, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.policy.place.catalogue import BY_LOAD
from moesim.policy.place.eplb import eplb, eplb_global, pack, replicate
from moesim.policy.place.flat import greedy, tensorrt_llm
from moesim.spec.placement import contiguous

WEIGHTS = np.array(
    [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
)
"""The example of EPLB's README."""


def gpu_load(weights, placement):
    """Return ``(L, G)``: loads when copies share evenly."""
    share = np.take_along_axis(
        weights / placement.replicas, placement.phy2log, axis=1
    ).reshape(len(weights), placement.gpus, -1)
    return share.sum(axis=2)


def balancedness(weights, placement):
    load = gpu_load(np.asarray(weights, float), placement)
    return load.mean(axis=1) / load.max(axis=1)


@pytest.mark.parametrize(
    ("place", "slots", "balanced"),
    [
        (
            lambda: eplb(WEIGHTS, gpus=8, nodes=2, groups=4, redundant=4),
            [
                [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
                [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
            ],
            [0.827724, 0.805014],
        ),
        (
            lambda: eplb(WEIGHTS, gpus=8, nodes=2, groups=3, redundant=4),
            [
                [10, 6, 10, 7, 0, 2, 11, 4, 5, 9, 5, 4, 8, 3, 1, 1],
                [1, 10, 2, 4, 5, 11, 5, 0, 6, 7, 6, 3, 8, 8, 9, 7],
            ],
            [0.932310, 0.840116],
        ),
        (
            lambda: greedy(WEIGHTS, gpus=4),
            [
                [10, 3, 7, 5, 8, 6, 1, 11, 2, 4, 0, 9],
                [5, 3, 11, 6, 9, 4, 8, 2, 10, 7, 1, 0],
            ],
            [0.932310, 0.989726],
        ),
        (lambda: contiguous(2, 12, 4), [list(range(12))] * 2, [0.782576, 0.560078]),
    ],
    ids=["hierarchical", "global", "no copies", "contiguous"],
)
def test_published_examples_come_out_slot_by_slot(place, slots, balanced):
    """EPLB's README, and vectors worked out from its source by someone else."""
    placement = place()

    assert placement.phy2log.tolist() == slots
    np.testing.assert_allclose(balancedness(WEIGHTS, placement), balanced, atol=1e-6)


def test_loads_of_the_published_example():
    placement = eplb(WEIGHTS, gpus=8, nodes=2, groups=4, redundant=4)

    assert gpu_load(WEIGHTS, placement).tolist() == [
        [121.5, 86.5, 125, 113, 147.5, 131.5, 156, 152],
        [173, 179.5, 120.5, 172, 123, 152, 118.5, 117.5],
    ]


def test_equal_loads_go_to_the_first_pack_and_the_lowest_expert():
    """EPLB's ties; TensorRT-LLM gives the copy to the highest number instead."""
    alike = np.ones((1, 4))

    assert pack(alike, 2).tolist() == [[0, 2, 1, 3]]
    assert replicate(alike, 6)[0].tolist() == [[0, 1, 2, 3, 0, 1]]
    assert eplb(alike, 3, redundant=2).replicas.tolist() == [[2, 2, 1, 1]]
    assert tensorrt_llm(alike, 3, redundant=2).replicas.tolist() == [[1, 1, 2, 2]]


def test_unmeasured_experts_are_copied_evenly_by_tensorrt_llm():
    """EPLB gives every copy to expert 0."""
    nothing = np.zeros((1, 4))

    assert tensorrt_llm(nothing, 2, redundant=6).replicas.tolist() == [[3, 3, 2, 2]]
    assert eplb(nothing, 2, redundant=6).replicas.tolist() == [[7, 1, 1, 1]]


def plain_pack(weights, packs):
    """Return the items of packs, told item by item."""
    room = len(weights) // packs
    if room == 1:
        return [[item] for item in range(packs)]
    held = [[] for _ in range(packs)]
    for item in sorted(range(len(weights)), key=lambda i: -weights[i]):
        open_ = [p for p in range(packs) if len(held[p]) < room]
        lightest = min(open_, key=lambda p: sum(weights[i] for i in held[p]))
        held[lightest].append(item)
    return held


def plain_eplb(weights, gpus, nodes, groups, redundant):
    """Return one layer's slots by EPLB's steps, with lists."""
    if groups % nodes:
        nodes = groups = 1
    size, slots = len(weights) // groups, len(weights) + redundant
    totals = [sum(weights[g * size : (g + 1) * size]) for g in range(groups)]
    result = []
    for node in plain_pack(totals, nodes):
        mine = [g * size + i for g in node for i in range(size)]
        copies = list(mine)
        while len(copies) < slots // nodes:
            copies.append(max(mine, key=lambda e: weights[e] / copies.count(e)))
        shares = [weights[e] / copies.count(e) for e in copies]
        for gpu in plain_pack(shares, gpus // nodes):
            result += [copies[i] for i in gpu]
    return result


def plain_tensorrt(weights, gpus, redundant):
    """Return one layer's slots by TensorRT-LLM's two heaps."""
    experts, slots = len(weights), len(weights) + redundant
    count = [1] * experts
    heap = [(-w, -e) for e, w in enumerate(weights)]
    heapify(heap)
    for _ in range(redundant):
        _, negative = heappop(heap)
        count[-negative] += 1
        heappush(heap, (-weights[-negative] / count[-negative], negative))
    if not any(weights):
        count = [slots // experts + (e < slots % experts) for e in range(experts)]
    copies = [
        (weights[e] / count[e], e) for e in range(experts) for _ in range(count[e])
    ]
    held = [[] for _ in range(gpus)]
    ranks = [(0.0, gpu) for gpu in range(gpus)]
    for share, expert in sorted(copies, key=lambda copy: (-copy[0], copy[1])):
        load, gpu = heappop(ranks)
        held[gpu].append(expert)
        if len(held[gpu]) < slots // gpus:
            heappush(ranks, (load + share, gpu))
    return [expert for gpu in held for expert in gpu]


@st.composite
def worlds(draw, redundant=True):
    """Whole loads of a few layers, with ties; GPUs, nodes, groups, redundant slots."""
    nodes, per_node = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    groups = nodes * draw(st.integers(1, 3))
    gpus = nodes * per_node
    size = draw(st.integers(1, 3)) * (1 if redundant else per_node)
    experts, layers = groups * size, draw(st.integers(1, 3))
    spare = -experts % gpus + gpus * draw(st.integers(0, 2)) if redundant else 0
    seed, most = draw(st.integers(0, 10**6)), draw(st.sampled_from([1, 4, 1000]))
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, most, (layers, experts), endpoint=True)
    if draw(st.booleans()):
        groups = 1
    return weights.astype(float), gpus, nodes, groups, spare


@settings(max_examples=200)
@given(worlds())
def test_eplb_is_what_its_steps_say(world):
    """Layer by layer, with lists and loops."""
    weights, *sizes = world

    slots = eplb(*world).phy2log.tolist()

    assert slots == [plain_eplb(row, *sizes) for row in weights.tolist()]


@settings(max_examples=200)
@given(worlds())
def test_tensorrt_llm_is_what_its_heaps_say(world):
    weights, gpus, _, _, redundant = world

    slots = tensorrt_llm(*world).phy2log.tolist()

    assert slots == [plain_tensorrt(row, gpus, redundant) for row in weights.tolist()]


@pytest.mark.parametrize("name", BY_LOAD)
@settings(max_examples=60)
@given(data=st.data())
def test_placements_by_load_can_serve(name, data):
    """Every expert has a slot, GPUs have equally many, and all slots are filled."""
    world = data.draw(worlds(redundant=name != "greedy"))
    weights, gpus, _, _, redundant = world
    layers, experts = weights.shape

    placement = BY_LOAD[name](*world)

    placement.check(layers, experts)
    assert placement.phy2log.shape == (layers, experts + redundant)
    assert placement.gpus == gpus


@settings(max_examples=100)
@given(worlds())
def test_groups_stay_on_a_node_if_they_can(world):
    """That is what the hierarchy is for."""
    weights, _, nodes, groups, _ = world
    if groups % nodes:
        return
    placement = eplb(*world)
    size = weights.shape[1] // groups
    node = np.arange(placement.phy2log.shape[1]) // (
        placement.phy2log.shape[1] // nodes
    )

    for row in placement.phy2log:
        met = {
            (int(expert) // size, int(n)) for expert, n in zip(row, node, strict=True)
        }
        assert len(met) == groups


def compositions(experts, spare):
    """Yield every way to hand out `spare` further copies."""
    for extra in combinations_with_replacement(range(experts), spare):
        yield 1 + np.bincount(np.array(extra, int), minlength=experts)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 4))
def test_copies_are_given_as_well_as_can_be(weights, spare):
    """The greedy rule minimises the largest load of a copy: all ways are tried."""
    weights = np.array(weights, float)
    _, copies = replicate(weights[None], len(weights) + spare)

    found = (weights / copies[0]).max()
    assert copies.sum() == len(weights) + spare
    assert found == min((weights / c).max() for c in compositions(len(weights), spare))


@settings(max_examples=60)
@given(
    st.sampled_from([(2, 2), (2, 3), (3, 2)]),
    st.lists(st.integers(0, 20), min_size=6, max_size=6),
)
def test_packs_are_within_a_third_of_the_best(shape, weights):
    """All ways to fill the packs are tried; the heaviest is never 4/3 of the best."""
    packs, room = shape
    w = np.array(weights[: packs * room], float)

    def heaviest(order):
        return w[list(order)].reshape(packs, room).sum(axis=1).max()

    found = heaviest(pack(w[None], packs)[0])
    best = min(heaviest(order) for order in permutations(range(packs * room)))

    assert best <= found <= best * 4 / 3
    assert found <= heaviest(range(packs * room)) * 4 / 3


def contents(placement, names=None):
    """Return what GPUs hold, layer by layer, whichever GPU and in whichever order."""
    slots = placement.phy2log if names is None else names[placement.phy2log]
    rows = slots.reshape(len(slots), placement.gpus, -1)
    return [sorted(sorted(gpu) for gpu in row) for row in rows.tolist()]


@pytest.mark.parametrize("name", ["eplb_global", "tensorrt_llm", "greedy"])
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_names_of_experts_do_not_matter(name, seed):
    """Without ties the same loads meet on a GPU, whatever the experts are called."""
    rng = np.random.default_rng(seed)
    weights = rng.lognormal(0, 1, (2, 12))
    names = rng.permutation(12)
    spare = 0 if name == "greedy" else 4
    gpus = 4 if name == "greedy" else 8

    one = BY_LOAD[name](weights, gpus, 1, 1, spare)
    other = BY_LOAD[name](weights[:, names], gpus, 1, 1, spare)

    assert contents(other, names) == contents(one)


@pytest.mark.parametrize("name", BY_LOAD)
@settings(max_examples=40)
@given(data=st.data())
def test_layers_and_units_do_not_matter(name, data):
    """Each layer is placed as if alone, and twice the tokens are placed the same."""
    weights, *sizes = data.draw(worlds(redundant=name != "greedy"))
    whole = BY_LOAD[name](weights, *sizes)

    alone = [BY_LOAD[name](row[None], *sizes).phy2log[0] for row in weights]

    assert (whole.phy2log == np.stack(alone)).all()
    assert BY_LOAD[name](2 * weights, *sizes) == whole


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_skewed_loads_are_evened_out(sigma):
    """DeepSeek-V3 on 32 GPUs: placing alone helps, 32 copies all but even it out."""
    weights = np.exp(sigma * np.random.default_rng(3).standard_normal((58, 256)))

    at_start = balancedness(weights, contiguous(58, 256, 32)).mean()
    placed = balancedness(weights, greedy(weights, 32)).mean()
    copied = balancedness(weights, eplb_global(weights, 32, redundant=32)).mean()
    grouped = balancedness(weights, eplb(weights, 32, 4, 8, 32)).mean()

    assert at_start < 0.75
    assert at_start < placed < copied
    assert grouped < copied
    assert copied > 0.99


@pytest.mark.parametrize("place", BY_LOAD.values(), ids=BY_LOAD)
def test_uneven_slots_are_refused(place):
    with pytest.raises(InputError, match="cannot be divided evenly"):
        place(np.ones((1, 8)), 3, 1, 1, 0)


def test_greedy_makes_no_copies():
    with pytest.raises(InputError, match="makes no copies"):
        greedy(np.ones((1, 8)), 4, redundant=4)
