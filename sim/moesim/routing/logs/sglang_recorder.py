"""SGLang's expert-distribution recorder: ``.pt`` files of its four modes.

``stat`` and ``stat_approx``: one file, ``logical_count`` [S, L, E] of a circular buffer.
``per_pass`` and ``per_token``: one file a rank, ``records`` of forward passes with
``global_physical_count`` [L, P] and, per token, ``topk_ids_of_layer`` [L, t, 8], all
physical; ``last_physical_to_logical_map`` [L, P].
Source: ``python/sglang/srt/eplb/expert_distribution.py``, 0.4.6 to 0.5.

Axes: ``S`` steps, ``L`` decoder layers, ``E`` logical and ``P`` physical experts, ``t``
tokens of a pass, ``k`` experts of a token.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.counts import Counted, counts_log, whole
from moesim.routing.logs.limits import MOST_EXPERTS
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.ranks import distinct, summed
from moesim.routing.logs.source import Source, located
from moesim.routing.logs.tokens import TokenSink
from moesim.routing.logs.torchfile import TorchFile, open_torch
from moesim.types import Ints

NAME = "sglang-recorder"
SUMMARY = "SGLang expert-distribution recorder, all four modes (.pt)"
FOLDERS = True
COUNTS, IDS = "global_physical_count", "topk_ids_of_layer"


def recognise(peek: Peek) -> bool:
    """Tell whether this is a torch file; nothing else of those is read."""
    return peek.container == "torch"


def read(source: Source) -> RoutingLog:
    """Return counts, or tokens where the recorder had them."""
    mode = located(source.files[0], lambda: _mode(source))
    if mode == "stat":
        return _stat(source)
    source.note(
        "physical experts are mapped by the last placement; passes before a "
        "rebalancing were placed otherwise"
    )
    if mode == "per_token":
        return _per_token(source)
    return counts_log(source, NAME, Counted(summed(source, _sums(source))))


def _mode(source: Source) -> str:
    with open_torch(source.files[0], source.meter) as file:
        if isinstance(file.content, dict) and "logical_count" in file.content:
            return "stat"
        for record in _records(file):
            return "per_token" if IDS in record else "per_pass"
    raise InputError("holds no records: nothing was recorded")


def _stat(source: Source) -> RoutingLog:
    if source.is_folder and len(source.files) > 1:
        raise InputError("is a folder of several dumps; name one of them")
    path = source.files[0]
    with open_torch(path, source.meter) as file:
        counts = file.array(file.content["logical_count"], "logical_count")
    if counts.ndim == 2:
        counts = counts[None]
    if counts.ndim == 3 and len(counts) > 1 and counts[0].any() and counts[-1].any():
        source.note("the recorder's buffer is full: steps may begin anywhere in it")
    return counts_log(source, NAME, Counted(counts))


def _sums(source: Source) -> Iterator[dict[int, Ints]]:
    for path in source.files:
        yield located(path, lambda path=path: _passes(source, path))  # type: ignore[misc]


def _passes(source: Source, path: Path) -> dict[int, Ints]:
    """Return logical counts ``(L, E)`` of every pass of one rank."""
    found: dict[int, Ints] = {}
    with open_torch(path, source.meter) as file:
        logical = _mapping(file)
        for record in _records(file):
            if COUNTS not in record:
                raise InputError(f"a record has no {COUNTS}")
            step = _whole(record, "forward_pass_id")
            counts = whole(file.array(record[COUNTS], COUNTS), COUNTS)
            found[step] = found.get(step, 0) + _logical(counts, logical)
            source.meter.hold(3 * len(found) * found[step].nbytes, "all passes")
    return found


def _logical(counts: NDArray[Any], logical: Ints) -> Ints:
    """Return ``(L, E)`` counts of logical experts: their replicas' summed."""
    if counts.shape != logical.shape:
        shapes = f"{list(counts.shape)}; the placement has {list(logical.shape)}"
        raise InputError(f"{COUNTS} has shape {shapes}")
    total = np.zeros((len(logical), int(logical.max()) + 1), np.int64)
    np.add.at(total, (np.arange(len(logical))[:, None], logical), counts)
    return total


def _per_token(source: Source) -> RoutingLog:
    sink = TokenSink(source)
    kept: Ints | None = None
    for path in distinct(source, lambda path: _digest(source, path)):
        with open_torch(path, source.meter) as file:
            logical = _mapping(file)
            for record in _records(file):
                if IDS not in record:
                    raise InputError(f"a record has no {IDS}, others have")
                ids = _ids(file.array(record[IDS], IDS), record)
                kept = _layers(source, ids, kept)
                block = _used(source, ids, kept)
                if len(block):
                    sink.layers = tuple(map(str, kept.tolist()))
                    runs = _runs(record, len(ids), len(block))
                    sink.add(_mapped(block, logical, kept), runs)
    if sink.top_k == 8:
        source.note("the recorder keeps 8 experts of a token; a model may use more")
    return sink.finish(NAME)


def _digest(source: Source, path: Path) -> bytes:
    total = hashlib.sha256()
    with open_torch(path, source.meter) as file:
        for record in _records(file):
            total.update(repr(_tokens(record)).encode())
            total.update(file.array(record.get(IDS), IDS).tobytes())
    return total.digest()


def _ids(ids: NDArray[Any], record: dict[str, Any]) -> NDArray[Any]:
    """Return ``(t, L, k)`` physical ids, padding columns gone."""
    if ids.ndim != 3 or ids.dtype.kind not in "iu":
        what = f"{IDS} is {ids.dtype} of shape {list(ids.shape)}"
        raise InputError(f"{what}; whole numbers [layers, tokens, k] are expected")
    tokens = _tokens(record)
    if tokens is not None and len(tokens) != ids.shape[1]:
        message = f"{len(tokens)} input_ids, but {IDS} has {ids.shape[1]} tokens"
        raise InputError(message)
    return ids.transpose(1, 0, 2)


def _layers(source: Source, ids: NDArray[Any], kept: Ints | None) -> Ints:
    """Return the layers that have experts, as the first pass with tokens shows them."""
    routed = (ids >= 0).any(axis=(0, 2))
    if kept is None or not len(kept):
        if routed.any() and not routed.all():
            source.note(f"dropped {int((~routed).sum())} layers without experts (-1)")
        return np.flatnonzero(routed)
    if np.setdiff1d(np.flatnonzero(routed), kept).size:
        raise InputError("a layer has experts in one pass and none in another")
    return kept


def _used(source: Source, ids: NDArray[Any], kept: Ints) -> NDArray[Any]:
    """Return the tokens that were routed, without the columns that pad them."""
    routed = (ids >= 0).any(axis=(1, 2))
    if not routed.all():
        source.note("dropped tokens that were routed in no layer (padding)")
    columns = int((ids >= 0).any(axis=(0, 1)).sum())
    return ids[routed][:, kept, :columns]


def _runs(record: dict[str, Any], tokens: int, routed: int) -> list[int]:
    """Return lengths of runs of one request's tokens: whole in prefill, 1 in decode."""
    found = record.get("extend_seq_lens")
    if tokens == routed and isinstance(found, list):
        whole_runs = all(type(n) is int and n > 0 for n in found)
        if whole_runs and sum(found) == tokens:
            return list(found)
    return [1] * routed


def _mapped(ids: NDArray[Any], logical: Ints, kept: Ints) -> NDArray[Any]:
    """Return logical ids; the physical ones are looked at before they index."""
    if ids.min() < 0 or ids.max() >= logical.shape[1]:
        bad = int(ids.min()) if ids.min() < 0 else int(ids.max())
        message = f"{IDS} names the physical expert {bad}"
        raise InputError(f"{message}; 0 to {logical.shape[1] - 1} are placed")
    if kept.max() >= len(logical):
        raise InputError(f"the placement has {len(logical)} layers, {IDS} more")
    return logical[kept[:, None], ids]


def _mapping(file: TorchFile) -> Ints:
    """Return ``(L, P)``: the logical expert in each slot."""
    name = "last_physical_to_logical_map"
    logical = file.array(file.content.get(name), name)
    if logical.ndim != 2 or not logical.size or logical.dtype.kind not in "iu":
        what = f"{name} is {logical.dtype} of shape {list(logical.shape)}"
        raise InputError(f"{what}; whole numbers [layers, slots] are expected")
    if logical.min() < 0 or logical.max() >= MOST_EXPERTS:
        raise InputError(f"{name} holds ids outside 0 to {MOST_EXPERTS - 1}")
    return logical.astype(np.int64)


def _records(file: TorchFile) -> list[dict[str, Any]]:
    content = file.content
    records = content.get("records") if isinstance(content, dict) else None
    if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
        keys = ascii(list(content)[:8]) if isinstance(content, dict) else "no dict"
        message = f"holds {keys:.200}"
        raise InputError(f"{message}; logical_count, or a list of records, is expected")
    return records


def _whole(record: dict[str, Any], key: str) -> int:
    value = record.get(key)
    if type(value) is not int:
        raise InputError(f"a record has no whole number {key}")
    return value


def _tokens(record: dict[str, Any]) -> list[Any] | None:
    found = record.get("input_ids")
    return found if isinstance(found, list) else None
