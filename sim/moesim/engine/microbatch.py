"""A micro-batch: the tokens of one forward pass, priced in whole picoseconds.

Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs, ``P`` phases, ``C`` port
classes.
"""

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from moesim.cost.pass_ import NO_CHOICES, PassCost, PassLoad
from moesim.engine.clock import LONGEST_S, PS_PER_S, ticks_of
from moesim.engine.event.server import NO_BUDGET
from moesim.errors import InputError
from moesim.measure.columns import PARTS, PassRecord
from moesim.policy.bundle import Policy
from moesim.policy.predict import known_experts
from moesim.policy.road import NOTHING, Road, Swap
from moesim.policy.view import BatchView, Stage, View
from moesim.types import Floats, Ints

NO_TICKS: Ints = np.zeros((0, 0), np.int64)
"""What stands for a part of attention that is not cut off."""


@dataclass(frozen=True, slots=True)
class TickCost:
    """A `PassCost` in whole picoseconds, rounded up once; 0 is no work and no job."""

    attention: Ints
    useful: Ints
    experts: Ints
    tx: Ints
    rx: Ints
    tail: Ints
    latency: Ints
    shared: Ints = field(default_factory=lambda: NO_TICKS)
    core: Ints = field(default_factory=lambda: NO_TICKS)

    @property
    def ahead(self) -> Ints:
        """``(L, G)``: what runs before dispatch: `attention` without `shared`."""
        return self.attention - self.shared if self.shared.size else self.attention


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One pass, ready to walk the layers.

    Parameters
    ----------
    number, admitted : int
        Its number, ascending in order of admission, and when it was formed.
    requests, chunk : (M,) arrays of int
        Its requests, and how many tokens of each it computes.
    oldest_arrival_s : float
        When the oldest of them arrived.
    load, cost : PassLoad, TickCost
        What it asks of each GPU, and how long that takes.
    source_tokens, source_padding : (G,) arrays of int
        Rows that enter the all-to-all at each GPU.
    padding_slots : (L, S, G) array of int
        How many of the slots' tokens are padding; none unless padding is routed.
    sent, received : (P, C, G) arrays of float
        Bytes through each port.
    traffic : (P, G, G) array of float
        Bytes from GPU to GPU.
    experts_s : (L, G) array of float
        What its experts really cost, once that may be known to the policy.
    guess_s : (L, G) array of float
        What the policy believes the experts of layers to come will cost.
    decoding : bool
        Whether it computes a single token of each request, over what is cached.
    road : Road or None
        The congestion map as of its forming, for a policy that asks for it.
    dropped, rerouted : (L, E) or (1, 1) arrays of int
        Choices that experts had no room for, by what became of them.
    weights : bool
        Whether it moves experts' weights; then it has no tokens, and its layers are the
        steps of the move.
    expected : (L, S, G) array of float
        Tokens that prefetching by class expects at each slot; empty otherwise.
    swap : Swap or None
        The loading ahead of it as of its forming, for a policy that asks for it.
    """

    number: int
    admitted: int
    requests: Ints
    chunk: Ints
    oldest_arrival_s: float
    load: PassLoad
    cost: TickCost
    source_tokens: Ints
    source_padding: Ints
    padding_slots: Ints
    sent: Floats
    received: Floats
    traffic: Floats
    experts_s: Floats
    guess_s: Floats
    decoding: bool = False
    road: Road | None = None
    dropped: Ints = field(default_factory=lambda: NO_CHOICES)
    rerouted: Ints = field(default_factory=lambda: NO_CHOICES)
    weights: bool = False
    expected: Floats = field(default_factory=lambda: NOTHING)
    swap: Swap | None = None

    @property
    def tokens(self) -> int:
        """Tokens it computes, padding not counted."""
        return int(self.chunk.sum())

    def view(self, layer: int, stage: Stage) -> BatchView:
        """Return what a policy may see as this batch queues for `stage` of `layer`."""
        return BatchView(
            batch=self.number,
            layer=layer,
            stage=stage,
            tokens=self.tokens,
            admitted_s=self.admitted / PS_PER_S,
            oldest_arrival_s=self.oldest_arrival_s,
            attention_s=self.cost.attention / PS_PER_S,
            experts_s=known_experts(self.experts_s, self.guess_s, layer, stage),
            requests=self.requests,
            decoding=self.decoding,
            road=self.road,
            swap=self.swap,
        )


def quantise(cost: PassCost) -> TickCost:
    """Return the cost in picoseconds: the one place where durations are rounded."""
    useful = np.floor(cost.useful * PS_PER_S).astype(np.int64)
    attention = ticks_of(cost.attention)
    return TickCost(
        attention=attention,
        useful=np.minimum(useful, attention),
        experts=ticks_of(cost.experts),
        tx=ticks_of(cost.tx),
        rx=ticks_of(cost.rx),
        tail=ticks_of(cost.tail),
        latency=np.maximum(ticks_of(cost.latency), 1),
        **cut(cost.attention, cost.shared, cost.core),
    )


def cut(whole: Floats, shared: Floats, core: Floats) -> dict[str, Ints]:
    """Return the picoseconds of parts of attention, which leave their sum as it is.

    Parameters
    ----------
    whole, shared, core : arrays of float
        Seconds of attention, and of its parts; an empty part is not cut off.
    """
    parts: dict[str, Ints] = {}
    for name, part in (("shared", shared), ("core", core)):
        if part.size:
            rest = np.maximum(whole - part, 0.0)
            parts[name] = ticks_of(whole) - ticks_of(rest)
            whole = rest
    return parts


def budget_ticks(wait_budget_s: float) -> int:
    """Return a wait budget in picoseconds, or `NO_BUDGET` when no run is that long."""
    if wait_budget_s > LONGEST_S:
        return NO_BUDGET
    return int(ticks_of(np.array(wait_budget_s)))


def held_ticks(policy: Policy, batch: BatchView, view: View) -> int:
    """Return for how many picoseconds the policy's release holds a micro-batch back.

    Raises
    ------
    InputError
        The policy gave something that is no duration.
    """
    seconds = policy.release.delay(batch, view)
    good = isinstance(seconds, int | float | np.number)
    if not good or not 0 <= seconds <= LONGEST_S:
        message = f"policy {policy.name!r} gave the delay {seconds!r}; seconds from 0 "
        raise InputError(message + "are expected")
    return int(ticks_of(np.array(float(seconds))))


def checked_key(policy: Policy, batch: BatchView, view: View) -> float:
    """Return the order's key for a micro-batch.

    Raises
    ------
    InputError
        The policy gave something that cannot be compared.
    """
    if not batch.tokens:  # weights that move, of which no policy knows, go first
        return -inf
    key = policy.order.key(batch, view)
    if not isinstance(key, int | float | np.number) or key != key:  # noqa: PLR0124
        message = f"policy {policy.name!r} gave the key {key!r}; a number is expected"
        raise InputError(message)
    return float(key)


def computed_elsewhere(
    batch: MicroBatch, experts: list[tuple[int, int, int]]
) -> MicroBatch:
    """Return the micro-batch without the work of experts that no GPU computed.

    Parameters
    ----------
    batch, experts : MicroBatch, list of (layer, slot, GPU)
        The pass, and which of its experts.
    """
    if not experts:
        return batch
    left = batch.cost.experts.copy()
    left[tuple(zip(*experts, strict=True))] = 0
    return replace(batch, cost=replace(batch.cost, experts=left))


def pass_record(batch: MicroBatch, done: int, parts: Ints) -> PassRecord:
    """Return what is written down of a pass that ended now.

    Parameters
    ----------
    batch, done : MicroBatch, int
        The pass and the instant it ended.
    parts : (7, G) array of int
        Picoseconds of each of `PARTS` on each GPU, as far as the engine timed them; its
        row ``queue`` holds all the time between entering a segment and having computed
        it, from which the known service is taken here. Row ``attention`` holds what of
        `shared` nothing else hides, no longer part of the row ``queue``.
    """
    cost = batch.cost
    attention = cost.ahead.sum(axis=0)
    experts = cost.experts.sum(axis=(0, 1))
    real = 1 - batch.padding_slots / np.maximum(batch.load.slots, 1)
    useful_experts = (cost.experts * real).sum(axis=(0, 1)).astype(np.int64)
    head = cost.tail * (batch.load.sequences > 0)
    rows = dict(zip(PARTS, parts, strict=True))
    shared = cost.attention.sum(axis=0) - attention
    hidden = shared - rows["attention"]
    rows["attention"] = rows["attention"] + attention
    rows["experts"], rows["lm_head"] = experts, cost.tail
    rows["queue"] = rows["queue"] - attention - experts - cost.tail
    return PassRecord(
        number=batch.number,
        admitted=batch.admitted,
        done=done,
        requests=len(batch.requests),
        tokens=batch.tokens,
        padding=int(batch.source_padding.sum()),
        parts=np.stack([rows[part] for part in PARTS]),
        useful=cost.useful.sum(axis=0) + useful_experts + head,
        slot_tokens=batch.load.slots,
        slot_service=cost.experts,
        source_tokens=batch.source_tokens,
        source_padding=batch.source_padding,
        sent=batch.sent,
        received=batch.received,
        tx=cost.tx.sum(axis=0),
        rx=cost.rx.sum(axis=0),
        traffic=batch.traffic,
        hidden=hidden,
        dropped=batch.dropped,
        rerouted=batch.rerouted,
        weights=batch.weights,
    )
