"""Everything a diagnosis finds, as one record of plain numbers."""

from collections.abc import Sequence
from typing import Any

from moesim.diagnose.across import across
from moesim.diagnose.bounds import bounds
from moesim.diagnose.classes import classes
from moesim.diagnose.exchange import exchange
from moesim.diagnose.findings import findings
from moesim.diagnose.imbalance import imbalance
from moesim.diagnose.ranks import draw_batches, ranks
from moesim.diagnose.timing import timing
from moesim.diagnose.traffic import Traffic, pooled
from moesim.errors import InputError, Problem
from moesim.spec.hardware import GpuSpec
from moesim.spec.model import ModelSpec

DEFAULT_SIZES = (8, 16, 32)
SCHEMA = 1
Record = dict[str, Any]


def diagnose(
    parts: Sequence[Traffic],
    gpu: GpuSpec,
    sizes: Sequence[int] = (),
    per_node: int = 8,
    model: ModelSpec | None = None,
) -> Record:
    """Return the diagnosis of one log, or of two pooled and compared.

    Parameters
    ----------
    parts : sequence of Traffic
        One or two.
    gpu : GpuSpec
        For the traffic between GPUs.
    sizes : sequence of int
        GPUs that share the experts; empty: those of 8, 16, 32 that the experts fill.
    per_node : int
        GPUs of a node.
    model : ModelSpec, optional
        Tells how large a token is; must fit the log.

    Raises
    ------
    InputError
        The model or a size does not fit the log, or the logs do not fit each other.
    """
    traffic = parts[0] if len(parts) == 1 else pooled(parts)
    _check_model(traffic, model)
    chosen = _sizes(traffic.experts, sizes)
    batches = draw_batches(traffic)
    layers = across(traffic, chosen)
    record: Record = {
        "schema_version": SCHEMA,
        "log": _log(traffic) | {"paths": [part.name for part in parts]},
        "imbalance": imbalance(traffic),
        "ranks": ranks(traffic, batches, chosen),
        "classes": classes(parts),
        "time": timing(traffic, one_log=len(parts) == 1),
        "across_layers": layers,
        "traffic": exchange(traffic, gpu, chosen, per_node, model),
        "bounds": bounds(traffic, batches, chosen, layers.get("prediction")),
    }
    return record | {"findings": findings(record)}


def _log(traffic: Traffic) -> Record:
    return {
        "name": traffic.name,
        "format": traffic.format,
        "tokens": traffic.tokens or None,
        "choices": float(traffic.totals.sum()),
        "layers": list(traffic.layers),
        "experts": traffic.experts,
        "top_k": traffic.top_k or None,
        "sampled_tokens": None if traffic.ids is None else len(traffic.ids),
        "sequences_known": traffic.known_runs,
        "notes": list(traffic.notes),
    }


def _check_model(traffic: Traffic, model: ModelSpec | None) -> None:
    if model is None:
        return
    facts = [("experts", traffic.experts, model.experts)]
    if traffic.top_k:
        facts.append(("experts of a token", traffic.top_k, model.top_k))
    most = len(model.moe_layers)
    problems = [
        Problem(f"{model.name} has {its} {what}, the log has {mine}", "--model")
        for what, mine, its in facts
        if mine != its
    ]
    if len(traffic.layers) > most:
        message = f"{model.name} has {most} MoE layers, the log {len(traffic.layers)}"
        problems.append(Problem(message, "--model"))
    if problems:
        raise InputError(problems)


def _sizes(experts: int, asked: Sequence[int]) -> list[int]:
    """Return the EP sizes: those asked for, or those usual ones that are possible."""
    if experts < 2:
        message = "the log has one expert, and nothing to balance: two are needed"
        raise InputError([Problem(f"{message} (--hint experts=8 tells how many)")])
    wrong = [size for size in asked if not 1 < size <= experts]
    if wrong:
        message = f"2 to {experts} GPUs can share {experts} experts; got {wrong[0]}"
        raise InputError([Problem(message, "--ep")])
    if asked:
        return sorted(set(asked))
    usual = [size for size in DEFAULT_SIZES if size <= experts]
    return usual or [size for size in (4, 2) if size <= experts][:1]
