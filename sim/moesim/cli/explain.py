"""``moesim run --explain``: why micro-batches of some requests went first or waited."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from moesim.errors import InputError, Problem
from moesim.measure.result import Result
from moesim.policy.bundle import Policy, make_policy
from moesim.policy.explain import Note, Notes, explained
from moesim.scenario.load import Scenario
from moesim.scenario.pieces import policy_of, setting_of

OPTION = "--explain"
ALIKE = "{:>18}... and as many in its {} next stage{}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that is to be explained.

    Parameters
    ----------
    scenario : Scenario
        What is simulated.
    policy : str, Policy or None
        As `moesim.run` takes it.
    notes : Notes or None
        Where decisions are written down; None: nobody asks.
    """

    scenario: Scenario
    policy: str | Policy | None
    notes: Notes | None = None

    @property
    def requests(self) -> tuple[int, ...]:
        """Whom it is asked about."""
        if self.notes is None or isinstance(self.notes.request, int):
            return ()
        return self.notes.request


def asked(scenario: Scenario, policy: str | None, words: Sequence[str]) -> Asked:
    """Return what to run so that decisions about requests are noted.

    Parameters
    ----------
    scenario : Scenario
        What is simulated.
    policy : str or None
        Overrides the scenario's.
    words : sequence of str
        Request numbers, several of them with commas between.

    Raises
    ------
    InputError
        Something is no number of a request of the scenario, or there are several runs.
    """
    if not words:
        return Asked(scenario, policy)
    notes = Notes(requests_in(words, scenario.workload.num_prompts))
    if scenario.replications > 1:
        message = f"tells of one run, not of {scenario.replications}"
        raise _refused(f"{message}: add --replications 1")
    if policy is not None and ":" not in policy:
        scenario, policy = scenario.with_({"policy": policy}), None
    decides = policy_of(scenario)
    if policy is not None:
        decides = make_policy(policy, setting_of(scenario))
    return Asked(scenario, explained(decides, notes), notes)


def requests_in(words: Sequence[str], count: int) -> tuple[int, ...]:
    """Return the requests that are named, each once, in order.

    Raises
    ------
    InputError
        All words that name none of `count` requests.
    """
    parts = [part.strip() for word in words for part in word.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdecimal())]
    beyond = [part for part in parts if part not in wrong and int(part) >= count]
    if wrong or beyond:
        example = "a request's number is expected, or several such as 3,7; got "
        upto = f"the run has requests 0 to {count - 1}; there is no "
        raise InputError(
            [Problem(example + repr(part), OPTION) for part in wrong]
            + [Problem(upto + part, OPTION) for part in beyond]
        )
    return tuple(sorted({int(part) for part in parts}))


def story(result: Result, run: Asked) -> str:
    """Return what was decided about each request, line by line."""
    kept = run.notes.kept if run.notes else []
    table = result.requests
    lines: list[str] = []
    for request in run.requests:
        row = table[table["request_id"] == request].iloc[0]
        mine = [note for note in kept if request in note.requests]
        lines += ["", f"Request {request}: {_times(row)}"]
        lines += [*_told(mine), *_fate(str(row["status"]), result.summary)]
        if not mine and row["status"] == "finished":
            lines.append(_nothing(str(result.summary["policy"])))
    return "\n".join(lines)


def record(run: Asked) -> dict[str, Any]:
    """Return the decisions as plain data, for JSON; nothing where nobody asks."""
    if run.notes is None:
        return {}
    return {"explained": [asdict(note) for note in run.notes.kept]}


def _times(row: Any) -> str:
    names = ("arrival_s", "admitted_s", "first_token_s", "finish_s")
    labels = ("arrived", "admitted", "first token", "ended")
    times = (
        f"{label} {row[name] * 1e3:.3f} ms"
        for label, name in zip(labels, names, strict=True)
        if row[name] == row[name]  # where it has not happened it is NaN
    )
    return f"{', '.join(times)} ({row['status']})"


def _fate(status: str, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a request was not served; nothing if it was."""
    if status == "rejected":
        yield f"  rejected as it arrived; the first that was: {record['rejection']}"
    elif status == "failed":
        yield f"  failed with the instance, {record['oom']}"


def _nothing(policy: str) -> str:
    return f"  {policy} decides by arrival alone: nothing to explain"


def _told(notes: Sequence[Note]) -> Iterator[str]:
    """Yield the notes; of stages in which as many went before only the first."""
    for _, group in groupby(notes, _kind):
        first, *others = group
        yield f"  {first}"
        if first.what != "key":
            yield from (f"  {note}" for note in others)
        elif others:
            yield ALIKE.format("", len(others), "s" * (len(others) > 1))


def _kind(note: Note) -> tuple[str, int, float]:
    return note.what, note.batch, note.figures.get("before", -1.0)


def _refused(message: str) -> InputError:
    return InputError([Problem(message, OPTION)])
