"""What the figures mean, in plain words, the most at stake first.

A finding's ``stake`` is the share of the experts' time that it is about, at most, at the
largest EP size; what has no such share comes last, in the order of the rules.
"""

from collections.abc import Callable

from moesim.diagnose import rules_load, rules_order
from moesim.diagnose.finding import Record

Rule = Callable[[Record], Record | None]
RULES: tuple[Rule, ...] = (
    rules_load.ranks,
    rules_load.experts,
    rules_load.small_passes,
    rules_load.hot_expert,
    rules_order.drift,
    rules_order.classes,
    rules_order.off_peak,
    rules_order.foresight,
    rules_order.neighbours,
    rules_load.exchange,
    rules_load.dead,
)
"""In the order in which findings of equal stake are told."""


def findings(record: Record) -> list[Record]:
    """Return findings, each with its evidence and the next command."""
    found = [item for rule in RULES if (item := rule(record)) is not None]
    ranked = sorted(found, key=lambda item: -(item["stake"] or 0.0))
    return [{"rank": at, **item} for at, item in enumerate(ranked, 1)]
