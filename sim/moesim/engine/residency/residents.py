"""Who looks after the experts of all GPUs while micro-batches walk the layers.

As a pass enters the experts of a layer on a GPU, those that are there are locked and
run as always; each other one is loaded and runs as a job of its own once it has come,
or is computed by the node's processor. As a pass enters the attention of a layer, what
it is believed to need further on is asked for. All that enter at one instant are looked
at together, by number, so that no cache depends on the order in which they came.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from simpy import Event

from moesim.cost.residency import cpu_s, load_s, read_s, rows_s
from moesim.cost.weights import expert_bytes
from moesim.engine.clock import LOOK, Clock, ticks_of
from moesim.engine.event.jobs import SPLITS
from moesim.engine.residency.gpu import GpuExperts, Key, Site, Supply
from moesim.engine.residency.host import Memory, Processor, Tier, tier_cache
from moesim.engine.residency.port import Load
from moesim.engine.residency.stay import Stay
from moesim.measure.columns import Recorder
from moesim.measure.residency import ResidencyLog
from moesim.policy.prefetch import believed, layers_ahead, likeliest
from moesim.policy.stock import stock
from moesim.spec.residency import ResidencySpec
from moesim.spec.system import System
from moesim.types import Bools

if TYPE_CHECKING:
    from moesim.engine.event.flow import Flow


class Residents:
    """The experts of one instance.

    Parameters
    ----------
    clock, system : Clock, System
        The time, and what serves; it has a `ResidencySpec`.
    spec : ResidencySpec
        What stays, and how others come in.

    Attributes
    ----------
    there : (L, S, G) array of bool
        Which slots are in device memory now.
    free : bool
        Whether experts are always there, or come in no time.
    """

    def __init__(self, clock: Clock, system: System, spec: ResidencySpec) -> None:
        topology, placement = system.topology, system.placement
        self.clock = clock
        self.system = system
        self.spec = spec
        self.layers = len(placement.phy2log)
        self.slots = placement.slots_per_gpu
        copies = min(spec.copies, self.layers * self.slots)
        sizes = self.layers, topology.gpus, topology.nodes
        self.log = ResidencyLog(*sizes, copies)
        self.there: Bools = np.zeros((self.layers, self.slots, topology.gpus), bool)
        self.load_ticks = int(ticks_of(np.array(load_s(system))))
        self.sync = int(ticks_of(np.array(spec.sync_s)))
        at_once = not (self.load_ticks or self.sync or spec.host_experts)
        self.free = at_once or copies == self.layers * self.slots
        self.split = SPLITS[system.experts]
        self.node = topology.node.tolist()
        self.hosts = [self._host(node) for node in range(topology.nodes)]
        self.processors = [
            Processor(clock, self.log, node) for node in range(topology.nodes)
        ]
        self.gpus = [self._gpu(gpu) for gpu in range(topology.gpus)]
        self.stays: dict[tuple[int, int], Stay] = {}
        self.entered: list[tuple[int, int, int, Flow]] = []

    def _host(self, node: int) -> Supply:
        if not self.spec.host_experts:
            return Memory()
        placement = self.system.placement
        columns = np.repeat(self.node, self.slots) == node
        experts = {
            (layer, expert)
            for layer in range(self.layers)
            for expert in placement.phy2log[layer, columns].tolist()
        }
        cache = tier_cache(self.spec.host_experts, sorted(experts))
        tier = Tier(self.clock, self.log, node, cache, placement)
        tier.port.service = int(ticks_of(np.array(read_s(self.system))))
        tier.size = self._size
        tier.refused = lambda load: self.gpus[load.place[2]].forgotten(load)
        return tier

    def _gpu(self, gpu: int) -> GpuExperts:
        supply = self.hosts[self.node[gpu]]
        ticks, size = self.load_ticks, self._size
        site = Site(self.clock, self.log, supply, ticks, size, self._arrive)
        caches = stock(self.spec, self.system.placement, gpu)
        return GpuExperts(site, gpu, caches, self.there[:, :, gpu])

    @property
    def _size(self) -> float:
        return expert_bytes(self.system.model, self.system.precision.experts)

    def enter(self, flow: "Flow", segment: int, gpu: int) -> None:
        """Look at a pass that enters a segment, once all of this instant is known.

        At once where no expert can be absent: nothing is to be known.
        """
        if self.free:
            if segment & 1:
                self._serve(flow, segment, gpu)
            return
        if not self.entered:
            self.clock.settle(LOOK, self._look)
        self.entered.append((flow.batch.number, gpu, segment, flow))

    def _look(self, _: Event) -> None:
        entered, self.entered = sorted(self.entered, key=lambda item: item[:3]), []
        for _number, gpu, segment, flow in entered:
            if segment & 1:
                self._serve(flow, segment, gpu)
            elif self.spec.prefetch.name != "none":
                self._expect(flow, segment >> 1, gpu)

    def _serve(self, flow: "Flow", segment: int, gpu: int) -> None:
        """Run the experts that are there, and see to the others."""
        layer, here, number = segment >> 1, self.gpus[gpu], flow.batch.number
        services = flow.experts[layer][gpu]
        mine = [s for s in range(self.slots) if services[s]]
        absent: list[int] = []
        if not self.free:
            here.reach(layer, number, mine)
            # What is there is touched first, so that a hit never waits for a miss.
            found = [slot for slot in mine if here.has((layer, slot))]
            absent = [slot for slot in mine if slot not in found]
            for slot in found:
                here.use((layer, slot))
            for slot in absent:
                here.miss((layer, slot))
        self.log.hits[layer, gpu] += len(mine) - len(absent)
        self.log.misses[layer, gpu] += len(absent)
        kept = [0 if s in absent else ticks for s, ticks in enumerate(services)]
        work = self.split(kept)
        if absent:
            stay = self.stays[number, gpu] = Stay(flow, segment, gpu, len(absent))
            stay.start(len(work), self.clock.now)
        flow.begin(segment, gpu, work, len(absent))
        if absent and self.sync:
            self.clock.after(self.sync, lambda _: self._seek(stay, absent))
        elif absent:
            self._seek(stay, absent)

    def _seek(self, stay: Stay, absent: list[int]) -> None:
        """Find a way for each absent expert."""
        here, layer = self.gpus[stay.gpu], stay.segment >> 1
        for slot in absent:
            key = layer, slot
            load = here.loads.get(key)
            here.overtake(key)  # a guess may have begun while the price was paid
            if here.has(key):
                here.lock(key)
                self._run(stay, slot)
            elif load and (load.begun or load.urgent):
                load.waiting.append((stay, slot))
            elif self._leaves_it(stay, slot):
                here.spare(key)
                self._compute(stay, slot)
            else:
                here.demand(key, stay.flow.batch.number, (stay, slot))

    def _leaves_it(self, stay: Stay, slot: int) -> bool:
        """Tell whether the processor computes an absent expert.

        ``cheaper`` reckons with what waits at port, drives and processor now, and with
        nothing that may come.
        """
        if self.spec.on_miss != "cheaper":
            return self.spec.on_miss == "cpu"
        gpu, layer = stay.gpu, stay.segment >> 1
        node, port = self.node[gpu], self.gpus[gpu].port
        compute, rows = self._times(stay, slot)
        loading = self.hosts[node].delay((layer, slot), gpu) + port.backlog
        loading += port.service + stay.flow.experts[layer][gpu][slot]
        return self.processors[node].backlog + compute + 2 * rows < loading

    def _times(self, stay: Stay, slot: int) -> tuple[int, int]:
        tokens = stay.flow.batch.load.slots[stay.segment >> 1, slot, stay.gpu]
        both = np.stack([cpu_s(tokens, self.system), rows_s(tokens, self.system)])
        compute, rows = ticks_of(both).tolist()
        return compute, rows

    def _compute(self, stay: Stay, slot: int) -> None:
        gpu, number, layer = stay.gpu, stay.flow.batch.number, stay.segment >> 1
        self.log.on_cpu[gpu] += 1
        stay.flow.elsewhere.append((layer, slot, gpu))
        place = (layer * len(self.gpus) + gpu) * self.slots + slot
        done = partial(self._computed, stay)
        processor = self.processors[self.node[gpu]]
        processor.compute(self._times(stay, slot), number, place, done)

    def _computed(self, stay: Stay) -> None:
        stay.take(self.clock.now, job=False)
        self._forget(stay)
        stay.flow.end_one(stay.gpu)

    def _run(self, stay: Stay, slot: int) -> None:
        """Queue the job of an expert that has come, and is locked."""
        layer, gpu = stay.segment >> 1, stay.gpu
        stay.take(self.clock.now, job=True)
        self._forget(stay)
        service = stay.flow.experts[layer][gpu][slot]
        stay.flow.queue(stay.segment, gpu, (slot, service, (slot,)))

    def _forget(self, stay: Stay) -> None:
        if not stay.left:
            self.log.stalled[stay.gpu] += stay.stalled
            del self.stays[stay.flow.batch.number, stay.gpu]

    def _arrive(self, load: Load) -> None:
        here, key = self.gpus[load.place[2]], load.place[:2]
        waiting: list[Any] = sorted(load.waiting, key=_by_number)
        for stay, slot in waiting:
            here.lock(key)
            self._run(stay, slot)

    def served(self, number: int, gpu: int, layer: int, slots: tuple[int, ...]) -> None:
        """Take note of a job of experts that has been served."""
        stay = self.stays.get((number, gpu))
        if stay:
            stay.end_job(self.clock.now)
        if not self.free:
            for slot in slots:
                if slot < self.slots:
                    self.gpus[gpu].unlock((layer, slot))

    def _expect(self, flow: "Flow", layer: int, gpu: int) -> None:
        """Ask for what a pass is believed to need further on."""
        spec = self.spec.prefetch
        for ahead in layers_ahead(layer, spec.lookahead, self.layers):
            slots = self._believed(flow, ahead, gpu)
            self.gpus[gpu].expect(ahead, slots, flow.batch.number)

    def _believed(self, flow: "Flow", layer: int, gpu: int) -> list[int]:
        spec, batch = self.spec.prefetch, flow.batch
        if spec.name == "class":
            return likeliest(batch.expected[layer, :, gpu])
        services = flow.experts[layer][gpu]
        needed = [s for s in range(self.slots) if services[s]]
        number = (batch.number * self.layers + layer) * len(self.gpus) + gpu
        return believed(spec, needed, self.slots, (spec.seed, number))


def _by_number(item: tuple[Stay, Key]) -> int:
    return item[0].flow.batch.number


def residents_of(clock: Clock, system: System, recorder: Recorder) -> Residents | None:
    """Return who looks after experts and is recorded, if not all need be there."""
    if system.residency is None:
        return None
    residents = Residents(clock, system, system.residency)
    recorder.residency = residents.log
    return residents


def residency_refusal(system: System) -> str:
    """Return why only the event engine plays a system, or nothing if others do too."""
    if system.residency is None:
        return ""
    return "experts that are not all in device memory come and go within a stage"
