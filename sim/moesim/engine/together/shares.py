"""One replication's share of passes that were priced together: a block of GPUs.

Axes: ``n`` copies, ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs of one copy,
``N`` segments as in `engine.event.flow`.
"""

from dataclasses import replace

import numpy as np

from moesim.engine.draft import Draft
from moesim.engine.microbatch import MicroBatch, pass_record
from moesim.measure.columns import PARTS, PassRecord
from moesim.spec.system import ExpertKernel
from moesim.types import Ints


class Whole:
    """A micro-batch of all copies, and what is written down of it whenever it ends.

    Attributes
    ----------
    service : (n, L, G, S) array of int
        Picoseconds of every expert's job.
    before : (n, L, G, S) array of int
        What is served on the GPU ahead of it, of the same micro-batch.
    """

    def __init__(self, batch: MicroBatch, gpus: int, kernel: ExpertKernel) -> None:
        layers, slots, width = batch.cost.experts.shape
        self.batch = batch
        self.gpus = gpus
        self.copies = width // gpus
        nothing = np.zeros((len(PARTS), width), np.int64)
        self.record = pass_record(batch, 0, nothing)
        experts = batch.cost.experts.reshape(layers, slots, self.copies, gpus)
        self.service = np.ascontiguousarray(experts.transpose(2, 0, 3, 1))
        self.before = np.zeros_like(self.service)
        if kernel == "per_expert":
            self.before = self.service.cumsum(axis=3) - self.service


class Share:
    """One copy's block of a `Whole`."""

    __slots__ = ("copy", "draft", "mine", "whole")

    def __init__(self, whole: Whole, copy: int, draft: Draft) -> None:
        self.whole = whole
        self.copy = copy
        self.draft = draft
        self.mine = slice(copy * whole.gpus, (copy + 1) * whole.gpus)

    def record(self, done: int, parts: Ints) -> PassRecord:
        """Return what is written down of the pass.

        Parameters
        ----------
        done : int
            When it ended.
        parts : (7, G) array of int
            Where its time went, service counted as queue.
        """
        mine, draft, known = self.mine, self.draft, self.whole.record
        return replace(
            known,
            number=draft.number,
            admitted=draft.now,
            done=done,
            requests=len(draft.requests),
            tokens=int(draft.chunk.sum()),
            padding=int(known.source_padding[mine].sum()),
            parts=known.parts[:, mine] + parts,
            useful=known.useful[mine],
            slot_tokens=known.slot_tokens[..., mine],
            slot_service=known.slot_service[..., mine],
            source_tokens=known.source_tokens[mine],
            source_padding=known.source_padding[mine],
            sent=known.sent[..., mine],
            received=known.received[..., mine],
            tx=known.tx[..., mine],
            rx=known.rx[..., mine],
            traffic=known.traffic[:, mine, mine],
            hidden=known.hidden[mine],
        )

    def waits(self, spent: Ints) -> tuple[Ints, Ints]:
        """Return the cells, (layer, GPU, slot) as one number, and the waits of the jobs.

        Parameters
        ----------
        spent : (L, G) array of int
            From when each GPU entered the experts' segment to the end of its last job.
        """
        whole, copy = self.whole, self.copy
        service = whole.service[copy]
        wait = spent - service.sum(axis=2)
        cells = np.flatnonzero(service)
        return cells, (whole.before[copy] + wait[:, :, None]).take(cells)
