"""What the screen of a run says beside its figures: what to make of them."""

from collections.abc import Mapping
from typing import Any

IMBALANCED = 0.30
"""Share of the top 10 % of experts over which practitioners call traffic imbalanced."""
TENTH, NEAR_CHANCE = 0.1, 1.5
"""A tenth gets its own share, and up to so many times what chance adds to that."""
Record = Mapping[str, Any]
NOTHING_QUEUED = (
    "Nothing queued, so no order of service can matter: one micro-batch in flight "
    "meets no other (serving.max_in_flight)."
)


def percent(value: Any) -> str:
    """Return a share in per cent, or a dash.

    >>> percent(0.256), percent(None)
    ('25.6 %', '-')
    """
    return "-" if value is None else f"{100 * value:.1f} %"


def uneven(share: float | None, chance: float | None) -> str:
    """Return what to say of the share of the busiest tenth of experts.

    >>> uneven(0.41, 0.12), uneven(0.41, 0.38)
    ('(12.0 % by chance): over 30 %, imbalanced', '(38.0 % by chance)')
    """
    known = "" if chance is None else f"({percent(chance)} by chance)"
    if share is None or share <= IMBALANCED:
        return known
    surely = chance is None or share - TENTH > NEAR_CHANCE * (chance - TENTH)
    return f"{known}: over 30 %, imbalanced".lstrip(": ") if surely else known


def nothing_served(record: Record) -> str:
    """Return what became of the requests of a run without a pass.

    >>> nothing_served({"rejected": 0, "failed": 4})
    'Nothing was served: every request failed, so no policy mattered.'
    """
    fates = {"rejected": "was rejected", "failed": "failed"}
    known = " or ".join(said for key, said in fates.items() if record.get(key))
    return f"Nothing was served: every request {known}, so no policy mattered."


def why_rejected(record: Record) -> str:
    """Return why the first request was rejected; nothing if none was."""
    return f"({record['rejection']})" if record.get("rejection") else ""
