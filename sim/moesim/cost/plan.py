"""A plan of memory: what fits into each GPU, how many sequences, at what price.

Pure arithmetic on top of `moesim.cost.memory`, so a plan and a run agree to the block.
Bytes are of one GPU unless a name says otherwise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from moesim.cost.buffers import CASES, Case
from moesim.cost.memory import (
    MemoryBudget,
    blocks_for,
    kv_bytes_per_token,
    kv_capacity_blocks,
    memory_budget,
    rule_of_thumb_kv_bytes,
)
from moesim.cost.weights import ResidentBytes, expert_bytes, resident_parts
from moesim.errors import InputError
from moesim.spec.placement import contiguous
from moesim.spec.serving import ServingSpec
from moesim.spec.system import BYTES, System
from moesim.spec.topology import Topology

RULE_OF_THUMB = (0.15, 0.25)
"""Share of the weights that is often advised for activations and buffers."""
PCIE_BYTES_PER_S, NVME_BYTES_PER_S = 55e9, 6e9
"""What a PCIe 5.0 x16 port and one NVMe drive reach, to put a price on one expert."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a plan is asked to keep to.

    Parameters
    ----------
    context : int
        Tokens of a sequence, prompt and output together.
    utilization, reserve_bytes : float
        As in `memory_budget`.
    case : {"balanced", "expected", "worst"}
        How evenly tokens are spread when buffers and activations are sized.
    """

    context: int = 4096
    utilization: float = 0.9
    reserve_bytes: float = 0.0
    case: Case = "balanced"


@dataclass(frozen=True, slots=True)
class Room:
    """What the KV cache holds.

    Parameters
    ----------
    blocks, tokens : int
        Of one data-parallel rank.
    sequences : int
        That fit at once, at the context length, into one rank.
    """

    blocks: int
    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Spare:
    """What one more slot in every MoE layer of every GPU costs.

    Parameters
    ----------
    experts : int
        Redundant experts a layer that it adds: one per GPU.
    bytes, tokens : float, int
        Memory of each GPU, and tokens of KV cache that a rank loses for it.
    """

    experts: int
    bytes: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A model on a cluster, as far as memory goes.

    Parameters
    ----------
    budgets : dict of case to MemoryBudget
        Where memory goes, by how tokens are spread.
    room : Room
        Under the case that was asked for; zeros when it does not fit.
    spare : Spare
        The price of redundant experts.
    """

    system: System
    serving: ServingSpec
    terms: Terms
    weights: ResidentBytes
    budgets: dict[Case, MemoryBudget]
    room: Room
    spare: Spare

    @property
    def budget(self) -> MemoryBudget:
        """Where memory goes under the case that was asked for."""
        return self.budgets[self.terms.case]

    @property
    def fits(self) -> bool:
        """Whether at least one sequence can be served on every rank."""
        return self.room.sequences > 0

    @property
    def weights_bytes(self) -> float:
        """All weights on one GPU."""
        return self.weights.total + self.budget.experts_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """What one more token takes on one GPU, were every layer to keep it."""
        system = self.system
        size = BYTES[system.precision.kv]
        return kv_bytes_per_token(system.model, size, system.tensor_parallel)

    @property
    def quoted_kv_bytes(self) -> float:
        """What the often-quoted formula says a token takes, of all GPUs of a rank."""
        return rule_of_thumb_kv_bytes(
            self.system.model, BYTES[self.system.precision.kv]
        )

    @property
    def quoted_over(self) -> float:
        """How many times too much the often-quoted formula is; 1 when it is right."""
        size = BYTES[self.system.precision.kv]
        return self.quoted_kv_bytes / kv_bytes_per_token(self.system.model, size)

    @property
    def expert_bytes(self) -> float:
        """One routed expert."""
        return expert_bytes(self.system.model, self.system.precision.experts)


def make_plan(system: System, serving: ServingSpec, terms: Terms) -> Plan:
    """Return where memory goes, what fits, and what redundant experts cost."""
    budgets: dict[Case, MemoryBudget] = {
        case: memory_budget(
            system, serving, terms.utilization, terms.reserve_bytes, case
        )
        for case in CASES
    }
    return Plan(
        system=system,
        serving=serving,
        terms=terms,
        weights=resident_parts(system),
        budgets=budgets,
        room=room(system, serving, terms),
        spare=_spare(system, serving, terms),
    )


def room(system: System, serving: ServingSpec, terms: Terms) -> Room:
    """Return what the KV cache of one rank holds; zeros when nothing fits.

    Layers with windows are set aside for `max_num_seqs` sequences where that leaves
    more blocks, as in a run; then no more sequences than these fit.
    """
    try:
        blocks = kv_capacity_blocks(
            system, serving, terms.utilization, terms.reserve_bytes, terms.case
        )
    except InputError:
        return Room(0, 0, 0)
    sequences = blocks // blocks_for(terms.context, serving.block_size)
    if system.model.attention.window_every:
        sequences = min(sequences, serving.max_num_seqs)
    return Room(blocks, blocks * serving.block_size, sequences)


def _spare(system: System, serving: ServingSpec, terms: Terms) -> Spare:
    """Return the difference that one more slot a layer and GPU makes."""
    gpus, slots = system.topology.gpus, system.placement.slots_per_gpu
    more = placed(system, system.topology, slots + 1)
    used = [
        memory_budget(s, serving, terms.utilization, terms.reserve_bytes, terms.case)
        for s in (system, more)
    ]
    size = used[0].free_bytes - used[1].free_bytes
    model, element = system.model, BYTES[system.precision.kv]
    a_token = kv_bytes_per_token(model, element, system.tensor_parallel)
    before = room(system, serving, terms).tokens
    lost = before - room(more, serving, terms).tokens if before else int(size / a_token)
    return Spare(gpus, size, lost)


def placed(system: System, topology: Topology, slots: int) -> System:
    """Return the system on another cluster, with so many slots a layer on each GPU."""
    model, gpus = system.model, topology.gpus
    spare = slots * gpus - model.experts
    placement = contiguous(model.moe_layer_count, model.experts, gpus, spare)
    return replace(system, topology=topology, placement=placement)


def smallest_clusters(system: System, serving: ServingSpec, terms: Terms) -> list[Plan]:
    """Return the plans of the smallest clusters of these GPUs on which the model fits.

    Part of one node first, then whole nodes, with at least the redundant experts that
    the system has and the fewest more that share out evenly. The first plan splits
    attention as the system does, if that fits anywhere: beyond one slot a layer more
    GPUs hold nothing less. Each further plan splits it over twice as many GPUs or
    more, up to a node, and is smaller for it.

    Returns
    -------
    list of Plan
        Empty when not even one expert a layer on each GPU leaves room.
    """
    found: list[Plan] = []
    split = system.tensor_parallel
    while split <= system.topology.gpus_per_node:
        plan = _smallest(replace(system, tensor_parallel=split), serving, terms)
        if plan and (not found or _gpus(plan) < _gpus(found[-1])):
            found.append(plan)
        split *= 2
    return found


def _smallest(system: System, serving: ServingSpec, terms: Terms) -> Plan | None:
    """Return the plan of the smallest cluster, attention split as it is."""
    wanted = system.placement.phy2log.shape[1]
    for topology in _clusters(system):
        candidate = placed(system, topology, -(-wanted // topology.gpus))
        if room(candidate, serving, terms).sequences:
            return make_plan(candidate, serving, terms)
    return None


def _gpus(plan: Plan) -> int:
    return plan.system.topology.gpus


def _clusters(system: System) -> Iterator[Topology]:
    """Yield clusters by size, up to one slot a layer on each GPU."""
    gpu, split = system.topology.gpu, system.tensor_parallel
    node_gpus = system.topology.gpus_per_node
    slots = system.placement.phy2log.shape[1]
    for count in range(split, node_gpus + 1, split):
        yield Topology(gpu, 1, count)
    if node_gpus % split == 0:  # a rank's GPUs share a node
        for nodes in range(2, -(-slots // node_gpus) + 1):
            yield Topology(gpu, nodes, node_gpus)
