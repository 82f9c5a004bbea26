"""How often caches of experts hit on a recorded log: by rule, size, and order of tokens.

Every layer has a cache of its own. A log is cut in two between sequences; each half is
run once first, to fill caches and to count popularity, and once after the other, where
hits are counted. So nothing is judged by tokens that it has learnt from, but for
`belady`, which is a bound.

Axes: ``T`` tokens, ``N`` touches in order, ``L`` MoE layers, ``C`` sizes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.errors import InputError, Problem, meant
from moesim.measure.intervals import student_interval
from moesim.policy.abreast import RULES, hits, static_hits
from moesim.policy.reuse import NONE, touches_of_batches
from moesim.replicate import Progress, share
from moesim.routing.logs import RoutingLog, read_log
from moesim.scenario.pieces import file_of
from moesim.scenario.quantities import anchored, shown
from moesim.scenario.tree import Tree
from moesim.streams import stream
from moesim.study.controls import CONTROLS, interleaved
from moesim.study.shape import fits
from moesim.types import Floats, Ints

CACHES = (*RULES, "static")
"""Caches that a study may compare."""
MOST_SEED = 10**12
PARTS = 10
"""Parts of each half that are counted apart, at most; the interval is over both halves'."""


@dataclass(frozen=True)
class CacheStudy:
    """What a study of caches compares.

    Parameters
    ----------
    logs : sequence of Path
        Routing logs, each on its own.
    residency : sequence of float
        Shares of a layer's experts that its cache holds.
    caches, controls : sequences of str
        Of `CACHES`, and of `CONTROLS`; controls are run in the log's own order.
    orders : sequence of int or str
        ``8``: micro-batches of 8 neighbouring tokens; ``8 sequences``: a token each of
        8 sequences that decode side by side.
    """

    logs: Sequence[Path]
    residency: Sequence[float]
    caches: Sequence[str] = CACHES
    orders: Sequence[int | str] = (1,)
    controls: Sequence[str] = ()
    seed: int = 0


def cache_study(tree: Tree, folder: Path) -> CacheStudy:
    """Return the study of caches in a file, checked; paths start from its folder.

    Raises
    ------
    InputError
        Something in it cannot be used.
    """
    part = tree.data["caches"]
    problems = [tree.problem(("caches", key), message) for key, message in _wrong(part)]
    if problems:
        raise InputError(problems)
    try:
        logs = [file_of(anchored(str(path), folder)) for path in part["logs"]]
    except InputError as error:
        found = [tree.problem(("caches", "logs"), p.message) for p in error.problems]
        raise InputError(found) from None
    return CacheStudy(**{**part, "logs": logs})


def _wrong(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield keys whose values cannot be used, and why."""
    given = {"logs": (), "residency": (), "caches": CACHES, "orders": (1,), **part}
    for key in filterfalse(given.get, ("logs", "residency", "caches", "orders")):
        yield key, "a list with something in it is expected"
    for item in filterfalse(_is_share, part.get("residency", ())):
        yield "residency", f"a share from 0 to 1 is expected; got {shown(item)}"
    for key, known in (("caches", CACHES), ("controls", tuple(CONTROLS))):
        strange = (item for item in part.get(key, ()) if item not in known)
        for item in strange:
            names = f"{', '.join(known)}{meant(item, known)}"
            yield key, f"{shown(item)} is not one of {names}"
    for item in part.get("orders", ()):
        if not _width(item):
            yield "orders", f"8, or '8 sequences', is expected; got {shown(item)}"
    if not 0 <= part.get("seed", 0) <= MOST_SEED:
        yield "seed", f"0 to {MOST_SEED} is expected; got {shown(part['seed'])}"
    yield from _repeated(part)


def _repeated(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lists that have something twice: rows of a table must differ."""
    for key in ("logs", "residency", "caches", "orders", "controls"):
        items = list(part.get(key, ()))
        names = [Path(str(item)).stem for item in items] if key == "logs" else items
        for number, name in enumerate(names):
            if name in names[:number]:
                yield key, f"{shown(name)} comes twice"


def _is_share(value: Any) -> bool:
    return (fits(value, float) or fits(value, int)) and 0 < value <= 1


def _width(order: object) -> int | None:
    """Return how many tokens of an order pass together, if it is one."""
    if isinstance(order, str):
        number, _, word = order.partition(" ")
        return int(number) if word == "sequences" and number.isdecimal() else None
    return order if isinstance(order, int) and fits(order, int) and order > 0 else None


def cache_rows(asked: CacheStudy, progress: Progress) -> Iterator[dict[str, Any]]:
    """Yield the rows of a study of caches.

    Yields
    ------
    dict
        ``log``, ``tokens`` (log, or which control), ``order``, ``residency``,
        ``experts`` held, ``cache``, ``hit_rate`` (of touches of the log's tokens; the
        mean over `parts`), ``low`` and ``high`` (95 %), and the same of the paired
        difference to ``static`` where that is compared too.
    """
    for number, path in enumerate(asked.logs):
        report = share(progress, number, len(asked.logs))
        log = read_log(path)
        if log.ids is None or log.lengths is None or len(log.lengths) < 2:
            message = "tokens of two sequences or more are needed; counts have no order"
            raise InputError([Problem(message, str(path))])
        runs = [("log", order) for order in asked.orders]
        runs += [(control, 1) for control in asked.controls]
        for place, (kind, order) in enumerate(runs):
            report(f"{path.stem}: {kind}, {order}", place / len(runs))
            for row in _rates(asked, log, kind, order):
                yield {"log": path.stem, "tokens": kind, "order": order, **row}


def _rates(
    asked: CacheStudy, log: RoutingLog, kind: str, order: int | str
) -> Iterator[dict[str, Any]]:
    """Yield what each cache hits at each size, in one order of tokens."""
    sizes = [max(1, round(part * log.experts)) for part in asked.residency]
    folds = [
        _hit_rates(asked.caches, _touches(halves, order, log.experts), sizes)
        for halves in _halves(asked, log, kind, order)
    ]
    found = {name: np.concatenate([fold[name] for fold in folds]) for name in folds[0]}
    for place, residency in enumerate(asked.residency):
        for name in asked.caches:
            rates = found[name][:, place]
            row = {
                "residency": residency,
                "experts": sizes[place],
                "cache": name,
                "parts": len(rates),
                **_mean("", rates),
            }
            if "static" in found:
                row |= _mean("_less_static", rates - found["static"][:, place])
            yield row


def _mean(label: str, values: Floats) -> dict[str, float]:
    low, high = student_interval(values)
    mean = float(values.mean())
    name = "difference" if label else "hit_rate"
    return {f"{name}{label}": mean, f"low{label}": low, f"high{label}": high}


Halves = tuple[NDArray[Any], NDArray[Any]]
"""Ids of the tokens that come first, and of those that are judged."""


def _halves(
    asked: CacheStudy, log: RoutingLog, kind: str, order: int | str
) -> list[Halves]:
    """Return both halves of a log, in its order or as a control, both ways round."""
    assert log.ids is not None
    assert log.lengths is not None
    ends = np.cumsum(log.lengths)
    middle = int(np.abs(ends[:-1] - ends[-1] / 2).argmin()) + 1
    halves: list[NDArray[Any]] = []
    ids = log.ids
    if kind != "log":
        rng = stream(asked.seed, f"cache control {kind}")
        ids = CONTROLS[kind](ids, log.experts, rng)
    for lengths, part in (
        (log.lengths[:middle], ids[: ends[middle - 1]]),
        (log.lengths[middle:], ids[ends[middle - 1] :]),
    ):
        width = _width(order) if isinstance(order, str) else None
        halves.append(part[interleaved(lengths, width)] if width else part)
    if not all(len(half) for half in halves):
        message = f"no half of the log has {order} to decode side by side"
        raise InputError([Problem(message, log.origin.path)])
    return [(halves[0], halves[1]), (halves[1], halves[0])]


@dataclass(frozen=True)
class _Touches:
    """Touches of tokens that come first, then of those that are judged, by part."""

    all: Ints
    ends: Ints
    popularity: Floats

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return self.popularity.shape[1]


def _touches(halves: Halves, order: int | str, experts: int) -> _Touches:
    """Return the touches of both halves, micro-batch by micro-batch."""
    first, judged = halves
    width = _width(order) or 1
    batches = -(-len(judged) // width)
    count = min(PARTS, batches)
    edges = [width * (batches * part // count) for part in range(1, count)]
    parts = [
        touches_of_batches(part, width, experts)
        for part in (first, *np.split(judged, edges))
    ]
    before = parts[0]
    popularity = np.stack(
        [np.bincount(lane[lane != NONE], minlength=experts) for lane in before.T]
    )
    ends = np.cumsum([len(part) for part in parts])
    return _Touches(np.concatenate(parts), ends, popularity.astype(float))


def _hit_rates(
    caches: Sequence[str], touches: _Touches, sizes: Sequence[int]
) -> dict[str, Floats]:
    """Return ``(parts, C)`` shares of touches that hit, of all layers together."""
    real = touches.all != NONE
    rates = {}
    for name in caches:
        if name == "static":
            found = static_hits(touches.all, touches.popularity, sizes)
        else:
            found = hits(touches.all, touches.experts, sizes, name)
        pairs = list(zip(touches.ends[:-1], touches.ends[1:], strict=True))
        rates[name] = np.array(
            [found[a:b].sum(axis=(0, 1)) / real[a:b].sum() for a, b in pairs]
        )
    return rates
