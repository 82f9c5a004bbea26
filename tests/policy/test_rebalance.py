"""Loops that move experts: when they plan, on what loads, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.policy.bundle import Policy, make_policy
from moesim.policy.place.eplb import eplb
from moesim.policy.place.flat import tensorrt_llm
from moesim.policy.rebalance import REBALANCES, Sglang, Still, TensorrtLlm, Vllm
from moesim.policy.watch import by_expert, gpu_loads
from moesim.spec.placement import Placement, contiguous
from worlds import tiny_system

SYSTEM = tiny_system(layers=3, count=8, gpus=4)
HERE = SYSTEM.placement


def loads(rng, placement=HERE):
    return rng.integers(0, 50, placement.phy2log.shape)


def plans(watch, passes, placement=HERE, seed=0):
    """Return after which passes, counted from 1, a plan is made."""
    rng, made = np.random.default_rng(seed), []
    for number in range(1, passes + 1):
        watch.observe(loads(rng), placement)
        if watch.plan(placement) is not None:
            made.append(number)
    return made


def test_vllm_plans_after_a_quarter_of_the_interval_and_then_after_each():
    assert plans(Vllm(window=5, interval=8).watch(SYSTEM), 27) == [2, 10, 18, 26]


def test_vllm_waits_while_experts_move():
    """Not asked when it was time, it plans when it is asked again."""
    watch = Vllm(window=5, interval=8).watch(SYSTEM)
    rng = np.random.default_rng(0)
    for _ in range(5):
        watch.observe(loads(rng), HERE)

    assert watch.plan(HERE) is not None
    watch.observe(loads(rng), HERE)
    assert watch.plan(HERE) is None


def test_sglang_looks_at_the_pass_after_the_interval():
    """Its loop counts the pass that looks for the next interval, too."""
    assert plans(Sglang(interval=8).watch(SYSTEM), 27) == [9, 17, 25]


def test_tensorrt_llm_updates_some_layers_every_pass():
    """Three layers, one a pass, and a pass without: its rounds of equal turns rest."""
    watch = TensorrtLlm(1).watch(SYSTEM)
    changed = []
    for _ in range(8):
        watch.observe(np.tile([9, 0, 8, 0, 0, 0, 0, 1], (3, 1)), HERE)
        found = watch.plan(HERE)
        rows = [] if found is None else (found.phy2log != HERE.phy2log).any(axis=1)
        changed.append(np.flatnonzero(rows).tolist())

    assert changed == [[0], [1], [2], [], [0], [1], [2], []]


def test_tensorrt_llm_needs_no_rest_when_turns_are_unequal():
    watch = TensorrtLlm(2).watch(SYSTEM)

    assert [turn.tolist() for turn in watch.turns] == [[0, 2], [1]]


@settings(max_examples=40, deadline=None)
@given(window=st.integers(1, 6), passes=st.integers(2, 14), seed=st.integers(0, 10**6))
def test_vllm_goes_by_the_last_passes_only(window, passes, seed):
    """An interval of one: each plan is EPLB's for the sum over the window, in place."""
    rng, seen = np.random.default_rng(seed), []
    watch = Vllm(window=window, interval=1).watch(SYSTEM)
    for _ in range(passes):
        seen.append(loads(rng))
        watch.observe(seen[-1], HERE)
        found = watch.plan(HERE)

        wanted = eplb(sum(seen[-window:]), 4)
        held = np.sort(found.phy2log.reshape(3, 4, 2), axis=2)
        assert (held == np.sort(wanted.phy2log.reshape(3, 4, 2), axis=2)).all()


def test_vllm_keeps_experts_that_stay_in_their_slots():
    watch = Vllm(window=4, interval=1).watch(SYSTEM)
    rng = np.random.default_rng(3)
    watch.observe(loads(rng), HERE)
    found = watch.plan(HERE)

    before, after = (p.phy2log.reshape(3, 4, 2) for p in (HERE, found))
    stays = (before[..., None] == after[:, :, None, :]).any(axis=3)
    assert stays.any()
    assert (before == after)[stays].all()


def test_an_old_window_is_told_to_the_wrong_experts_by_vllm_alone():
    """All tokens went to expert 0; then experts 0 and 7 changed places."""
    moved = Placement(HERE.phy2log[:, ::-1], 4)
    slots = np.zeros_like(HERE.phy2log)
    slots[:, 0] = 100
    vllm, sglang = Vllm(4, 4).watch(SYSTEM), Sglang(interval=1).watch(SYSTEM)
    for watch in (vllm, sglang):
        watch.observe(slots, HERE)

    assert by_expert(vllm.total, moved)[0].tolist() == [0] * 7 + [100]
    assert sglang.loads[0].tolist() == [100] + [0] * 7


def test_sglang_leaves_what_is_even_enough():
    """GPUs at 60, 20, 20 and 20: a utilisation of one half."""
    slots = np.tile([30, 30, 10, 10, 10, 10, 10, 10], (3, 1))

    def planned(threshold):
        watch = Sglang(interval=2, threshold=threshold).watch(SYSTEM)
        found = None
        for _ in range(3):
            watch.observe(slots, HERE)
            found = watch.plan(HERE)
        return found is not None

    assert planned(1.0)
    assert planned(0.5)
    assert not planned(0.49)


def test_sglang_forgets_what_it_has_gone_by():
    watch = Sglang(interval=2).watch(SYSTEM)
    rng = np.random.default_rng(1)
    seen, found = [], []
    for _ in range(5):
        seen.append(loads(rng))
        watch.observe(seen[-1], HERE)
        found.append(watch.plan(HERE))

    assert [plan is None for plan in found] == [True, True, False, True, False]
    assert found[2] == eplb(sum(seen[:3]), 4)
    assert found[4] == eplb(sum(seen[3:]), 4)


def test_tensorrt_llm_goes_by_loads_that_fade_since_the_last_turn():
    watch = TensorrtLlm(1, decay=0.5).watch(SYSTEM)
    rng = np.random.default_rng(2)
    seen = []
    for _ in range(5):
        seen.append(loads(rng))
        watch.observe(seen[-1], HERE)
        found = watch.plan(HERE)

    since = seen[1:]  # layer 0 had its turn in the first pass
    faded = sum(0.5 ** (3 - age) * slots[0] for age, slots in enumerate(since))
    assert (found.phy2log[0] == tensorrt_llm(faded[None], 4).phy2log[0]).all()
    assert (found.phy2log[1:] == HERE.phy2log[1:]).all()


@pytest.mark.parametrize("loop", [Vllm(2, 1), Sglang(1), TensorrtLlm(3)])
def test_copies_and_nodes_are_respected(loop):
    """Any plan has the slots of the placement before it, and every expert has one."""
    system = tiny_system(layers=2, count=8, gpus=4, nodes=2)
    placement = contiguous(2, 8, 4, redundant=4)
    system = type(system)(system.model, system.topology, placement)
    watch = loop.watch(system)
    rng = np.random.default_rng(5)
    for _ in range(4):
        watch.observe(loads(rng, placement), placement)
        found = watch.plan(placement)
        if found is not None:
            assert found.phy2log.shape == placement.phy2log.shape
            found.check(2, 8)


def test_loads_of_gpus_are_shared_by_copies():
    placement = Placement(np.array([[0, 1, 2, 0]]), 2)

    assert gpu_loads(np.array([[8, 3, 1]]), placement).tolist() == [[7.0, 5.0]]
    assert by_expert(np.array([[5, 3, 1, 3]]), placement).tolist() == [[8, 3, 1]]


def test_the_defaults_are_the_engines():
    assert (Vllm().window, Vllm().interval, Vllm().mode) == (1000, 3000, "async")
    assert (Sglang().interval, Sglang().threshold) == (1000, 1.0)
    assert (TensorrtLlm().layer_updates_per_iter, TensorrtLlm().decay) == (1, 0.9)
    assert set(REBALANCES) == {"vllm", "sglang", "tensorrt_llm"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Vllm(window=0), "window is a whole number from 1, not 0"),
        (lambda: Vllm(interval=1.5), "interval is a whole number from 1, not 1.5"),
        (lambda: Vllm(mode="both"), "mode is async or sync, not 'both'"),
        (lambda: Sglang(threshold=1.1), "threshold is a share from 0 to 1, not 1.1"),
        (lambda: Sglang(layers_per_chunk=-1), "layers_per_chunk is a whole number"),
        (lambda: TensorrtLlm(0), "layer_updates_per_iter is a whole number from 1"),
        (lambda: TensorrtLlm(decay=-0.1), "decay is a share from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_loop_is_a_role_like_any_other():
    policy = make_policy(Vllm())

    assert isinstance(policy.rebalance, Vllm)
    assert type(Policy().rebalance) is Still
    assert type(make_policy("oldest").rebalance) is Still
    with pytest.raises(InputError, match="slots, delay, steer, room, watch"):
        make_policy(object())
