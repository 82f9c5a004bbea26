"""Placements as EPLB and SGLang write them: ``phy2log`` [L, P] in JSON.

Keys: ``phy2log`` (EPLB, EasyBalance), ``physical_to_logical_map`` (SGLang's
``--init-expert-location``).
Source: ``eplb.py`` of deepseek-ai/EPLB.
"""

from moesim.errors import InputError
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.nested import array_of
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.slots import placement_log
from moesim.routing.logs.source import Source
from moesim.routing.logs.text import json_records

NAME = "eplb-placement"
SUMMARY = "EPLB phy2log or SGLang physical_to_logical_map placement (JSON)"
FOLDERS = False
KEYS = ("phy2log", "physical_to_logical_map")


def recognise(peek: Peek) -> bool:
    """Tell whether a JSON object has the map."""
    return any(peek.record_has(key) for key in KEYS)


def read(source: Source) -> RoutingLog:
    """Return the replicas of each expert, and the map itself."""
    records = list(json_records(source.files[0], source.meter))
    record = records[0].value
    if len(records) > 1 or not isinstance(record, dict):
        raise InputError(f"holds {len(records)} placements; one is expected")
    found = [key for key in KEYS if key in record]
    if len(found) != 1:
        raise InputError(f"expected one of {' and '.join(KEYS)}; got {found}")
    return placement_log(source, NAME, array_of(record[found[0]], 2, found[0]))
