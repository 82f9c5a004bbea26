"""``moesim study``: run the comparisons of a study into one small table."""

from pathlib import Path
from typing import Annotated, Any

import typer

from moesim.cli.options import Debug
from moesim.cli.terminal import orderly, printable, progress, show

app = typer.Typer()
TABLES = Path("results/studies")


@app.command()
def study(
    file: Annotated[Path, typer.Argument(help="A study (YAML file).")],
    replications: Annotated[
        int | None,
        typer.Option("--replications", "-n", min=2, help="Runs; else as in the file."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Table to write (results/studies/<name>.csv)."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, no screen.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Run all that a study asks for; write one table."""
    with orderly(debug=debug):
        from moesim.study.read import read_study
        from moesim.study.table import check_table, run_study, write_table

        asked = read_study(file)
        table = out or TABLES / f"{asked.name}.csv"
        check_table(table)
        with progress(quiet=quiet) as report:
            rows = run_study(asked, replications, report)
        write_table(rows, table)
        if not quiet:
            show(printable(screen(asked.question, rows, table)))


def screen(question: str, rows: list[dict[str, Any]], table: Path) -> str:
    """Return the question, how many verdicts of each kind there are, and where.

    >>> screen("Why?", [{"verdict": "worse"}], Path("a.csv"))
    'Why? 1 worse, of 1 row: a.csv'
    >>> screen("How much?", [{"metric": "duration"}, {}], Path("a.csv"))
    'How much? 2 rows: a.csv'
    """
    said = [str(row["verdict"]) for row in rows if "verdict" in row]
    counts = [f"{said.count(kind)} {kind}" for kind in dict.fromkeys(said)]
    size = f"{len(rows)} row{'s' * (len(rows) != 1)}"
    answer = f"{', '.join(counts)}, of {size}" if counts else size
    return f"{question} {answer}: {table}"
