"""The control of `cross_layer`: the same policy, but it sees token counts only."""

from dataclasses import dataclass

from moesim.policy.cross_layer import CrossLayer
from moesim.policy.view import BatchView, Foresight, View, WaitingView
from moesim.types import Ints


@dataclass(frozen=True, slots=True)
class Blind:
    """Composition, order and ageing of `cross_layer`, without any knowledge of routing.

    What `cross_layer` gains over it is what knowing experts is worth.

    Parameters
    ----------
    ageing, wait_budget_s, look, order
        As in `CrossLayer`.
    """

    ageing: float = 0.5
    wait_budget_s: float = 50e-3
    look: int = 32
    order: float = 1.0

    def __post_init__(self) -> None:
        _ = self.sighted

    @property
    def sighted(self) -> CrossLayer:
        """The policy whose eyes are shut."""
        return CrossLayer(
            knowledge="counts",
            ageing=self.ageing,
            wait_budget_s=self.wait_budget_s,
            look=self.look,
            order=self.order,
        )

    @property
    def knowledge(self) -> str:
        """How many tokens there are, and nothing of where they go."""
        return "counts"

    @property
    def foresight(self) -> Foresight:
        """What it wants to be shown."""
        return self.sighted.foresight

    def sequence(self, waiting: WaitingView, view: View) -> Ints:
        """Return rows that fill a micro-batch well, then the others."""
        return self.sighted.sequence(waiting, view)

    def key(self, batch: BatchView, view: View) -> float:
        """Return remaining seconds if all experts were alike, less what age is worth."""
        return self.sighted.key(batch, view)
