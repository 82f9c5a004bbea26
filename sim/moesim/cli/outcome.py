"""What ``run`` and ``compare`` print once they have run."""

from typing import Any

from moesim.cli.advice import NOTHING_QUEUED, nothing_served
from moesim.cli.explain import Asked, record, story
from moesim.cli.screens import (
    ORDERS,
    compare_screen,
    run_screen,
    saved,
    suggestion,
)
from moesim.cli.terminal import printable, show, show_json


def show_run(result: Any, run: Asked, file: str, *, as_json: bool) -> None:
    """Print a run: its record as JSON, or the screen and what comes next."""
    if as_json:
        counts = {"ci95": result.ci95, "where": str(result.where)}
        show_json({**result.summary, **counts, **record(run)})
        return
    scenario = run.scenario
    show(run_screen(result.summary, result.ci95, scenario.seed, scenario.replications))
    if run.requests:
        show("\n".join(map(printable, story(result, run).split("\n"))))
    elif result.summary["queue_frac"]:
        show(suggestion(file, result.summary["policy"], ORDERS))
    else:
        passed = result.summary["passes"]
        show(NOTHING_QUEUED if passed else nothing_served(result.summary))
    show(saved(result.where, "result.json, requests.parquet, plots/*.png, ..."))


def show_comparison(comparison: Any, scenario: Any, *, as_json: bool) -> None:
    """Print a comparison: its table as JSON, or the screen."""
    table = comparison.to_dict()
    if as_json:
        show_json({**table, "where": str(comparison.where)})
    else:
        show(compare_screen(table, scenario.name))
        show(saved(comparison.where, "compare.csv, compare.json, plots/*.png"))
