"""What a run writes down while it runs: columns of whole picoseconds and counts.

Nothing is interpreted here; tables and metrics are computed from these columns after
the run. Axes: ``N`` requests, ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs, ``P``
phases, ``C`` port classes.
"""

from array import array
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from moesim.cost.pass_ import NO_CHOICES
from moesim.errors import SimulationError
from moesim.measure.balance import Balance
from moesim.measure.gaps import Gaps
from moesim.measure.memory import MemoryLog
from moesim.measure.moves import MoveLog, Told, cells_of, told
from moesim.measure.residency import ResidencyLog
from moesim.measure.shared import SharedLog
from moesim.measure.waits import WaitColumns
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.types import Floats, Ints
from moesim.workload.requests import Requests

UNFINISHED, FINISHED, REJECTED, FAILED = 0, 1, 2, 3
STATUSES = ("unfinished", "finished", "rejected", "failed")
NEVER = -1
"""The time of what has not happened."""
PARTS = (
    "attention",
    "experts",
    "lm_head",
    "queue",
    "straggler",
    "dispatch",
    "combine",
)
"""Where the time of a pass goes; on every GPU the parts sum to the pass."""
NOTHING_HIDDEN: Ints = np.zeros(1, np.int64)
BLOCK = 1 << 16
"""Rows that are hashed together."""
MOST = 2**63 - 1
"""The largest number that a column holds."""
PASS_COUNTS = 6
"""What is written down of a pass before its parts."""
Part = Literal[
    "attention", "experts", "lm_head", "queue", "straggler", "dispatch", "combine"
]


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One finished pass, as an engine saw it.

    Parameters
    ----------
    number, admitted, done : int
        Which pass, and when it began and ended.
    requests, tokens, padding : int
        How many of each it carried.
    parts : (7, G) array of int
        Picoseconds of each of `PARTS` on each GPU; columns sum to ``done - admitted``.
    useful, slot_tokens, slot_service : arrays of int
        ``(G,)`` useful compute, then ``(L, S, G)`` tokens and service.
    source_tokens, source_padding : (G,) arrays of int
        Rows that entered the pass at each GPU.
    sent, received, tx, rx : (P, C, G) arrays
        Bytes and busy picoseconds of each port.
    traffic : (P, G, G) array of float
        Bytes from GPU to GPU.
    hidden : (G,) array of int
        Picoseconds of compute that no part shows, behind an all-to-all.
    dropped, rerouted : (L, E) or (1, 1) arrays of int
        Choices that experts had no room for, by what became of them.
    weights : bool
        Whether it moved experts' weights: nobody's tokens.
    """

    number: int
    admitted: int
    done: int
    requests: int
    tokens: int
    padding: int
    parts: Ints
    useful: Ints
    slot_tokens: Ints
    slot_service: Ints
    source_tokens: Ints
    source_padding: Ints
    sent: Floats
    received: Floats
    tx: Ints
    rx: Ints
    traffic: Floats
    hidden: Ints = field(default_factory=lambda: NOTHING_HIDDEN)
    dropped: Ints = field(default_factory=lambda: NO_CHOICES)
    rerouted: Ints = field(default_factory=lambda: NO_CHOICES)
    weights: bool = False


class RequestColumns:
    """One row a request: times, rank, status, progress; no Python object per request.

    A row costs 41 B: four times of 8 B (arrival, admission, first and last token), 4 B
    for the tokens generated, 2 B each for rank and preemptions, 1 B for the status.
    With the 17 B of `Requests` and the 5 B of a waiting line that makes 63 B a request.
    The end of a request is the time of its last token, or of its rejection.
    """

    def __init__(self, requests: Requests) -> None:
        count = len(requests)
        self.requests = requests
        self.arrival: Ints = np.full(count, NEVER)
        self.admitted: Ints = np.full(count, NEVER)
        self.first: Ints = np.full(count, NEVER)
        self.last: Ints = np.full(count, NEVER)
        self.rank: NDArray[np.int16] = np.full(count, NEVER, np.int16)
        self.status: NDArray[np.int8] = np.full(count, UNFINISHED, np.int8)
        self.generated: NDArray[np.int32] = np.zeros(count, np.int32)
        self.preemptions: NDArray[np.uint16] = np.zeros(count, np.uint16)
        self.gaps = Gaps()

    @property
    def finish(self) -> Ints:
        """``(N,)``: when each request ended: with its last token, or its rejection."""
        return np.where(self.status == UNFINISHED, NEVER, self.last)

    def forget_draws(self) -> None:
        """Let go of the drawn arrivals: `arrival` has when each request came."""
        none = np.broadcast_to(np.nan, len(self.requests))
        self.requests = replace(self.requests, arrival_s=none)

    def admit(self, requests: Ints, now: int) -> None:
        """Write down that requests run now, of those that have not run before."""
        self.admitted[requests[self.admitted[requests] == NEVER]] = now

    def emit(self, requests: Ints, now: int) -> None:
        """Write down that each of these requests has gained a token."""
        before = self.last[requests]
        self.last[requests] = now
        fresh = before == NEVER
        if fresh.any():
            self.first[requests[fresh]] = now
            requests, before = requests[~fresh], before[~fresh]
        self.gaps.add(requests, now - before, self.arrival)
        self.gaps.tokens(len(fresh), now)

    def end(self, requests: Ints, now: int, status: int) -> None:
        """Write down how and when requests ended; each ends exactly once."""
        if self.status[requests].any():
            message = f"a request of {requests.tolist()} ended twice"
            raise AssertionError(message)
        self.status[requests] = status
        self.last[requests] = now


class Recorder:
    """Everything one run writes down."""

    residency: ResidencyLog | None = None
    memory: MemoryLog | None = None
    moves: MoveLog | None = None

    def __init__(self, system: System, requests: Requests) -> None:
        layers = len(system.model.moe_layers)
        gpus, slots = system.topology.gpus, system.placement.slots_per_gpu
        self.system = system
        self.requests = RequestColumns(requests)
        self.waits = WaitColumns(layers * system.jobs_per_gpu * gpus)
        self.balance, self.stages = Balance(), Balance()
        self.shared = SharedLog(system)
        self._passes = array("q")
        self.parts: Ints = np.zeros((len(PARTS), gpus), np.int64)
        self.hidden: Ints = np.zeros(gpus, np.int64)
        self.dropped: Ints = np.zeros(system.placement.replicas.shape, np.int64)
        self.rerouted: Ints = np.zeros_like(self.dropped)
        self.useful: Ints = np.zeros(gpus, np.int64)
        self.slot_tokens: Ints = np.zeros((layers, slots, gpus), np.int64)
        self.slot_service: Ints = np.zeros((layers, slots, gpus), np.int64)
        self.source_tokens: Ints = np.zeros(gpus, np.int64)
        self.source_padding: Ints = np.zeros(gpus, np.int64)
        self.bytes: Floats = np.zeros((2, 2, 2, gpus))
        self.port_busy: Ints = np.zeros((2, 2, 2, gpus), np.int64)
        self.traffic: Floats = np.zeros((2, gpus, gpus))
        self.kv_peak: Ints = np.zeros(system.ranks, np.int64)
        self.span = self._spent = 0
        self.engine = self.refused = ""
        self._digest = blake2b(digest_size=16)

    def end_pass(self, record: PassRecord) -> None:
        """Write down a finished pass."""
        gpus = record.parts.shape[1]
        spent = record.parts.sum(axis=1)
        duration = record.done - record.admitted
        self._check_time(record, int(duration) * gpus)
        if int(spent.sum()) != duration * gpus:
            message = f"pass {record.number}: parts do not sum to its duration"
            raise AssertionError(message)
        if self.moves is not None:
            end = self.moves.end_move if record.weights else self.moves.end_pass
            end(record)
        if not record.weights:
            self._end_tokens(record, spent)

    def _check_time(self, record: PassRecord, spent: int) -> None:
        """Refuse a pass with which sums of picoseconds may have more than 63 bits."""
        self._spent += spent
        if not 0 <= record.admitted <= record.done <= MOST or self._spent > MOST:
            limit = f"over {MOST / 1e12:.3g} GPU-seconds, where whole picoseconds end"
            raise SimulationError(f"at {record.done / 1e12:g} s: passes take {limit}")

    def _end_tokens(self, record: PassRecord, spent: Ints) -> None:
        head = (record.number, record.admitted, record.done)
        counts = (record.requests, record.tokens, record.padding)
        row = np.array((*head, *counts, *spent.tolist()), np.int64)
        self._passes.frombytes(row.tobytes())
        self._digest.update(row.data)
        self._digest.update(np.ascontiguousarray(record.parts).data)
        self.parts += record.parts
        self.hidden += record.hidden
        self.dropped += record.dropped
        self.rerouted += record.rerouted
        self.useful += record.useful
        routed = slice(self.slot_tokens.shape[1])
        self.slot_tokens += record.slot_tokens[:, routed]
        self.balance.add(record.slot_tokens[:, routed].sum(axis=1))
        self.slot_service += record.slot_service[:, routed]
        if self.system.fuses:
            self.shared.add(record)
        self.source_tokens += record.source_tokens
        self.source_padding += record.source_padding
        self._end_exchanges(record)

    def _end_exchanges(self, record: PassRecord) -> None:
        self.bytes[0] += record.sent
        self.bytes[1] += record.received
        self.port_busy[0] += record.tx
        self.port_busy[1] += record.rx
        self.traffic += record.traffic

    def waits_of(self, number: int) -> WaitColumns | Told:
        """Return where a pass's waits are written down, by its slots."""
        if self.moves is None:
            return self.waits
        return self.moves.waits(number, self.waits)

    def relocate(self, placement: Placement) -> None:
        """Write down that experts are elsewhere from now on, as `moves` keeps it.

        The first time, what was written down by slot is told to experts.
        """
        log = self.moves
        if log is None:
            raise AssertionError("experts move in a run that has no record of it")
        if not log.moved:
            cells, experts = cells_of(log.first), len(log.tokens)
            log.tokens += told(self.slot_tokens, cells, experts)
            log.service += told(self.slot_service, cells, experts)
            self.waits = self.waits.pooled(cells, experts)
        log.switch(placement)

    def measure_from(self, warmup_s: float) -> None:
        """Leave gaps of requests that arrive before out of what is summed up."""
        self.requests.gaps.since = round(warmup_s * 1e12)

    @property
    def pass_rows(self) -> Ints:
        """``(passes, 13)``: number, admission, end, three counts, time of `PARTS`."""
        return np.array(self._passes, np.int64).reshape(-1, PASS_COUNTS + len(PARTS))

    @property
    def passes(self) -> list[tuple[int, ...]]:
        """The rows of `pass_rows` as plain tuples."""
        return [tuple(row) for row in self.pass_rows.tolist()]

    @property
    def span_s(self) -> float:
        """Seconds from the start to the end of the last request."""
        return self.span / 1e12

    def digest(self) -> str:
        """Return a hash of every pass and every request's times, in order.

        Two runs with the same digest went through the same events at the same times.
        """
        digest = self._digest.copy()
        rows = self.requests
        for column in (rows.arrival, rows.admitted, rows.first, rows.last, rows.status):
            for begin in range(0, len(column), BLOCK):
                part = column[begin : begin + BLOCK].astype(np.int64, copy=False)
                digest.update(part.data)
        digest.update(self.waits.count.tobytes())
        digest.update(self.waits.total.tobytes())
        return digest.hexdigest()
