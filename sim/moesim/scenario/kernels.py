"""Kernels and engines, held to what else a scenario says."""

from moesim.engine.array.engine import kernels_refusal, refusal
from moesim.errors import InputError
from moesim.scenario.pieces import model_of, policy_of
from moesim.scenario.schema import Sections
from moesim.scenario.system import placed_system


def shared_experts_fit(sections: Sections) -> None:
    """Raise `InputError` for shared experts that are not there, or not simulated so."""
    kind = sections.kernels.shared_experts
    if kind != "before" and not model_of(sections).shared_width:
        raise InputError("does nothing: the model has no shared experts")
    if kind not in ("fused", "waterfill"):
        return
    if sections.placement.rebalance is not None:
        said = "placement.rebalance moves experts from slot to slot"
        raise InputError(f"{kind} is not simulated where {said}")
    if sections.residency is not None:
        said = "residency has experts outside device memory"
        raise InputError(f"{kind} is not simulated where {said}")


def attention_fits(sections: Sections) -> None:
    """Raise `InputError` for attention that is split in vain."""
    serving = sections.serving
    if sections.kernels.attention == "whole":
        return
    if "lockstep" in (serving.coupling, policy_of(sections).coupling):
        raise InputError("does nothing in lockstep: a stage runs all attention first")
    if serving.max_in_flight == 1:
        said = "does nothing with serving.max_in_flight 1"
        raise InputError(f"{said}: there is nobody to run between the two jobs")


def array_plays(sections: Sections) -> None:
    """Raise `InputError` if the array engine is asked for and would not be exact."""
    serving, policy = sections.serving, policy_of(sections)
    if serving.engine != "array" or "lockstep" in (serving.coupling, policy.coupling):
        return
    reason = refusal(policy) or kernels_refusal(placed_system(sections))
    if reason:
        raise InputError(f"array would not be exact: {reason}")
