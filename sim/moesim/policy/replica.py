"""Which copy of an expert takes a token: by chance, or so that GPUs are evenly loaded.

The balancing ones look at the tokens of the micro-batch that are routed to each expert
of a layer, on all ranks. Engines learn those by an all-reduce in every layer, whose time
(and that of the solver) is not charged here. Loads are counts of tokens.

Axes: ``T`` tokens, ``L`` MoE layers, ``k`` experts of a token, ``E`` experts, ``R``
copies of one expert, ``G`` GPUs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from moesim.errors import SimulationError
from moesim.policy.shares import Copies, deal, level, turns, whole
from moesim.routing.counter import Bits, bits_at, mix, root, step
from moesim.spec.placement import Placement
from moesim.types import Floats, Ids, Ints

SWEEPS = 3
"""How often `LeastLoaded` goes through the experts that have copies."""
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class RandomReplica:
    """Take any copy with equal probability, as SGLang's dynamic dispatch does.

    What is drawn depends on the token's experts in all layers and on its GPU, not on
    its place in the batch; of tokens alike in all that, each draws its own.
    """

    def slots(self, ids: Ids, source: Ints, placement: Placement) -> Ints:
        """Return ``(T, L, k)``: a copy of each expert, drawn by counter."""
        _, layers, top_k = ids.shape
        layer = np.arange(layers)[None, :, None]
        copies = placement.replicas[layer, ids]
        where = np.nonzero(copies > 1)
        steps = np.array([step(number) for number in range(layers * top_k)])
        start = _names(ids, source)[where[0]]
        bits = bits_at(start, steps[where[1] * top_k + where[2]])
        turn = np.zeros(ids.shape, np.int64)
        turn[where] = (bits >> _HALF) * copies[where].astype(np.uint64) >> _HALF
        return placement.log2phy[layer, ids, turn]


@dataclass(frozen=True, slots=True)
class LeastLoaded:
    """Deal each expert's tokens so that its least loaded GPUs are filled up level.

    From an even split, experts are taken up again in order of their tokens, the most
    first, for a few sweeps; each time the rest stays as it is. No step makes a layer's
    busiest GPU busier than the even split does.
    """

    def slots(self, ids: Ids, source: Ints, placement: Placement) -> Ints:
        """Return ``(T, L, k)``: copies by their shares, in order of the batch."""
        return deal(ids, placement, levelled(Copies(ids, placement)))


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """Deal tokens so that the busiest GPU of each layer is as little loaded as can be.

    The linear program of SGLang's ``lp`` dispatch (after LPLB), solved exactly; shares
    are rounded to whole tokens, so a GPU may get one more for each of its copies.
    """

    def slots(self, ids: Ids, source: Ints, placement: Placement) -> Ints:
        """Return ``(T, L, k)``: copies by their shares, in order of the batch."""
        copies = Copies(ids, placement)
        shares, _ = least_maximum(copies)
        return deal(ids, placement, whole(shares, copies.tokens))


def levelled(copies: Copies) -> Ints:
    """Return the ``(L, E, R)`` shares of `LeastLoaded`."""
    shares = copies.even()
    load = copies.gpu_load(shares)
    row = np.arange(len(load))
    several = copies.usable.sum(axis=2) > 1
    order = np.argsort(-np.where(several, copies.tokens, -1), axis=1, kind="stable")
    most = int(several.sum(axis=1).max())
    for _ in range(SWEEPS):
        for expert in order.T[:most]:
            gpu, usable = copies.gpu[row, expert], copies.usable[row, expert]
            old = shares[row, expert]
            rest = np.take_along_axis(load, gpu, axis=1) - old
            new = level(rest, copies.tokens[row, expert], usable)
            np.add.at(load, (row[:, None], gpu), new - old)
            shares[row, expert] = new
    return shares


def least_maximum(copies: Copies) -> tuple[Floats, Floats]:
    """Return ``(L, E, R)`` shares and ``(L,)``: the least load of the busiest GPU.

    Over the shares ``x >= 0`` of copies: minimise the sum over layers of ``M``, subject
    to the shares of an expert being its tokens and no GPU having more than ``M``.

    Raises
    ------
    SimulationError
        The solver gives up.
    """
    from scipy.optimize import linprog

    layers = len(copies.gpu)
    where = np.nonzero(copies.usable & (copies.tokens > 0)[:, :, None])
    count = len(where[0])
    highest, complete, tokens = _constraints(copies, where)
    found = linprog(
        np.repeat([0.0, 1.0], [count, layers]),
        A_ub=highest,
        b_ub=np.zeros(highest.shape[0]),
        A_eq=complete,
        b_eq=tokens,
        method="highs",
    )
    if found.status:
        raise SimulationError(f"no shares of replicas were found: {found.message}")
    shares = np.zeros(copies.usable.shape)
    shares[where] = found.x[:count]
    return shares, found.x[count:]


def _constraints(copies: Copies, where: tuple[Ints, ...]) -> tuple[Any, Any, Ints]:
    """Return the sparse sides of: GPU loads at most M; shares add up to the tokens.

    Columns are the shares at `where`, then the layers' M.
    """
    from scipy.sparse import csr_array

    layer, expert, _ = where
    layers, experts, gpus = len(copies.gpu), copies.gpu.shape[1], copies.gpus
    share, gpu = np.arange(len(layer)), np.arange(layers * gpus)
    row = np.concatenate([layer * gpus + copies.gpu[where], gpu])
    column = np.concatenate([share, len(share) + gpu // gpus])
    value = np.repeat([1.0, -1.0], [len(share), len(gpu)])
    width = len(share) + layers
    highest = csr_array((value, (row, column)), shape=(len(gpu), width))
    used, cell = np.unique(layer * experts + expert, return_inverse=True)
    ones = np.ones(len(share))
    complete = csr_array((ones, (cell, share)), shape=(len(used), width))
    return highest, complete, copies.tokens.ravel()[used]


def _names(ids: Ids, source: Ints) -> Bits:
    """Return ``(T,)`` keys of tokens by what they are, twins told apart by number."""
    tokens, layers, top_k = ids.shape
    flat = ids.reshape(tokens, layers * top_k)
    words = np.concatenate([flat, source[:, None]], axis=1)
    origin = root(0, "replicas")
    steps = np.array([step(number) for number in range(words.shape[1])])
    odd = bits_at(np.full(len(steps), origin), steps) | np.uint64(1)
    content = mix((words.astype(np.uint64) * odd).sum(axis=1, dtype=np.uint64))
    twin = turns((content >> np.uint64(1)).astype(np.int64))
    return mix(content + twin.astype(np.uint64))
