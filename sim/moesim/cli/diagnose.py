"""``moesim diagnose``: what is wrong with the traffic of a log, or with a finished run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from moesim.cli.options import Debug, Form, Json, Told
from moesim.cli.terminal import note, orderly, printable, show, show_json
from moesim.errors import InputError, Problem

app = typer.Typer()
MEMORY = 128 << 20
"""Bytes that a log may take in memory; its tokens beyond them go to a temporary file."""


@app.command()
def diagnose(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(help="A routing log of any engine; or two, to compare."),
    ] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option("--run", help="Folder of a finished run; twice: before, after."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A preset, or the path of a config.json.")
    ] = None,
    ep: Annotated[str, typer.Option(help="GPUs that share the experts: 8,16,32.")] = "",
    gpu: Annotated[str, typer.Option(help="moesim list --gpus.")] = "h100",
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of a node.")] = 8,
    form: Form = None,
    told: Told = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write findings.json, figures and report.html."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what is wrong with a log or a run, and what to do next."""
    with orderly(debug=debug):
        _check(logs or [], run or [])
        if run:
            _run(run, as_json=as_json)
            return
        from moesim.cli.diagnose_screen import diagnosis_screen
        from moesim.diagnose.report import diagnose as examine
        from moesim.spec.catalogue import load_model
        from moesim.spec.hardware import load_gpu

        _check_out(out)
        shape = load_model(model) if model else None
        parts = [
            read_traffic(path, form, told or [], shape.top_k if shape else 0)
            for path in logs or []
        ]
        record = examine(parts, load_gpu(gpu), _sizes(ep), gpus_per_node, shape)
        for line in record["log"]["notes"]:
            note(printable(f"note: {line}"))
        where = _written(record, sum(part.totals for part in parts), out)
        if as_json:
            show_json(record)
        else:
            show(diagnosis_screen(record, where))


def _check(logs: Sequence[Path], runs: Sequence[Path]) -> None:
    """Raise `InputError` unless there are one or two logs, or one or two runs."""
    if logs and runs:
        raise InputError([Problem("a log, or --run, is expected; not both")])
    if not 1 <= len(logs) + len(runs) <= 2:
        found = len(logs) + len(runs)
        message = f"one or two logs (or --run) are expected; got {found}"
        raise InputError([Problem(message)])


def _sizes(text: str) -> list[int]:
    """Return EP sizes, such as of ``8,16``."""
    parts = [part.strip() for part in text.split(",")] if text else []
    wrong = [p for p in parts if not (p.isascii() and p.isdecimal() and len(p) < 7)]
    if wrong:
        message = f"whole numbers such as 8,16 are expected; got {wrong[0]!a:.40}"
        raise InputError([Problem(message, "--ep")])
    return [int(part) for part in parts]


def read_traffic(path: Path, form: str | None, told: Sequence[str], top_k: int) -> Any:
    """Return what a diagnosis needs of a log."""
    from moesim.cli.convert import hints
    from moesim.diagnose.traffic import sampled, traffic_of
    from moesim.diagnose.weights import first_slots
    from moesim.routing.logs import Limits, read_log

    limits = Limits(memory_bytes=MEMORY)
    log = read_log(path, form, limits, hints(told))
    return traffic_of(log, top_k, first_slots(path, log, sampled(log), limits))


def _check_out(out: Path | None) -> None:
    if out is not None:
        from moesim.measure.folder import check_target

        check_target(out)


def _written(record: dict[str, Any], totals: Any, out: Path | None) -> Path | None:
    """Write the folder that was asked for."""
    if out is None:
        return None
    from moesim.diagnose.folder import write_diagnosis
    from moesim.plot.diagnosis import pictures

    return write_diagnosis(record, pictures(record, totals), out)


def _run(runs: Sequence[Path], *, as_json: bool) -> None:
    """Show what a finished run suffers from; of two, what the second changed."""
    from moesim.cli.diagnose_lines import symptoms_screen
    from moesim.diagnose.symptoms import symptoms
    from moesim.measure.files import read_run

    record = symptoms([read_run(path) for path in runs])
    if as_json:
        show_json(record)
    else:
        show(symptoms_screen(record))
