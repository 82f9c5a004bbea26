"""Long tables: a row says how many tokens an expert had, or where a token went.

Columns of counts: ``layer``, ``expert``, ``count``, maybe ``step``; without ``count``
each row is one token. Columns of tokens: ``token``, ``layer`` and ``expert``, one choice
a row, or ``expert_0``, ``expert_1``, ..., all choices of a token; maybe ``sequence``.

Axes: ``n`` rows, ``S`` steps, ``L`` layers, ``E`` experts.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moesim.errors import InputError, meant
from moesim.routing.logs.counts import MOST_TOKENS, Counted, counts_log
from moesim.routing.logs.limits import MOST_EXPERTS, MOST_LAYERS
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.longrows import LongRows
from moesim.routing.logs.source import Source
from moesim.routing.logs.store import Spool
from moesim.routing.logs.tokens import TokenSink
from moesim.types import Ints

ALIASES = {
    "layer_id": "layer",
    "layer_idx": "layer",
    "expert_id": "expert",
    "tokens": "count",
    "num_tokens": "count",
    "token_id": "token",
    "token_idx": "token",
    "token_index": "token",
    "position": "token",
    "iteration": "step",
    "iter": "step",
    "pass": "step",
    "request": "sequence",
    "request_id": "sequence",
    "seq": "sequence",
}
"""Other names of a column."""
KNOWN = ("step", "sequence", "token", "layer", "expert", "count")
NUMBERED = re.compile(r"expert[_ ]?([0-9]{1,4})")


@dataclass(frozen=True)
class Columns:
    """Where the columns of a table stand; -1: there is none."""

    place: dict[str, int]
    experts: tuple[int, ...]

    @property
    def has_tokens(self) -> bool:
        """Whether rows are about tokens one by one."""
        return "token" in self.place

    def of(self, rows: Ints, name: str, default: int = 0) -> Ints:
        """Return one column, or `default` everywhere."""
        if name in self.place:
            return rows[:, self.place[name]]
        return np.full(len(rows), default, np.int64)


def recognised(names: Sequence[str]) -> bool:
    """Tell whether the names are those of such a table."""
    try:
        columns_of(names)
    except InputError:
        return False
    return True


def columns_of(names: Sequence[str]) -> Columns:
    """Return what each column is.

    Raises
    ------
    InputError
        A column is unknown, missing, or there under two names.
    """
    place: dict[str, int] = {}
    numbered: dict[int, int] = {}
    for at, raw in enumerate(names):
        name = ALIASES.get(raw.lower(), raw.lower())
        match = NUMBERED.fullmatch(name)
        if match:
            numbered[int(match[1])] = at
        elif name not in KNOWN:
            hint = meant(name, (*KNOWN, *ALIASES))
            raise InputError(f"unknown column {ascii(raw)[:60]}{hint}")
        elif name in place:
            raise InputError(f"two columns are the {name}")
        else:
            place[name] = at
    return _checked(place, numbered)


def _checked(place: dict[str, int], numbered: dict[int, int]) -> Columns:
    if ("expert" in place) == bool(numbered):
        raise InputError("expected a column expert, or expert_0, expert_1, ...")
    if sorted(numbered) != list(range(len(numbered))):
        raise InputError(f"columns expert_i are numbered {sorted(numbered)[:8]}")
    if "layer" not in place:
        raise InputError("expected a column layer")
    tokens = "token" in place
    if numbered and not tokens:
        raise InputError("expected a column token beside expert_0, expert_1, ...")
    odd = {"count", "step"} if tokens else {"sequence"}
    if found := sorted(odd & place.keys()):
        both = "token" if tokens else "count"
        raise InputError(f"a column {found[0]} beside {both} has no meaning here")
    experts = [place.pop("expert")] if not numbered else []
    return Columns(place, tuple(experts + [numbered[i] for i in sorted(numbered)]))


def read_table(
    source: Source, form: str, columns: Columns, blocks: Iterable[Ints]
) -> RoutingLog:
    """Return the log of a table whose rows come in blocks ``(n, columns)``."""
    if not columns.has_tokens:
        found, layers = counted(source, columns, blocks)
        return counts_log(source, form, Counted(found, layers))
    rows = LongRows(source, len(columns.experts))
    for block in blocks:
        sequence, token, layer = (
            columns.of(block, name) for name in ("sequence", "token", "layer")
        )
        rows.add(sequence, token, layer, block[:, columns.experts])
    sink = TokenSink(source)
    rows.into(sink)
    if "sequence" not in columns.place:
        source.note("all tokens are taken for one sequence: no column says otherwise")
    return sink.finish(form)


def counted(
    source: Source, columns: Columns, blocks: Iterable[Ints]
) -> tuple[Ints, tuple[str, ...]]:
    """Return counts ``(S, L, E)`` and the names of the layers.

    Raises
    ------
    InputError
        A layer, expert or count is too large, or a pair of layer and expert is counted
        twice in a step.
    """
    spool = Spool((4,), source.meter.limits.memory_bytes // 4)
    steps: set[int] = set()
    layers: set[int] = set()
    for block in blocks:
        rows = np.stack(
            [
                columns.of(block, "step"),
                columns.of(block, "layer"),
                block[:, columns.experts[0]],
                columns.of(block, "count", 1),
            ],
            axis=1,
        )
        _check_ranges(rows)
        steps.update(np.unique(rows[:, 0]).tolist())
        layers.update(np.unique(rows[:, 1]).tolist())
        source.meter.hold(100 * len(steps), "the list of steps")
        spool.append(rows)
    names = np.array(sorted(layers), np.int64)
    if not len(names):
        raise InputError("holds no rows; at least one is expected")
    numbers = np.array(sorted(steps), np.int64)
    once = "count" in columns.place
    return _added(source, spool, numbers, names, once=once), tuple(map(str, names))


def _check_ranges(rows: Ints) -> None:
    limits = (1 << 62, MOST_LAYERS << 4, MOST_EXPERTS, MOST_TOKENS)
    for values, most, what in zip(
        rows.T, limits, ("step", "layer", "expert", "count"), strict=True
    ):
        if values.min() < 0 or values.max() >= most:
            bad = values.min() if values.min() < 0 else values.max()
            raise InputError(f"{what} {bad} is out of range: 0 to {most - 1}")


def _added(
    source: Source, spool: Spool, steps: Ints, layers: Ints, *, once: bool
) -> Ints:
    rows = spool.finish()
    experts = 1 + max(int(block[:, 2].max()) for block in rows.blocks())
    experts = source.hints.experts or experts
    shape = (len(steps), len(layers), experts)
    source.meter.hold(16 * len(steps) * len(layers) * experts, f"counts {list(shape)}")
    total = np.zeros(shape, np.int64)
    seen = np.zeros(shape, bool)
    for block in rows.blocks():
        source.meter.tick()
        values = block.astype(np.int64)
        if values[:, 2].max() >= experts:
            bad = int(values[:, 2].max())
            raise InputError(f"expert {bad} is out of range: 0 to {experts - 1}")
        at = (
            np.searchsorted(steps, values[:, 0]),
            np.searchsorted(layers, values[:, 1]),
            values[:, 2],
        )
        if once and (
            seen[at].any() or len(np.unique(np.stack(at), axis=1).T) < len(at[0])
        ):
            raise InputError("a pair of layer and expert is counted twice")
        seen[at] = True
        np.add.at(total, at, values[:, 3])
    return total
