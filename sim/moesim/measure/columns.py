"""What a run writes down while it runs: columns of whole picoseconds and counts.

Nothing is interpreted here; tables and metrics are computed from these columns after
the run. Axes: ``N`` requests, ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs, ``P``
phases, ``C`` port classes.
"""

from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np

from moesim.measure.balance import Balance
from moesim.measure.waits import WaitColumns
from moesim.spec.system import System
from moesim.types import Floats, Ints
from moesim.workload.requests import Requests

UNFINISHED, FINISHED, REJECTED = 0, 1, 2
STATUSES = ("unfinished", "finished", "rejected")
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


class RequestColumns:
    """One row a request: times, rank, status; and the gaps between its tokens."""

    def __init__(self, requests: Requests) -> None:
        count = len(requests)
        self.requests = requests
        self.arrival: Ints = np.full(count, NEVER)
        self.admitted: Ints = np.full(count, NEVER)
        self.first: Ints = np.full(count, NEVER)
        self.last: Ints = np.full(count, NEVER)
        self.finish: Ints = np.full(count, NEVER)
        self.rank: Ints = np.full(count, NEVER)
        self.status: Ints = np.full(count, UNFINISHED)
        self.generated: Ints = np.zeros(count, np.int64)
        self.preemptions: Ints = np.zeros(count, np.int64)
        self.gap_owner = array("q")
        self.gap = array("q")

    def emit(self, request: int, now: int) -> None:
        """Write down that a request has gained a token."""
        if self.generated[request]:
            self.gap_owner.append(request)
            self.gap.append(now - int(self.last[request]))
        else:
            self.first[request] = now
        self.last[request] = now
        self.generated[request] += 1

    def end(self, request: int, now: int, status: int) -> None:
        """Write down how and when a request ended; it ends exactly once."""
        if self.status[request] != UNFINISHED:
            message = f"request {request} ended twice"
            raise AssertionError(message)
        self.status[request] = status
        self.finish[request] = now


class Recorder:
    """Everything one run writes down."""

    def __init__(self, system: System, requests: Requests) -> None:
        layers = len(system.model.moe_layers)
        gpus, slots = system.topology.gpus, system.placement.slots_per_gpu
        self.system = system
        self.requests = RequestColumns(requests)
        self.waits = WaitColumns(layers * slots * gpus)
        self.balance = Balance()
        self.passes: list[tuple[int, ...]] = []
        self.parts: Ints = np.zeros((len(PARTS), gpus), np.int64)
        self.useful: Ints = np.zeros(gpus, np.int64)
        self.slot_tokens: Ints = np.zeros((layers, slots, gpus), np.int64)
        self.slot_service: Ints = np.zeros((layers, slots, gpus), np.int64)
        self.source_tokens: Ints = np.zeros(gpus, np.int64)
        self.source_padding: Ints = np.zeros(gpus, np.int64)
        self.bytes: Floats = np.zeros((2, 2, 2, gpus))
        self.port_busy: Ints = np.zeros((2, 2, 2, gpus), np.int64)
        self.traffic: Floats = np.zeros((2, gpus, gpus))
        self.kv_peak: Ints = np.zeros(system.ranks, np.int64)
        self.span = 0
        self.engine = ""
        self._digest = blake2b(digest_size=16)

    def end_pass(self, record: PassRecord) -> None:
        """Write down a finished pass."""
        gpus = record.parts.shape[1]
        spent = record.parts.sum(axis=1)
        duration = record.done - record.admitted
        if int(spent.sum()) != duration * gpus:
            message = f"pass {record.number}: parts do not sum to its duration"
            raise AssertionError(message)
        head = (record.number, record.admitted, record.done)
        counts = (record.requests, record.tokens, record.padding)
        row = (*head, *counts, *spent.tolist())
        self.passes.append(row)
        self._digest.update(np.array(row, np.int64).tobytes())
        self._digest.update(record.parts.tobytes())
        self.parts += record.parts
        self.useful += record.useful
        self.slot_tokens += record.slot_tokens
        self.balance.add(record.slot_tokens.sum(axis=1))
        self.slot_service += record.slot_service
        self.source_tokens += record.source_tokens
        self.source_padding += record.source_padding
        self._end_exchanges(record)

    def _end_exchanges(self, record: PassRecord) -> None:
        self.bytes += np.stack([record.sent, record.received])
        self.port_busy += np.stack([record.tx, record.rx])
        self.traffic += record.traffic

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
        times = (rows.arrival, rows.admitted, rows.first, rows.finish)
        for column in (*times, rows.status):
            digest.update(column.tobytes())
        digest.update(self.waits.count.tobytes())
        digest.update(self.waits.total.tobytes())
        return digest.hexdigest()
