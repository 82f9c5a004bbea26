"""Why a micro-batch went first or waited: what a policy decided, noted on demand.

`explained` puts a witness before each role that decides by more than arrival. Engines
know nothing of it, so a run that is not explained pays nothing; and a witness changes
no decision, so an explained run is the same run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moesim.policy.bundle import Policy
from moesim.policy.compose import ArrivalOrder, SmallestKeys
from moesim.policy.order import Fifo
from moesim.policy.release import AtOnce
from moesim.policy.view import BatchView, View, WaitingView
from moesim.types import Floats, Ints


@dataclass(frozen=True, slots=True)
class Note:
    """One decision about some requests.

    Parameters
    ----------
    now_s : float
        When it was taken.
    what : {"line", "key", "held", "stage"}
        Who was tried for a micro-batch; the key of a micro-batch for a stage; how long
        it was held back; whether it joined a lockstep stage.
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
    request : int
        Only what is about this request is kept; -1: all.
    """

    request: int = -1
    kept: list[Note] = field(default_factory=list)
    keys: dict[int, float] = field(default_factory=dict)

    def add(self, note: Note) -> None:
        """Keep a note if it is about whom it should be."""
        if self.request < 0 or self.request in note.requests:
            self.kept.append(note)

    def rank(self, batch: BatchView, key: float) -> int:
        """Return how many micro-batches in flight have a smaller key as far as known."""
        others = [k for number, k in self.keys.items() if number != batch.batch]
        self.keys[batch.batch] = key
        if batch.stage == "lm_head":
            del self.keys[batch.batch]
        return sum(other < key for other in others)


class Witness:
    """Stands before a role: has all it has, and notes what it decides."""

    def __init__(self, role: Any, notes: Notes) -> None:
        self.role = role
        self.notes = notes

    def __getattr__(self, name: str) -> Any:
        """Return what the role itself has."""
        return getattr(self.role, name)

    def note(self, view: View, what: str, batch: BatchView, **figures: float) -> None:
        """Note a decision about a micro-batch."""
        who = tuple(batch.requests.tolist())
        self.notes.add(Note(view.now_s, what, batch.batch, who, figures))


class OrderWitness(Witness):
    """Notes keys, what they are the sum of, and how many go before."""

    def key(self, batch: BatchView, view: View) -> float:
        """Return the order's key."""
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
        delay: float = self.role.delay(batch, view)
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
            roles[name] = witness(role, notes)
    return replace(policy, **roles)
