"""llama.cpp's importance matrix in GGUF: tokens that each expert's weights saw.

``blk.N.ffn_{gate,up,down}_exps.weight.counts``, float32 [E] a layer; the three agree.
Sources: ``tools/imatrix/imatrix.cpp`` of ggml-org/llama.cpp; ``docs/gguf.md`` of
ggml-org/ggml.

Axes: ``L`` layers, ``E`` experts.
"""

import re

import numpy as np

from moesim.errors import InputError
from moesim.routing.logs.counts import Counted, counts_log
from moesim.routing.logs.gguf import read_floats, read_index
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.source import Source, open_binary
from moesim.types import Floats

NAME = "llamacpp-imatrix"
SUMMARY = "llama.cpp imatrix (GGUF, counts of routed experts)"
FOLDERS = False
COUNTS = re.compile(
    r"blk\.([0-9]{1,5})\.ffn_(gate|up|down|gate_up)_exps\.weight\.counts"
)
EXACT = 1 << 24
"""Whole numbers up to here are exact in float32."""


def recognise(peek: Peek) -> bool:
    """Tell whether this is a GGUF; whether it has counts is seen when it is read."""
    return peek.container == "gguf"


def read(source: Source) -> RoutingLog:
    """Return the counts of every layer that has routed experts."""
    layers: dict[int, Floats] = {}
    with open_binary(source.files[0]) as file:
        index = read_index(file, source.meter)
        for name, entry in index.tensors.items():
            if match := COUNTS.fullmatch(name):
                found = read_floats(file, index, entry, source.meter)
                old = layers.setdefault(int(match[1]), found)
                if not np.array_equal(old, found):
                    raise InputError(f"{name} differs from its layer's other counts")
    if not layers:
        raise InputError(
            "holds no counts of routed experts: is it an imatrix of an MoE?"
        )
    if len({found.shape for found in layers.values()}) > 1:
        raise InputError("layers have different numbers of experts")
    names = sorted(layers)
    counts = np.stack([layers[name] for name in names])[None]
    if counts.max() >= EXACT:
        source.note("counts above 16777216 are rounded in the file (float32)")
    return counts_log(source, NAME, Counted(counts, tuple(map(str, names))))
