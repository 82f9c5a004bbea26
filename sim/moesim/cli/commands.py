"""The commands ``moesim run``, ``compare``, ``validate`` and ``list``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from moesim import __version__
from moesim.cli import convert, diagnose, links, plan, study
from moesim.cli.options import Debug, Json
from moesim.cli.terminal import orderly, progress, show, show_json
from moesim.errors import InputError, Problem

app = typer.Typer(
    name="moesim",
    help="Simulate Mixture-of-Experts inference clusters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for part in (plan, convert, study, diagnose, links):
    app.add_typer(part.app)
RESULTS = Path("results")

ScenarioFile = Annotated[Path, typer.Argument(help="A scenario (YAML file).")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of all randomness.")]
Runs = Annotated[
    int | None,
    typer.Option(
        "--replications",
        "-n",
        min=1,
        help="Independent runs (if not said, those of the scenario; compare: 8 or more).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value: --set serving.max_in_flight=4. Repeatable.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Write exactly here, not below results/.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no screen.")]
Rate = Annotated[float | None, typer.Option("--request-rate", help="Requests/s.")]
Prompts = Annotated[int | None, typer.Option("--num-prompts", help="Requests.")]
Inside = Annotated[
    int | None, typer.Option("--max-concurrency", help="Unfinished requests at most.")
]


def _version(value: bool) -> None:
    if value:
        show(f"moesim {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Version."),
    ] = False,
) -> None:
    """Simulate Mixture-of-Experts inference clusters."""


@app.command()
def run(
    scenario: ScenarioFile,
    policy: Annotated[
        str | None, typer.Option(help="Policy: a name, or module:Class of your own.")
    ] = None,
    seed: Seed = None,
    replications: Runs = None,
    settings: Settings = None,
    request_rate: Rate = None,
    num_prompts: Prompts = None,
    max_concurrency: Inside = None,
    label: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    explain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REQUEST",
            help="Tell why a request's micro-batches went first or waited. Repeatable.",
        ),
    ] = None,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Simulate a scenario; show latency and where time goes."""
    with orderly(debug=debug):
        shortcuts = {
            "request_rate": request_rate,
            "num_prompts": num_prompts,
            "max_concurrency": max_concurrency,
            "name": label,
            "seed": seed,
            "replications": replications,
        }
        chosen = _load(scenario, settings, shortcuts)
        _check_out(out)
        from moesim import simulate
        from moesim.cli.explain import asked
        from moesim.cli.outcome import show_run
        from moesim.measure.files import save_run

        asks = asked(chosen, _policy(policy), explain or [])
        with progress(quiet=quiet or as_json) as report:
            result = simulate.run(
                asks.scenario, policy=asks.policy, progress=report, out=out
            )
            if out is None:
                result = save_run(result, RESULTS)
        if as_json or not quiet:
            show_run(result, asks, str(scenario), as_json=as_json)


@app.command()
def compare(
    scenario: ScenarioFile,
    policies: Annotated[
        str, typer.Option(help="Names: fifo,oldest,my_module:Class.")
    ] = "",
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help="Other settings, as 'name: key=value; key=value'; without "
            "--policies they are compared with the scenario as it stands."
        ),
    ] = None,
    replications: Runs = None,
    baseline: Annotated[
        str | None, typer.Option(help="Policy to compare with (default: the first).")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Keys of result.json: p99_ttft_ms,..."),
    ] = None,
    seed: Seed = None,
    settings: Settings = None,
    request_rate: Rate = None,
    num_prompts: Prompts = None,
    max_concurrency: Inside = None,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run policies or variants on the same traffic; show differences."""
    with orderly(debug=debug):
        shortcuts = {
            "request_rate": request_rate,
            "num_prompts": num_prompts,
            "max_concurrency": max_concurrency,
            "seed": seed,
        }
        chosen = _load(scenario, settings, shortcuts)
        _check_out(out)
        from moesim import simulate
        from moesim.cli.outcome import show_comparison
        from moesim.measure.files import save_comparison
        from moesim.scenario.change import parse_variants

        with progress(quiet=quiet or as_json) as report:
            comparison = simulate.compare(
                chosen,
                [_policy(name) for name in _words(policies)],
                variants=parse_variants(variant or []),
                replications=replications,
                baseline=baseline,
                metrics=_words(metric) if metric else None,
                progress=report,
                out=out,
            )
            if out is None:
                comparison = save_comparison(comparison, RESULTS)
        if as_json or not quiet:
            show_comparison(comparison, chosen, as_json=as_json)


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="Scenarios and studies.")],
    form: Annotated[
        str, typer.Option("--format", help="text, json or github.")
    ] = "text",
    debug: Debug = False,
) -> None:
    """Check scenario and study files; nothing is run."""
    with orderly(debug=debug):
        from moesim.cli.validate import FORMS, check_files

        if form not in FORMS:
            message = f"--format is one of {', '.join(FORMS)}; got {form!r}"
            raise InputError([Problem(message)])
        raise SystemExit(check_files(files, form))


@app.command("list")
def list_(
    models: Annotated[bool, typer.Option("--models", help="Model presets.")] = False,
    gpus: Annotated[bool, typer.Option("--gpus", help="GPU presets.")] = False,
    policies: Annotated[bool, typer.Option("--policies", help="Policies.")] = False,
    routing: Annotated[bool, typer.Option("--routing", help="Routing.")] = False,
    placements: Annotated[
        bool, typer.Option("--placements", help="placement.name.")
    ] = False,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="serving.replica.")
    ] = False,
    rebalances: Annotated[
        bool, typer.Option("--rebalances", help="placement.rebalance.")
    ] = False,
    caches: Annotated[
        bool, typer.Option("--caches", help="Caches of experts.")
    ] = False,
    scenarios: Annotated[
        bool, typer.Option("--scenarios", help="Scenarios here.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List what a scenario can name; without options, everything."""
    with orderly(debug=debug):
        from moesim.cli.listing import listing, text

        asked = {
            "models": models,
            "gpus": gpus,
            "policies": policies,
            "routing": routing,
            "placements": placements,
            "replicas": replicas,
            "rebalances": rebalances,
            "caches": caches,
            "scenarios": scenarios,
        }
        found = listing([name for name, yes in asked.items() if yes] or list(asked))
        if as_json:
            show_json(found)
        else:
            show(text(found))


def _load(path: Path, settings: list[str] | None, shortcuts: dict[str, Any]) -> Any:
    from moesim.scenario.change import parse_setting
    from moesim.scenario.load import load

    scenario = load(path)
    changes = dict(parse_setting(text) for text in settings or [])
    changes |= {key: value for key, value in shortcuts.items() if value is not None}
    try:
        return scenario.with_(changes) if changes else scenario
    except InputError as error:
        found = [replace(p, where=p.where or "command line") for p in error.problems]
        raise InputError(found) from None


def _check_out(out: Path | None) -> None:
    """Refuse a folder that cannot be written before anything is simulated."""
    from moesim.measure.folder import check_target

    if out is not None:
        check_target(out)


def _policy(name: str | None) -> str | None:
    """Return the policy, with classes beside the working directory importable."""
    if name is not None and ":" in name:
        import sys

        if "" not in sys.path:
            sys.path.insert(0, "")
    return name


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
