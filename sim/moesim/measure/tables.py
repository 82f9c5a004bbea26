"""The tables of a result: which columns each has, and of what type."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, Problem

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "requests": {
        "replication": "int64",
        "request_id": "int64",
        "class": "str",
        "rank": "int64",
        "status": "str",
        "arrival_s": "float64",
        "admitted_s": "float64",
        "first_token_s": "float64",
        "finish_s": "float64",
        "input_tokens": "int64",
        "output_tokens": "int64",
        "queue_ms": "float64",
        "ttft_ms": "float64",
        "tpot_ms": "float64",
        "e2el_ms": "float64",
        "preemptions": "int64",
        "slo_ok": "bool",
    },
    "gaps": {"replication": "int64", "request_id": "int64", "gap_ms": "float64"},
    "passes": {
        "replication": "int64",
        "pass_id": "int64",
        "admitted_s": "float64",
        "done_s": "float64",
        "requests": "int64",
        "tokens": "int64",
        "padding_tokens": "int64",
        "attention_s": "float64",
        "experts_s": "float64",
        "lm_head_s": "float64",
        "queue_s": "float64",
        "straggler_s": "float64",
        "dispatch_s": "float64",
        "combine_s": "float64",
    },
    "experts": {
        "replication": "int64",
        "layer": "int64",
        "expert": "int64",
        "tokens": "int64",
        "dropped": "int64",
        "rerouted": "int64",
        "jobs": "int64",
        "service_s": "float64",
        "wait_mean_us": "float64",
        "wait_p50_us": "float64",
        "wait_p90_us": "float64",
        "wait_p99_us": "float64",
        "wait_max_us": "float64",
    },
    "gpus": {
        "replication": "int64",
        "gpu": "int64",
        "node": "int64",
        "span_s": "float64",
        "busy_s": "float64",
        "useful_s": "float64",
        "attention_s": "float64",
        "experts_s": "float64",
        "lm_head_s": "float64",
        "straggler_s": "float64",
        "transfer_s": "float64",
        "tokens": "int64",
        "padding_tokens": "int64",
        "expert_tokens": "int64",
        "kv_peak_blocks": "int64",
        "kv_blocks": "int64",
        "mem_bytes": "int64",
        "mem_peak_bytes": "int64",
        "mem_weights_bytes": "int64",
        "mem_kv_pool_bytes": "int64",
        "mem_buffers_bytes": "int64",
        "mem_activations_bytes": "int64",
        "mem_peak_s": "float64",
        "mem_peak_pass": "int64",
        "mem_peak_layer": "int64",
    },
    "links": {
        "replication": "int64",
        "gpu": "int64",
        "port": "str",
        "direction": "str",
        "phase": "str",
        "bytes": "float64",
        "busy_s": "float64",
    },
    "memory": {
        "replication": "int64",
        "gpu": "int64",
        "at_s": "float64",
        "weights_bytes": "int64",
        "kv_pool_bytes": "int64",
        "kv_used_bytes": "int64",
        "buffers_bytes": "int64",
        "activations_bytes": "int64",
        "limit_bytes": "int64",
    },
}
"""Columns of each table, in order, with their types; ``str`` is pandas's own choice."""
SPARSE: Final = ("gaps", "memory")
"""Tables that may have no rows, and then no file."""


BLOCK = 1 << 14
"""Rows of a long table that are made or written together."""
Column = NDArray[Any]


class TableSet(Protocol):
    """The tables of a result, as frames, by the column, or by the block of rows."""

    @property
    def requests(self) -> "DataFrame":
        """One row per request."""
        ...

    @property
    def gaps(self) -> "DataFrame":
        """One row per pair of consecutive output tokens of a request, in order."""
        ...

    @property
    def passes(self) -> "DataFrame":
        """One row per forward pass."""
        ...

    @property
    def experts(self) -> "DataFrame":
        """One row per (MoE layer, logical expert)."""
        ...

    @property
    def gpus(self) -> "DataFrame":
        """One row per GPU."""
        ...

    @property
    def links(self) -> "DataFrame":
        """One row per (GPU, port, direction, phase)."""
        ...

    @property
    def memory(self) -> "DataFrame":
        """One row per (GPU, bin of time), of runs whose memory is watched."""
        ...

    def column(self, table: str, name: str) -> Column:
        """Return one column of a table."""
        ...

    def blocks(self, table: str) -> Iterator["DataFrame"]:
        """Yield a table a block of rows at a time, at least one block."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What a run recorded, with exactly the columns of `COLUMNS`.

    Parameters
    ----------
    requests : DataFrame
        One row per request.
    gaps : DataFrame
        One row per pair of consecutive output tokens of a request, in order.
    passes : DataFrame
        One row per forward pass; its seconds are means over GPUs, which sum to
        ``done_s - admitted_s``.
    experts : DataFrame
        One row per (MoE layer, logical expert).
    gpus : DataFrame
        One row per GPU.
    links : DataFrame
        One row per (GPU, port, direction, phase).
    memory : DataFrame
        One row per (GPU, bin of time), of runs whose memory is watched.
    """

    requests: "DataFrame"
    gaps: "DataFrame"
    passes: "DataFrame"
    experts: "DataFrame"
    gpus: "DataFrame"
    links: "DataFrame"
    memory: "DataFrame" = field(default_factory=lambda: empty("memory"))

    def __post_init__(self) -> None:
        problems = [p for name in COLUMNS for p in _check(name, getattr(self, name))]
        if problems:
            raise InputError(problems)

    @classmethod
    def empty(cls) -> "Tables":
        """Return tables without rows."""
        return cls(**{name: empty(name) for name in COLUMNS})

    @classmethod
    def joined(cls, parts: Sequence["Tables"]) -> "Tables":
        """Return the rows of all parts, in their order."""
        from pandas import concat

        def join(name: str) -> "DataFrame":
            frames = [getattr(part, name) for part in parts]
            # Empty frames would decide the types of the others.
            filled = [frame for frame in frames if len(frame)]
            return concat(filled, ignore_index=True) if filled else empty(name)

        return cls(**{name: join(name) for name in COLUMNS})

    def column(self, table: str, name: str) -> Column:
        """Return one column of a table."""
        return np.asarray(getattr(self, table)[name])

    def blocks(self, table: str) -> Iterator["DataFrame"]:
        """Yield a table a block of rows at a time, at least one block."""
        frame = getattr(self, table)
        for begin in range(0, max(len(frame), 1), BLOCK):
            yield frame.iloc[begin : begin + BLOCK]

    def only(self, replication: int) -> "Tables":
        """Return the rows of one replication."""

        def pick(frame: "DataFrame") -> "DataFrame":
            return frame[frame["replication"] == replication].reset_index(drop=True)

        return Tables(**{name: pick(getattr(self, name)) for name in COLUMNS})


def empty(name: str) -> "DataFrame":
    """Return one of the tables without rows, its columns typed."""
    from pandas import DataFrame, Series

    columns = COLUMNS[name].items()
    return DataFrame({column: Series(dtype=dtype) for column, dtype in columns})


def _check(name: str, frame: "DataFrame") -> list[Problem]:
    found, expected = [str(column) for column in frame.columns], list(COLUMNS[name])
    if found == expected:
        return []
    missing = [column for column in expected if column not in found]
    strange = [column for column in found if column not in expected]
    parts = [f"lacks {', '.join(missing)}"] * bool(missing)
    parts += [f"has the unknown {', '.join(strange)}"] * bool(strange)
    what = (
        " and ".join(parts) or f"has its columns in another order: {', '.join(found)}"
    )
    return [Problem(f"the table {name} {what}", key=name)]
