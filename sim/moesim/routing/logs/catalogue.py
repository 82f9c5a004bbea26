"""Every format that is read, by its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from moesim.routing.logs import (
    arrays,
    csv_table,
    eplb_load,
    eplb_placement,
    hf_logits,
    imatrix,
    megatron,
    parquet,
    sglang_csv,
    sglang_recorder,
    sglang_routed,
    trtllm_placement,
    trtllm_statistics,
    vllm_patch,
    vllm_routed,
)
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.source import Source


@dataclass(frozen=True)
class Format:
    """One format: how it is told from others, and how it is read.

    Parameters
    ----------
    name, summary : str
        As people name it, and one line about it.
    folders : bool
        Whether a folder of files, one a rank, is one log.
    recognise : callable
        Tells from a first look whether a file has this format; of all formats at most
        one says so.
    read : callable
        Returns the log.
    """

    name: str
    summary: str
    folders: bool
    recognise: Callable[[Peek], bool]
    read: Callable[[Source], RoutingLog]


def _format(module: ModuleType) -> Format:
    return Format(
        module.NAME, module.SUMMARY, module.FOLDERS, module.recognise, module.read
    )


FORMATS: Final[Mapping[str, Format]] = {
    module.NAME: _format(module)
    for module in (
        sglang_recorder,
        sglang_csv,
        sglang_routed,
        vllm_routed,
        vllm_patch,
        trtllm_statistics,
        trtllm_placement,
        megatron,
        hf_logits,
        eplb_load,
        eplb_placement,
        imatrix,
        arrays,
        csv_table,
        parquet,
    )
}
