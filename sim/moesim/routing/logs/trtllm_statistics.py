"""TensorRT-LLM's expert statistics: ``rank{r}.safetensors``, alone or in their folder.

Keys are ``"{iteration}_{layer}"``, layers are decoder layers. Values are counts [E], or,
in ``rank{r}_raw.safetensors``, the experts of each token [tokens, k].
``meta_info.json`` beside them has ``num_experts`` and ``num_experts_per_token``.
Source: ``examples/wide_ep/ep_load_balancer/README.md`` of NVIDIA/TensorRT-LLM.

Axes: ``S`` iterations, ``L`` layers, ``E`` experts, ``t`` tokens of an iteration, ``k``
experts of a token.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.counts import Counted, counts_log, whole
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.peek import SIDECARS, Peek
from moesim.routing.logs.ranks import Steps, distinct, summed
from moesim.routing.logs.safetensors import Entry, read_table, read_tensor
from moesim.routing.logs.source import Source, located, open_binary
from moesim.routing.logs.tokens import TokenSink
from moesim.spec.files import read_json

NAME = "trtllm-statistics"
SUMMARY = "TensorRT-LLM expert statistics (safetensors, counts or raw; or their folder)"
FOLDERS = True
KEY = re.compile(r"(0|[1-9][0-9]{0,11})_(0|[1-9][0-9]{0,5})")
Table = dict[tuple[int, int], Entry]


def recognise(peek: Peek) -> bool:
    """Tell whether all tensors are named by iteration and layer."""
    named = bool(peek.names) and all(KEY.fullmatch(name) for name in peek.names)
    return peek.container == "safetensors" and named


def read(source: Source) -> RoutingLog:
    """Return counts of all ranks summed, or the tokens of all ranks joined."""
    source = _with_meta(source)
    first = located(source.files[0], lambda: _axes(source, source.files[0]))
    if first == {1}:
        return _counts(source)
    if first != {2}:
        raise InputError("holds tensors of several shapes: counts, or tokens, not both")
    sink = TokenSink(source)
    for path in distinct(source, lambda path: _digest(source, path)):
        located(path, lambda path=path: _add_tokens(source, path, sink))  # type: ignore[misc]
    return sink.finish(NAME)


def _with_meta(source: Source) -> Source:
    """Return the source with only the ranks' files, and what ``meta_info.json`` says."""
    files = tuple(path for path in source.files if not SIDECARS.fullmatch(path.name))
    meta = [path for path in source.files if path.name == "meta_info.json"]
    if not files:
        raise InputError("holds no rank*.safetensors")
    raw = [path for path in files if path.stem.endswith("_raw")]
    if raw and len(raw) < len(files):
        source.note("counts are left out: the raw files beside them hold every token")
        files = tuple(raw)
    hints = source.hints
    if meta:
        found = read_json(meta[0])
        for key, name in (
            ("num_experts", "experts"),
            ("num_experts_per_token", "top_k"),
        ):
            value = found.get(key)
            if type(value) is not int or not 1 <= value < 1 << 16:
                raise InputError(f"meta_info.json: {key} is {ascii(value)[:40]}")
            if getattr(hints, name) not in (0, value):
                raise InputError(f"meta_info.json: {key} is {value}; the hint differs")
            changes: dict[str, Any] = {name: value}
            hints = replace(hints, **changes)
    return replace(source, files=files, hints=hints)


def _counts(source: Source) -> RoutingLog:
    layers: set[tuple[int, ...]] = set()
    counts = summed(source, _ranks(source, layers))
    if len(layers) > 1:
        raise InputError("iterations or ranks have different layers")
    return counts_log(source, NAME, Counted(counts, tuple(map(str, layers.pop()))))


def _ranks(source: Source, layers: set[tuple[int, ...]]) -> Iterator[Steps]:
    for path in source.files:
        yield located(path, lambda path=path: _steps(source, path, layers))  # type: ignore[misc]


def _steps(source: Source, path: Path, layers: set[tuple[int, ...]]) -> Steps:
    """Return ``(L, E)`` counts of every iteration of one rank."""
    steps = {}
    with open_binary(path) as file:
        table = _table(file, source)
        for iteration, names in _iterations(table):
            layers.add(names)
            rows = [
                _tensor(file, source, table[iteration, n], (iteration, n, 1))
                for n in names
            ]
            if len({row.shape for row in rows}) > 1:
                raise InputError(f"iteration {iteration}: layers differ in experts")
            steps[iteration] = whole(np.stack(rows), "counts").astype(np.int64)
            source.meter.hold(3 * len(steps) * steps[iteration].nbytes, "all counts")
    return steps


def _add_tokens(source: Source, path: Path, sink: TokenSink) -> None:
    with open_binary(path) as file:
        table = _table(file, source)
        for iteration, names in _iterations(table):
            sink.layers = sink.layers or tuple(map(str, names))
            if sink.layers != tuple(map(str, names)):
                raise InputError(
                    f"iteration {iteration} has other layers than the first"
                )
            rows = [
                _tensor(file, source, table[iteration, n], (iteration, n, 2))
                for n in names
            ]
            if len({row.shape for row in rows}) > 1:
                raise InputError(f"iteration {iteration}: layers differ in tokens")
            sink.add(np.stack(rows, axis=1), [1] * len(rows[0]))


def _table(file: BinaryIO, source: Source) -> Table:
    found = {}
    for name, entry in read_table(file, source.meter).items():
        match = KEY.fullmatch(name)
        if not match:
            raise InputError(
                f"has a tensor {ascii(name)[:60]}; {{iter}}_{{layer}} is expected"
            )
        found[int(match[1]), int(match[2])] = entry
    if not found:
        raise InputError("holds no tensors")
    return found


def _iterations(table: Table) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield every iteration with its layers, both ascending."""
    layers: dict[int, list[int]] = {}
    for iteration, layer in sorted(table):
        layers.setdefault(iteration, []).append(layer)
    for iteration, names in layers.items():
        yield iteration, tuple(names)


def _axes(source: Source, path: Path) -> set[int]:
    with open_binary(path) as file:
        return {len(entry.shape) for entry in _table(file, source).values()}


def _tensor(
    file: BinaryIO, source: Source, entry: Entry, key: tuple[int, int, int]
) -> NDArray[Any]:
    iteration, layer, axes = key
    name = f"{iteration}_{layer}"
    if len(entry.shape) != axes:
        raise InputError(f"{name} has {len(entry.shape)} axes; others have {axes}")
    return read_tensor(file, entry, name, source.meter)


def _digest(source: Source, path: Path) -> bytes:
    with open_binary(path) as file:
        total = hashlib.sha256()
        while part := file.read(1 << 20):
            source.meter.tick()
            total.update(part)
    return total.digest()
