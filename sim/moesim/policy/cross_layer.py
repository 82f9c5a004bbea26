"""Our off-peak policy: fill and order micro-batches by the whole road to come.

Its parts are the composition (`moesim.policy.compose.least_peak`), the order
(`moesim.policy.order.stage_bottlenecks`), the congestion map and feedback
(`moesim.policy.congestion`), the release (`moesim.policy.release.excess_ahead`) and a
predictor (`moesim.policy.path`); a parameter switches each of them off, and with all of
them off this is `fifo`.
"""

from dataclasses import dataclass
from math import inf

from moesim.policy.compose import chosen_first
from moesim.policy.order import check, check_number, is_number, stage_bottlenecks
from moesim.policy.release import excess_ahead, swaps_ahead
from moesim.policy.view import (
    BatchView,
    Foresight,
    Knowledge,
    PredictorName,
    View,
    WaitingView,
)
from moesim.types import Ints

SAME = -1.0
"""A decode setting that is the prefill's."""


@dataclass(frozen=True, slots=True)
class CrossLayer:
    """Least remaining bottleneck over all layers to come first, with ageing.

    A micro-batch that only decodes obeys the ``decode_`` settings, where they are not
    -1; any other obeys the plain ones.

    Parameters
    ----------
    knowledge : {"counts", "present", "predicted", "oracle"}
        What it knows of the routing to come.
    ageing : float
        Seconds of remaining work that one second of age outweighs; 0 is pure
        shortest-remaining-first, which starves the long.
    wait_budget_s : float
        A job queued this long is served before all others, oldest first: it bounds
        every delay, and no micro-batch is held back longer. 0 is FIFO in all respects.
    predictor : {"uniform", "global", "by_class", "lookahead", "oracle"}
        Who guesses, if the knowledge is ``predicted``.
    hit_rate : float
        Of ``lookahead``: how often a token's path in a layer is right.
    look : int
        From how many waiting requests of a rank a micro-batch is composed; 0: by
        arrival.
    order : float
        Weight of the remaining work; 0 with ageing 0: by local arrival.
    congestion : float
        How much more a second on a crowded part of the road counts; 0: as any other.
    hold : float
        Share of the budget for which a micro-batch may be held back whose early layers
        are crowded; 0: none is.
    early : int
        How many layers are early.
    feedback : float
        What the share is multiplied by whenever queues grow; 1: never.
    alpha, window_s : float
        The congestion map averages over windows of so many seconds.
    swap_hold : float
        Share of the budget for which a micro-batch may be held back that lacks experts
        in its early layers, while others load theirs; 0: none is.
    decode_order, decode_ageing, decode_congestion, decode_hold : float
        The same for micro-batches that only decode; -1: as above.
    """

    knowledge: Knowledge = "predicted"
    ageing: float = 0.5
    wait_budget_s: float = 50e-3
    predictor: PredictorName = "by_class"
    hit_rate: float = 0.7
    look: int = 32
    order: float = 1.0
    congestion: float = 0.0
    hold: float = 0.0
    early: int = 2
    feedback: float = 0.5
    alpha: float = 0.3
    window_s: float = 20e-3
    swap_hold: float = 0.0
    decode_order: float = SAME
    decode_ageing: float = SAME
    decode_congestion: float = SAME
    decode_hold: float = SAME

    def __post_init__(self) -> None:
        check(self.knowledge, self.wait_budget_s, self.predictor)
        for name in ("ageing", "order", "congestion"):
            check_number(name, getattr(self, name), inf)
            check_number(f"decode_{name}", getattr(self, f"decode_{name}"), inf, SAME)
        for name in ("hit_rate", "hold", "feedback", "alpha", "swap_hold"):
            check_number(name, getattr(self, name), 1.0)
        check_number("decode_hold", self.decode_hold, 1.0, SAME)
        for name, value in (("look", self.look), ("early", self.early)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{name} is a whole number from 0; got {value!r}")
        if not (is_number(self.window_s) and 0 < self.window_s < inf):
            raise ValueError(f"window is a positive duration; got {self.window_s!r}")
        if not self.alpha:
            raise ValueError("alpha is above 0; got 0")

    @property
    def foresight(self) -> Foresight:
        """What it wants to be shown."""
        weights = (self.congestion, self.hold, self.decode_congestion, self.decode_hold)
        return Foresight(
            knowledge=self.knowledge,
            predictor=self.predictor,
            hit_rate=self.hit_rate,
            look=self.look if self.wait_budget_s else 0,
            congestion=any(weight > 0 for weight in weights),
            alpha=self.alpha,
            window_s=self.window_s,
            swaps=self.swap_hold > 0,
        )

    def sequence(self, waiting: WaitingView, view: View) -> Ints:
        """Return the rows that fill a micro-batch with the least peaks, then the others.

        The oldest request is always the first.
        """
        return chosen_first(waiting)

    def key(self, batch: BatchView, view: View) -> float:
        """Return remaining seconds, less what age is worth.

        Age grows equally fast for all that wait, so the arrival of the oldest request
        stands for it: the key of a queued job never has to be computed anew.
        """
        return sum(self.terms(batch).values())

    def terms(self, batch: BatchView) -> dict[str, float]:
        """Return what the key is the sum of: seconds of work to come, and of age."""
        order = self._setting("order", batch)
        ageing = self._setting("ageing", batch)
        remaining = 0.0
        if order:
            congestion = self._setting("congestion", batch)
            remaining = float(stage_bottlenecks(batch, congestion).sum())
        return {"work": order * remaining, "age": ageing * batch.oldest_arrival_s}

    def delay(self, batch: BatchView, view: View) -> float:
        """Return for how many seconds to hold a micro-batch back.

        As long as the work ahead of it in its early layers exceeds what others meet,
        within the share of the budget that it may use and feedback leaves; or as long as
        others load experts where it needs to, within its share.
        """
        share = self._setting("hold", batch)
        held = 0.0
        if share and batch.road is not None:
            most = share * batch.road.patience * self.wait_budget_s
            held = min(most, excess_ahead(batch, self.early))
        if not self.swap_hold:
            return held
        most = self.swap_hold * self.wait_budget_s
        return max(held, min(most, swaps_ahead(batch, self.early)))

    def _setting(self, name: str, batch: BatchView) -> float:
        own: float = getattr(self, f"decode_{name}") if batch.decoding else SAME
        plain: float = getattr(self, name)
        return plain if own == SAME else own
