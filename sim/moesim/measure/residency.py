"""What a run writes down when experts are absent: hits, what moved, and who waited.

Axes: ``R`` replications, ``L`` MoE layers, ``G`` GPUs, ``N`` nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moesim.types import Floats, Ints

if TYPE_CHECKING:
    from pandas import DataFrame

Arrays = Mapping[str, NDArray[Any]]
"""What all replications wrote down: the names of `ResidencyLog`, ``R`` first."""


@dataclass(slots=True)
class ResidencyLog:
    """Counts, bytes and picoseconds of one run.

    Parameters
    ----------
    layers, gpus, nodes, copies : int
        Sizes; how many slots of all layers a GPU keeps.

    Attributes
    ----------
    hits, misses : (L, G) arrays of int
        Experts with tokens that were there, or not yet, as a pass came to them.
    loads, evictions, on_cpu : (G,) arrays of int
        Experts that came over PCIe, prefetched ones included; that left for others;
        that the processor computed instead.
    prefetches, useful, late, wasted : (G,) arrays of int
        Loads that nobody was known to wait for as they began, and how many of these were
        there when first needed; were needed before they had come; or left unneeded. The
        rest was never needed and still there, or on its way, at the end.
    bytes, busy : (G,) arrays
        Through each PCIe port, and picoseconds.
    stalled : (G,) array of int
        Picoseconds for which a pass had nothing queued or running on a GPU, and waited
        for nothing but absent experts.
    read_bytes, reading, computing : (N,) arrays
        Bytes from drives, picoseconds of drives, picoseconds of processors.
    cpu_tokens : int
        Tokens of the experts that processors computed, in passes that ended.
    """

    layers: int
    gpus: int
    nodes: int
    copies: int
    hits: Ints = field(init=False)
    misses: Ints = field(init=False)
    loads: Ints = field(init=False)
    evictions: Ints = field(init=False)
    on_cpu: Ints = field(init=False)
    prefetches: Ints = field(init=False)
    useful: Ints = field(init=False)
    late: Ints = field(init=False)
    wasted: Ints = field(init=False)
    bytes: Floats = field(init=False)
    busy: Ints = field(init=False)
    stalled: Ints = field(init=False)
    read_bytes: Floats = field(init=False)
    reading: Ints = field(init=False)
    computing: Ints = field(init=False)
    cpu_tokens: int = 0

    def __post_init__(self) -> None:
        by_layer = self.layers, self.gpus
        for item in fields(self):
            if item.init:
                continue
            shape: tuple[int, ...] = (self.gpus,)
            if item.name in ("hits", "misses"):
                shape = by_layer
            elif item.name in ("read_bytes", "reading", "computing"):
                shape = (self.nodes,)
            kind = np.float64 if item.name.endswith("bytes") else np.int64
            setattr(self, item.name, np.zeros(shape, kind))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was written down, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.init}

    def facts(self, span: int, spent: int) -> dict[str, Any]:
        """Return what a record says of residency, over the whole run.

        Parameters
        ----------
        span, spent : int
            Picoseconds of the run, and of all passes on all GPUs.
        """
        hits, misses = int(self.hits.sum()), int(self.misses.sum())
        prefetches = int(self.prefetches.sum())
        return {
            "resident_experts": self.copies,
            "expert_hit_rate": _share(hits, hits + misses),
            "expert_misses": misses,
            "experts_on_cpu": int(self.on_cpu.sum()),
            "swapped_in_experts": int(self.loads.sum()),
            "swapped_in_bytes": float(self.bytes.sum()),
            "expert_evictions": int(self.evictions.sum()),
            "prefetched_experts": prefetches,
            "prefetch_useful_frac": _share(int(self.useful.sum()), prefetches),
            "prefetch_late_frac": _share(int(self.late.sum()), prefetches),
            "prefetch_wasted_frac": _share(int(self.wasted.sum()), prefetches),
            "pcie_busy_frac": _share(int(self.busy.sum()), span * self.gpus),
            "nvme_read_bytes": float(self.read_bytes.sum()),
            "nvme_busy_frac": _share(int(self.reading.sum()), span * self.nodes),
            "cpu_busy_frac": _share(int(self.computing.sum()), span * self.nodes),
            "load_stall_frac": _share(int(self.stalled.sum()), spent),
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def joined(logs: Sequence[ResidencyLog | None]) -> Arrays:
    """Return what all replications wrote down; nothing where all experts are there."""
    kept = [log.arrays() for log in logs if log is not None]
    if not kept:
        return {}
    return {name: np.stack([arrays[name] for arrays in kept]) for name in kept[0]}


def by_layer(arrays: Arrays) -> "DataFrame":
    """Return hits, misses and hit rate, one row per replication and layer."""
    from pandas import DataFrame

    hits, misses = (arrays[name].sum(axis=2) for name in ("hits", "misses"))
    run, layer = (axis.ravel() for axis in np.indices(hits.shape))
    frame = DataFrame({"replication": run, "layer": layer})
    frame["hits"], frame["misses"] = hits.ravel(), misses.ravel()
    frame["hit_rate"] = frame["hits"] / (frame["hits"] + frame["misses"])
    return frame


def by_gpu(arrays: Arrays) -> "DataFrame":
    """Return what each GPU did, one row per replication and GPU."""
    from pandas import DataFrame

    run, gpu = (axis.ravel() for axis in np.indices(arrays["loads"].shape))
    frame = DataFrame({"replication": run, "gpu": gpu})
    for name in ("hits", "misses"):
        frame[name] = arrays[name].sum(axis=1).ravel()
    for name in ("loads", "evictions", "on_cpu"):
        frame[name] = arrays[name].ravel()
    for name in ("prefetches", "useful", "late", "wasted"):
        frame[name] = arrays[name].ravel()
    frame["bytes"] = arrays["bytes"].ravel()
    frame["busy_s"] = arrays["busy"].ravel() / 1e12
    frame["stalled_s"] = arrays["stalled"].ravel() / 1e12
    return frame
