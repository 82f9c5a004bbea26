"""Counts of tokens into one log: finite, not negative, empty steps and layers gone.

Axes: ``S`` steps, ``L`` layers, ``E`` experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError
from moesim.routing.logs.limits import MOST_EXPERTS, MOST_LAYERS
from moesim.routing.logs.log import Origin, RoutingLog
from moesim.routing.logs.source import Source
from moesim.types import Bools, Ints

MOST_TOKENS = 1 << 53
"""Tokens of a whole log: what a double counts exactly."""


@dataclass(frozen=True)
class Counted:
    """Counts as a reader found them.

    Parameters
    ----------
    counts : (S, L, E) array
        Of any number type.
    layers : sequence of str
        Names; empty: numbers from 0.
    phy2log : (L, P) array, or None
        The placement that the file is.
    unit : {"tokens", "replicas"}
        What is counted.
    """

    counts: NDArray[Any]
    layers: Sequence[str] = ()
    phy2log: Ints | None = None
    unit: Literal["tokens", "replicas"] = "tokens"


def counts_log(source: Source, form: str, found: Counted) -> RoutingLog:
    """Return the log of counts, less warm-up steps, empty steps and empty layers.

    Raises
    ------
    InputError
        Another number of axes, too many layers or experts, a count that is negative,
        no number, or too large; or nothing was counted at all.
    """
    counts = _checked(source, found.counts)
    names = tuple(found.layers) or tuple(map(str, range(counts.shape[1])))
    if len(names) != counts.shape[1]:
        raise InputError(f"names {len(names)} layers; there are {counts.shape[1]}")
    counts = _after_warmup(source, counts)
    counts = _without_empty_steps(source, counts)
    kept: Bools = np.asarray(counts.any(axis=(0, 2)))
    if not kept.any():
        raise InputError("counts no tokens at all")
    if not kept.all():
        gone = [name for name, keep in zip(names, kept, strict=True) if not keep]
        source.note(f"dropped {len(gone)} layers without any token: {_listed(gone)}")
        counts = counts[:, kept]
        names = tuple(name for name, keep in zip(names, kept, strict=True) if keep)
    return RoutingLog(
        origin=Origin("", form),
        layers=names,
        experts=counts.shape[2],
        counts=counts,
        phy2log=found.phy2log,
        unit=found.unit,
        notes=tuple(source.notes),
    )


def whole(values: NDArray[Any], what: str) -> NDArray[Any]:
    """Return `values` as int64 where that changes nothing, else as finite doubles.

    Raises
    ------
    InputError
        They are no numbers, not finite, negative, or beyond `MOST_TOKENS`.
    """
    if values.dtype.kind not in "iuf":
        raise InputError(f"{what} are {values.dtype}; numbers are expected")
    bad = ~((values >= 0) & (values <= MOST_TOKENS))  # NaN compares as false
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        message = f"{what}{list(at)} is {values[at]}; 0 to {MOST_TOKENS} are expected"
        raise InputError(message)
    exact = values.astype(np.int64)
    if values.dtype.kind == "f" and (exact != values).any():
        return values.astype(np.float64)
    return exact


def _checked(source: Source, counts: NDArray[Any]) -> NDArray[Any]:
    source.meter.tick()
    if counts.ndim != 3 or 0 in counts.shape:
        message = f"counts have shape {list(counts.shape)}"
        raise InputError(f"{message}; [steps, layers, experts] are expected")
    _, layers, experts = counts.shape
    hints = source.hints
    for size, told, most, what in (
        (layers, 0, MOST_LAYERS, "layers"),
        (experts, hints.experts, MOST_EXPERTS, "experts"),
    ):
        if size > most or (told and told != size):
            expected = f"the hint says {told}" if told else f"at most {most} are read"
            raise InputError(f"has {size} {what}; {expected}")
    source.meter.hold(2 * counts.size * 8, f"an array of shape {list(counts.shape)}")
    exact = whole(counts, "counts")
    if exact.sum(dtype=np.float64) > MOST_TOKENS:
        raise InputError(f"counts sum to more than {MOST_TOKENS} tokens")
    return exact


def _after_warmup(source: Source, counts: NDArray[Any]) -> NDArray[Any]:
    asked = source.hints.warmup or 0
    if not asked:
        return counts
    if asked >= len(counts):
        message = f"has {len(counts)} steps; a warm-up of {asked} leaves none"
        raise InputError(message)
    source.note(f"dropped the first {asked} steps, as asked")
    return counts[asked:]


def _without_empty_steps(source: Source, counts: NDArray[Any]) -> NDArray[Any]:
    filled = counts.any(axis=(1, 2))
    empty = int((~filled).sum())
    if not empty or not filled.any():
        return counts
    source.note(f"dropped {empty} of {len(counts)} steps in which nothing was counted")
    return counts[filled]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
