"""What one instance shows its policy of the road to come, and what it remembers.

Policies remember nothing. All that is learned while an instance serves, the predictor,
the congestion map and feedback, is kept here and shown in views. It changes only when
micro-batches are formed and when passes end, never in between; so what a policy decides
does not depend on how an engine plays the stages.

Axes: ``W`` waiting requests, ``L`` MoE layers, ``E`` logical experts, ``S`` slots of a
GPU, ``G`` GPUs.
"""

from dataclasses import replace

import numpy as np

from moesim.cost.experts import expected_expert_time
from moesim.policy.congestion import CongestionMap, Patience, Underway
from moesim.policy.path import (
    Popularity,
    Seen,
    Watched,
    by_expert,
    on_slots,
    predictor_of,
)
from moesim.policy.road import Road
from moesim.policy.steer import Steered
from moesim.policy.view import Foresight
from moesim.policy.waterfill import quotas
from moesim.routing.source import RoutingSource, TokenKeys
from moesim.spec.system import System
from moesim.types import Floats, Ints


class Outlook:
    """The memory of one instance.

    Parameters
    ----------
    system, source : System, RoutingSource
        What serves, and what routes (only a ``lookahead`` looks at it).
    foresight : Foresight
        What the policy wants to be shown.
    classes : int
        Kinds of requests.
    feedback : float
        What patience is multiplied by when queues grow; 1: never.

    Attributes
    ----------
    queue : int
        How many requests wait; the instance keeps it up to date.
    """

    def __init__(
        self,
        system: System,
        source: RoutingSource,
        foresight: Foresight,
        classes: int = 1,
        feedback: float = 1.0,
    ) -> None:
        sizes = source.layers, source.experts, system.topology.gpus
        self.system = system
        self.source = source
        self.foresight = foresight
        seed = int(getattr(source, "seed", 0))
        self.predictor = predictor_of(foresight, source, classes, seed)
        self.map = CongestionMap(sizes, foresight.alpha, foresight.window_s)
        self.underway = Underway(source.layers, system.topology.gpus)
        self.patience = Patience(feedback, foresight.window_s)
        self.queue = 0
        self.watch: Watched | None = None
        self.pending: dict[int, tuple[Seen, Floats]] = {}
        self.cache: dict[tuple[int, int], Floats] = {}
        self.steered = source if isinstance(source, Steered) else None
        self.watches = foresight.congestion or foresight.experts
        self.learns = self.watches or foresight.knowledge == "predicted"
        self.learns = self.learns or self.steered is not None

    def place(self, system: System) -> None:
        """Look at experts where they are from now on; what was learned stays."""
        self.system = system
        self.cache.clear()

    def guess(self, keys: TokenKeys, held: Ints | None = None) -> Floats:
        """Return ``(L, G)``: the expert seconds that these tokens should cost.

        Parameters
        ----------
        keys : TokenKeys
            The tokens.
        held : (G,) array of int, optional
            How many of them each GPU holds: where shared experts are fused.
        """
        mean = on_slots(self.predictor.expect(keys), self.system.placement)
        if held is not None:
            routed = np.rint(mean.sum(axis=1)).astype(np.int64)
            shared = quotas(routed, held, self.system)
            mean = np.concatenate([mean, shared[:, None]], axis=1)
        return expected_expert_time(mean, self.system).sum(axis=1)

    def loads(self, request: Ints, klass: Ints, tokens: Ints) -> Floats:
        """Return ``(W, L, G)``: what requests should give each GPU's experts to do.

        Parameters
        ----------
        request, klass, tokens : (W,) arrays of int
            Who, of what class, and how many tokens of each.

        Returns
        -------
        (W, L, G) array of float
            Tokens at the experts of each GPU over the GPU's speed.
        """
        rows = zip(request.tolist(), klass.tolist(), tokens.tolist(), strict=True)
        if isinstance(self.predictor, Popularity):
            share = self._per_gpu(self.predictor.shares)
            return share[klass % self.predictor.classes] * tokens[:, None, None]
        return np.stack([self._load(*row) for row in rows])

    def _load(self, request: int, klass: int, tokens: int) -> Floats:
        """Return ``(L, G)``: the load of one request, guessed once for its first tokens."""
        found = self.cache.get((request, tokens))
        if found is None:
            keys = TokenKeys(
                request=np.full(tokens, request),
                klass=np.full(tokens, klass),
                position=np.arange(tokens),
            )
            found = self._per_gpu(self.predictor.expect(keys))
            self.cache[request, tokens] = found
        return found

    def _per_gpu(self, tokens: Floats) -> Floats:
        slots = on_slots(tokens, self.system.placement)
        return slots.sum(axis=-2) / self.system.topology.speeds

    def watched(self, source: RoutingSource) -> RoutingSource:
        """Return the source that routes passes, under watch if classes are told apart."""
        if not isinstance(self.predictor, Popularity) or self.predictor.classes == 1:
            return source
        self.watch = Watched(source, self.predictor.classes)
        return self.watch

    def depart(self, number: int, slots: Ints, seconds: Floats, now_s: float) -> None:
        """Note a micro-batch that is formed now, to learn from it when it ends.

        Only for an outlook that `learns`.

        Parameters
        ----------
        number : int
            Its number.
        slots : (L, S, G) array of int
            Tokens that its slots get.
        seconds : (2, L, G) array of float
            What its experts really cost each GPU, and what the policy may believe.
        now_s : float
            The time.
        """
        seen = self.watch.take() if self.watch else None
        seen = seen or by_expert(slots, self.system.placement)
        truth, belief = seconds
        self.pending[number] = seen, truth
        if self.watches:
            self.underway.admit(number, now_s, np.nan_to_num(belief))

    def land(self, number: int, now_s: float) -> None:
        """Learn from a pass that ends now."""
        if not self.learns:
            return
        seen, seconds = self.pending.pop(number)
        self.predictor.learn(seen)
        if self.steered is not None:
            self.steered.learn(seen.total)
        if self.watches:
            self.map.land(seen.total, seconds, now_s)
            self.underway.land(number, now_s)

    def road(self, now_s: float, keys: TokenKeys) -> Road:
        """Return the congestion map as of now; only for an outlook that `watches`.

        Parameters
        ----------
        now_s : float
            The time.
        keys : TokenKeys
            The tokens of the micro-batch to which it is shown.
        """
        road = Road(
            use=self.map.gpus(now_s),
            ahead_s=self.underway.ahead(now_s),
            patience=self.patience.look(self.queue, now_s),
        )
        if not self.foresight.experts:
            return road
        own = self.predictor.expect(keys)
        return replace(road, experts=self.map.experts(now_s), own=own)
