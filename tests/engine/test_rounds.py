"""Barriers of several lanes at once, and passes alone, against the event engine.

Durations lie on a coarse grid, so that ties, idle GPUs and silent ports are the rule.
"""

import numpy as np
import pytest

from moesim.engine.clock import FAR
from moesim.engine.together.costs import Shape
from moesim.engine.together.rounds import Rounds
from moesim.engine.together.shares import Whole
from moesim.engine.together.solo import parts_of, walk_alone
from moesim.measure.columns import PARTS
from worlds import batch_of, play_batches, random_cost, tiny_system

PASSES, LANES = 4, 3


def world(rng, kernel="grouped"):
    """Return a small system of one or two nodes, and the latencies of its ports."""
    nodes = int(rng.integers(1, 3))
    system = tiny_system(layers=2, gpus=4, nodes=nodes, experts=kernel)
    return system, rng.integers(1, 4, 2)


def batches_of(rng, system, latency):
    """Return passes that are admitted at awkward instants, many of them together."""
    admitted = np.sort(rng.integers(0, 40, PASSES)).tolist()
    found = []
    for number, instant in enumerate(admitted):
        cost = random_cost(rng, system, largest=int(rng.integers(2, 9)))
        cost.latency[:] = latency
        found.append(batch_of(cost, number, instant))
    return found


class Lanes:
    """Lanes whose passes come when they say."""

    def __init__(self, system, latency, batches):
        topology = system.topology
        shape = Shape(
            lanes=len(batches),
            places=PASSES,
            segments=2 * len(system.model.moe_layers) + 1,
            ports=1 if topology.nodes == 1 else 2,
            gpus=topology.gpus,
        )
        self.system = system
        self.batches = batches
        self.rounds = Rounds(shape, latency)
        self.waiting = [list(enumerate(of_lane)) for of_lane in batches]
        self.standing = [[] for _ in batches]
        self.ended = [{} for _ in batches]

    def play(self, rng):
        """Let random lanes take part in each round, until nothing is left."""
        while True:
            open_ = [
                lane for lane in range(len(self.batches)) if self._next(lane) < FAR
            ]
            if not open_:
                return
            some = [lane for lane in open_ if rng.random() < 0.7] or open_
            barriers = [lane for lane in some if self._at_barrier(lane)]
            for lane in [b for b in barriers if self.rounds.leaving[b]]:
                barriers.remove(lane)
                self._leave(lane)
            if barriers:
                self.rounds.step(barriers, [])
            joining = [lane for lane in some if not self._at_barrier(lane)]
            joining = [lane for lane in joining if self.waiting[lane]]
            if joining:
                self.rounds.step([], [self._join(lane) for lane in joining])

    def _coming(self, lane):
        return self.waiting[lane][0][1].admitted if self.waiting[lane] else FAR

    def _next(self, lane):
        return min(self._coming(lane), self.rounds.due[lane])

    def _at_barrier(self, lane):
        due = self.rounds.due[lane]
        return due < FAR and due <= self._coming(lane)

    def _join(self, lane):
        home, batch = self.waiting[lane].pop(0)
        whole = Whole(batch, self.system.topology.gpus, self.system.experts)
        self.rounds.costs.load(np.array([lane]), np.array([home]), whole)
        self.standing[lane].append(home)
        return lane, home, batch.admitted

    def _leave(self, lane):
        done = self.rounds.due[lane]
        home = self.standing[lane].pop(self.rounds.next[lane])
        self.ended[lane][home] = done, *self.rounds.leave(lane)


@pytest.mark.parametrize("seed", range(60))
def test_lanes_end_when_each_would_alone(seed):
    """To the tick, whichever lanes take part in a round; and the parts are the same."""
    rng = np.random.default_rng(seed)
    system, latency = world(rng)
    batches = [batches_of(rng, system, latency) for _ in range(LANES)]
    lanes = Lanes(system, latency, batches)
    lanes.play(rng)

    for of_lane, ended in zip(batches, lanes.ended, strict=True):
        done, recorder = play_batches(system, of_lane)
        assert [ended[number][0] for number in range(PASSES)] == done
        came = np.stack([ended[number][1] for number in range(PASSES)], axis=2)
        post = np.stack([ended[number][2] for number in range(PASSES)], axis=2)
        parts = dict(zip(PARTS, parts_of(came, post).sum(axis=2), strict=True))
        known = dict(zip(PARTS, recorder.parts, strict=True))
        for part in ("straggler", "dispatch", "combine"):
            assert (parts[part] == known[part]).all(), part


@pytest.mark.parametrize("kernel", ["grouped", "per_expert"])
@pytest.mark.parametrize("seed", range(60))
def test_a_pass_alone_has_a_closed_form(seed, kernel):
    rng = np.random.default_rng(seed)
    system, _ = world(rng, kernel)
    cost = random_cost(rng, system, largest=int(rng.integers(2, 40)))
    # A slow receiver is not done when the next phase begins.
    cost.rx[...] *= rng.integers(1, 12, cost.rx.shape)
    table = walk_alone(cost, system.topology.gpus)
    (done,), recorder = play_batches(system, [batch_of(cost)])

    assert table.end.tolist() == [done]
    parts = dict(zip(PARTS, parts_of(table.entered, table.posted), strict=True))
    known = dict(zip(PARTS, recorder.parts, strict=True))
    for part in ("straggler", "dispatch", "combine"):
        assert (parts[part][:, 0] == known[part]).all(), part
