"""EasyBalance does what its published code does, and its idle figures come out again."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from moesim.engine.lockstep.engine import LockstepEngine
from moesim.policy.bundle import Policy
from moesim.policy.easybalance import (
    EasyBalance,
    best_subset,
    cumulative_subset,
    different_peaks,
    swapped_subset,
)
from moesim.policy.view import BatchView
from worlds import batch_of, play_batches, random_cost, tiny_system

GOLDEN = np.array([[9, 1, 1, 1], [1, 9, 1, 1], [9, 1, 1, 1], [1, 1, 5, 5]])
NOTHING = np.zeros((1, 1))


def chunk(number, loads, layer=0, deferred=0, cohort=4):
    return BatchView(
        number,
        layer,
        "experts",
        1,
        0.0,
        0.0,
        NOTHING,
        NOTHING,
        loads=np.asarray(loads),
        deferred=deferred,
        cohort=cohort,
    )


def ready(loads, **options):
    return [chunk(number, load, **options) for number, load in enumerate(loads)]


def stage(policy, chunks):
    return list(policy.stage(chunks, np.zeros(len(chunks))))


def ratio(loads, rows):
    total = loads[list(rows)].sum(axis=0)
    return total.sum() / total.max()


def plain_best(loads, fewest):
    """Return the rule as it is told: the first strict maximum by increasing bitmask."""
    best, found = -1.0, None
    for mask in range(1, 1 << len(loads)):
        rows = [row for row in range(len(loads)) if mask >> row & 1]
        if len(rows) >= fewest and ratio(loads, rows) > best + 1e-12:
            best, found = ratio(loads, rows), rows
    return found


def test_the_golden_vector():
    """Loads of four chunks, at least three: {0, 1, 3}; {1, 2, 3} ties and comes later."""
    assert stage(EasyBalance(3), ready(GOLDEN)) == [0, 1, 3]
    assert ratio(GOLDEN, [0, 1, 3]) == 36 / 11 == ratio(GOLDEN, [1, 2, 3])


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.data())
def test_the_subset_is_the_first_best(count, gpus, data):
    """Against the rule in plain words, on small loads full of ties."""
    cell = st.integers(1, 4)
    row = st.lists(cell, min_size=gpus, max_size=gpus)
    loads = np.array(data.draw(st.lists(row, min_size=count, max_size=count)))
    fewest = data.draw(st.integers(1, count))

    assert best_subset(loads, fewest) == plain_best(loads, fewest)


@pytest.mark.parametrize(("chunks", "fewest"), [(1, 3), (4, 3), (5, 4), (8, 6), (9, 7)])
def test_the_fewest_by_default(chunks, fewest):
    """Three quarters of the chunks, rounded up, but at least three."""
    assert EasyBalance().fewest(chunks) == fewest


def test_no_more_ready_than_the_fewest_all_run():
    """By the most that were in flight together, not by how many are left."""
    loads = GOLDEN[:3]

    assert stage(EasyBalance(), ready(loads, cohort=4)) == [0, 1, 2]
    assert stage(EasyBalance(), ready(GOLDEN, cohort=8)) == [0, 1, 2, 3]
    assert stage(EasyBalance(2), ready(loads)) == [0, 1]


def test_who_was_passed_over_too_often_joins():
    """`d_max` forces row 2 in, in the order of the ready; 0 forces nobody."""
    chunks = ready(GOLDEN)
    chunks[2] = chunk(2, GOLDEN[2], deferred=2)

    assert stage(EasyBalance(3, d_max=2), chunks) == [0, 1, 2, 3]
    assert stage(EasyBalance(3, d_max=3), chunks) == [0, 1, 3]
    assert stage(EasyBalance(3, d_max=0), chunks) == [0, 1, 3]


def test_the_ablations_are_what_their_names_say():
    """None: all; random: any three, the same again; the others by a look at GOLDEN."""
    chunks = ready(GOLDEN)
    draw = EasyBalance(3, strategy="random")

    assert stage(EasyBalance(3, strategy="none"), chunks) == [0, 1, 2, 3]
    assert stage(draw, chunks) == stage(draw, chunks)
    layers = [stage(draw, ready(GOLDEN, layer=layer)) for layer in range(30)]
    assert {len(rows) for rows in layers} == {3}
    assert len({tuple(rows) for rows in layers}) == 4
    # 0 alone 12/9, with 1 24/11 rises, with 2 36/20 falls, with 3 36/11 rises.
    assert cumulative_subset(GOLDEN, 1) == [0, 1, 3]
    assert cumulative_subset(GOLDEN[[0, 2, 1]], 3) == [0, 1, 2]
    # Row 2 has row 0's busiest GPU.
    assert different_peaks(GOLDEN, 1) == [0, 1, 3]
    assert different_peaks(GOLDEN[[0, 2]], 2) == [0, 1]


def test_many_chunks_come_close_to_the_best():
    """The heuristic above 12 chunks: how far under the best ratio, in the mean."""
    rng = np.random.default_rng(3)
    gaps = []
    for _ in range(12):
        loads = rng.multinomial(400, rng.dirichlet(np.ones(8)), 13)
        loads += rng.multinomial(400, rng.dirichlet(np.ones(8)), 13)[::-1]
        found = swapped_subset(loads, 10)
        best = max(
            ratio(loads, rows)
            for size in range(10, 14)
            for rows in combinations(range(13), size)
        )
        assert len(found) >= 10
        gaps.append(1 - ratio(loads, found) / best)

    assert min(gaps) >= -1e-12
    assert np.mean(gaps) < 1e-3


def test_more_chunks_than_all_subsets_can_be_tried_of():
    """Forty chunks give a stage at once."""
    loads = np.random.default_rng(0).integers(1, 9, (40, 8))

    rows = stage(EasyBalance(), ready(loads, cohort=40))

    assert len(rows) >= 30


def idle(loads, policy):
    """Return the idle work of closed chunks ``(C, L, G)``, stage after stage."""
    count, layers, _ = loads.shape
    at, waited = [0] * count, [0] * count
    line, total = list(range(count)), 0
    while line:
        chunks = [chunk(c, loads[c, at[c]], at[c], waited[c], count) for c in line]
        chosen = [line[row] for row in stage(policy, chunks)]
        load = sum(loads[c, at[c]] for c in chosen)
        total += int((load.max() - load).sum())
        for c in line:
            waited[c] = 0 if c in chosen else waited[c] + 1
            at[c] += c in chosen
        line = [c for c in line if c not in chosen] + chosen
        line = [c for c in line if at[c] < layers]
    return total


def chunks_of(rng, count, spread, noise):
    """Return ``(C, 48, 8)`` loads of 128 experts with log-normal popularity."""
    popularity = np.exp(rng.normal(0, spread, (48, 128)))
    weight = popularity * np.exp(rng.normal(0, noise, (count, 48, 128)))
    share = weight / weight.sum(axis=-1, keepdims=True)
    return np.rint(share.reshape(count, 48, 8, 16).sum(axis=-1) * 10**6).astype(int)


@pytest.mark.parametrize(
    ("count", "fewest", "noise", "cut"),
    [(4, 3, 0.1, 0.476), (4, 3, 0.3, 0.440), (6, 4, 0.1, 0.580)],
)
def test_idle_work_is_cut_as_computed_apart(count, fewest, noise, cut):
    """Rows of a Monte-Carlo of the published rule, from its own draws and from others.

    Loads are of a popularity common to the chunks (sigma 0.5) and noise of each chunk.
    """
    same, others = (
        np.array([idle_cut([*word, seed], count, fewest, noise) for seed in range(12)])
        for word in ([], [7])
    )
    before, after = others.T
    half = stats.t.ppf(0.995, 11) * np.std(1 - after / before, ddof=1) / 12**0.5

    assert 1 - same[:, 1].sum() / same[:, 0].sum() == pytest.approx(cut, abs=0.005)
    assert half < 0.04
    assert 1 - after.sum() / before.sum() == pytest.approx(cut, abs=half + 0.01)


def idle_cut(seed, count, fewest, noise):
    """Return the idle work of all ready chunks run, and of the rule."""
    loads = chunks_of(np.random.default_rng(seed), count, 0.5, noise)
    plain = EasyBalance(fewest, strategy="none")
    return idle(loads, plain), idle(loads, EasyBalance(fewest))


def test_its_place_is_lockstep():
    assert Policy(select=EasyBalance()).coupling == "lockstep"


class FirstAndLast:
    """Runs the first and the last of the ready, and notes how they stood."""

    def __init__(self):
        self.lines = []

    def stage(self, ready, keys):
        self.lines.append([(b.batch, b.layer, b.deferred) for b in ready])
        self.cohort = {b.cohort for b in ready}
        self.shown = ready[0].loads
        return sorted({0, len(ready) - 1})


def test_who_was_passed_over_stands_before_who_ran():
    """The lockstep engine lines up the ready as the published code does."""
    rng = np.random.default_rng(0)
    system = tiny_system(2, 8, 4)
    costs = [random_cost(rng, system) for _ in range(4)]
    select = FirstAndLast()
    batches = [batch_of(costs[n], n, 0) for n in range(4)]

    play_batches(system, batches, Policy(select=select), LockstepEngine)

    assert select.lines[:3] == [
        [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)],
        [(1, 0, 1), (2, 0, 1), (0, 1, 0), (3, 1, 0)],
        [(2, 0, 2), (0, 1, 1), (1, 1, 0)],
    ]
    assert select.cohort == {4}
    assert select.shown.shape == (4,)
