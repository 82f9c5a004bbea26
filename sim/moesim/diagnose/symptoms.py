"""What a finished run suffers from: five complaints, each looked for by its figures.

Every check says yes, no, or that the run cannot tell; a yes names the cause.
"""

from collections.abc import Sequence

from moesim.diagnose.busy import memory, utilisation
from moesim.diagnose.growth import exchange
from moesim.diagnose.symptom import Record
from moesim.diagnose.tails import cold, tail
from moesim.diagnose.unlike import unlike
from moesim.errors import InputError, Problem
from moesim.measure.result import Result


def symptoms(results: Sequence[Result]) -> Record:
    """Return what was found in the last of one or two runs; of two, also what changed.

    Parameters
    ----------
    results : sequence of Result
        A run; or the run before a change, and the one after.

    Raises
    ------
    InputError
        Nothing happened in the run.
    """
    last = results[-1]
    if not len(last.passes):
        message = "no pass was run, so there is nothing to look for"
        raise InputError([Problem(message, str(last.where or last.name))])
    before = results[0] if len(results) > 1 else None
    found = [
        utilisation(last),
        memory(last),
        exchange(last, before),
        tail(last, before),
        cold(last),
    ]
    return {
        "heading": _heading(results),
        "unlike": unlike(before, last) if before else [],
        "symptoms": found,
        "verdict": _verdict(found),
    }


def _heading(results: Sequence[Result]) -> str:
    return "  ->  ".join(
        f"{result.name} · {result.summary['policy']} · {result.summary['num_gpus']}x "
        f"{result.summary['gpu']}"
        for result in results
    )


def _verdict(found: Sequence[Record]) -> str:
    named = [item["symptom"] for item in found if item["found"]]
    unknown = sum(item["found"] is None for item in found)
    rest = f" {unknown} could not be told from what was given." * bool(unknown)
    if not named:
        return f"None of these is it.{rest}"
    return f"Found: {'; '.join(named)}.{rest}"
