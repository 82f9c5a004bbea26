"""Many runs on all cores: each in a process of its own, none aware of the others.

A run depends on its scenario, policy and seed alone, so where it runs changes nothing.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from queue import Empty
from signal import SIG_IGN, SIGINT, signal
from time import perf_counter
from typing import Any

from moesim.errors import SimulationError
from moesim.measure.result import Result
from moesim.policy.bundle import ROLES
from moesim.replicate import Candidate, Progress, replicate, share

WORTH_S = 2.0
"""Seconds of the first candidate from which starting processes pays."""
POLL_S = 0.2

Figures = Callable[[Result], Any]


def replicate_all(
    candidates: Sequence[Candidate], progress: Progress, figures: Figures
) -> list[Result]:
    """Return the results of all candidates, in their order.

    The first runs here; when it took long, the others share the cores. Policies that
    another process may not know (a class of a notebook) run here, too.

    Raises
    ------
    InputError, SimulationError
        As `replicate`; or a process was killed.
    """
    count = len(candidates)
    began = perf_counter()
    first = replicate(candidates[0], share(progress, 0, count), figures)
    long = perf_counter() - began > WORTH_S
    rest, cores = candidates[1:], min(_cores(), count - 1)
    if long and cores > 1 and _portable(rest):
        return [first, *_Spread(rest, progress, figures).results(cores)]
    return [
        first,
        *(
            replicate(candidate, share(progress, number, count), figures)
            for number, candidate in enumerate(rest, 1)
        ),
    ]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _portable(candidates: Sequence[Candidate]) -> bool:
    """Tell whether another process knows every role: all are this library's own."""
    roles = [getattr(one.policy, role) for one in candidates for role in ROLES]
    return all(type(role).__module__.startswith("moesim.") for role in roles)


@dataclass
class _Spread:
    """Candidates that run in processes, and what has come back so far."""

    candidates: Sequence[Candidate]
    progress: Progress
    figures: Figures
    running: dict[int, Any] = field(default_factory=dict)
    found: dict[int, Result] = field(default_factory=dict)
    parts: dict[int, float] = field(default_factory=dict)

    def results(self, cores: int) -> list[Result]:
        """Return all results; whatever happens, no process is left behind."""
        context = get_context("spawn")
        told = context.Queue()
        waiting = list(enumerate(self.candidates))
        try:
            while len(self.found) < len(self.candidates):
                while waiting and len(self.running) < cores:
                    number, candidate = waiting.pop(0)
                    given = (told, number, candidate, self.figures)
                    self.running[number] = context.Process(target=_run, args=given)
                    self.running[number].start()
                self._listen(told)
        finally:
            for process in self.running.values():
                process.terminate()
        return [self.found[number] for number in range(len(self.candidates))]

    def _listen(self, told: Any) -> None:
        """Take in the next thing told, or notice that somebody will tell no more."""
        dead = [n for n, process in self.running.items() if not process.is_alive()]
        try:
            number, label, news = told.get(timeout=POLL_S)
        except Empty:
            if dead:
                raise SimulationError(
                    "a process that ran a policy was killed"
                ) from None
            return
        if isinstance(news, float):
            self.parts[number] = news
            done = 1 + sum(self.parts.values())
            self.progress(label, done / (len(self.candidates) + 1))
            return
        self.running.pop(number)
        if isinstance(news, Exception):
            raise news
        self.found[number] = news


def _run(told: Any, number: int, candidate: Candidate, figures: Figures) -> None:
    """Run one candidate in a process that was made for it, which the first one ends."""
    signal(SIGINT, SIG_IGN)
    try:
        result = replicate(
            candidate, lambda label, part: told.put((number, label, part)), figures
        )
    except Exception as error:  # noqa: BLE001 - it is raised where somebody listens
        told.put((number, "", error))
        return
    told.put((number, "", result))
