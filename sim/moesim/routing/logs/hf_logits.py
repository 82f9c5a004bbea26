"""Router logits of Hugging Face models (``output_router_logits=True``) in ``.npz``.

One array ``[batch * sequence, E]`` a MoE layer, as ``np.savez(path, *logits)`` names them
(``arr_0``, ...), or ``layer_3``, ``router_logits_3``; or one ``router_logits`` [L, T, E].
``attention_mask`` [batch, sequence], if there, tells padding and where sequences end.
The experts of a token are those with the k highest logits, equal ones by number: right
for softmax routers, not for routers with a bias or groups (DeepSeek-V3).

Axes: ``T`` tokens, ``L`` layers, ``E`` experts, ``k`` experts of a token.
"""

import re
from collections.abc import Iterator

import numpy as np

from moesim.errors import InputError
from moesim.routing.logs import members
from moesim.routing.logs.limits import MOST_EXPERTS
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.source import Source
from moesim.routing.logs.tokens import TokenSink
from moesim.types import Bools, Floats, Ints

NAME = "hf-router-logits"
SUMMARY = "Hugging Face router logits (.npz, one array a layer; needs top_k)"
FOLDERS = False
LAYER = re.compile(r"(arr|layer|router_logits)_([0-9]{1,4})")
STACKED, MASK = "router_logits", "attention_mask"
BLOCK_ROWS = 1024


def recognise(peek: Peek) -> bool:
    """Tell whether all arrays but the mask are logits by their names and types."""
    logits = {name: h for name, h in peek.arrays.items() if name not in (MASK, "top_k")}
    named = all(LAYER.fullmatch(name) or name == STACKED for name in logits)
    floats = all(header.dtype.kind == "f" for header in logits.values())
    return peek.container == "npz" and bool(logits) and named and floats


def read(source: Source) -> RoutingLog:
    """Return the tokens; ``top_k`` comes from the file, or as a hint."""
    names = members.names_in(source.files[0], source)
    top_k = _top_k(source, names)
    found = _layers(names)
    mask = members.whole(source, MASK) if MASK in names else None
    if mask is not None and mask.ndim != 2:
        raise InputError(f"{MASK} has {mask.ndim} axes; [batch, sequence] are expected")
    kept = mask.ravel() != 0 if mask is not None else None
    sink = TokenSink(source, [str(number) for number in found if number >= 0])
    place = 0
    for logits in _blocks(source, found):
        ids = _chosen(source, logits, top_k)
        rows = len(ids)
        sink.add(ids if kept is None else ids[kept[place : place + rows]])
        place += rows
    if mask is not None and mask.size != place:
        raise InputError(f"{MASK} has {mask.size} tokens; the logits have {place}")
    source.note("experts are those with the highest logits, as softmax routers choose")
    sink.sequences(_runs(mask != 0) if mask is not None else None)
    if mask is None:
        source.note("no attention_mask: padding cannot be told from text")
    return sink.finish(NAME)


def _top_k(source: Source, names: list[str]) -> int:
    told = source.hints.top_k
    if told:
        return told
    if "top_k" not in names:
        raise InputError("logits do not tell how many experts a token has: give top_k")
    found = members.whole(source, "top_k")
    if found.size != 1 or found.dtype.kind not in "iu":
        raise InputError(f"top_k is {found.dtype} of shape {list(found.shape)}")
    return int(found.ravel()[0])


def _layers(names: list[str]) -> dict[int, str]:
    """Return names of the arrays by layer, ascending; -1 for the stacked one."""
    if STACKED in names:
        return {-1: STACKED}
    found: dict[int, str] = {}
    for name in names:
        if match := LAYER.fullmatch(name):
            if int(match[2]) in found:
                raise InputError(f"layer {match[2]} is there twice")
            found[int(match[2])] = name
    if not found:
        raise InputError("holds no logits: arr_0, ... or router_logits are expected")
    return dict(sorted(found.items()))


def _blocks(source: Source, found: dict[int, str]) -> Iterator[list[Floats]]:
    """Yield the same tokens of every layer, ``L`` arrays ``(t, E)``."""
    if -1 not in found:
        yield from members.blocks(source, list(found.values()), BLOCK_ROWS)
        return
    stacked = members.whole(source, STACKED)
    if stacked.ndim != 3:
        raise InputError(f"{STACKED} has {stacked.ndim} axes; [L, T, E] are expected")
    for start in range(0, stacked.shape[1], BLOCK_ROWS):
        yield list(stacked[:, start : start + BLOCK_ROWS])


def _chosen(source: Source, logits: list[Floats], top_k: int) -> Ints:
    """Return ``(t, L, k)``: experts with the highest logits, the highest first."""
    source.meter.tick()
    shapes = {layer.shape for layer in logits}
    if len(shapes) > 1 or logits[0].ndim != 2:
        raise InputError(f"layers have logits of shapes {sorted(shapes)[:4]}")
    experts = logits[0].shape[1]
    if not 1 <= top_k <= experts <= MOST_EXPERTS:
        raise InputError(f"top_k {top_k} of {experts} experts is not possible")
    stacked = np.stack(logits, axis=1)
    if stacked.dtype.kind != "f" or not np.isfinite(stacked).all():
        raise InputError("logits are finite floating-point numbers; some are not")
    return np.argsort(-stacked, axis=2, kind="stable")[:, :, :top_k]


def _runs(mask: Bools) -> Ints:
    """Return the tokens of each sequence of the batch that has any."""
    lengths = mask.sum(axis=1)
    return lengths[lengths > 0]
