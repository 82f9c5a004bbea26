"""A plan as plain data, for ``moesim plan --json``."""

from collections.abc import Sequence
from typing import Any

from moesim.cli.plan_explain import explain
from moesim.cli.plan_screen import parts
from moesim.cost.buffers import Case
from moesim.cost.plan import RULE_OF_THUMB, Plan


def plan_record(plan: Plan, smallest: Sequence[Plan]) -> dict[str, Any]:
    """Return a plan as plain data: bytes, counts, and whether it fits."""
    system, spare = plan.system, plan.spare
    return {
        **_cluster(plan),
        "model": system.model.name,
        "precision": {
            "weights": system.precision.weights,
            "experts": system.precision.experts,
            "kv": system.precision.kv,
        },
        "context": plan.terms.context,
        "case": plan.terms.case,
        "fits": plan.fits,
        "hbm_bytes": plan.budget.hbm_bytes,
        "usable_bytes": plan.budget.usable_bytes,
        "bytes": {_key(label): size for label, size in parts(plan)},
        "cases": {case: _case(plan, case) for case in plan.budgets},
        "kv": {
            "left_bytes": plan.budget.free_bytes,
            "bytes_per_token": plan.kv_bytes_per_token,
            "quoted_bytes_per_token": plan.quoted_kv_bytes,
            "quoted_over": plan.quoted_over,
            "blocks_per_rank": plan.room.blocks,
            "tokens_per_rank": plan.room.tokens,
            "sequences_per_rank": plan.room.sequences,
            "sequences": plan.room.sequences * system.ranks,
        },
        "rule_of_thumb_bytes": [share * plan.weights_bytes for share in RULE_OF_THUMB],
        "redundant_expert": {
            "bytes": spare.bytes,
            "kv_tokens": spare.tokens,
            "at_a_time": spare.experts,
        },
        "smallest": [_cluster(other) for other in smallest],
    }


def _cluster(plan: Plan) -> dict[str, Any]:
    system = plan.system
    slots = system.placement.slots_per_gpu * system.topology.gpus
    return {
        "gpu": system.topology.gpu.name,
        "num_gpus": system.topology.gpus,
        "nodes": system.topology.nodes,
        "gpus_per_node": system.topology.gpus_per_node,
        "tensor_parallel": system.tensor_parallel,
        "redundant_experts": slots - system.model.experts,
    }


def _case(plan: Plan, case: Case) -> dict[str, float]:
    budget = plan.budgets[case]
    return {
        "buffer_bytes": budget.buffer_bytes,
        "activation_bytes": budget.workspace_bytes,
        "kv_left_bytes": budget.free_bytes,
    }


def _key(label: str) -> str:
    return label.split(",", maxsplit=1)[0].replace(" ", "_")


def explained(plan: Plan) -> Sequence[dict[str, Any]]:
    """Return every formula as plain data."""
    return [
        {
            "label": line.label,
            "formula": line.formula,
            "numbers": line.numbers,
            "value": line.value,
            "unit": line.unit,
        }
        for line in explain(plan)
    ]
