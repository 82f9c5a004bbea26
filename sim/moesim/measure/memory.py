"""What a run writes down of memory: peaks of every GPU; if it is watched, all of it.

Axes: ``G`` GPUs, ``R`` data-parallel ranks, ``B`` bins of time.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moesim.measure.kv_times import KvTimes
from moesim.measure.series import Series
from moesim.measure.tables import empty
from moesim.types import Ints
from moesim.units import format_binary_bytes

if TYPE_CHECKING:
    from pandas import DataFrame

PS_PER_S = 1e12
PARTS = ("weights", "kv_pool", "buffers", "activations")
"""What fills a GPU, in the order in which a figure stacks it."""
WORDS = ("weights", "KV pool", "all-to-all buffers", "activations")


@dataclass(frozen=True, slots=True)
class Reserved:
    """What is taken on every GPU before anything runs, and what there is, in bytes.

    Parameters
    ----------
    device, limit : int
        Memory of a GPU, and how much of it may be in use.
    weights, kv_pool, buffers : int
        Weights (and where experts arrive that move), the pool of KV blocks, and buffers
        of ``low_latency`` kernels.
    """

    device: int
    limit: int
    weights: int
    kv_pool: int
    buffers: int

    @property
    def total(self) -> int:
        """All that is taken."""
        return self.weights + self.kv_pool + self.buffers

    def __str__(self) -> str:
        """Return the arithmetic on one line."""
        return summed((self.weights, self.kv_pool, self.buffers), self.limit)


@dataclass(frozen=True, slots=True)
class Oom:
    """A GPU that ran out of memory: when, where, and the arithmetic.

    Parameters
    ----------
    at, gpu, rank, layer, batch : int
        Picoseconds, GPU, its data-parallel rank, MoE layer, number of the micro-batch.
    parts : tuple of int
        Bytes of each of `PARTS`.
    limit : int
        Bytes that might have been in use.
    """

    at: int
    gpu: int
    rank: int
    layer: int
    batch: int
    parts: tuple[int, ...]
    limit: int

    def __str__(self) -> str:
        """Return it in one sentence."""
        where = f"GPU {self.gpu} (rank {self.rank}) in MoE layer {self.layer} of "
        return (
            f"out of memory at {self.at / PS_PER_S:.6f} s on {where}micro-batch "
            f"{self.batch}: {summed(self.parts, self.limit)}"
        )


def summed(parts: tuple[int, ...], limit: int) -> str:
    """Return the sum of the first `PARTS`, and the bytes that may be in use.

    >>> summed((2**31, 2**30), 2**31)
    '2 GiB weights + 1 GiB KV pool = 3 GiB of 2 GiB'
    """
    named = zip(parts, WORDS, strict=False)
    terms = [f"{format_binary_bytes(size)} {word}" for size, word in named if size]
    total = format_binary_bytes(sum(parts))
    return f"{' + '.join(terms)} = {total} of {format_binary_bytes(limit)}"


class MemoryLog:
    """Memory of the GPUs of one run.

    Parameters
    ----------
    reserved : Reserved
        What is taken from the start.
    gpus : int
        ``G``.

    Attributes
    ----------
    peak : (G,) array of int
        The most that micro-batches in flight took on each GPU, in bytes.
    parts : (2, G) array of int
        That, by buffers and activations.
    at, batch, layer : (G,) arrays of int
        When that was, which micro-batch came last, and the MoE layer in which it takes
        most; -1: never.
    series : Series or None
        Levels over time, of a run that is watched.
    kv : KvTimes or None
        How well KV memory is used, of a run that is watched.
    waits, waited : int
        Micro-batches that waited for others to leave memory, and picoseconds.
    swap_waits, swap_waited : int
        Micro-batches that waited for KV blocks on the move, and picoseconds.
    """

    def __init__(self, reserved: Reserved, gpus: int) -> None:
        self.reserved = reserved
        self.peak: Ints = np.zeros(gpus, np.int64)
        self.parts: Ints = np.zeros((2, gpus), np.int64)
        self.at: Ints = np.full(gpus, -1)
        self.batch: Ints = np.full(gpus, -1)
        self.layer: Ints = np.full(gpus, -1)
        self.series: Series | None = None
        self.kv: KvTimes | None = None
        self.oom: Oom | None = None
        self.waits = self.waited = 0
        self.swaps = self.swapped_bytes = self.host_peak = 0
        self.swap_waits = self.swap_waited = 0

    def facts(self) -> dict[str, Any]:
        """Return what a record says of memory."""
        device = self.reserved.device
        record: dict[str, Any] = {
            "mem_peak_frac": (self.reserved.total + int(self.peak.max())) / device
        }
        if self.kv is None:
            return record
        return record | {
            **self.kv.facts(),
            "mem_waits": self.waits,
            "mem_wait_s": self.waited / PS_PER_S,
            "swaps": self.swaps,
            "swapped_bytes": self.swapped_bytes,
            "swap_wait_s": self.swap_waited / PS_PER_S,
            "host_peak_bytes": self.host_peak,
            "ooms": int(self.oom is not None),
            "oom": None if self.oom is None else str(self.oom),
        }

    def columns(self) -> dict[str, Any]:
        """Return the columns of the table ``gpus`` that tell of memory, at its peak."""
        reserved, gpus = self.reserved, len(self.peak)
        weights, pool = reserved.weights, reserved.kv_pool
        return {
            "mem_bytes": np.full(gpus, reserved.device),
            "mem_peak_bytes": reserved.total + self.peak,
            "mem_weights_bytes": np.full(gpus, weights),
            "mem_kv_pool_bytes": np.full(gpus, pool),
            "mem_buffers_bytes": reserved.buffers + self.parts[0],
            "mem_activations_bytes": self.parts[1],
            "mem_peak_s": np.where(self.at < 0, np.nan, self.at / PS_PER_S),
            "mem_peak_pass": self.batch,
            "mem_peak_layer": self.layer,
        }


def table_of(log: MemoryLog | None, replication: int, pool: int) -> "DataFrame":
    """Return the table ``memory``: a row for each GPU and bin of time, if watched.

    Parameters
    ----------
    pool : int
        Blocks of a rank's KV pool.
    """
    if log is None or log.series is None:
        return empty("memory")
    from pandas import DataFrame

    start, levels = log.series.points()
    bins, _, gpus = levels.shape
    reserved, block = log.reserved, log.reserved.kv_pool / max(1, pool)
    ones = np.ones(bins * gpus, np.int64)
    used, buffers, activations = (
        levels[:, part].T.ravel() for part in range(levels.shape[1])
    )
    return DataFrame(
        {
            "replication": replication * ones,
            "gpu": np.repeat(np.arange(gpus), bins),
            "at_s": np.tile(start / PS_PER_S, gpus),
            "weights_bytes": reserved.weights * ones,
            "kv_pool_bytes": reserved.kv_pool * ones,
            "kv_used_bytes": np.rint(used * block).astype(np.int64),
            "buffers_bytes": reserved.buffers + buffers,
            "activations_bytes": activations,
            "limit_bytes": reserved.limit * ones,
        }
    )
