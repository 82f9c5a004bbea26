"""What a micro-batch is told of absent experts as it is formed."""

from dataclasses import replace

import numpy as np

from moesim.engine.assemble.tokens import keys_of
from moesim.engine.clock import PS_PER_S
from moesim.engine.draft import Draft
from moesim.engine.microbatch import MicroBatch
from moesim.engine.residency.residents import Residents
from moesim.policy.outlook import Outlook
from moesim.policy.path import on_slots
from moesim.policy.prefetch import Forecast, lacking
from moesim.policy.road import Swap
from moesim.routing.source import RoutingSource
from moesim.types import Floats


class Scout:
    """Looks at absent experts for micro-batches of one instance.

    Parameters
    ----------
    residents : Residents
        Who looks after experts.
    outlook : Outlook
        What the policy may know of the road to come.
    source : RoutingSource
        What routes the passes.
    classes : int
        Kinds of requests.

    Attributes
    ----------
    source : RoutingSource
        What has to route the passes instead.
    """

    def __init__(
        self,
        residents: Residents,
        outlook: Outlook,
        source: RoutingSource,
        classes: int,
    ) -> None:
        self.residents = residents
        self.outlook = outlook
        self.source = source
        self.flying: dict[int, tuple[int, Floats]] = {}
        self.forecast: Forecast | None = None
        if residents.spec.prefetch.name == "class":
            self.forecast = Forecast(source, classes)
            self.source = self.forecast.watch

    def look(self, batch: MicroBatch, draft: Draft) -> MicroBatch:
        """Return a micro-batch that knows what it should need, and what is absent."""
        placement = self.residents.system.placement
        if self.forecast is not None:
            expected = self.forecast.depart(draft.number, keys_of(draft), placement)
            batch = replace(batch, expected=expected)
        if self.outlook.foresight.swaps:
            batch = replace(batch, swap=self._swap(batch, draft))
        return batch

    def land(self, number: int) -> None:
        """Learn from a pass that ends now."""
        self.flying.pop(number, None)
        if self.forecast is not None:
            self.forecast.land(number)

    def _swap(self, batch: MicroBatch, draft: Draft) -> Swap:
        """Return what a micro-batch lacks, and what others in flight have yet to load."""
        residents, now = self.residents, int(self.residents.clock.now)
        absent = lacking(self._mean(batch, draft), residents.there)
        ahead = self._ahead(now)
        loads = np.nan_to_num(absent).sum(axis=0) * residents.load_ticks
        self.flying[batch.number] = now, loads
        return Swap(absent, ahead / PS_PER_S)

    def _ahead(self, now: int) -> Floats:
        """Return ``(G,)`` picoseconds for which others should still keep each port busy.

        That is what waits there; or all that those in flight should have lacked, as if
        the ports had worked for them since the first of them was formed.
        """
        queue = np.array([gpu.port.backlog for gpu in self.residents.gpus], float)
        if not self.flying:
            return queue
        since = min(began for began, _ in self.flying.values())
        whole = np.sum([loads for _, loads in self.flying.values()], axis=0)
        ahead: Floats = np.maximum(queue, whole - (now - since))
        return ahead

    def _mean(self, batch: MicroBatch, draft: Draft) -> Floats:
        """Return ``(L, S, G)`` tokens to expect, as far as the policy's knowledge goes."""
        knowledge = self.outlook.foresight.knowledge
        if knowledge == "present":
            return np.full(self.residents.there.shape, np.nan)
        if knowledge == "oracle":
            slots = batch.load.slots[:, : self.residents.slots]
            return np.where(slots > 0, np.inf, 0.0)
        expected = self.outlook.predictor.expect(keys_of(draft))
        return on_slots(expected, self.residents.system.placement)


def scout_of(
    residents: Residents | None, outlook: Outlook, source: RoutingSource, classes: int
) -> Scout | None:
    """Return the scout of an engine, if anybody looks after its experts."""
    return Scout(residents, outlook, source, classes) if residents else None
