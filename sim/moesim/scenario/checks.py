"""What a schema cannot see: each named part made once, and parts held to each other.

A check that reads a place already known to be wrong is skipped, so one mistake is told
once and the others still come with it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moesim.errors import InputError, Problem
from moesim.scenario.pieces import (
    arrivals_of,
    length_of,
    model_of,
    policy_of,
    sequence_lengths,
    serving_of,
    source_of,
    system_of,
    topology_of,
    workload_of,
)
from moesim.scenario.report import about_key, located
from moesim.scenario.schema import Sections
from moesim.scenario.tree import Location, Tree, dotted
from moesim.workload.lengths import TraceLength


@dataclass(frozen=True, slots=True)
class Check:
    """Something to make or to compare.

    Parameters
    ----------
    at : Location
        Where its problems are shown; their keys are relative to it.
    run : callable
        Raises `InputError` when the scenario is wrong.
    reads : tuple of Location
        What else it depends on; named in its messages, with lines.
    """

    at: Location
    run: Callable[[Sections], object]
    reads: tuple[Location, ...] = ()


def problems_in(sections: Sections, tree: Tree, damaged: list[Location]) -> list[Problem]:
    """Return all that the checks find, leaving out what depends on `damaged` places."""
    problems: list[Problem] = []
    damaged = list(damaged)
    for check in CHECKS:
        if any(_overlap(place, damaged) for place in (check.at, *check.reads)):
            continue
        try:
            check.run(sections)
        except InputError as error:
            found = located(error, check.at, tree)
            problems += [_with_places(problem, check, tree) for problem in found]
            damaged.append(check.at)
    return problems


def _overlap(place: Location, damaged: Iterable[Location]) -> bool:
    """Return whether one of the places holds the other."""
    return any(
        place[: len(other)] == other or other[: len(place)] == place
        for other in damaged
    )


def _with_places(problem: Problem, check: Check, tree: Tree) -> Problem:
    """Return the problem with the lines of the other places that it depends on."""
    lines = [(place, tree.values[place][0]) for place in check.reads if place in tree.values]
    others = [f"{dotted(at)} on line {line}" for at, line in lines if line != problem.line]
    if not others or about_key(problem):
        return problem
    message = f"{problem.message} ({', '.join(others)})"
    return Problem(
        message, problem.where, problem.line, problem.column, problem.key, problem.source
    )


def _input_length(sections: Sections) -> None:
    _length(sections, "input_len", "input_tokens")


def _output_length(sections: Sections) -> None:
    _length(sections, "output_len", "output_tokens")


def _length(sections: Sections, key: str, column: str) -> None:
    table = getattr(sections.workload, key)
    law = length_of(table, column)
    wanted = sections.workload.num_prompts
    if isinstance(law, TraceLength) and len(law.values) < wanted:
        few = f"the trace has {len(law.values)} requests"
        raise _refused(f"{few}; workload.num_prompts asks for {wanted}", "path")
    if table["type"] == "log" and sections.routing.get("name") != "log":
        raise _refused("lengths of type log need routing of name log", "type")


def _routing(sections: Sections) -> None:
    """Make the source, and see that a log has a sequence for every request."""
    source = source_of(sections, model_of(sections), sections.seed)
    lengths = sequence_lengths(source)
    workload = sections.workload
    asked = [k for k in ("input_len", "output_len") if getattr(workload, k)["type"] == "log"]
    if asked and lengths is not None and len(lengths) < workload.num_prompts:
        few = f"the log has {len(lengths)} sequences"
        more = f"workload.num_prompts asks for {workload.num_prompts}"
        raise _refused(f"{few}; {more} with {asked[0]}: log", "path")


def _prefill(sections: Sections) -> None:
    output = sections.workload.output_len
    if sections.serving.mode == "prefill_only" and output != {"type": "constant", "value": 1}:
        said = "a request of serving.mode prefill_only ends with its first token"
        raise _refused(f"{said}: leave output_len out, or write 1")


def _whole_prompts(sections: Sections) -> None:
    serving, length = sections.serving, sections.workload.input_len
    limit = serving.max_num_batched_tokens
    constant = length["type"] == "constant" and isinstance(length.get("value"), int)
    if not serving.chunked_prefill and constant and length["value"] > limit:
        said = f"prompts of {length['value']} tokens are never admitted whole"
        raise _refused(f"{said}: serving.max_num_batched_tokens is {limit}")


def _stage_width(sections: Sections) -> None:
    if sections.serving.stage_width and sections.serving.coupling != "lockstep":
        raise _refused("does nothing unless serving.coupling is lockstep")


def _refused(message: str, key: str = "") -> InputError:
    return InputError([Problem(message, key=key)])


_WORKLOAD = ("workload",)
_PROMPTS = ("workload", "num_prompts")
_INPUT, _OUTPUT = ("workload", "input_len"), ("workload", "output_len")
_CLUSTER, _MODEL, _PLACEMENT = ("cluster",), ("model",), ("placement",)
_SIZES: tuple[Location, ...] = (_MODEL, _CLUSTER, _PLACEMENT, ("precision",))

CHECKS: tuple[Check, ...] = (
    Check(_MODEL, model_of),
    Check(_CLUSTER, topology_of),
    Check(("workload", "arrivals"), arrivals_of, (_PROMPTS,)),
    Check(_INPUT, _input_length, (_PROMPTS, ("routing", "name"))),
    Check(_OUTPUT, _output_length, (_PROMPTS, ("routing", "name"))),
    Check(("policy",), policy_of, (("serving", "assign"), ("serving", "replica"))),
    Check(("routing",), _routing, (_MODEL, _PROMPTS, _INPUT, _OUTPUT)),
    Check(_PLACEMENT, system_of, (_MODEL, _CLUSTER)),
    Check(("serving",), lambda s: serving_of(s, system_of(s)), _SIZES),
    Check(("serving", "stage_width"), _stage_width, (("serving", "coupling"),)),
    Check(_OUTPUT, _prefill, (("serving", "mode"),)),
    Check(_INPUT, _whole_prompts, (("serving", "max_num_batched_tokens"),)),
    Check(_WORKLOAD, workload_of),
)
"""Every check, each after those that make what it reads."""
