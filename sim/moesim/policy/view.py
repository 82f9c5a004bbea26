"""All that a policy may see, and the roles it may play.

A role is one object with one method; a policy is a bundle of roles. What a role sees is
a frozen picture "as of now", with a stated knowledge of the routing:

``present``
    only routing that has already happened;
``predicted``
    that, and a named predictor's guess for the layers to come;
``oracle``
    the true path to come (a bound, not a policy anyone could run).

Axes: ``L`` MoE layers, ``G`` GPUs, ``R`` data-parallel ranks, ``W`` waiting requests,
``T`` tokens, ``k`` experts of a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from moesim.spec.placement import Placement
from moesim.types import Floats, Ids, Ints

Knowledge = Literal["present", "predicted", "oracle"]
Stage = Literal["attention", "experts", "lm_head"]
Needs = Literal["barrier_local", "global_instant"]


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
    """The waiting requests of one rank, longest wait first: ``(W,)`` columns."""

    request: Ints
    klass: Ints
    arrival_s: Floats
    tokens: Ints


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
class Dispatch(Protocol):
    """Decides which replica of an expert takes a token."""

    def slots(self, ids: Ids, source: Ints, placement: Placement) -> Ints:
        """Return ``(T, L, k)`` physical slots for ``(T, L, k)`` logical experts."""
        ...
