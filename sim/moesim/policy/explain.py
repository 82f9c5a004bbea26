"""Why a micro-batch went first or waited: what a policy decided, noted on demand.

`explained` puts a witness before each role that decides by more than arrival. Engines
know nothing of it, so a run that is not explained pays nothing; and a witness changes
no decision, so an explained run is the same run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moesim.policy.bundle import Policy
from moesim.policy.compose import ArrivalOrder, SmallestKeys
from moesim.policy.order import Fifo
from moesim.policy.release import AtOnce
from moesim.policy.road import Road
from moesim.policy.view import BatchView, Foresight, View, WaitingView
from moesim.types import Floats, Ints

CROWDED = 3
"""How many crowded experts are told of a micro-batch's road."""


@dataclass(frozen=True, slots=True)
class Note:
    """One decision about some requests.

    Parameters
    ----------
    now_s : float
        When it was taken.
    what : {"line", "road", "key", "held", "stage"}
        Who was tried for a micro-batch; a crowded expert on a micro-batch's road, as it
        was formed; the key of a micro-batch for a stage; how long it was held back;
        whether it joined a lockstep stage.
    batch : int
        Number of the micro-batch; -1 for a line, which is tried before one is formed.
    requests : tuple of int
        Whom it is about.
    figures : dict of str to float
        What decided.
    """

    now_s: float
    what: str
    batch: int
    requests: tuple[int, ...]
    figures: dict[str, float]

    def __str__(self) -> str:
        """Return the note as one line."""
        told = ", ".join(f"{name} {value:.6g}" for name, value in self.figures.items())
        who = f"micro-batch {self.batch}" if self.batch >= 0 else "waiting line"
        return f"{self.now_s * 1e3:.3f} ms: {who}: {self.what}: {told}"


@dataclass(slots=True)
class Notes:
    """Decisions in the order in which they were taken.

    Parameters
    ----------
    request : int or tuple of int
        Only what is about this request, or any of these, is kept; -1: all.
    """

    request: int | tuple[int, ...] = -1
    kept: list[Note] = field(default_factory=list)
    keys: dict[int, float] = field(default_factory=dict)

    def add(self, note: Note) -> None:
        """Keep a note if it is about whom it should be."""
        asked = (self.request,) if isinstance(self.request, int) else self.request
        if -1 in asked or not set(asked).isdisjoint(note.requests):
            self.kept.append(note)

    def rank(self, batch: BatchView, key: float) -> int:
        """Return how many micro-batches in flight have a smaller key as far as known."""
        others = [k for number, k in self.keys.items() if number != batch.batch]
        self.keys[batch.batch] = key
        if batch.stage == "lm_head":
            del self.keys[batch.batch]
        return sum(other < key for other in others)


class Witness:
    """Stands before a role: has all it has, and notes what it decides.

    Parameters
    ----------
    role : object
        Who decides. It is shown no more than the policy asks for.
    notes : Notes
        Where it is written down.
    asked : Foresight
        What the policy asks for.
    """

    def __init__(self, role: Any, notes: Notes, asked: Foresight) -> None:
        self.role = role
        self.notes = notes
        self.asked = asked

    def __getattr__(self, name: str) -> Any:
        """Return what the role itself has."""
        return getattr(self.role, name)

    def shown(self, batch: BatchView) -> BatchView:
        """Return the picture without what only witnesses asked for."""
        return batch if self.asked.congestion else replace(batch, road=None)

    def note(self, view: View, what: str, batch: BatchView, **figures: float) -> None:
        """Note a decision about a micro-batch."""
        who = tuple(batch.requests.tolist())
        self.notes.add(Note(view.now_s, what, batch.batch, who, figures))


class OrderWitness(Witness):
    """Notes crowded experts, keys, what they are the sum of, and how many go before."""

    @property
    def foresight(self) -> Foresight:
        """What the policy wants to be shown, and the congestion map by expert."""
        return replace(self.asked, experts=True)

    def key(self, batch: BatchView, view: View) -> float:
        """Return the order's key."""
        if batch.layer == 0 and batch.stage == "attention" and batch.road:
            for cell in crowded(batch.road):
                self.note(view, "road", batch, **cell)
        batch = self.shown(batch)
        key: float = self.role.key(batch, view)
        terms = getattr(self.role, "terms", None)
        parts = terms(batch) if terms else {}
        stands = {"layer": batch.layer, "before": self.notes.rank(batch, key)}
        self.note(view, "key", batch, key=key, **parts, **stands)
        return key


class ComposeWitness(Witness):
    """Notes the place of each request in the line, and when it is tried."""

    def sequence(self, waiting: WaitingView, view: View) -> Ints:
        """Return the composition's rows."""
        rows: Ints = self.role.sequence(waiting, view)
        for tried, row in enumerate(rows):
            who = (int(waiting.request[row]),)
            figures = {"place": float(row), "tried": float(tried)}
            figures["waited_s"] = view.now_s - float(waiting.arrival_s[row])
            self.notes.add(Note(view.now_s, "line", -1, who, figures))
        return rows


class ReleaseWitness(Witness):
    """Notes how long micro-batches are held back."""

    def delay(self, batch: BatchView, view: View) -> float:
        """Return the release's delay."""
        delay: float = self.role.delay(self.shown(batch), view)
        self.note(view, "held", batch, seconds=delay)
        return delay


class SelectWitness(Witness):
    """Notes who joins a lockstep stage, and who is passed over."""

    def stage(self, ready: Sequence[BatchView], keys: Floats) -> Sequence[int]:
        """Return the selection's rows."""
        rows = list(self.role.stage(ready, keys))
        now = View(max(batch.ready_s for batch in ready), keys)
        for row, batch in enumerate(ready):
            figures = {"layer": batch.layer, "deferred": batch.deferred}
            self.note(now, "stage", batch, joins=row in rows, **figures)
        return rows


def crowded(road: Road) -> list[dict[str, float]]:
    """Return the experts on a micro-batch's road that have had most to do lately.

    On its road is an expert to which it should bring more tokens than to others of the
    layer on average; of the layers' busiest ones the `CROWDED` most crowded are told.
    """
    mean = road.experts.mean(axis=1, keepdims=True)
    times = np.divide(
        road.experts, mean, out=np.zeros_like(road.experts), where=mean > 0
    )
    mine = road.own > road.own.mean(axis=1, keepdims=True)
    times = np.where(mine, times, 0.0)
    busiest = times.argmax(axis=1)
    height = times.max(axis=1)
    return [
        {
            "layer": float(layer),
            "expert": float(busiest[layer]),
            "crowd": float(height[layer]),
            "tokens_per_s": float(road.experts[layer, busiest[layer]]),
            "brings": float(road.own[layer, busiest[layer]]),
        }
        for layer in np.argsort(-height, kind="stable")[:CROWDED].tolist()
        if height[layer] > 1
    ]


def explained(policy: Policy, notes: Notes) -> Policy:
    """Return the policy with a witness before each role that is not the plain one.

    Parameters
    ----------
    policy : Policy
        Who decides.
    notes : Notes
        Where it is written down.
    """
    roles: dict[str, Any] = {}
    for name, plain, witness in (
        ("order", Fifo, OrderWitness),
        ("compose", ArrivalOrder, ComposeWitness),
        ("release", AtOnce, ReleaseWitness),
        ("select", SmallestKeys, SelectWitness),
    ):
        role = getattr(policy, name)
        if type(role) is not plain:
            roles[name] = witness(role, notes, policy.foresight)
    return replace(policy, **roles)
