"""Vectorised draws are, to the last bit, those of one cell at a time in plain Python."""

import hashlib
import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.routing import topk
from moesim.routing.catalogue import SOURCES
from moesim.routing.counter import GAMMA
from moesim.routing.grouped import GroupedCells, GroupLimited
from moesim.routing.source import TokenKeys
from moesim.routing.topk import Cells, PlackettLuce, distinct

WORD = 2**64 - 1


def bits(start, counter):
    """Return one number of the SplitMix64 stream."""
    word = start + counter * GAMMA & WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def uniform(start, counter):
    return ((bits(start, counter) >> 12) + 0.5) * 2.0**-52


def pick(tables, row, word):
    """Return the side of the threshold on which the lower half of a word falls."""
    column = (word >> 32) * tables.width >> 32
    entry = int(tables.entries[row * tables.width + column])
    own = word % 2**32 < (entry >> 32) + 1
    return entry >> 16 & 0xFFFF if own else entry & 0xFFFF


def plain_distinct(draw, weights, start, top_k, forced, attempts):
    """Return distinct choices: redraw one that is taken, in the end race for the rest.

    `draw` takes a counter; `weights` are those of all that may be chosen.
    """
    chosen = []
    for slot in range(top_k):
        name = forced[slot] if slot < len(forced) else draw(slot)
        attempt = 1
        while name in chosen and attempt < attempts:
            name = draw(attempt * top_k + slot)
            attempt += 1
        if name in chosen:
            left = [e for e in range(len(weights)) if e not in chosen]
            left.sort(key=lambda e: arrival(start, e, weights[e]))
            return chosen + left[: top_k - slot]
        chosen.append(name)
    return chosen


def arrival(start, expert, weight):
    if not weight:
        return math.inf
    clock = -math.log(uniform(start, topk.RACE + expert))
    return math.log(clock) - math.log(weight)


def plain_plain(law, weights, cell, top_k, forced, attempts):
    """Return the choices of one cell by `PlackettLuce`."""
    start, row = cell

    def draw(counter):
        return pick(law.tables, row, bits(start, 2 * counter))

    return plain_distinct(draw, weights[row], start, top_k, forced, attempts)


def plain_grouped(law, weights, cell, top_k, forced, attempts):
    """Return the choices of one cell by `GroupLimited`: groups first."""
    start, row = cell
    mass = law.mass[row]
    size = weights.shape[1] // len(mass)
    groups = plain_plain(
        law.by_mass,
        law.mass,
        (start + topk.PREPARE * GAMMA & WORD, row),
        law.top_groups,
        [expert // size for expert in forced],
        attempts,
    )
    ends = list(np.cumsum([mass[group] for group in groups]))

    def draw(counter):
        where = uniform(start, 2 * counter + 1)
        group = groups[sum(where > end / ends[-1] for end in ends[:-1])]
        table = row * len(mass) + group
        return pick(law.tables, table, bits(start, 2 * counter))

    inside = np.isin(np.arange(weights.shape[1]) // size, groups)
    only = np.where(inside, weights[row], 0.0)
    return plain_distinct(draw, only, start, top_k, forced, attempts)


def world(seed, skew, shape, grouped):
    """Return a law, its weights, cells and whether one expert of each is forced."""
    groups, size = shape
    rng = np.random.default_rng(seed)
    weights = np.exp(skew * rng.standard_normal((3, groups * size)))
    top_groups = int(rng.integers(1, groups + 1)) if grouped else groups
    top_k = int(rng.integers(1, top_groups * size + 1))
    law = PlackettLuce.of(weights)
    if grouped:
        law = GroupLimited.of(weights, groups, top_groups)
    count = int(rng.integers(1, 25))
    start = rng.integers(0, 2**64, count, np.uint64, endpoint=False)
    cells = Cells(start, rng.integers(0, 3, count).astype(np.uint64))
    forced = np.where(rng.random(count) < 0.5, rng.integers(0, groups * size), -1)
    return law, weights, cells, top_k, forced[None]


@pytest.mark.parametrize("grouped", [False, True])
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    skew=st.sampled_from([0.0, 1.0, 4.0, 30.0]),
    shape=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    sizes=st.fixed_dictionaries(
        {
            "BLOCK": st.sampled_from([1, 5, 1 << 13]),
            "SPARE": st.sampled_from([1, 40, 1 << 12]),
            "ATTEMPTS": st.sampled_from([1, 3, 16]),
        }
    ),
)
def test_a_batch_is_drawn_as_each_cell_alone(grouped, seed, skew, shape, sizes):
    """Whatever is drawn at once, how many attempts there are, and how skewed."""
    law, weights, cells, top_k, forced = world(seed, skew, shape, grouped)
    plain = plain_grouped if grouped else plain_plain

    with patch.multiple(topk, **sizes):
        ids = distinct(law, cells, top_k, forced)

    attempts = sizes["ATTEMPTS"]
    for number, found in enumerate(ids.T.tolist()):
        cell = int(cells.start[number]), int(cells.row[number])
        held = [expert for expert in forced[:, number].tolist() if expert >= 0]
        assert found == plain(law, weights, cell, top_k, held, attempts)


def test_an_edge_between_groups_falls_as_the_numbers_are_compared():
    """Masses that are equal, tiny or all there is: whole numbers decide as floats do."""
    for mass in ([1.0, 1.0], [1.0, 3.0], [1e-300, 1.0], [1.0, 1e-300], [1.0, 1e-16]):
        law = GroupLimited.of(np.array([mass]), 2, 2)
        groups = np.array([[0], [1]], np.uint16)
        edge = int(law._edges(np.zeros(1, np.uint64), groups)[0, 0])
        share = mass[0] / (mass[0] + mass[1])
        for whole in {0, 1, 2**51, 2**52 - 1, *range(max(edge - 2, 0), edge + 3)}:
            if whole < 2**52:
                assert (whole > edge) == ((whole + 0.5) * 2.0**-52 > share)


def test_a_number_on_an_edge_falls_to_the_group_before_it():
    """And the next smaller edge leaves it to the group after."""
    law = GroupLimited.of(np.ones((1, 3)), 3, 2)
    start, row = np.array([77], np.uint64), np.zeros(1, np.uint64)
    number = bits(77, 1) >> 12
    found = [
        int(law.draw(cells_of(start, row, edge), np.zeros(1, np.int64))[0, 0])
        for edge in (number, number - 1)
    ]

    assert found == [2, 0]


def cells_of(start, row, edge):
    groups = np.array([[2], [0]], np.uint16)
    return GroupedCells(start, row, groups, np.array([[edge]]))


EXTRA = {"rush_hour": {"hot": ((0, 5), (2, 60))}}
GROUPS = {"none": (1, 1), "3 of 8": (8, 3)}
FIXED = {
    ("uniform", "none"): "03006db60a46761a",
    ("uniform", "3 of 8"): "82d4548d30ce1f03",
    ("zipf", "none"): "84b940300456578e",
    ("zipf", "3 of 8"): "008e7ecd705e57b9",
    ("lognormal", "none"): "0ee11d17371faa83",
    ("lognormal", "3 of 8"): "610f453f8187e2b3",
    ("rush_hour", "none"): "4673df30c0ebb3f0",
    ("rush_hour", "3 of 8"): "16abbc97193699df",
    ("latent", "none"): "251180114433911c",
    ("latent", "3 of 8"): "2f89789fc2468c07",
}


@pytest.mark.parametrize(("name", "groups"), FIXED)
def test_routes_are_fixed_for_ever(name, groups):
    """The same seed and token gave these experts in every version so far."""
    number, used = GROUPS[groups]
    sizes = {"groups": number, "top_groups": used, "seed": 9}
    source = SOURCES[name](3, 64, 6, **sizes, **EXTRA.get(name, {}))
    token = np.arange(500)
    ids = source.route(TokenKeys(token // 7, token % 5, token % 70))
    plain = np.ascontiguousarray(ids, "<u2").tobytes()

    assert hashlib.sha256(plain).hexdigest()[:16] == FIXED[name, groups]
