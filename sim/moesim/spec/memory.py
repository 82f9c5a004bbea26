"""What an instance does about memory while it serves: blocks, swapping, full GPUs."""

from dataclasses import dataclass
from typing import Literal

Allocator = Literal["paged", "contiguous"]
Reserve = Literal["max_model_len", "pow2", "exact"]
Preemption = Literal["recompute", "swap"]
OverCapacity = Literal["wait", "fail", "ignore"]


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """Rules of memory; what a scenario says in its section ``memory``.

    Parameters
    ----------
    kv_allocator : {"paged", "contiguous"}
        A request holds blocks and takes more as it grows; or it holds one stretch of
        its rank's KV memory, all of it from admission to its end, so that nobody is
        ever put back.
    reserve : {"max_model_len", "pow2", "exact"}
        How long such a stretch is: the longest request; prompt and answer, the answer
        rounded up to a power of two; or as long as the request will be. These are Orca
        (Max), (Pow2) and (Oracle) in the vLLM paper (arXiv 2309.06180, section 6.1).
    max_model_len : int
        Tokens of the longest request that is served, for ``reserve: max_model_len``.
    preemption : {"recompute", "swap"}
        A request that is put back loses its blocks and computes them anew; or they go
        to the host's memory and come back.
    swap_space_bytes : float
        Host memory for the blocks of each GPU (vLLM's ``swap_space``); a request that
        finds it full is recomputed.
    over_capacity : {"wait", "fail", "ignore"}
        A micro-batch whose activations do not fit on a GPU waits until others have
        ended; is an out-of-memory error; or begins all the same, and is written down.
    capacity : float
        Share of device memory that may be in use.
    """

    kv_allocator: Allocator = "paged"
    reserve: Reserve = "max_model_len"
    max_model_len: int = 4096
    preemption: Preemption = "recompute"
    swap_space_bytes: float = 4.0 * 2**30
    over_capacity: OverCapacity = "wait"
    capacity: float = 1.0

    @property
    def contiguous(self) -> bool:
        """Whether requests hold one stretch of memory each."""
        return self.kv_allocator == "contiguous"

    @property
    def swaps(self) -> bool:
        """Whether requests that are put back keep their blocks on the host."""
        return self.preemption == "swap"
