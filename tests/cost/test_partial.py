"""An all-to-all some of whose choices are not served."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost import partial
from moesim.cost.exchange import exchange_load
from moesim.cost.partial import partial_load
from worlds import tiny_system

shapes = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 1), (4, 1), (4, 2), (6, 3), (8, 2)]),
    st.integers(1, 3),
    st.integers(0, 12),
    st.sampled_from(["normal", "low_latency"]),
)


def draw(shape, share):
    seed, (gpus, nodes), layers, tokens, kernel = shape
    system = tiny_system(layers, 24, gpus, nodes, 3, dispatch=kernel)
    rng = np.random.default_rng(seed)
    slots = rng.random((tokens, layers, 24)).argsort(axis=2)[:, :, :3]
    kept = rng.random(slots.shape) < share
    return slots.astype(np.uint16), kept, rng.integers(0, gpus, tokens), system


@settings(max_examples=200, deadline=None)
@given(shapes)
def test_with_all_kept_it_is_the_usual_load(shape):
    """Slots, ports and traffic of both kernels."""
    slots, _, source, system = draw(shape, 1)

    found = partial_load(slots, np.ones(slots.shape, bool), source, system)
    usual = exchange_load(slots, source, system)

    for name in ("slots", "tx", "rx", "traffic"):
        np.testing.assert_array_equal(getattr(found, name), getattr(usual, name))


@settings(max_examples=200, deadline=None)
@given(shapes, st.floats(0, 1))
def test_what_is_not_kept_is_as_if_it_had_not_been_chosen(shape, share):
    """Token by token, the load of the choices that are left: plain sets and loops."""
    slots, kept, source, system = draw(shape, share)
    gpus, per_node = system.topology.gpus, system.topology.gpus_per_node
    width = system.placement.slots_per_gpu
    layers = slots.shape[1]
    wanted = np.zeros((layers, gpus, gpus), np.int64), np.zeros((layers, width, gpus))
    for token, layer in np.ndindex(slots.shape[:2]):
        home = int(source[token])
        chosen = slots[token, layer][kept[token, layer]].tolist()
        for slot in chosen:
            wanted[1][layer, slot % width, slot // width] += 1
        for sender, receiver in hops(home, chosen, width, per_node, system.dispatch):
            wanted[0][layer, sender, receiver] += 1

    found = partial_load(slots, kept, source, system)

    np.testing.assert_array_equal(found.slots, wanted[1])
    np.testing.assert_array_equal(found.tx.sum(axis=1), wanted[0].sum(axis=2))
    np.testing.assert_array_equal(found.rx.sum(axis=1), wanted[0].sum(axis=1))
    np.testing.assert_array_equal(found.traffic.sum(axis=0), wanted[0].sum(axis=0))


def hops(home, chosen, width, per_node, kernel):
    if kernel == "low_latency":
        return [(home, slot // width) for slot in chosen]
    found = set()
    for slot in chosen:
        gpu = slot // width
        door = gpu // per_node * per_node + home % per_node
        found |= {(home, door), (door, gpu)}
    return [(a, b) for a, b in found if a != b]


@pytest.mark.parametrize("kernel", ["normal", "low_latency"])
def test_chunks_do_not_show(kernel, monkeypatch):
    """Whatever is held at once, the load is the same."""
    given_ = draw((1, (8, 2), 3, 12, kernel), 0.6)
    whole = partial_load(*given_)
    monkeypatch.setattr(partial, "CELLS", 50)
    parts = partial_load(*given_)

    for name in ("slots", "tx", "rx", "traffic"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
