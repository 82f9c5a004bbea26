"""How an instance serves: batching limits, KV pool, coupling, in vLLM's names."""

from dataclasses import dataclass
from typing import Literal

from moesim.spec.memory import MemorySpec

Mode = Literal["continuous", "prefill_only", "static"]
Coupling = Literal["queued", "lockstep"]
EngineChoice = Literal["auto", "event", "array"]
Padding = Literal["none", "masked", "routed"]


@dataclass(frozen=True, slots=True)
class ServingSpec:
    """Limits of continuous batching; all counts are per data-parallel rank.

    Parameters
    ----------
    mode : {"continuous", "prefill_only", "static"}
        Iteration-level batching; prompts only (one token each); or whole batches that
        run until their last member ends.
    max_num_batched_tokens, max_num_seqs : int
        Tokens of a rank in one micro-batch; requests of a rank being served at once.
    chunked_prefill : bool
        A prompt may be cut to fill the token budget; otherwise it runs whole.
    block_size, kv_blocks : int
        Tokens in a KV block; blocks of a rank's pool.
    max_in_flight : int
        Micro-batches walking the layers at the same time.
    coupling : {"queued", "lockstep"}
        Micro-batches queue at GPUs and ports, or all ranks run one joint stage.
    engine : {"auto", "event", "array"}
        Queued coupling played event by event, or an all-to-all at a time; both give
        the same ticks. ``auto`` takes the array engine wherever it is exact.
    padding : {"none", "masked", "routed"}
        Ranks are padded to the largest one: not at all; with rows that load no expert;
        or with rows that all go to the first experts (a known fault).
    memory : MemorySpec or None
        Rules of memory, watched pass by pass; without them blocks are paged, preemption
        recomputes, and nothing waits for activations.
    """

    mode: Mode = "continuous"
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    chunked_prefill: bool = True
    block_size: int = 16
    kv_blocks: int = 2**40
    max_in_flight: int = 1
    coupling: Coupling = "queued"
    engine: EngineChoice = "auto"
    padding: Padding = "masked"
    memory: MemorySpec | None = None
