"""When experts move to other GPUs while an instance serves: the loops of three engines.

A loop is a policy's role: it says how loads are watched, when a new placement is made,
and how its weights travel. What an instance has seen lies in the `Watch` that the role
begins for it, so one policy may serve many instances.

Followed are vLLM (``vllm/distributed/eplb``), SGLang (``srt/eplb``) and TensorRT-LLM
(``runtime/moeLoadBalancer``). Their step is a forward pass of all ranks; here it is a
pass that has ended. A pass always has tokens: where nobody has any, nobody steps.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from moesim.policy.watch import (
    Idle,
    RoundOfLayers,
    SinceLastPlan,
    SlidingWindow,
    Watch,
)
from moesim.spec.system import System

Way = Literal["stop", "beside", "behind"]
Origin = Literal["peers", "host"]


@dataclass(frozen=True, slots=True)
class Carriage:
    """How weights travel.

    Parameters
    ----------
    way : {"stop", "beside", "behind"}
        Nothing new starts while weights move; or they move in the background and no
        pass waits; or so, but whatever has not arrived within a pass is waited for.
    origin : {"peers", "host"}
        They come from the nearest GPU that has them, or from the host's memory.
    layers : int
        Layers that change together, the next ones not before another pass has ended;
        0: all that change.
    planning_s : float
        Seconds that making a plan takes, before anything moves.
    staged : bool
        Whether weights arrive in a buffer first: one layer's slots of a GPU.
    """

    way: Way = "beside"
    origin: Origin = "peers"
    layers: int = 0
    planning_s: float = 0.0
    staged: bool = True


@runtime_checkable
class Rebalance(Protocol):
    """Decides when experts move, where to, and how."""

    def carriage(self) -> Carriage:
        """Return how weights travel."""
        ...

    def watch(self, system: System) -> Watch:
        """Return what one instance sees and remembers."""
        ...


@dataclass(frozen=True, slots=True)
class Still:
    """Experts stay where they are."""

    def carriage(self) -> Carriage:
        """Return how weights would travel: with no buffer."""
        return Carriage(staged=False)

    def watch(self, system: System) -> Watch:
        """Return a watch that sees nothing."""
        return Idle()


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM: EPLB on the loads of the last `window` passes, every `interval` passes.

    The first time after a quarter of the interval. Loads are kept by slot and told to
    experts by the placement of that moment, as in vLLM: with a window longer than the
    interval, loads seen under an older placement go to the wrong experts. Experts that
    stay on a GPU keep their slots.

    Parameters
    ----------
    window, interval : int
        Passes.
    mode : {"async", "sync"}
        Layer by layer in the background, a layer a pass at most; or all layers while
        everything stands still. vLLM's default was ``sync`` up to 0.19.
    planning_s : float
        Seconds for making a plan.
    """

    window: int = 1000
    interval: int = 3000
    mode: Literal["async", "sync"] = "async"
    planning_s: float = 0.0

    def __post_init__(self) -> None:
        _whole(self, 1, "window", "interval")
        if self.mode not in ("async", "sync"):
            raise ValueError(f"mode is async or sync, not {self.mode!r}")

    def carriage(self) -> Carriage:
        """Return how weights travel: through ``expert_weights_buffer``."""
        if self.mode == "sync":
            return Carriage("stop", planning_s=self.planning_s)
        return Carriage("beside", layers=1, planning_s=self.planning_s)

    def watch(self, system: System) -> Watch:
        """Return the window of one instance."""
        return SlidingWindow(system, self.window, self.interval)


@dataclass(frozen=True, slots=True)
class Sglang:
    """SGLang: EPLB on the loads since the last time, every `interval` passes.

    Parameters
    ----------
    interval : int
        Passes (``eplb_rebalance_num_iterations``).
    threshold : float
        Nothing moves while the mean utilisation, mean over maximum load of GPUs, is
        above this (``eplb_min_rebalancing_utilization_threshold``); 1: it always does.
    layers_per_chunk : int
        Layers that change together while everything stands still, one such stop after
        each pass; 0: all at once.
    planning_s : float
        Seconds for making a plan.
    """

    interval: int = 1000
    threshold: float = 1.0
    layers_per_chunk: int = 0
    planning_s: float = 0.0

    def __post_init__(self) -> None:
        _whole(self, 1, "interval")
        _whole(self, 0, "layers_per_chunk")
        _share(self, "threshold")

    def carriage(self) -> Carriage:
        """Return how weights travel: while all wait, through a buffer."""
        return Carriage(
            "stop", layers=self.layers_per_chunk, planning_s=self.planning_s
        )

    def watch(self, system: System) -> Watch:
        """Return the record of one instance."""
        return SinceLastPlan(system, self.interval, self.threshold)


@dataclass(frozen=True, slots=True)
class TensorrtLlm:
    """TensorRT-LLM: a few layers every pass, weights streamed from the host's memory.

    Layers take turns. A layer goes by the loads since its last turn, each pass counting
    `decay` times as much as the next. Its weights have one pass to arrive in; every slot
    that changes is copied, even from one slot of a GPU to another, over what was there:
    the second copy of each expert lies on the host.

    Parameters
    ----------
    layer_updates_per_iter : int
        Layers that change in a pass.
    decay : float
        What a pass counts for when the next one has ended (``decayFactor``).
    planning_s : float
        Seconds for making a plan.
    """

    layer_updates_per_iter: int = 1
    decay: float = 0.9
    planning_s: float = 0.0

    def __post_init__(self) -> None:
        _whole(self, 1, "layer_updates_per_iter")
        _share(self, "decay")

    def carriage(self) -> Carriage:
        """Return how weights travel: from the host, behind a pass."""
        return Carriage("behind", "host", planning_s=self.planning_s, staged=False)

    def watch(self, system: System) -> Watch:
        """Return the loads of one instance."""
        return RoundOfLayers(system, self.layer_updates_per_iter, self.decay)


REBALANCES: dict[str, type[Vllm | Sglang | TensorrtLlm]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "tensorrt_llm": TensorrtLlm,
}
"""The loops by the names that scenario files use."""


def _whole(loop: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(loop, name)
        if isinstance(value, bool) or value != int(value) or value < least:
            raise ValueError(f"{name} is a whole number from {least}, not {value}")


def _share(loop: object, name: str) -> None:
    value = getattr(loop, name)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is a share from 0 to 1, not {value}")
