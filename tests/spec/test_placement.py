"""Placements: where experts live, and the maps in both directions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.spec.placement import PLACEMENTS, Placement, contiguous, round_robin


@st.composite
def sizes(draw):
    """MoE layers, experts, GPUs, redundant slots that divide evenly."""
    layers, experts = draw(st.integers(1, 3)), draw(st.integers(1, 24))
    gpus = draw(st.integers(1, 8))
    redundant = -experts % gpus + gpus * draw(st.integers(0, 3))
    return layers, experts, gpus, redundant


makers = st.sampled_from(sorted(PLACEMENTS))


@settings(max_examples=100, deadline=None)
@given(makers, sizes())
def test_every_expert_has_a_slot_in_every_layer(name, size):
    """What makers return passes the check that files have to pass."""
    layers, experts, _, _ = size
    placement = PLACEMENTS[name](*size)
    placement.check(layers, experts)

    assert placement.replicas.shape == (layers, experts)
    assert (placement.replicas >= 1).all()


@settings(max_examples=100, deadline=None)
@given(makers, sizes())
def test_copies_of_the_experts_fill_the_slots(name, size):
    """Conservation of slots; no expert has two copies more than another."""
    _, experts, gpus, redundant = size
    replicas = PLACEMENTS[name](*size).replicas

    assert (replicas.sum(axis=1) == experts + redundant).all()
    assert PLACEMENTS[name](*size).slots_per_gpu * gpus == experts + redundant
    assert np.ptp(replicas) <= 1


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.data())
def test_the_two_maps_are_inverse(experts, gpus, slots, data):
    """Each slot listed for an expert holds it, and every slot is listed."""
    count = gpus * slots * experts
    row = data.draw(st.permutations([slot % experts for slot in range(count)]))
    placement = Placement(np.array([row]), gpus)
    listed = placement.log2phy[0]

    assert (placement.phy2log[0][listed] == np.arange(experts)[:, None]).all()
    assert sorted(np.unique(listed)) == list(range(count))


def test_slots_of_an_expert_ascend_and_are_padded_by_repeating():
    """An expert with fewer copies than another lists its own again."""
    placement = Placement(np.array([[0, 1, 0, 0]]), 2)

    assert placement.log2phy.tolist() == [[[0, 2, 3], [1, 1, 1]]]
    assert placement.replicas.tolist() == [[3, 1]]


def test_slots_ascend_in_large_placements_too():
    """Sorting by expert must not shuffle the many slots of one expert."""
    placement = Placement(np.arange(4096)[None] * 7 % 3, 8)

    assert (np.diff(placement.log2phy[0, 0]) > 0).all()


def test_contiguous_puts_neighbours_on_one_gpu():
    """Slots are GPU-major: GPU 0 has experts 0 and 1."""
    assert contiguous(2, 4, 2).phy2log.tolist() == [[0, 1, 2, 3]] * 2


def test_redundant_slots_hold_the_first_experts_again():
    """vLLM's initial map: logical ids continue modulo E."""
    assert contiguous(1, 4, 3, 2).phy2log.tolist() == [[0, 1, 2, 3, 0, 1]]


def test_round_robin_deals_experts_in_turn():
    """GPU g has experts g, g + G, ..."""
    assert round_robin(1, 6, 3).phy2log.tolist() == [[0, 3, 1, 4, 2, 5]]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 3))
def test_round_robin_copies_live_on_other_gpus(gpus, rounds, extra):
    """A second copy beside the first would relieve nobody."""
    experts, redundant = gpus * rounds, gpus * min(extra, rounds)
    placement = round_robin(1, experts, gpus, redundant)
    home = placement.log2phy[0] // placement.slots_per_gpu
    twice = placement.replicas[0] == 2

    assert (home[twice, 0] != home[twice, 1]).all()
    assert twice.sum() == redundant


@pytest.mark.parametrize(
    ("experts", "gpus", "redundant", "nearest"),
    [(8, 3, 0, 1), (8, 3, 2, 1), (256, 32, 30, 32), (256, 32, 35, 32), (5, 8, 0, 3)],
)
def test_uneven_slots_are_refused_with_the_nearest_number(
    experts, gpus, redundant, nearest
):
    """The message shows the arithmetic and what would work."""
    with pytest.raises(InputError, match=f"redundant_experts: {nearest} ") as refused:
        contiguous(1, experts, gpus, redundant)

    assert str(experts + redundant) in str(refused.value)
    assert contiguous(1, experts, gpus, nearest).slots_per_gpu >= 1


def test_sizes_out_of_range_are_all_named():
    """Zero GPUs, zero layers and negative redundancy, at once."""
    with pytest.raises(InputError) as refused:
        round_robin(0, 4, 0, -1)

    assert len(refused.value.problems) == 3


@pytest.mark.parametrize(
    ("slots", "gpus", "complaint"),
    [
        ([[0, 1, 2]], 2, "3 slots cannot be divided evenly among 2 GPUs"),
        ([[0, 1, 2, 3]] * 2, 2, "2 layers, the model has 1"),
        ([[0, 1, 2, 4]], 2, "slot 3 of layer 0 holds expert 4; experts are 0 to 3"),
        ([[0, 1, 2, -1]], 2, "holds expert -1"),
        ([[0, 1, 2, 2]], 2, "no slot of layer 0 holds expert 3"),
        ([0, 1, 2, 3], 2, "2 axes"),
        ([[0, 1, 2, 3]], 0, "among 0 GPUs"),
    ],
)
def test_a_placement_that_cannot_serve_is_refused(slots, gpus, complaint):
    """The first wrong slot is named."""
    with pytest.raises(InputError, match=complaint):
        Placement(np.array(slots), gpus).check(1, 4)


@pytest.mark.parametrize("name", ["phy2log", "replicas", "log2phy"])
def test_arrays_of_a_placement_cannot_be_written(name):
    """A frozen description stays what it was."""
    with pytest.raises(ValueError, match="read-only"):
        getattr(contiguous(1, 4, 2), name)[0] = 0


def test_a_placement_does_not_follow_the_array_it_was_made_from():
    """It has its own copy."""
    slots = np.array([[0, 1]])
    placement = Placement(slots, 1)
    slots[0, 0] = 1

    assert placement.phy2log.tolist() == [[0, 1]]


def test_placements_are_equal_when_their_slots_are():
    """By value, and so is their hash."""
    same, other = contiguous(1, 4, 2), round_robin(1, 4, 2)

    assert contiguous(1, 4, 2) == same
    assert hash(contiguous(1, 4, 2)) == hash(same)
    assert same != other
    assert contiguous(1, 4, 1) != same
