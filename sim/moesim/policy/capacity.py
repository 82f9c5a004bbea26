"""How many tokens of a micro-batch an expert takes: fewer than wanted changes outputs.

Axes: ``T`` tokens, ``k`` experts of a token, ``E`` experts.
"""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal

from moesim.policy.order import check_number


@dataclass(frozen=True, slots=True)
class Unlimited:
    """An expert takes all tokens that choose it."""

    def room(self, tokens: int, top_k: int, experts: int) -> int:
        """Return the tokens: no expert is chosen more often."""
        return tokens


@dataclass(frozen=True, slots=True)
class Capacity:
    """No expert takes more than its share times a factor.

    Of the tokens of a micro-batch that choose an expert in a layer, the first
    ``ceil(factor * T * k / E)`` stay, in order of position. The rest loses this expert,
    or moves on to its next ones, round by round.

    Parameters
    ----------
    factor : float
        Multiple of the mean load that an expert takes; below 1 some are always dropped.
    overflow : {"drop", "reroute"}
        What becomes of the rest.
    reach : int
        How many experts beyond its own a token may be sent to.
    """

    factor: float = 1.25
    overflow: Literal["drop", "reroute"] = "drop"
    reach: int = 8
    changes_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 1e6)
        check_number("reach", self.reach, 1 << 16)
        if self.overflow not in ("drop", "reroute"):
            raise ValueError(f"overflow is drop or reroute; got {self.overflow!r}")
        if self.reach != int(self.reach):
            raise ValueError(f"reach is a whole number; got {self.reach!r}")

    def room(self, tokens: int, top_k: int, experts: int) -> int:
        """Return the most tokens that an expert takes."""
        return min(tokens, ceil(self.factor * tokens * top_k / experts - 1e-9))
