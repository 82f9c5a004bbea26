"""Replications of one scenario that advance together, each on a clock of its own.

Each is an ordinary instance. Whenever it forms a micro-batch it stands still until
others have formed one, too; then all are routed and priced at once, and what happens at
the barriers of all of them is computed at once as well. So NumPy is called once for
all, and none sees another: what comes out is what comes out of each alone, to the tick.

Axes: ``n`` micro-batches priced together, ``G`` GPUs of an instance, ``N`` segments as
in `engine.event.flow`.
"""

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Protocol

import numpy as np
from simpy import Event

from moesim.cost.footprint import footprint
from moesim.engine.clock import FAR
from moesim.engine.instance import Instance
from moesim.engine.play import INTERVAL_S, few_collections, play
from moesim.engine.together.alike import are_alike
from moesim.engine.together.costs import Shape
from moesim.engine.together.ensemble import Ensemble, Order
from moesim.engine.together.lane import DONE, FORMED, WALKING, Ended, Lane, Ledger
from moesim.engine.together.rounds import Rounds
from moesim.engine.together.shares import Share, Whole
from moesim.engine.together.solo import walk_alone
from moesim.measure.columns import Recorder
from moesim.spec.system import System
from moesim.spec.topology import PORT_CLASSES


class Walks(Protocol):
    """How the passes of all lanes are timed."""

    def due(self, lane: int) -> int:
        """Return when the lane has to wait for the walks next."""
        ...

    def begin(self, lanes: Sequence[Lane], shares: Sequence[Share]) -> None:
        """Take in what has just been priced."""
        ...

    def go_on(self, lanes: Sequence[Lane]) -> None:
        """Let what is due in these lanes happen."""
        ...


class Alone:
    """One micro-batch in flight in each lane."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def due(self, lane: int) -> int:
        """Return that the clock alone decides."""
        return FAR

    def begin(self, lanes: Sequence[Lane], shares: Sequence[Share]) -> None:
        """Time the passes to their ends."""
        whole = shares[0].whole
        table = walk_alone(whole.batch.cost, whole.gpus)
        delays = table.end.tolist()
        for lane, share, delay in zip(lanes, shares, delays, strict=True):
            lane.clock.after(delay, self._end, (lane, share))
            came, post = table.entered[..., share.copy], table.posted[..., share.copy]
            done = share.draft.now + delay
            self.ledger.add(lane, Ended(share, done, came, post))

    def _end(self, event: Event) -> None:
        lane, share = event._value
        lane.end(share)

    def go_on(self, lanes: Sequence[Lane]) -> None:
        """Do nothing: nobody waits."""


class InFlight:
    """Several micro-batches in flight in each lane, first come, first served."""

    def __init__(self, ledger: Ledger, lanes: int, instance: Instance) -> None:
        system = instance.recorder.system
        topology = system.topology
        shape = Shape(
            lanes=lanes,
            places=instance.serving.max_in_flight,
            segments=2 * len(system.model.moe_layers) + 1,
            ports=1 if topology.nodes == 1 else len(PORT_CLASSES),
            gpus=topology.gpus,
        )
        self.ledger = ledger
        self.shape = shape
        self.rounds: Rounds | None = None
        self.homes = [list(range(shape.places)) for _ in range(lanes)]
        self.lying: list[list[tuple[int, Share]]] = [[] for _ in range(lanes)]
        self.joining: list[list[int]] = [[] for _ in range(lanes)]

    def due(self, lane: int) -> int:
        """Return when the next micro-batch of the lane is at its barrier."""
        return self.rounds.due[lane] if self.rounds else FAR

    def begin(self, lanes: Sequence[Lane], shares: Sequence[Share]) -> None:
        """Let the passes join, one after the other in each lane."""
        if self.rounds is None:
            self.rounds = Rounds(self.shape, shares[0].whole.batch.cost.latency)
        homes = []
        for lane, share in zip(lanes, shares, strict=True):
            home = self.homes[lane.number].pop()
            self.lying[lane.number].append((home, share))
            self.joining[lane.number].append(home)
            homes.append(home)
        numbers = np.array([lane.number for lane in lanes])
        self.rounds.costs.load(numbers, np.array(homes), shares[0].whole)
        self._join(lanes)

    def _join(self, lanes: Sequence[Lane]) -> None:
        """Let all that wait to join do so, at the instant of their clocks."""
        assert self.rounds is not None
        left = list(dict.fromkeys(lanes))
        while left:
            turn = [
                (lane.number, self.joining[lane.number].pop(0), int(lane.clock.now))
                for lane in left
            ]
            self.rounds.step([], turn)
            left = [lane for lane in left if self.joining[lane.number]]

    def go_on(self, lanes: Sequence[Lane]) -> None:
        """Let the micro-batches that are due in these lanes go on, or end."""
        assert self.rounds is not None
        moving = []
        for lane in lanes:
            if self.rounds.leaving[lane.number]:
                self._end(lane)
            else:
                moving.append(lane.number)
        if moving:
            self.rounds.step(moving, [])

    def _end(self, lane: Lane) -> None:
        assert self.rounds is not None
        home, share = self.lying[lane.number].pop(self.rounds.next[lane.number])
        came, post = self.rounds.leave(lane.number)
        self.homes[lane.number].append(home)
        self.ledger.add(lane, Ended(share, int(lane.clock.now), came, post))
        lane.end(share)


MOST_CHOICES = 1 << 21
"""Experts of tokens, of all layers, that are routed at once where that is several's."""


def play_together(
    instances: Sequence[Instance], report: Callable[[float], None] | None = None
) -> list[Recorder]:
    """Return what was written down of each instance once all have ended.

    Parameters
    ----------
    instances : sequence of Instance
        Fresh replications of one scenario. Where they are not alike, or `refusal`
        says why not, they run one by one.
    report : callable, optional
        Called now and then with the share of all requests that have ended.

    Raises
    ------
    SimulationError
        Requests are left in one although nothing can happen any more.
    """
    if len(instances) == 1 or not are_alike(instances):
        return _one_by_one(instances, report)
    lanes = [Lane(instance, row) for row, instance in enumerate(instances)]
    first, ledger = instances[0], Ledger()
    system = first.recorder.system
    loads = [instance.assembler.loads for instance in instances]
    ensemble = Ensemble(system, first.policy, loads)
    walks: Walks = Alone(ledger)
    if first.serving.max_in_flight > 1:
        walks = InFlight(ledger, len(lanes), first)
    total = sum(lane.total for lane in lanes)
    told = monotonic()
    with few_collections():
        while lanes:
            lanes = _advance(lanes, walks, ensemble)
            if report is not None and monotonic() - told > INTERVAL_S:
                report(sum(instance.ended for instance in instances) / total)
                told = monotonic()
    ledger.write()
    return [instance.finish() for instance in instances]


def _one_by_one(
    instances: Sequence[Instance], report: Callable[[float], None] | None
) -> list[Recorder]:
    recorders: list[Recorder] = []
    for instance in instances:
        before = len(recorders)

        def told(share: float, before: int = before) -> None:
            if report is not None:
                report((before + share) / len(instances))

        recorders.append(play(instance, told))
    return recorders


def _advance(lanes: list[Lane], walks: Walks, ensemble: Ensemble) -> list[Lane]:
    """Bring every lane to where it must wait, and do what they wait for.

    Prices are asked for once half the lanes need them: the others walk on meanwhile.
    """
    states = [lane.advance(walks.due(lane.number)) for lane in lanes]
    formed, walking = (
        [lane for lane, state in zip(lanes, states, strict=True) if state == wanted]
        for wanted in (FORMED, WALKING)
    )
    if walking:
        walks.go_on(walking)
    if formed and (2 * len(formed) >= len(lanes) or not walking):
        _begin(formed, walks, ensemble)
    return [lane for lane, state in zip(lanes, states, strict=True) if state != DONE]


def _begin(lanes: Sequence[Lane], walks: Walks, ensemble: Ensemble) -> None:
    """Route and price what the lanes have formed, and let it begin."""
    orders = [order for lane in lanes for order in lane.formed]
    owners = [lane for lane in lanes for _ in lane.formed]
    for lane in lanes:
        lane.formed.clear()
    first = 0
    for last in _cuts(orders, ensemble.system):
        _price(owners[first:last], orders[first:last], walks, ensemble)
        first = last


def _cuts(orders: Sequence[Order], system: System) -> Iterator[int]:
    """Yield where to cut the orders, so that each piece but a single one is small."""
    size, each = 0, len(system.model.moe_layers) * system.model.top_k
    for number, order in enumerate(orders):
        more = int(order.draft.chunk.sum()) * each
        if size and size + more > MOST_CHOICES:
            yield number
            size = 0
        size += more
    yield len(orders)


def _price(
    lanes: Sequence[Lane], orders: Sequence[Order], walks: Walks, ensemble: Ensemble
) -> None:
    system = ensemble.system
    whole = Whole(ensemble.assemble(orders), system.topology.gpus, system.experts)
    shares = [Share(whole, copy, order.draft) for copy, order in enumerate(orders)]
    needs = footprint(whole.batch.load, system, len(orders))
    for lane, share in zip(lanes, shares, strict=True):
        draft, need = share.draft, needs.part(share.mine)
        lane.instance.memory.ledger.begin(draft.number, draft.now, need)
    walks.begin(lanes, shares)
