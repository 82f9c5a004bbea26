"""Bounds, findings and symptoms as lines of ``moesim diagnose``."""

from textwrap import wrap
from typing import Any

from moesim.cli.screens import WIDTH, banner
from moesim.cli.terminal import printable

Record = dict[str, Any]


def printable_lines(lines: list[str]) -> str:
    """Return lines of which none can steer a terminal."""
    return "\n".join(printable(line) for line in lines)


def bounds_lines(found: Record) -> list[str]:
    """Return what could be gained at most, a line a measure."""
    measures = (
        ("perfect balance", ("perfect",)),
        ("moving experts, this log", ("placement", "fitted")),
        ("  fitted to its first half", ("placement", "held_out")),
        ("  no placement beats", ("placement", "limit")),
        ("redundant experts, this log", ("replication", "fitted")),
        ("  fitted to its first half", ("replication", "held_out")),
        ("foreseeing each pass, besides", ("prediction",)),
        ("layers out of step", ("off_peak",)),
    )
    sizes = list(found)
    lines = [f"{'':<31}" + "".join(f"{f'EP{size}':>15}" for size in sizes)]
    now = "".join(f"{found[size]['now']:>7.2f}{'':>8}" for size in sizes)
    lines.append(f"{'now (ratio to even loads)':<31}{now}".rstrip())
    for label, path in measures:
        cells = "".join(_cell(found[size], path) for size in sizes)
        lines.append(f"{label:<31}{cells}")
    spare = ", ".join(str(found[size]["replication"]["redundant"]) for size in sizes)
    lines += [
        f"Redundant experts: {spare}. Shares are of the experts' time, waiting for the",
        "slowest rank included, if time goes as tokens; where weights set it, less.",
    ]
    return lines


def _cell(item: Record, path: tuple[str, ...]) -> str:
    value: Any = item
    for key in path:
        value = None if value is None else value[key]
    if value is None:
        return f"{'-':>7}{'':>8}"
    saved = f"-{value['saves']:.0%}"
    return f"{value['ratio']:>7.2f}{saved:>8}"


def findings_lines(found: list[Record]) -> list[str]:
    """Return the findings, each with its evidence and the next command."""
    lines: list[str] = []
    for item in found:
        stake = "" if item["stake"] is None else f" (at stake: {item['stake']:.0%})"
        lines += wrap(f"{item['rank']}. {item['title']}{stake}", WIDTH)
        lines += wrap(
            item["text"], WIDTH, initial_indent="   ", subsequent_indent="   "
        )
        for part in item["evidence"]:
            lines += wrap(
                part, WIDTH, initial_indent="   - ", subsequent_indent="     "
            )
        lines.append(f"   Next: {item['next']}")
    return lines


def symptoms_screen(record: Record) -> str:
    """Return the screen of a finished run's symptoms."""
    lines = [record["heading"], *_unlike(record["unlike"]), "", banner("Symptoms")]
    for item in record["symptoms"]:
        mark = {True: "YES", False: "no", None: "?"}[item["found"]]
        lines.append(f"{mark:<5}{item['symptom']}")
        lines += wrap(
            item["text"], WIDTH, initial_indent="     ", subsequent_indent="     "
        )
        for part in item["evidence"]:
            lines += wrap(
                part, WIDTH, initial_indent="     - ", subsequent_indent="       "
            )
        if item["found"]:
            lines.append(f"     Next: {item['next']}")
    lines += [banner(), *wrap(record["verdict"], WIDTH)]
    return printable_lines(lines)


def _unlike(differences: list[str]) -> list[str]:
    """Return the warning that two runs are not of the same cluster and traffic."""
    if not differences:
        return []
    text = f"Careful: these runs did not meet the same: {'; '.join(differences)}."
    return ["", *wrap(f"{text} What changed may come from that.", WIDTH)]
