"""``moesim validate``: every problem of many files, in the form the caller reads."""

from collections.abc import Sequence
from pathlib import Path

from moesim.cli.terminal import BAD_INPUT, show, show_json, show_problems
from moesim.errors import InputError, Problem
from moesim.scenario.load import load
from moesim.study.read import is_study, read_study

FORMS = ("text", "json", "github")


def check_files(files: Sequence[Path], form: str) -> int:
    """Check the files, show what was found, and return the exit code."""
    found = {str(path): problems_in(path) for path in files}
    if form == "json":
        show_json({name: [record(p) for p in items] for name, items in found.items()})
    for name, problems in found.items():
        if form == "text":
            show_problems(tuple(problems))
            if not problems:
                show(f"{name}: ok")
        if form == "github":
            for problem in problems:
                show(annotation(problem))
    count = sum(len(problems) for problems in found.values())
    if form == "text":
        checked = f"{len(found)} file{'s' * (len(found) != 1)}"
        show(f"{checked}, {count} error{'s' * (count != 1)}")
    return BAD_INPUT if count else 0


def problems_in(path: Path) -> Sequence[Problem]:
    """Return what is wrong with a scenario or study file; nothing when it is right."""
    try:
        (read_study if is_study(path) else load)(path)
    except InputError as error:
        return error.problems
    return ()


def record(problem: Problem) -> dict[str, object]:
    """Return a problem as plain data."""
    return {
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "message": problem.message,
    }


def annotation(problem: Problem) -> str:
    """Return a problem as a GitHub workflow command.

    >>> annotation(Problem("no such model", "a.yaml", 3, 5, "model"))
    '::error file=a.yaml,line=3,col=5::model: no such model'
    """
    name = _escaped(problem.where).replace(":", "%3A").replace(",", "%2C")
    place = f"file={name},line={problem.line},col={problem.column}"
    key = f"{problem.key}: " if problem.key else ""
    return f"::error {place}::{_escaped(key + problem.message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
