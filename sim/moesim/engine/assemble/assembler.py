"""From the tokens of a pass to a priced micro-batch: gate, dispatch, count, price.

Axes: ``M`` requests of the pass, ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs,
``R`` data-parallel ranks, ``C`` port classes.
"""

from dataclasses import replace
from typing import Protocol

import numpy as np

from moesim.cost.exchange import ExchangeLoad
from moesim.cost.pass_ import PassLoad
from moesim.cost.price import copy_bytes
from moesim.engine.assemble.counted import CountedLoad
from moesim.engine.assemble.tariff import Tariff
from moesim.engine.assemble.tokens import TokenLoad, keys_of
from moesim.engine.clock import PS_PER_S
from moesim.engine.draft import Draft, on_gpus, sources
from moesim.engine.microbatch import MicroBatch
from moesim.policy.bundle import Policy
from moesim.policy.outlook import Outlook
from moesim.policy.predict import guess_for
from moesim.policy.road import Road
from moesim.routing.source import RoutingSource
from moesim.spec.placement import Placement
from moesim.spec.system import System
from moesim.types import Floats, Ints


class Loads(Protocol):
    """Where the load of a pass comes from: from its tokens, or from their number."""

    def load(self, draft: Draft, padding: Ints) -> tuple[ExchangeLoad, Ints]:
        """Return the load, and the ``(L, S, G)`` part of its slots that is padding."""
        ...


class Assembler:
    """Prices the drafts of one instance."""

    def __init__(
        self,
        system: System,
        source: RoutingSource,
        policy: Policy,
        outlook: Outlook | None = None,
    ) -> None:
        counted = getattr(source, "draw", "tokens") == "counts"
        self.outlook = outlook or Outlook(system, source, policy.foresight)
        self.system = system
        self.policy = policy
        self.source = source
        self.loads: Loads = (CountedLoad if counted else TokenLoad)(
            system, self.outlook.watched(source), policy
        )
        self.tariff = Tariff(system)

    def place(self, placement: Placement) -> None:
        """Route tokens to experts where they are from now on."""
        # Counts are refused where experts move.
        assert isinstance(self.loads, TokenLoad)
        self.system = replace(self.system, placement=placement)
        self.loads = replace(self.loads, system=self.system)
        self.outlook.place(self.system)

    def assemble(self, draft: Draft, routed_padding: Ints) -> MicroBatch:
        """Return the micro-batch of a draft, routed and priced.

        Parameters
        ----------
        draft : Draft
            What runs.
        routed_padding : (R,) array of int
            How many of a rank's padding rows load the first experts: none, unless the
            engine has that known fault.
        """
        system = self.system
        exchange, fake = self.loads.load(draft, routed_padding)
        load = pass_load(draft, exchange, system)
        cost = self.tariff.price(load)
        truth_s = cost.experts.sum(axis=1) / PS_PER_S
        guess_s = self._guess(truth_s, draft)
        road = self._look(draft, load.slots - fake, np.stack([truth_s, guess_s]))
        source_tokens, source_padding = load.tokens, load.padding
        if system.tensor_parallel > 1:
            source_tokens = dealt(draft.rank, draft.chunk, system)
            source_padding = dealt(np.arange(system.ranks), draft.padding, system)
        row_bytes = copy_bytes(system)[:, None, None]
        hops = exchange.traffic.sum(axis=0)
        tx, rx = load.tx.sum(axis=0), load.rx.sum(axis=0)
        return MicroBatch(
            number=draft.number,
            admitted=draft.now,
            requests=draft.requests,
            chunk=draft.chunk,
            oldest_arrival_s=draft.oldest_arrival_s,
            load=load,
            cost=cost,
            source_tokens=source_tokens,
            source_padding=source_padding,
            padding_slots=fake,
            sent=row_bytes * np.stack([tx, rx]),
            received=row_bytes * np.stack([rx, tx]),
            traffic=row_bytes * np.stack([hops, hops.T]),
            experts_s=guess_s if self.policy.knowledge == "counts" else truth_s,
            guess_s=guess_s,
            decoding=bool((draft.chunk == 1).all() and draft.start.all()),
            road=road,
            dropped=exchange.dropped,
            rerouted=exchange.rerouted,
        )

    def _look(self, draft: Draft, slots: Ints, belief: Floats) -> Road | None:
        """Return the road ahead of a draft, which is on it from now on.

        Parameters
        ----------
        slots : (L, S, G) array of int
            Its tokens at each slot; a fused shared expert's is left out.
        belief : (2, L, G) array of float
            As in `Outlook.depart`.
        """
        road, now_s = None, draft.now / PS_PER_S
        if self.outlook.watches:
            road = self.outlook.road(now_s, keys_of(draft))
        if self.outlook.learns:
            routed = slots[:, : self.system.placement.slots_per_gpu]
            self.outlook.depart(draft.number, routed, belief, now_s)
        return road

    def _guess(self, truth_s: Floats, draft: Draft) -> Floats:
        knowledge = self.policy.knowledge
        predicted = None
        if knowledge in ("counts", "predicted"):
            held = None
            if self.system.fuses:
                held = dealt(draft.rank, draft.chunk, self.system)
            predicted = self.outlook.guess(keys_of(draft), held)
        return guess_for(knowledge, truth_s, predicted)


def pass_load(draft: Draft, exchange: ExchangeLoad, system: System) -> PassLoad:
    """Return all that a pass asks of each GPU."""
    context = draft.start + draft.chunk
    pairs = draft.chunk * draft.start + draft.chunk * (draft.chunk + 1) // 2
    return PassLoad(
        tokens=on_gpus(draft.rank, draft.chunk, system),
        padding=np.repeat(draft.padding, system.tensor_parallel),
        sequences=on_gpus(draft.rank, draft.samples, system),
        attended=on_gpus(draft.rank, pairs, system),
        kv_read=on_gpus(draft.rank, context, system),
        slots=exchange.slots,
        tx=exchange.tx,
        rx=exchange.rx,
        rows=exchange.rows,
    )


def dealt(rank: Ints, rows: Ints, system: System) -> Ints:
    """Return ``(G,)``: how many rows enter at each GPU, of ranks of several GPUs."""
    gpus = system.topology.gpus
    return np.bincount(sources(rank, rows, system), minlength=gpus)
