"""Every placement by its name in a scenario, and what each goes by.

Axes: ``L`` MoE layers, ``E`` experts.
"""

from collections.abc import Callable, Mapping

from moesim.policy.place.eplb import eplb, eplb_global
from moesim.policy.place.flat import greedy, tensorrt_llm
from moesim.spec.placement import PLACEMENTS, Placement
from moesim.types import Floats

ByLoad = Callable[[Floats, int, int, int, int], Placement]
"""Takes ``(L, E)`` loads, GPUs, nodes, groups and redundant slots of a layer."""
BY_LOAD: Mapping[str, ByLoad] = {
    "eplb": eplb,
    "eplb_global": eplb_global,
    "tensorrt_llm": tensorrt_llm,
    "greedy": greedy,
}
"""Placements that go by loads, measured in a pilot or read from a file."""
NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(PLACEMENTS, ()),
    **dict.fromkeys(BY_LOAD, ("path", "tokens")),
    "affinity": ("tokens",),
    "file": ("path",),
}
"""Every name, and what it takes beside ``redundant_experts``."""
WITHOUT_COPIES = ("greedy", "affinity")
"""Placements that give every expert one slot."""
PILOT_TOKENS = 16_384
"""Tokens of a pilot whose scenario says nothing."""
