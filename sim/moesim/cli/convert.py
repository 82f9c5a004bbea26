"""``moesim convert``: a routing log of any engine into the form that is replayed."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from moesim.cli.options import Debug, Form
from moesim.cli.terminal import note, orderly, printable, show
from moesim.errors import InputError, Problem, meant

app = typer.Typer()


@app.command()
def convert(
    log: Annotated[Path, typer.Argument(help="A log, or the folder of its ranks.")],
    out: Annotated[Path, typer.Option("--out", help="New file: .npz or .parquet.")],
    form: Form = None,
    told: Annotated[
        list[str] | None,
        typer.Option(
            "--hint",
            metavar="KEY=VALUE",
            help="What the file lacks: top_k, layers, experts, warmup, array.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file.")] = False,
    debug: Debug = False,
) -> None:
    """Read a routing log of any engine; write it as .npz or .parquet."""
    with orderly(debug=debug):
        from moesim.routing.logs import check_place, read_log, write_log

        check_place(out, force=force)
        found = read_log(log, form, hints=hints(told or []))
        for line in found.notes:
            note(printable(f"note: {line}"))
        written = write_log(found, out, force=force)
        show(printable(screen(found, written)))


def screen(log: Any, written: Path) -> str:
    """Return one line: what was read and where it went."""
    what = f"{log.steps} {'tokens' if log.tokens is not None else 'steps'}"
    choice = f", top {log.top_k}" if log.top_k else ""
    sizes = f"{len(log.layers)} layers, {log.experts} experts{choice}"
    return f"{log.origin.format}: {what}, {sizes}: {written}"


def hints(texts: Sequence[str]) -> Any:
    """Return what ``KEY=VALUE`` texts tell of a log.

    Raises
    ------
    InputError
        A key is unknown or given twice, or a value is no whole number.
    """
    from moesim.routing.logs import Hints

    known = [field.name for field in fields(Hints)]
    found: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in known or key in found:
            hint = "" if key in found else meant(key, known)
            message = f"--hint {key!a:.60} is not one of {', '.join(known)}, once{hint}"
            raise InputError([Problem(message)])
        whole = value.isascii() and value.isdecimal() and len(value) < 10
        if key != "array" and not whole:
            message = f"--hint {key}: a whole number is expected; got {value!a:.60}"
            raise InputError([Problem(message)])
        found[key] = value if key == "array" else int(value)
    return Hints(**found)
