"""Responses of servers, saved as JSON: one, a list of them, or one a line."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from moesim.errors import InputError
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.source import Source, refusal
from moesim.routing.logs.text import json_records


def responses(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every response of a file, with its line.

    Raises
    ------
    InputError
        Something in it is no JSON object.
    """
    path = source.files[0]
    for line, value in json_records(path, source.meter):
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, dict):
                found = type(item).__name__
                raise refusal(f"a response is a JSON object; got {found}", path, line)
            yield line, item


def first_response(record: Any) -> dict[str, Any]:
    """Return the first response of the first JSON value, or an empty one."""
    if isinstance(record, list) and record:
        record = record[0]
    return record if isinstance(record, dict) else {}


def choices(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of an OpenAI-style response."""
    found = response.get("choices")
    if not isinstance(found, list):
        return []
    return [choice for choice in found if isinstance(choice, dict)]


def decoded(text: object, meter: Meter) -> bytes:
    """Return what base64 text stands for.

    Raises
    ------
    InputError
        It is no text, no base64, or too large.
    """
    if not isinstance(text, str):
        raise InputError(f"routed experts are {type(text).__name__}; text is expected")
    meter.tick()
    meter.hold(2 * len(text), "routed experts in base64")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"routed experts are no base64 ({error!s:.80})") from None
