"""``moesim plan``: what fits into the memory of a cluster, from a scenario or options."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from moesim.cli.options import Debug, Json
from moesim.cli.terminal import orderly, show, show_json
from moesim.errors import InputError, Problem

app = typer.Typer()
DOES_NOT_FIT = 1
"""Exit code of a plan that does not work out."""
IGNORED = (("workload",), ("routing",), ("policy",), ("serving",))
"""Parts of a scenario that a plan does not build: traces and logs need not be there."""
EMPTY = {"routing": "uniform", "workload": {"input_len": 1}}
KEYS = {
    "model": "model",
    "gpu": "cluster.gpu",
    "nodes": "cluster.nodes",
    "gpus_per_node": "cluster.gpus_per_node",
    "tensor_parallel": "cluster.tensor_parallel",
    "redundant_experts": "placement.redundant_experts",
    "dispatch": "kernels.dispatch",
    "micro_batch": "serving.max_num_batched_tokens",
    "in_flight": "serving.max_in_flight",
    "utilization": "serving.gpu_memory_utilization",
}
"""Where each option stands in a scenario."""


@app.command()
def plan(
    scenario: Annotated[
        Path | None, typer.Argument(help="A scenario (YAML file), or only options.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A preset, or the path of a config.json.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="moesim list --gpus.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of a node.")] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(help="GPUs that share a rank's attention.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="fp16, bf16, fp8, int8, int4, fp4; mixed: see the next."),
    ] = None,
    experts_precision: Annotated[
        str | None, typer.Option(help="Format of the routed experts alone.")
    ] = None,
    kv_precision: Annotated[str | None, typer.Option(help="Of the KV cache.")] = None,
    redundant_experts: Annotated[
        int | None, typer.Option(help="Slots of a layer beyond one per expert.")
    ] = None,
    dispatch: Annotated[
        str | None, typer.Option(help="Kernels: normal or low_latency.")
    ] = None,
    context: Annotated[
        str, typer.Option(help="Tokens of a sequence: 8192, 8K (8192), 8k (8000).")
    ] = "4096",
    micro_batch: Annotated[
        int | None, typer.Option(help="Tokens of a rank in one micro-batch.")
    ] = None,
    in_flight: Annotated[
        int | None, typer.Option(help="Micro-batches at the same time.")
    ] = None,
    utilization: Annotated[
        float | None, typer.Option(help="Share of the GPU that may be used.")
    ] = None,
    reserve: Annotated[
        str, typer.Option(help="Set aside on each GPU: '2 GiB'.")
    ] = "0 B",
    case: Annotated[
        str, typer.Option(help="Tokens are spread: balanced, expected or worst.")
    ] = "balanced",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As of moesim run."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show each formula with its numbers.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what fills the memory of each GPU, and what fits. Exit code 1: does not."""
    asked = {name: value for name, value in locals().items() if value is not None}
    with orderly(debug=debug):
        changes = {key: asked[name] for name, key in KEYS.items() if name in asked}
        formats = _formats(precision, experts_precision, kv_precision)
        if formats:
            changes["precision"] = formats
        _show(
            *_asked(scenario, changes, settings or []),
            terms={"context": context, "reserve": reserve, "case": case},
            explain=explain,
            as_json=as_json,
        )


def _show(
    sections: Any, system: Any, *, terms: dict[str, str], explain: bool, as_json: bool
) -> None:
    from moesim.cli import plan_record, plan_screen
    from moesim.cost.plan import make_plan, smallest_clusters
    from moesim.scenario.memory import usable_share

    serving = _serving(sections.serving)
    kept = _terms(terms, usable_share(sections))
    found = make_plan(system, serving, kept)
    smallest = [] if found.fits else smallest_clusters(system, serving, kept)
    if as_json:
        record = plan_record.plan_record(found, smallest)
        record |= {"explained": plan_record.explained(found)} if explain else {}
        show_json(record)
    else:
        show(plan_screen.plan_screen(found, smallest))
        if explain:
            show(plan_screen.explain_screen(found))
    if not found.fits:
        raise SystemExit(DOES_NOT_FIT)


def _asked(
    path: Path | None, changes: dict[str, Any], settings: list[str]
) -> tuple[Any, Any]:
    """Return the sections of the scenario that was asked for, and its system."""
    from moesim.scenario.change import changed, parse_setting
    from moesim.scenario.shorthand import written_out
    from moesim.scenario.system import system_of
    from moesim.scenario.tree import Tree

    changes = dict(parse_setting(text) for text in settings) | changes
    if path is None:
        if "model" not in changes:
            message = "a scenario file or --model is needed; moesim list --models"
            raise InputError([Problem(message)])
        data = written_out(
            {**EMPTY, "model": changes["model"]}, Path.cwd(), "command line"
        )
        tree = Tree({**data, "name": "plan"})
    else:
        tree = _read(path)
    if changes:
        sections = _sections(tree, checked=False)
        try:
            data = changed(sections.model_dump(exclude_none=True), changes)
            tree = Tree(written_out(data, Path.cwd(), "plan"))
            sections = _sections(tree, checked=True)
        except InputError as error:
            found = [
                replace(p, where=p.where or "command line") for p in error.problems
            ]
            raise InputError(found) from None
    else:
        sections = _sections(tree, checked=True)
    return sections, system_of(sections)


def _read(path: Path) -> Any:
    from moesim.scenario.read import SIZE_LIMIT, read_tree
    from moesim.scenario.shorthand import written_out
    from moesim.scenario.tree import Tree
    from moesim.spec.files import read_text

    tree = read_tree(read_text(path, SIZE_LIMIT), str(path))
    data = written_out(tree.data, path.parent.absolute(), path.stem)
    return Tree(data, tree.where, tree.lines, tree.keys, tree.values, tree.problems)


def _sections(tree: Any, *, checked: bool) -> Any:
    """Return the scenario's sections; of their checks, those that a plan needs."""
    from pydantic import ValidationError

    from moesim.scenario.checks import problems_in
    from moesim.scenario.report import problems_of
    from moesim.scenario.schema import Sections

    if not isinstance(tree.data, dict):
        message = "a scenario is a mapping of keys such as model, routing, workload"
        raise InputError([*tree.problems, tree.problem((), message)])
    try:
        sections = Sections.model_validate(tree.data)
    except ValidationError as error:
        raise InputError([*tree.problems, *problems_of(error, tree)]) from None
    problems = [*tree.problems]
    if checked:
        problems += problems_in(sections, tree, IGNORED)
    if problems:
        raise InputError(problems)
    return sections


def _formats(
    precision: str | None, experts: str | None, kv: str | None
) -> dict[str, str]:
    """Return number formats as a scenario has them; nothing when none is asked for."""
    from moesim.scenario.shorthand import PRECISIONS
    from moesim.spec.system import BYTES, Precision

    if precision == "mixed" and experts is None:
        message = "mixed needs --experts-precision; the rest is bf16"
        raise InputError([Problem(message, "--precision")])
    word = "bf16" if precision == "mixed" else precision
    options = {
        "--precision": word,
        "--experts-precision": experts,
        "--kv-precision": kv,
    }
    for option, value in options.items():
        if value is not None and value not in BYTES:
            raise InputError([_no_format(option, value, list(BYTES))])
    chosen: dict[str, str] = {}
    if word is not None:
        plain = {"weights": word, "experts": word}
        names = [item.name for item in fields(Precision)]
        chosen = dict.fromkeys(names, "bf16") | dict(PRECISIONS.get(word, plain))
    chosen |= {"experts": experts} if experts else {}
    return chosen | ({"kv": kv} if kv else {})


def _no_format(option: str, value: str, known: list[str]) -> Problem:
    from moesim.scenario.named import none_of

    words = [*known, "mixed"] if option == "--precision" else known
    return Problem(none_of(value, words), option)


def _serving(section: Any) -> Any:
    from moesim.spec.serving import ServingSpec

    names = {item.name for item in fields(ServingSpec)} - {"kv_blocks"}
    return ServingSpec(**section.model_dump(include=names))


def _terms(asked: dict[str, str], utilization: float) -> Any:
    """Return what the plan keeps to."""
    from moesim.cost.buffers import CASES
    from moesim.cost.plan import Terms
    from moesim.scenario.named import none_of
    from moesim.scenario.quantities import LONGEST_TOKENS, parse_tokens
    from moesim.units import parse_bytes

    problems, read = [], {}
    for name, parse in (("context", parse_tokens), ("reserve", parse_bytes)):
        try:
            read[name] = parse(asked[name])
        except ValueError as error:
            problems.append(Problem(str(error), f"--{name}"))
    if "context" in read and not 1 <= read["context"] <= LONGEST_TOKENS:
        message = f"1 to {LONGEST_TOKENS} tokens are expected; got {read['context']}"
        problems.append(Problem(message, "--context"))
    if asked["case"] not in CASES:
        problems.append(Problem(none_of(asked["case"], list(CASES)), "--case"))
    if problems:
        raise InputError(problems)
    case: Any = asked["case"]
    return Terms(int(read["context"]), utilization, float(read["reserve"]), case)
