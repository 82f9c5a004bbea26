"""All that a policy may see, and the roles it may play.

A role is one object with one method; a policy is a bundle of roles. What a role sees is
a frozen picture "as of now", with a stated knowledge of the routing:

``counts``
    none: how many tokens there are, and nothing of where they go;
``present``
    only routing that has already happened;
``predicted``
    that, and a named predictor's guess for the layers to come;
``oracle``
    the true path to come (a bound, not a policy anyone could run).

Axes: ``L`` MoE layers, ``G`` GPUs, ``R`` data-parallel ranks, ``W`` waiting requests,
``M`` requests of a micro-batch, ``T`` tokens, ``k`` experts of a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from moesim.policy.road import NOTHING, Road, Swap
from moesim.spec.placement import Placement
from moesim.types import Floats, Ids, Ints, Slots

Knowledge = Literal["counts", "present", "predicted", "oracle"]
PredictorName = Literal["uniform", "global", "by_class", "lookahead", "oracle"]
Stage = Literal["attention", "experts", "lm_head"]
Needs = Literal["barrier_local", "global_instant"]
NOBODY: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Foresight:
    """What a policy wants to be shown of the road to come.

    Parameters
    ----------
    knowledge : {"counts", "present", "predicted", "oracle"}
        How far it may look.
    predictor : str
        Who guesses, if the knowledge is ``predicted``.
    hit_rate : float
        Of the ``lookahead`` predictor: how often a token's path in a layer is right.
    look : int
        How many of a rank's waiting requests it wants paths of; 0: none.
    congestion, experts : bool
        Whether it wants the congestion map, and its part that knows experts.
    alpha, window_s : float
        The map averages over windows of so many seconds, the last with weight `alpha`.
    swaps : bool
        Whether it wants to know of absent experts.
    """

    knowledge: Knowledge = "present"
    predictor: PredictorName = "global"
    hit_rate: float = 1.0
    look: int = 0
    congestion: bool = False
    experts: bool = False
    alpha: float = 0.3
    window_s: float = 0.02
    swaps: bool = False


@dataclass(frozen=True, slots=True)
class BatchView:
    """One micro-batch, about to queue for a stage of a layer on every GPU.

    Parameters
    ----------
    batch : int
        Number of the micro-batch, ascending in order of admission.
    layer, stage : int, str
        Where it stands. Its routing in this layer has happened when the stage is
        ``"experts"``; ``"lm_head"`` comes after the last layer.
    tokens : int
        Tokens of the micro-batch on all GPUs.
    admitted_s, oldest_arrival_s : float
        When it was formed, and when its oldest request arrived.
    attention_s : (L, G) array of float
        Seconds of attention it costs each GPU; known, because the batch is.
    experts_s : (L, G) array of float
        Seconds of expert work it costs each GPU, as far as the policy's knowledge
        goes; NaN in the layers it knows nothing about.
    ready_s : float
        In lockstep, since when it has been ready for its layer's experts.
    loads : (G,) array of int
        In lockstep, how many tokens each GPU would receive for this layer's experts.
    deferred, cohort : int
        In lockstep, for how many stages in a row it has been passed over; and the most
        micro-batches that were in flight together since the instance last was empty.
    requests : (M,) array of int
        Whose tokens it computes.
    decoding : bool
        Whether it computes a single token of each, over what is cached.
    road : Road or None
        The congestion map as of its forming, for a policy that asks for it.
    swap : Swap or None
        The loading ahead of it as of its forming, for a policy that asks for it.
    """

    batch: int
    layer: int
    stage: Stage
    tokens: int
    admitted_s: float
    oldest_arrival_s: float
    attention_s: Floats
    experts_s: Floats
    ready_s: float = 0.0
    loads: Ints = field(default_factory=lambda: NOBODY)
    deferred: int = 0
    cohort: int = 0
    requests: Ints = field(default_factory=lambda: NOBODY)
    decoding: bool = False
    road: Road | None = None
    swap: Swap | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The instance as of `now_s`.

    Parameters
    ----------
    now_s : float
        The time.
    backlog_s : (G,) array of float
        Seconds of compute queued or being served at each GPU, as the first GPU enters
        the stage; NaN for a policy that does not declare ``needs = "global_instant"``
        and empty where a rank's waiting requests are ordered.
    """

    now_s: float
    backlog_s: Floats


@dataclass(frozen=True, slots=True)
class WaitingView:
    """The waiting requests of one rank, longest wait first: ``(W,)`` columns.

    Parameters
    ----------
    request, klass, arrival_s, tokens : (W,) arrays
        Who, of what class, since when, and how many tokens each has to compute.
    budget, seats : int
        How many tokens, and how many requests, the micro-batch still takes on this
        rank.
    load : (w, L, G) array of float
        For the first ``w`` of them, what the policy's knowledge says each GPU's experts
        will have to do: tokens over the GPU's speed. Empty unless the policy looks.
    taken : (L, G) array of float
        The same of what is in the micro-batch already.
    """

    request: Ints
    klass: Ints
    arrival_s: Floats
    tokens: Ints
    budget: int = 0
    seats: int = 0
    load: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    taken: Floats = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class RankView:
    """The ranks a new request may be assigned to: ``(R,)`` columns.

    Parameters
    ----------
    tokens : (R,) array of int
        Tokens still to be computed for the requests already assigned.
    kv_blocks : (R,) array of int
        KV blocks in use.
    """

    tokens: Ints
    kv_blocks: Ints


@runtime_checkable
class Assign(Protocol):
    """Decides which data-parallel rank serves a new request."""

    def rank(self, request: int, ranks: RankView) -> int:
        """Return the rank for the request of this number."""
        ...


@runtime_checkable
class Compose(Protocol):
    """Decides in what order waiting requests are tried for the next micro-batch."""

    def sequence(self, waiting: WaitingView, view: View) -> Ints:
        """Return the rows of `waiting` in the order in which to admit them."""
        ...


@runtime_checkable
class Order(Protocol):
    """Decides which job a GPU serves next: the smallest key, then the oldest job.

    An order may also have the attributes ``knowledge`` (default ``"present"``),
    ``wait_budget_s`` (a job queued that long is served first, default: never) and
    ``needs`` (default ``"barrier_local"``).
    """

    def key(self, batch: BatchView, view: View) -> float:
        """Return the key of the jobs that `batch` is about to queue."""
        ...


@runtime_checkable
class Select(Protocol):
    """Decides which ready micro-batches run in the next lockstep stage."""

    def stage(self, ready: Sequence[BatchView], keys: Floats) -> Sequence[int]:
        """Return the rows of `ready` to run; `keys` are the order's keys."""
        ...


@runtime_checkable
class Release(Protocol):
    """Decides whether a micro-batch that has been formed starts now or later."""

    def delay(self, batch: BatchView, view: View) -> float:
        """Return for how many seconds to hold `batch` back; 0 lets it go."""
        ...


@runtime_checkable
class Gate(Protocol):
    """Bends what routers choose, which changes model outputs.

    A gate may also have the attribute ``temperature`` (default 1), which log weights
    are divided by.
    """

    def steer(self, bias: Floats, seen: Ints) -> Floats:
        """Return what to add to ``(L, E)`` log weights, after a pass.

        Parameters
        ----------
        bias : (L, E) array of float
            What is added so far, 0 at first.
        seen : (L, E) array of int
            Tokens that experts had in a pass that has just ended.
        """
        ...


@runtime_checkable
class Admit(Protocol):
    """Decides how many tokens of a micro-batch an expert takes in a layer.

    It may also have the attributes ``overflow`` (``"drop"``, the default, or
    ``"reroute"``) and ``reach`` (default 8: to how many experts beyond its own a token
    may be sent).
    """

    def room(self, tokens: int, top_k: int, experts: int) -> int:
        """Return the most tokens of an expert, for a micro-batch of so many."""
        ...


@runtime_checkable
class Dispatch(Protocol):
    """Decides which replica of an expert takes a token."""

    def slots(self, ids: Ids, source: Ints, placement: Placement) -> Slots:
        """Return ``(T, L, k)`` physical slots for ``(T, L, k)`` logical experts."""
        ...
