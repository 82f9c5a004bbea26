"""From one placement to the next: what crosses to which GPU, and what stays put."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.policy.place.moves import moved, preserve_slots
from moesim.spec.placement import Placement


@st.composite
def pairs(draw):
    """Two placements of the same slots, and nodes; every expert somewhere in both."""
    nodes, per_node = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    gpus, width = nodes * per_node, draw(st.integers(1, 4))
    layers, slots = draw(st.integers(1, 3)), gpus * width
    experts = draw(st.integers(1, slots))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))

    def rows():
        spare = rng.integers(0, experts, (layers, slots - experts))
        every = np.tile(np.arange(experts), (layers, 1))
        return rng.permuted(np.concatenate([every, spare], axis=1), axis=1)

    return Placement(rows(), gpus), Placement(rows(), gpus), nodes


def held(placement, layer, gpu):
    width = placement.slots_per_gpu
    return placement.phy2log[layer, gpu * width : (gpu + 1) * width].tolist()


def test_a_small_move_told_in_full():
    """GPU 1 gets expert 0 from GPU 0, GPU 0 gets 3 from GPU 1; 1 and 2 only shift."""
    old = Placement(np.array([[0, 1, 2, 3]]), 2)
    new = Placement(np.array([[1, 3, 0, 2]]), 2)

    moves = moved(old, new)

    assert moves.changed.all()
    assert moves.slot.tolist() == [1, 2]
    assert moves.expert.tolist() == [3, 0]
    assert moves.source.tolist() == [1, 0]
    assert moves.target.tolist() == [0, 1]
    assert moves.received(2).tolist() == [[1, 1]]


def test_the_experts_come_from_the_same_node_if_they_can():
    """GPU 3 asks its neighbour 2, not GPU 0; of equally near ones, the next upwards."""
    old = Placement(np.array([[0, 0, 0, 1]]), 4)
    new = Placement(np.array([[0, 0, 1, 0]]), 4)

    moves = moved(old, new, nodes=2)

    assert moves.source.tolist() == [3, 2]
    assert moved(old, new, nodes=1).source.tolist() == [3, 0]


@settings(max_examples=200)
@given(pairs())
def test_what_crosses_is_what_a_gpu_did_not_have(pair):
    """Once per expert and GPU, from a GPU that has it, nearest node first."""
    old, new, nodes = pair
    moves = moved(old, new, nodes)
    layers, per_node = len(old.phy2log), old.gpus // nodes

    wanted = {
        (layer, gpu, expert)
        for layer in range(layers)
        for gpu in range(old.gpus)
        for expert in set(held(new, layer, gpu)) - set(held(old, layer, gpu))
    }
    columns = (moves.layer, moves.target, moves.expert, moves.source, moves.slot)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))

    assert sorted(row[:3] for row in rows) == sorted(wanted)
    assert moves.received(old.gpus).sum() == len(moves) == len(wanted)
    for layer, target, expert, source, slot in rows:
        near = range(target // per_node * per_node, (target // per_node + 1) * per_node)
        on_node = [gpu for gpu in near if expert in held(old, layer, gpu)]
        assert expert in held(old, layer, source)
        assert source in on_node or not on_node
        assert new.phy2log[layer, slot] == expert
        assert slot // new.slots_per_gpu == target


@settings(max_examples=50)
@given(pairs())
def test_nothing_moves_to_the_same_placement(pair):
    old, _, nodes = pair
    moves = moved(old, old, nodes)

    assert len(moves) == 0
    assert not moves.changed.any()


@settings(max_examples=200)
@given(pairs())
def test_experts_that_stay_keep_their_slots(pair):
    """Each GPU holds what it should, and as many slots stay as can."""
    old, new, nodes = pair
    kept = preserve_slots(old, new)

    for layer in range(len(old.phy2log)):
        for gpu in range(old.gpus):
            before, after = (held(p, layer, gpu) for p in (old, kept))
            wanted = Counter(held(new, layer, gpu))
            stay = sum((Counter(before) & wanted).values())

            assert Counter(after) == wanted
            assert sum(map(int.__eq__, before, after)) == stay
    assert len(moved(old, kept, nodes)) == len(moved(old, new, nodes))


def test_newcomers_fill_the_free_slots_in_order():
    """2 stays in its slot; 5 and 4 come into the others as the new placement has them."""
    old = Placement(np.array([[1, 2, 0, 3, 4, 5]]), 2)
    new = Placement(np.array([[2, 5, 4, 0, 1, 3]]), 2)

    assert preserve_slots(old, new).phy2log.tolist() == [[5, 2, 4, 3, 0, 1]]
