"""The shape of a scenario: sections, their fields, units, ranges and defaults.

Sections whose fields depend on a name (routing, arrivals, lengths, policy) stay mappings
here; `moesim.scenario.pieces` builds and thereby checks them.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from moesim.policy.compose import ASSIGNS
from moesim.policy.dispatch import DISPATCHES
from moesim.policy.place.catalogue import NAMES
from moesim.policy.rebalance import REBALANCES
from moesim.scenario.copies import (
    PREFETCHES,
    THRESHOLD,
    Copies,
    HostCopies,
    Pinned,
)
from moesim.scenario.quantities import (
    Amount,
    Bandwidth,
    Bytes,
    Count,
    Flag,
    Flops,
    Name,
    Number,
    Seconds,
    Share,
    Text,
    Tokens,
    Whole,
    shown,
)
from moesim.scenario.shorthand import PRECISIONS, SLOS
from moesim.spec.memory import Allocator, OverCapacity, Preemption, Reserve
from moesim.spec.residency import CacheName, OnMiss, PrefetchName, Scope
from moesim.spec.serving import Coupling, EngineChoice, Mode, Padding
from moesim.spec.system import (
    BYTES,
    AttentionKernel,
    DispatchKernel,
    ExpertKernel,
    SharedExperts,
)
from moesim.units import parse_count

Table = dict[str, Any]
Natural = Annotated[Whole, Field(ge=0, le=10**12)]
Speed = Annotated[Number, Field(ge=1e-3, le=10)]


def one_of(names: tuple[str, ...]) -> BeforeValidator:
    """Return a validator for one of a few words."""

    def check(value: object) -> object:
        if not isinstance(value, str) or value not in names:
            raise ValueError(Choice(value, names))
        return value

    return BeforeValidator(check)


class Choice(str):
    """The text of an error about a word that is none of `names`."""

    names: tuple[str, ...]

    def __new__(cls, value: object, names: tuple[str, ...]) -> "Choice":
        """Return the text, which remembers the names for a hint."""
        text = super().__new__(cls, f"{shown(value)} is not one of {', '.join(names)}")
        text.names = names
        return text


def not_a_word(names: tuple[str, ...]) -> BeforeValidator:
    """Return a validator for a mapping that one of a few words may stand for.

    A word that is right has been written out before, so one that is left is wrong.
    """

    def check(value: object) -> object:
        if isinstance(value, str):
            raise ValueError(Choice(value, names))
        return value

    return BeforeValidator(check)


def _blocks(value: object) -> int | str:
    if value == "auto":
        return "auto"
    if value is None or isinstance(value, dict | list):
        raise ValueError(f"auto or a whole number is expected; got {shown(value)}")
    count = parse_count(value)
    if count < 1:
        raise ValueError(f"auto or a whole number >= 1 is expected; got {shown(value)}")
    return count


Blocks = Annotated[int | Literal["auto"], BeforeValidator(_blocks)]
Format = Annotated[str, one_of(tuple(BYTES))]


def _over(defaults: Table, data: Table) -> Table:
    """Return the data with defaults where it says nothing."""
    said = {k: v for k, v in data.items() if v is not None or k not in defaults}
    return {**defaults, **said}


class Section(BaseModel):
    """A part of a scenario: unknown keys are errors, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class HostSection(Section):
    """Each node's host, as far as experts that are not in device memory need it."""

    memory_bandwidth: Bandwidth | None = None
    flops: Flops | None = None
    nvme_bandwidth: Bandwidth | None = None
    memory: Annotated[Bytes, Field(gt=0, le=1e18)] | None = None


class Cluster(Section):
    """Nodes of GPUs, and how many of them share one rank's attention."""

    gpu: Text = "h100"
    nodes: Annotated[Count, Field(le=1024)] = 1
    gpus_per_node: Annotated[Count, Field(le=1024)] = 8
    tensor_parallel: Count = 1
    speed: dict[Natural, Speed] = {}
    host_bandwidth: Bandwidth | None = None
    host: HostSection | None = None


class Formats(Section):
    """Number formats of weights, experts, KV cache and both all-to-alls."""

    weights: Format = "bf16"
    experts: Format = "bf16"
    kv: Format = "bf16"
    dispatch: Format = "bf16"
    combine: Format = "bf16"


class Kernels(Section):
    """Which kernels move tokens, run experts, and cut attention."""

    dispatch: Annotated[DispatchKernel, one_of(get_args(DispatchKernel))] = "normal"
    experts: Annotated[ExpertKernel, one_of(get_args(ExpertKernel))] = "grouped"
    shared_experts: Annotated[SharedExperts, one_of(get_args(SharedExperts))] = "before"
    attention: Annotated[AttentionKernel, one_of(get_args(AttentionKernel))] = "whole"


class PlacementSection(Section):
    """Where experts live, and what that goes by."""

    name: Annotated[str, one_of(tuple(NAMES))] = "contiguous"
    redundant_experts: Annotated[Natural, Field(le=10_000)] = 0
    path: Text | None = None
    tokens: Annotated[Count, Field(le=10**6)] | None = None
    rebalance: Annotated[Table, not_a_word(tuple(REBALANCES))] | None = None


class PrefetchSection(Section):
    """Who guesses which experts will be needed."""

    name: Annotated[PrefetchName, one_of(get_args(PrefetchName))] = "none"
    hit_rate: Share | None = None
    lookahead: Annotated[Natural, Field(le=10_000)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, data: Any) -> Any:
        """Return the data with the defaults of what its name takes."""
        taken = PREFETCHES.get(str(data.get("name"))) if type(data) is dict else None
        return _over(taken, data) if taken else data


class ResidencySection(Section):
    """Which experts stay in device memory, and how others come in."""

    hbm_experts: Copies = "auto"
    threshold: Annotated[Number, Field(gt=0, le=1)] | None = None
    scope: Annotated[Scope, one_of(get_args(Scope))] = "layer"
    cache: Annotated[CacheName, one_of(get_args(CacheName))] = "lru"
    pinned: Pinned = []
    on_miss: Annotated[OnMiss, one_of(get_args(OnMiss))] = "load"
    prefetch: PrefetchSection = PrefetchSection()
    sync: Annotated[Seconds, Field(le=60)] = 0.0
    host_experts: HostCopies = "all"

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, data: Any) -> Any:
        """Return the data with the threshold that ``auto`` takes."""
        by_threshold = type(data) is dict and data.get("hbm_experts", "auto") == "auto"
        return _over({"threshold": THRESHOLD}, data) if by_threshold else data


class PhasesSection(Section):
    """Classes come in waves."""

    share: Share
    mean_requests: Annotated[Number, Field(ge=1, le=1e9)] = 50.0


class WorkloadSection(Section):
    """What arrives."""

    num_prompts: Annotated[Count, Field(le=10**7)] = 200
    arrivals: Table = {"type": "batch"}
    max_concurrency: Natural = 0
    input_len: Table
    output_len: Table = {"type": "constant", "value": 1}
    classes: dict[Name, Amount] = {}
    phases: PhasesSection | None = None


class ServingSection(Section):
    """How the instance serves, in vLLM's names."""

    mode: Annotated[Mode, one_of(get_args(Mode))] = "continuous"
    max_num_batched_tokens: Tokens = 2048
    max_num_seqs: Count = 256
    chunked_prefill: Flag = True
    block_size: Annotated[Count, Field(le=1 << 20)] = 16
    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] = 0.9
    kv_blocks: Blocks = "auto"
    max_in_flight: Annotated[Count, Field(le=64)] = 1
    coupling: Annotated[Coupling, one_of(get_args(Coupling))] = "queued"
    engine: Annotated[EngineChoice, one_of(get_args(EngineChoice))] = "auto"
    padding: Annotated[Padding, one_of(get_args(Padding))] = "masked"
    stage_width: Natural = 0
    assign: Annotated[str, one_of(tuple(ASSIGNS))] = "round_robin"
    replica: Annotated[str, one_of(tuple(DISPATCHES))] = "round_robin"


class MemorySection(Section):
    """Memory while serving: blocks, swapping, full GPUs."""

    kv_allocator: Annotated[Allocator, one_of(get_args(Allocator))] = "paged"
    reserve: Annotated[Reserve, one_of(get_args(Reserve))] | None = None
    max_model_len: Tokens | None = None
    preemption: Annotated[Preemption, one_of(get_args(Preemption))] = "recompute"
    swap_space: Annotated[Bytes, Field(le=1e15)] | None = None
    over_capacity: Annotated[OverCapacity, one_of(get_args(OverCapacity))] = "wait"
    capacity: Annotated[Number, Field(gt=0, le=1)] = 1.0


class Limits(Section):
    """What a request must keep to count as good."""

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    e2el: Seconds | None = None

    def in_ms(self) -> dict[str, float]:
        """Return the limits that are set, in milliseconds."""
        return {name: value * 1e3 for name, value in self if value is not None}


class Sections(Section):
    """A whole scenario, as far as each value can be checked on its own."""

    name: Name
    model: Text
    cluster: Cluster = Cluster()
    precision: Annotated[Formats, not_a_word(tuple(PRECISIONS))] = Formats()
    kernels: Kernels = Kernels()
    placement: PlacementSection = PlacementSection()
    routing: Table
    workload: WorkloadSection
    serving: ServingSection = ServingSection()
    residency: ResidencySection | None = None
    memory: MemorySection | None = None
    policy: Table = {"name": "fifo"}
    slo: Annotated[Limits, not_a_word(tuple(SLOS))] = Limits()
    warmup: Seconds = 0.0
    seed: Natural = 0
    replications: Annotated[Count, Field(le=10**5)] = 1
