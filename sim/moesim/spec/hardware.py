"""A GPU: its peak rates, and the share of them that measured kernels reach."""

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from moesim.errors import InputError, meant


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One accelerator, in SI units: flop/s, bytes, bytes/s, seconds.

    Parameters
    ----------
    bf16_flops, fp8_flops, fp4_flops : float
        Dense peak arithmetic; fp8/fp4 equal the next wider rate where unsupported.
    hbm_bytes, hbm_bandwidth : float
        Device memory and its peak bandwidth.
    nvlink_bandwidth, nic_bandwidth : float
        Bytes per second and direction of this GPU's two ports.
    gemm_efficiency, hbm_efficiency, nvlink_efficiency, nic_efficiency : float
        Share of the peak that measured kernels reach, in (0, 1]: dense 16-bit matrix
        products, streaming from memory, all-to-all on each port class.
    launch_s : float
        Price of one kernel launch.
    nvlink_latency_s, nic_latency_s : float
        Fixed time of one all-to-all phase on that port class.
    narrow_efficiency, expert_efficiency, attention_efficiency : float
        Share of the peak that dense products of 8 bits and fewer, grouped expert
        products in any format, and the attention core (always at 16 bits) reach.
    allreduce_efficiency : float
        Share of the NVLink peak that a ring all-reduce reaches.
    host_bandwidth : float
        Bytes per second that a copy from the host's memory reaches.
    source : str
        Where the figures come from.
    """

    name: str
    bf16_flops: float
    fp8_flops: float
    fp4_flops: float
    hbm_bytes: float
    hbm_bandwidth: float
    nvlink_bandwidth: float
    nic_bandwidth: float
    gemm_efficiency: float = 1.0
    hbm_efficiency: float = 1.0
    nvlink_efficiency: float = 1.0
    nic_efficiency: float = 1.0
    launch_s: float = 0.0
    nvlink_latency_s: float = 1e-9
    nic_latency_s: float = 1e-9
    narrow_efficiency: float = 1.0
    expert_efficiency: float = 1.0
    attention_efficiency: float = 1.0
    allreduce_efficiency: float = 1.0
    host_bandwidth: float = 55e9
    source: str = field(default="", compare=False)

    def peak(self, element: str) -> float:
        """Return the peak flop/s of a number format such as ``bf16`` or ``fp8``."""
        by_bits = {"4": self.fp4_flops, "8": self.fp8_flops}
        return by_bits.get(element[-1], self.bf16_flops)

    def dense_rate(self, element: str) -> float:
        """Return the flop/s that dense products in a number format reach."""
        sixteen = element.endswith("16")
        share = self.gemm_efficiency if sixteen else self.narrow_efficiency
        return self.peak(element) * share

    def expert_rate(self, element: str) -> float:
        """Return the flop/s that grouped expert products reach."""
        return self.peak(element) * self.expert_efficiency

    @property
    def attention_rate(self) -> float:
        """The flop/s that the attention core reaches, whatever the cache's format."""
        return self.bf16_flops * self.attention_efficiency

    @property
    def memory_rate(self) -> float:
        """The bytes per second that kernels stream from device memory."""
        return self.hbm_bandwidth * self.hbm_efficiency

    @property
    def allreduce_rate(self) -> float:
        """The bytes per second and direction of a ring all-reduce over NVLink."""
        return self.nvlink_bandwidth * self.allreduce_efficiency


def load_gpu(name: str) -> GpuSpec:
    """Return a packaged GPU.

    Raises
    ------
    InputError
        When there is none of that name; it names the nearest one.

    Examples
    --------
    >>> load_gpu("h100").nvlink_bandwidth
    450000000000.0
    """
    gpus = _presets()
    if name not in gpus:
        asked = str(name).lower()
        longer = [known for known in gpus if known.startswith(asked)]
        hint = meant(asked, longer[:1] or gpus, 0.0 if longer else 0.4)
        raise InputError(f"no GPU {name!r}{hint}; known: {', '.join(gpus)}")
    return GpuSpec(name=name, **gpus[name])


def gpu_names() -> tuple[str, ...]:
    """Return the names of the packaged GPUs, in the file's order."""
    return tuple(_presets())


@cache
def _presets() -> dict[str, dict[str, Any]]:
    """Return the fields of every packaged GPU by name."""
    from ruamel.yaml import YAML

    text = (files("moesim.spec") / "presets" / "gpus.yaml").read_text(encoding="utf-8")
    presets: dict[str, dict[str, Any]] = YAML(typ="safe", pure=True).load(text)["gpus"]
    return presets
