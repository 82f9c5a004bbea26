"""``moesim links``: bandwidth of an all-to-all on the modelled fabric, as nccl-tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from moesim.cli.options import Debug, Form, Json, Told
from moesim.cli.terminal import note, orderly, printable, show, show_json
from moesim.errors import InputError, Problem

app = typer.Typer()
COLLECTIVES = ("alltoall",)
GB, US = 1e9, 1e6


@app.command()
def links(
    collective: Annotated[str, typer.Option(help="alltoall.")] = "alltoall",
    sizes: Annotated[
        str,
        typer.Option("--bytes", help="Bytes a rank hands over: 8:128M, or one size."),
    ] = "8:128M",
    factor: Annotated[float, typer.Option(help="From each size to the next.")] = 2.0,
    gpu: Annotated[str, typer.Option(help="moesim list --gpus.")] = "h100",
    nodes: Annotated[int, typer.Option(min=1, max=1024, help="Nodes.")] = 1,
    gpus_per_node: Annotated[
        int, typer.Option(min=1, max=1024, help="GPUs of a node.")
    ] = 8,
    dispatch: Annotated[
        str,
        typer.Option(help="low_latency: straight; normal: by NIC once a node, onward."),
    ] = "low_latency",
    log: Annotated[
        Path | None, typer.Option("--log", help="Skew of this routing log, besides.")
    ] = None,
    form: Form = None,
    told: Told = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show time and bandwidths of an all-to-all, even or skewed."""
    with orderly(debug=debug):
        kernel = _checked(collective, dispatch, nodes * gpus_per_node)
        from moesim.diagnose import links as measured
        from moesim.spec.hardware import load_gpu

        device, shape = load_gpu(gpu), (nodes, gpus_per_node)
        asked = measured.parse_sizes(sizes, factor)
        even = measured.bench(measured.balanced(device, shape, kernel), asked)
        skewed = None
        if log is not None:
            from moesim.cli.diagnose import read_traffic

            traffic = read_traffic(log, form, told or [], 0)
            for line in traffic.notes:
                note(printable(f"note: {line}"))
            pattern = measured.skewed(traffic, device, shape, kernel)
            skewed = measured.bench(pattern, asked)
        record = {
            "collective": collective,
            "gpu": gpu,
            "nodes": nodes,
            "gpus_per_node": gpus_per_node,
            "dispatch": dispatch,
            "balanced": even,
            "log": None if log is None else str(log),
            "skewed": skewed,
        }
        if as_json:
            show_json(record)
        else:
            show(printable_screen(record))


def _checked(collective: str, dispatch: str, gpus: int) -> Any:
    """Return the dispatch kernel; raise `InputError` for what there is not."""
    from moesim.scenario.named import none_of

    problems = []
    if collective not in COLLECTIVES:
        problems.append(Problem(none_of(collective, list(COLLECTIVES)), "--collective"))
    if dispatch not in ("low_latency", "normal"):
        message = none_of(dispatch, ["low_latency", "normal"])
        problems.append(Problem(message, "--dispatch"))
    if not 2 <= gpus <= 1024:
        message = f"2 to 1024 GPUs are expected; got {gpus}"
        problems.append(Problem(message, "--nodes"))
    if problems:
        raise InputError(problems)
    return dispatch


def printable_screen(record: dict[str, Any]) -> str:
    """Return the table as lines, none of which can steer a terminal."""
    return "\n".join(printable(line) for line in screen(record))


def screen(record: dict[str, Any]) -> list[str]:
    """Return the table: nccl-tests' columns, then the same with the log's skew."""
    count = record["nodes"] * record["gpus_per_node"]
    lines = [
        f"# {record['collective']} · {count}x {record['gpu']} "
        f"({record['nodes']} of {record['gpus_per_node']}) · {record['dispatch']}"
        " · out of place, modelled",
    ]
    skewed: Sequence[Any] = record["skewed"] or [None] * len(record["balanced"])
    more = ""
    if record["log"]:
        lines.append(f"# skew: {record['log']}, mean over its layers and the slowest")
        more = f"{'skewed':>11}{'algbw':>8}{'busbw':>8}{'slowest':>11}"
    lines += [
        f"#{'size':>12}{'time':>11}{'algbw':>8}{'busbw':>8}{'bound by':>9}{more}",
        f"#{'(B)':>12}{'(us)':>11}{'(GB/s)':>8}{'(GB/s)':>8}{'':>9}"
        + (f"{'(us)':>11}{'(GB/s)':>8}{'(GB/s)':>8}{'(us)':>11}" if more else ""),
    ]
    for even, other in zip(record["balanced"], skewed, strict=True):
        line = f"{even['bytes']:>13}{_rates(even)}{even['bound']:>9}"
        if other is not None:
            line += f"{_rates(other)}{other['worst_s'] * US:>11.2f}"
        lines.append(line)
    lines.append(_average(record["balanced"], "balanced"))
    if record["skewed"]:
        lines.append(_average(record["skewed"], "skewed"))
        slower = record["skewed"][-1]["seconds"] / record["balanced"][-1]["seconds"]
        lines.append(f"# the log's skew makes the largest {slower:.2f} times as slow")
    return lines


def _rates(row: dict[str, Any]) -> str:
    return (
        f"{row['seconds'] * US:>11.2f}{row['algbw'] / GB:>8.2f}"
        f"{row['busbw'] / GB:>8.2f}"
    )


def _average(rows: Sequence[Any], what: str) -> str:
    mean = sum(row["busbw"] for row in rows) / len(rows) / GB
    return f"# Avg bus bandwidth    : {mean:.2f} GB/s ({what})"
