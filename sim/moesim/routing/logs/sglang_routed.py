"""SGLang's routed experts (``return_routed_experts``): base64 of raw int32, no header.

Shape ``(tokens - 1 - start, decoder layers, k)``, logical ids, dense layers all 0. It is
found in ``meta_info`` of the native response or ``sglext`` of the OpenAI one; the file
may also be the base64 text alone. Tokens come from the response's own counts; layers or
k must be told, one of the two suffices where the tokens are known.
Source: ``srt/layers/moe/routed_experts_capturer.py``, 0.5.8 and later.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.npy import MAGIC
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.responses import choices, decoded, first_response, responses
from moesim.routing.logs.sequences import Sequences
from moesim.routing.logs.source import Source, open_binary, refusal

NAME = "sglang-routed-experts"
SUMMARY = "SGLang routed experts of responses (JSON or base64, raw int32)"
FOLDERS = False
KEY = "routed_experts"


def recognise(peek: Peek) -> bool:
    """Tell whether a response has SGLang's place for routes, or the bytes no header."""
    if peek.container == "base64":
        return not peek.record.startswith(MAGIC)
    return peek.container == "json" and bool(_places(first_response(peek.record)))


def read(source: Source) -> RoutingLog:
    """Return the tokens of all responses."""
    found = Sequences(source)
    for line, data, tokens in _payloads(source):
        try:
            found.add(_shaped(data, tokens, source))
        except InputError as error:
            raise refusal(error.problems[0].message, source.files[0], line) from None
    return found.finish(NAME)


def _payloads(source: Source) -> Iterator[tuple[int, bytes, int]]:
    """Yield line, bytes and tokens (0: unknown) of every sequence."""
    meter = source.meter
    with open_binary(source.files[0]) as file:
        start = file.read(16).lstrip()
        if start[:1] not in (b"{", b"["):
            meter.hold(4 * source.files[0].stat().st_size, "base64 text")
            file.seek(0)
            yield 0, decoded(file.read().decode("latin-1").strip(), meter), 0
            return
    for line, response in responses(source):
        places = _places(response)
        if not places:
            message = "a response has no meta_info.routed_experts, nor sglext"
            raise refusal(message, source.files[0], line)
        for place, counts in places:
            yield line, decoded(place[KEY], meter), _tokens(counts)


def _places(response: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return where routes stand, each with the object that counts its tokens."""
    found = []
    meta = response.get("meta_info")
    if isinstance(meta, dict) and KEY in meta:
        found.append((meta, meta))
    usage = response.get("usage")
    several = len(choices(response)) > 1
    counts = usage if isinstance(usage, dict) and not several else {}
    for holder in (response, *choices(response)):
        place = holder.get("sglext")
        if isinstance(place, dict) and KEY in place:
            found.append((place, counts))
    return found


def _tokens(counts: dict[str, Any]) -> int:
    prompt, output = (counts.get(f"{k}_tokens") for k in ("prompt", "completion"))
    if type(prompt) is not int or type(output) is not int:
        return 0
    return max(0, prompt + output - 1)


def _shaped(data: bytes, tokens: int, source: Source) -> NDArray[Any]:
    hints = source.hints
    if len(data) % 4 or not data:
        raise InputError(f"routed experts of {len(data)} bytes are no int32")
    numbers = len(data) // 4
    layers, choices_ = hints.layers, hints.top_k
    if tokens and numbers % tokens == 0 and (layers or choices_):
        row = numbers // tokens
        layers = layers or row // choices_
        choices_ = choices_ or row // layers
    if not layers or not choices_:
        missing = "the layers (dense ones too) and top_k"
        raise InputError(f"has no header: give {missing} of the model as hints")
    if numbers % (layers * choices_):
        shape = f"{layers} layers with {choices_} experts"
        raise InputError(f"{numbers} ids are no whole number of tokens of {shape}")
    found = numbers // (layers * choices_)
    if tokens and found > tokens:
        message = f"routes of {found} tokens; the response counts {tokens + 1}"
        raise InputError(f"{message}, of which the last has none")
    return np.frombuffer(data, "<i4").reshape(found, layers, choices_)
