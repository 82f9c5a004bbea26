"""Short forms of a scenario, written out: ``policy: fifo`` is ``policy: {name: fifo}``."""

from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from moesim.scenario.quantities import anchored, parse_tokens

PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "bf16": {},
    "fp16": dict.fromkeys(("weights", "experts", "kv", "dispatch", "combine"), "fp16"),
    "fp8": {"weights": "fp8", "experts": "fp8", "dispatch": "fp8"},
}
"""Whole settings by one word; ``fp8`` is DeepSeek's: 8 bits but for KV and combine."""
SLOS: Mapping[str, Mapping[str, str]] = {
    f"mlperf/{name}": {"ttft": f"{ttft} ms", "tpot": f"{tpot} ms"}
    for name, ttft, tpot in (
        ("llama2-70b", 2000, 200),
        ("llama2-70b-interactive", 450, 40),
        ("mixtral-8x7b", 2000, 200),
        ("llama3.1-405b", 6000, 175),
        ("llama3.1-405b-interactive", 4500, 80),
        ("llama3.1-8b", 2000, 100),
        ("llama3.1-8b-interactive", 500, 30),
        ("deepseek-r1", 2000, 80),
        ("deepseek-r1-interactive", 1500, 15),
    )
}
"""Limits of MLPerf Inference's server scenarios (mlcommons/inference, mlperf.conf)."""


def written_out(data: Any, base: Path, name: str) -> Any:
    """Return a scenario's raw data with its short forms written out.

    Parameters
    ----------
    data : Any
        What the file holds; anything but a mapping is returned as it is.
    base : Path
        Folder that relative paths start from.
    name : str
        The scenario's name if it gives none.
    """
    if not isinstance(data, dict):
        return data
    data = {"name": name} | data
    for key, change in _CHANGES.items():
        if key in data:
            data[key] = change(data[key])
    if isinstance(data.get("model"), str) and _is_path(data["model"]):
        data["model"] = anchored(data["model"], base)
    if isinstance(data.get("workload"), dict):
        data["workload"] = _workload(data["workload"], base)
    _anchor(data.get("routing"), base)
    _anchor(data.get("placement"), base)
    if isinstance(data.get("residency"), dict) and "prefetch" in data["residency"]:
        guess = _tagged("name")(data["residency"]["prefetch"])
        data["residency"] = data["residency"] | {"prefetch": guess}
    if isinstance(data.get("placement"), dict) and "rebalance" in data["placement"]:
        loop = _tagged("name")(data["placement"]["rebalance"])
        data["placement"] = data["placement"] | {"rebalance": loop}
    return data


def _workload(table: dict[str, Any], base: Path) -> dict[str, Any]:
    table = dict(table)
    if "arrivals" in table:
        table["arrivals"] = _arrivals(table["arrivals"])
        _anchor(table["arrivals"], base)
    for key in ("input_len", "output_len"):
        if key in table:
            table[key] = _length(table[key], table.get("arrivals"))
            _anchor(table[key], base)
    return table


def _arrivals(value: Any) -> Any:
    table = _tagged("type")(value)
    if isinstance(table, dict) and table.get("request_rate") == "inf":
        table["request_rate"] = inf
    return table


def _tagged(tag: str) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        return {tag: value} if isinstance(value, str) else _copy(value)

    return change


def _length(value: Any, arrivals: Any) -> Any:
    """Return a law: a number is a constant, a trace without path is the arrivals'."""
    if isinstance(value, int | float) or (
        isinstance(value, str) and value[:1].isdigit()
    ):
        return {"type": "constant", "value": _count(value)}
    table = _tagged("type")(value)
    if table == {"type": "trace"} and isinstance(arrivals, dict):
        shared = {key: arrivals[key] for key in ("path", "format") if key in arrivals}
        return table | shared
    return table


def _count(value: object) -> object:
    """Return ``2K`` or ``1e3`` as so many tokens; what is none stays to be refused."""
    try:
        return parse_tokens(value)
    except ValueError:
        return value


def _named(known: Mapping[str, Mapping[str, str]]) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        if isinstance(value, str) and value in known:
            return dict(known[value])
        return value

    return change


def _anchor(table: Any, base: Path) -> None:
    if isinstance(table, dict) and isinstance(table.get("path"), str):
        table["path"] = anchored(table["path"], base)


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _is_path(model: str) -> bool:
    return model.endswith(".json") or "/" in model or "\\" in model


_CHANGES: Mapping[str, Callable[[Any], Any]] = {
    "policy": _tagged("name"),
    "routing": _tagged("name"),
    "placement": _tagged("name"),
    "precision": _named(PRECISIONS),
    "slo": _named(SLOS),
}
