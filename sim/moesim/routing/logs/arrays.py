"""Arrays of ids ``[T, L, k]`` in ``.npz`` or ``.npy``; the canonical log is one.

Names in an archive: ``expert_ids`` (ours), ``routed_experts`` (vLLM in Python,
moe-balance) or ``topk_ids``. Beside them ``seq_lens``, lengths of the sequences in
order, and ``moesim``, our description in JSON.

Axes: ``T`` tokens, ``L`` layers, ``k`` experts of a token, ``n`` sequences.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from moesim.errors import InputError
from moesim.routing.logs import members
from moesim.routing.logs.describe import DESCRIPTION, Description, described
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.source import Source
from moesim.routing.logs.tokens import TokenSink
from moesim.types import Ints

NAME = "arrays"
SUMMARY = "expert ids [tokens, layers, k] (.npz with expert_ids, or .npy)"
FOLDERS = False
IDS = ("expert_ids", "routed_experts", "topk_ids")
LENGTHS = "seq_lens"


def recognise(peek: Peek) -> bool:
    """Tell whether there are ids by name, or an ``.npy`` of whole numbers, three axes."""
    if peek.container == "npy":
        header = peek.arrays.get("")
        return header is None or (len(header.shape) == 3 and header.dtype.kind in "iu")
    return peek.container == "npz" and any(f"{name}.npy" in peek.names for name in IDS)


def read(source: Source) -> RoutingLog:
    """Return the tokens, block by block."""
    names = members.names_in(source.files[0], source)
    about = described(source, names)
    name = _choice(names, source.hints.array)
    experts = source.hints.experts or about.experts
    told = replace(source, hints=replace(source.hints, experts=experts))
    sink = TokenSink(told, about.layers)
    for (block,) in members.blocks(source, [name], 0):
        if block.ndim != 3:
            what = f"{name or 'the array'} has {block.ndim} axes"
            raise InputError(f"{what}; [tokens, layers, k] are expected")
        sink.add(block)
    left = sorted(set(names) - {name, LENGTHS, DESCRIPTION})
    if left:
        source.note(f"not read: {ascii(', '.join(left))[1:-1]:.100}")
    sink.sequences(_lengths(source, names, sink.tokens, about))
    return sink.finish(NAME)


def _choice(names: Sequence[str], asked: str) -> str:
    """Return the array to read: the one asked for, or the one named as ids are."""
    if asked and names != [""]:
        return asked
    found = [name for name in (*IDS, "") if name in names]
    if not found or len(found) > 1:
        listed = ascii(", ".join(names[:20]))[1:-1]
        wanted = f"one of {', '.join(IDS)} is expected, or name one: array=..."
        raise InputError(f"holds {listed:.200}; {wanted}")
    return found[0]


def _lengths(
    source: Source, names: Sequence[str], tokens: int, about: Description
) -> Ints | None:
    """Return the lengths of the sequences, or None where the file does not tell."""
    if LENGTHS not in names or not about.sequences:
        source.note("the file does not say where sequences end")
        return None
    found = members.whole(source, LENGTHS)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        what = f"{LENGTHS} is {found.dtype} of shape {list(found.shape)}"
        raise InputError(f"{what}; a list of whole numbers is expected")
    if found.size and (found.min() < 1 or found.max() > tokens):
        bad = found.min() if found.min() < 1 else found.max()
        raise InputError(f"{LENGTHS} holds {bad}; lengths are 1 to {tokens}")
    total = int(found.sum(dtype=np.float64))
    if total != tokens:
        raise InputError(f"{LENGTHS} sums to {total}; there are {tokens} tokens")
    return found.astype(np.int64)
