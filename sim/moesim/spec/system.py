"""One expert-parallel serving instance: model, cluster, placement, number formats."""

from dataclasses import dataclass
from typing import Literal

from moesim.spec.model import ModelSpec
from moesim.spec.placement import Placement
from moesim.spec.residency import ResidencySpec
from moesim.spec.topology import Topology

DispatchKernel = Literal["normal", "low_latency"]
ExpertKernel = Literal["grouped", "per_expert"]
SharedExperts = Literal["before", "overlapped", "fused", "waterfill"]
AttentionKernel = Literal["whole", "split"]
BYTES = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5}
"""Bytes of one element of each number format."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats, each a key of `BYTES`."""

    experts: str = "bf16"
    weights: str = "bf16"
    kv: str = "bf16"
    dispatch: str = "bf16"
    combine: str = "bf16"


@dataclass(frozen=True, slots=True)
class System:
    """All that is fixed while an instance serves.

    Parameters
    ----------
    dispatch : {"normal", "low_latency"}
        ``normal`` sends one copy per destination node over the NIC, forwards it over
        NVLink to each GPU that needs it, and reduces on the way back. ``low_latency``
        sends one copy per (token, chosen slot), local ones included.
    experts : {"grouped", "per_expert"}
        One kernel for all experts of a micro-batch on a GPU, or one per expert.
    shared_experts : {"before", "overlapped", "fused", "waterfill"}
        Shared experts run with attention, before dispatch; or as a job of their own
        while dispatch is on the wire; or as one more expert of every GPU, after those
        in its slots: ``fused`` on the token's own GPU, ``waterfill`` where GPUs have
        least to do.
    attention : {"whole", "split"}
        Attention is one job; or two, between which another micro-batch may run.
    tensor_parallel : int
        GPUs that share the attention of one data-parallel rank.
    residency : ResidencySpec or None
        Which experts stay in device memory, if not all of them need to.
    """

    model: ModelSpec
    topology: Topology
    placement: Placement
    precision: Precision = Precision()
    dispatch: DispatchKernel = "normal"
    experts: ExpertKernel = "grouped"
    shared_experts: SharedExperts = "before"
    attention: AttentionKernel = "whole"
    tensor_parallel: int = 1
    residency: ResidencySpec | None = None

    @property
    def ranks(self) -> int:
        """Data-parallel attention ranks, ``R``."""
        return self.topology.gpus // self.tensor_parallel

    @property
    def fuses(self) -> bool:
        """Whether shared experts are served as one more expert of every GPU."""
        return self.shared_experts in ("fused", "waterfill")

    @property
    def jobs_per_gpu(self) -> int:
        """Experts of a layer that a GPU serves: its slots, and maybe the shared one."""
        return self.placement.slots_per_gpu + self.fuses

    @property
    def resident_copies(self) -> int:
        """Routed experts of all layers that a GPU keeps in device memory."""
        slots = self.placement.slots_per_gpu * self.model.moe_layer_count
        return min(self.residency.copies, slots) if self.residency else slots
