"""The benchmark: what simulating costs, group by group, one table each.

``python tests/bench/suite.py [--only NAME ...] [--rounds N] [--long] [--json FILE]``

Progress goes to standard error. Ctrl-C, or being told to terminate, ends it and prints
what it has.
"""

import argparse
import json
import signal
import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import (
    engines,
    growth,
    ledger,
    memory,
    micro,
    replications,
    routing,
    runs,
)
from bench.table import plain, table
from bench.timing import Form, machine
from moesim.errors import InputError, SimulationError

GROUPS = {
    "micro": micro,
    "engines": engines,
    "runs": runs,
    "routing": routing,
    "replications": replications,
    "growth": growth,
    "ledger": ledger,
    "memory": memory,
}
STOPPED = 130
BROKEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SimulationError,
    InputError,
    TypeError,
    ValueError,
)
"""One group that breaks leaves the others their turn."""


def main(arguments):
    """Return 0, or 1 where a group broke or engines disagreed, or 130 after Ctrl-C."""
    given = options(arguments)
    form = Form(given.rounds, given.long, given.requests, say)
    facts = machine()
    words = ", ".join(f"{key} {value}" for key, value in facts.items())
    write(f"{words}; {form.rounds} rounds, medians [quartiles] of processor time\n")
    report = {"machine": facts, "rounds": form.rounds, "long": form.long, "groups": {}}
    status = 0
    for name in given.only:
        group = report["groups"][name] = {"rows": []}
        status = max(status, measure(name, group, form, lambda: save(given, report)))
        if status == STOPPED:
            break
    return status


def measure(name, group, form, keep):
    """Measure one group, print its table, and return the exit status it asks for.

    `keep` is called after every row.
    """
    module, rows, status = GROUPS[name], group["rows"], 0
    start = perf_counter()
    try:
        for row in module.rows(form):
            rows.append(row)
            keep()
    except KeyboardInterrupt:
        status, group["stopped"] = STOPPED, True
    except BROKEN as error:
        status, group["error"] = 1, f"{type(error).__name__}: {error}"
        say(f"{name} broke: {group['error']}")
    group["wall_s"] = perf_counter() - start
    keep()
    if rows:
        write(table(module.TITLE, module.COLUMNS, rows))
    unequal = [row for row in rows if row.get("equal") is False]
    return max(status, 1 if unequal else 0)


def save(given, report):
    if given.json:
        given.json.write_text(json.dumps(plain(report), indent=1) + "\n")


def say(text):
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def write(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=GROUPS,
        default=list(GROUPS),
        help=f"groups to measure: {', '.join(GROUPS)}",
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each rival")
    parser.add_argument("--long", action="store_true", help="also what takes minutes")
    parser.add_argument("--requests", type=int, default=0, help="of the memory run")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args(arguments)


def interrupt(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    sys.exit(main(sys.argv[1:]))
