"""vLLM's routed experts (``--enable-return-routed-experts``) in saved responses.

Either base64 of an ``.npy`` in each choice, ``(tokens - 1, decoder layers, k)``, of uint8
or uint16 (0.22 and later); or nested lists, ``prompt_routed_experts`` of the response and
``routed_experts`` of each choice, ``[tokens, MoE layers, k]`` with -1 for prefix-cached
tokens (0.21). Ids are logical.
Sources: ``vllm/entrypoints/openai/chat_completion/protocol.py``, 0.33.0;
``docs/training/routed_experts_replay.md``, 0.21.0.
"""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs import npy
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.nested import array_of
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.responses import choices, decoded, first_response, responses
from moesim.routing.logs.sequences import Sequences
from moesim.routing.logs.source import Source, open_binary, refusal

NAME = "vllm-routed-experts"
SUMMARY = "vLLM routed experts of responses (JSON: base64 .npy or nested lists)"
FOLDERS = False
KEY, PROMPT = "routed_experts", "prompt_routed_experts"


def recognise(peek: Peek) -> bool:
    """Tell whether a response has vLLM's places for routes, or the bytes its header."""
    if peek.container == "base64":
        return bool(peek.record.startswith(npy.MAGIC))
    response = first_response(peek.record)
    places = [response, *choices(response)]
    named = any(KEY in place or PROMPT in place for place in places)
    return peek.container == "json" and named


def read(source: Source) -> RoutingLog:
    """Return the tokens of all responses; a prompt counts once for all its choices."""
    found = Sequences(source)
    for line, parts in _payloads(source):
        try:
            ids = [_array(part, source.meter) for part in parts]
            found.add(ids[0] if len(ids) == 1 else _joined(ids))
        except InputError as error:
            raise refusal(error.problems[0].message, source.files[0], line) from None
    return found.finish(NAME)


def _payloads(source: Source) -> Iterator[tuple[int, list[Any]]]:
    """Yield the line and the parts, prompt and output, of every sequence."""
    with open_binary(source.files[0]) as file:
        if file.read(16).lstrip()[:1] not in (b"{", b"["):
            source.meter.hold(4 * source.files[0].stat().st_size, "base64 text")
            file.seek(0)
            yield 0, [file.read().decode("latin-1").strip()]
            return
    for line, response in responses(source):
        prompt = response.get(PROMPT)
        outputs = [c[KEY] for c in choices(response) if c.get(KEY) is not None]
        if response.get(KEY) is not None:
            outputs.append(response[KEY])
        if prompt is None and not outputs:
            message = "a response has neither routed_experts nor prompt_routed_experts"
            raise refusal(message, source.files[0], line)
        for output in outputs or [None]:
            yield line, [part for part in (prompt, output) if part is not None]
            prompt = None


def _array(part: object, meter: Meter) -> NDArray[Any]:
    if isinstance(part, list):
        return array_of(part, 3, "routed_experts")
    data = decoded(part, meter)
    file = io.BytesIO(data)
    header = npy.read_header(file, len(data), "routed_experts")
    return npy.read_whole(file, header, meter)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return prompt and output as one sequence; an empty part has no shape."""
    filled = [part for part in parts if part.size] or parts[:1]
    if len({part.shape[1:] for part in filled}) > 1:
        raise InputError("prompt and output have routes of different shape")
    return np.concatenate(filled)
