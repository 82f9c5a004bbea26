"""Every policy by its name in a scenario."""

from typing import Any

from moesim.policy.blind import Blind
from moesim.policy.capacity import Capacity
from moesim.policy.cross_layer import CrossLayer
from moesim.policy.easybalance import EasyBalance
from moesim.policy.gate import GateTemperature, ProportionalBias, SignBias
from moesim.policy.order import Fifo, Oldest, PerLayer

POLICIES: dict[str, type[Any]] = {
    "fifo": Fifo,
    "oldest": Oldest,
    "per_layer": PerLayer,
    "blind": Blind,
    "cross_layer": CrossLayer,
    "easybalance": EasyBalance,
    "capacity": Capacity,
    "sign_bias": SignBias,
    "proportional_bias": ProportionalBias,
    "gate_temperature": GateTemperature,
}


def keeps_outputs(name: str) -> bool:
    """Return whether models answer under a named policy as they would without it."""
    return not getattr(POLICIES[name], "changes_outputs", False)
