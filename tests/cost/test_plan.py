"""Plans of memory: they agree with runs to the block, and their search is a search."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.buffers import CASES
from moesim.cost.memory import kv_capacity_blocks, memory_budget
from moesim.cost.plan import Terms, make_plan, placed, room, smallest_clusters
from moesim.errors import InputError
from moesim.spec.catalogue import load_model, model_names
from moesim.spec.hardware import load_gpu
from moesim.spec.placement import contiguous
from moesim.spec.serving import ServingSpec
from moesim.spec.system import Precision, System
from moesim.spec.topology import Topology

GIB = 2**30
FP8 = Precision("fp8", "fp8", "bf16", "fp8", "bf16")
SERVING = ServingSpec()


def system_of(name, gpu="h100", nodes=1, each=8, redundant=0, **options):
    model = load_model(name)
    placement = contiguous(
        model.moe_layer_count, model.experts, nodes * each, redundant
    )
    return System(model, Topology(load_gpu(gpu), nodes, each), placement, **options)


def test_a_plan_and_a_run_agree_to_the_block():
    """The pool of a run is what the plan says is left."""
    system = system_of("mixtral-8x7b", "a100-40", each=4)
    plan = make_plan(system, SERVING, Terms(context=4096))

    assert plan.room.blocks == kv_capacity_blocks(system, SERVING)
    assert plan.budget == memory_budget(system, SERVING)
    assert plan.room.tokens == 16 * plan.room.blocks
    assert plan.room.sequences == plan.room.blocks // 256
    assert plan.fits


def test_parts_of_a_plan_are_its_weights():
    plan = make_plan(system_of("deepseek-v3", precision=FP8), SERVING, Terms())

    assert plan.weights.total == plan.budget.resident_bytes
    assert plan.weights_bytes == plan.budget.resident_bytes + plan.budget.experts_bytes


def test_the_published_deployment_on_32_gpus():
    """DeepSeek-V3 in prefill: 9 experts a layer of fp8 are 21.4 GiB, 17.8 the rest."""
    plan = make_plan(
        system_of("deepseek-v3", "h800", 4, redundant=32, precision=FP8),
        SERVING,
        Terms(context=8192),
    )

    assert plan.budget.experts_bytes / GIB == pytest.approx(21.4, abs=0.05)
    assert plan.weights.total / GIB == pytest.approx(17.77, abs=0.005)
    assert plan.kv_bytes_per_token == 70_272
    assert plan.quoted_over == pytest.approx(24.88888888888889)
    # Nine slots: a tenth costs an expert of each of 58 layers, and buffers nothing.
    assert plan.spare.bytes == 58 * 3 * 7168 * 2048
    assert plan.spare.experts == 32
    assert plan.spare.tokens == pytest.approx(plan.spare.bytes / 70_272, abs=16)


def test_a_redundant_expert_also_costs_low_latency_buffers():
    """Every slot has room for every rank's tokens, and rows of workspace."""
    system = system_of("deepseek-v3", "h800", 4, precision=FP8, dispatch="low_latency")
    serving = ServingSpec(max_num_batched_tokens=128)
    spare = make_plan(system, serving, Terms()).spare
    buffer = 4 * 32 * 128 * (2 * 7168 + 16)
    workspace = 32 * 128 * 28 * 1024

    assert spare.bytes == 58 * 3 * 7168 * 2048 + buffer + workspace


def test_the_price_of_a_spare_expert_is_known_even_when_nothing_fits():
    plan = make_plan(system_of("deepseek-v3"), SERVING, Terms())

    assert not plan.fits
    assert plan.spare.tokens == 58 * 3 * 7168 * 2048 * 2 // 70_272


def test_a_spare_expert_that_fills_the_gpu_takes_all_tokens():
    system = system_of("mixtral-8x7b", "a100-40", each=2, precision=FP8)
    terms = Terms(reserve_bytes=8 * GIB)
    plan = make_plan(system, SERVING, terms)

    assert plan.fits
    assert plan.spare.bytes > plan.budget.free_bytes
    assert plan.spare.tokens == plan.room.tokens


def test_a_context_longer_than_the_room_does_not_fit():
    system = system_of("mixtral-8x7b", "a100-40", each=4)
    tokens = make_plan(system, SERVING, Terms()).room.tokens

    assert make_plan(system, SERVING, Terms(context=tokens)).room.sequences == 1
    assert not make_plan(system, SERVING, Terms(context=tokens + 1)).fits


def test_windows_are_set_aside_for_as_many_sequences_as_are_served():
    """gpt-oss: beyond max_num_seqs there is no window."""
    system = system_of("gpt-oss-120b")
    plan = make_plan(system, SERVING, Terms(context=128))

    assert plan.room.sequences == SERVING.max_num_seqs
    assert plan.room.blocks // 8 > SERVING.max_num_seqs


def test_worse_cases_leave_less():
    plan = make_plan(
        system_of("deepseek-v3", "h800", 4, precision=FP8), SERVING, Terms()
    )
    left = [plan.budgets[case].free_bytes for case in CASES]

    assert left == sorted(left, reverse=True)
    assert left[0] > left[2]
    for case in CASES:
        worse = make_plan(plan.system, SERVING, Terms(case=case))
        assert worse.budget == plan.budgets[case]
        assert worse.room == room(plan.system, SERVING, Terms(case=case))


@pytest.mark.parametrize(
    ("name", "gpu", "precision"),
    [
        ("deepseek-v3", "h100", Precision()),
        ("kimi-k2", "h100", Precision()),
        ("mixtral-8x22b", "a100-80", Precision()),
        ("mixtral-8x7b", "a100-40", Precision()),
        ("deepseek-v3", "h200", FP8),
        ("deepseek-v3", "h100", FP8),
    ],
)
def test_nothing_smaller_than_the_smallest_cluster_fits(name, gpu, precision):
    """Against every number of GPUs in one node, and every number of whole nodes."""
    system = system_of(name, gpu, precision=precision)
    found, *_ = smallest_clusters(system, SERVING, Terms())
    size = found.system.topology.gpus

    assert found.fits
    assert found.system.tensor_parallel == 1
    for gpus in range(1, size):
        nodes, each = (1, gpus) if gpus <= 8 else (gpus // 8, 8)
        if nodes * each != gpus:
            continue
        slots = -(-system.model.experts // gpus)
        smaller = placed(system, Topology(load_gpu(gpu), nodes, each), slots)
        assert not room(smaller, SERVING, Terms()).sequences
    with pytest.raises(InputError):
        kv_capacity_blocks(
            placed(system, Topology(load_gpu(gpu), 1, 1), system.model.experts), SERVING
        )


def test_redundant_experts_that_are_asked_for_are_kept():
    """At least as many slots a layer as the system has."""
    system = system_of("deepseek-v3", redundant=32)
    found, *_ = smallest_clusters(system, SERVING, Terms())

    slots = found.system.placement.phy2log.shape[1]
    assert 288 <= slots < 288 + found.system.topology.gpus


def test_attention_is_split_when_no_number_of_gpus_is_enough():
    """72 GiB of 80: what each GPU has anyway does not go below 32 with TP1."""
    system = system_of("deepseek-v3")
    terms = Terms(reserve_bytes=45 * GIB)
    found, *_ = smallest_clusters(system, SERVING, terms)

    assert found.fits
    assert found.system.tensor_parallel == 2
    assert smallest_clusters(system, SERVING, Terms(reserve_bytes=71 * GIB)) == []


def test_splitting_attention_further_is_offered_where_it_saves_gpus():
    """In bf16 DeepSeek-V3 needs 32 H100, but 24 when two share a rank's attention."""
    found = smallest_clusters(system_of("deepseek-v3"), SERVING, Terms())
    sizes = [(p.system.topology.gpus, p.system.tensor_parallel) for p in found]

    assert sizes == [(32, 1), (24, 2)]
    three = placed(system_of("deepseek-v3"), Topology(load_gpu("h100"), 3, 8), 11)
    assert not room(three, SERVING, Terms()).sequences
    split = replace(three, tensor_parallel=2)
    assert room(split, SERVING, Terms()) == found[1].room


@pytest.mark.parametrize("name", model_names())
def test_every_preset_can_be_planned(name):
    """In 16 and 8 bits on 8 H100: bytes add up, the narrower one has more room."""
    wide, narrow = (
        make_plan(
            system_of(name, redundant=(-load_model(name).experts) % 8, precision=p),
            SERVING,
            Terms(),
        )
        for p in (Precision(), FP8)
    )

    for plan in (wide, narrow):
        total = plan.weights_bytes + plan.budget.buffer_bytes
        total += plan.budget.workspace_bytes + plan.budget.free_bytes
        assert total == pytest.approx(0.9 * 80 * GIB)
    assert narrow.budget.free_bytes > wide.budget.free_bytes
    assert narrow.room.tokens >= wide.room.tokens


@settings(max_examples=40, deadline=None)
@given(
    context=st.integers(1, 100_000),
    spare=st.integers(0, 3),
    case=st.sampled_from(CASES),
    tokens=st.integers(1, 8192),
)
def test_asking_for_more_never_leaves_more(context, spare, case, tokens):
    """Longer sequences, more copies, larger micro-batches: not one sequence more."""
    system = system_of("mixtral-8x7b", redundant=8 * spare)
    serving = ServingSpec(max_num_batched_tokens=tokens)
    here = room(system, serving, Terms(context=context, case=case))

    assert room(system, serving, Terms(context + 1, case=case)).sequences <= (
        here.sequences
    )
    more = placed(system, system.topology, system.placement.slots_per_gpu + 1)
    assert room(more, serving, Terms(context=context, case=case)).blocks <= here.blocks
    larger = replace(serving, max_num_batched_tokens=2 * tokens)
    assert room(system, larger, Terms(context=context, case=case)).blocks <= here.blocks
