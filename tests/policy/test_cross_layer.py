"""`cross_layer` and `blind`: each part does its share, and off it is gone."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moesim
from moesim.engine.instance import Instance
from moesim.engine.play import play
from moesim.policy.blind import Blind
from moesim.policy.bundle import Policy, make_policy
from moesim.policy.compose import LeastPeak, least_peak
from moesim.policy.cross_layer import CrossLayer
from moesim.policy.order import crowd, stage_bottlenecks
from moesim.policy.release import excess_ahead
from moesim.policy.view import BatchView, Road, View, WaitingView
from moesim.scenario.build import build
from worlds import batch_of, play_batches, random_cost, tiny_system

FOLDER = Path(__file__).parents[2] / "scenarios"
NOW = View(1.0, np.zeros(0))
ATTENTION = np.array([[1.0, 2.0], [4.0, 3.0]])
EXPERTS = np.array([[10.0, 30.0], [20.0, 5.0]])
ROAD = Road(
    use=np.array([[0.1, 0.3], [0.0, 0.0]]),
    ahead_s=np.array([[0.0, 6.0], [2.0, 0.0]]),
)


def batch(layer=0, stage="attention", **options):
    return BatchView(7, layer, stage, 64, 3.0, 2.0, ATTENTION, EXPERTS, **options)


def waiting(load, tokens, budget, seats=99, taken=None):
    count = len(tokens)
    return WaitingView(
        request=np.arange(count),
        klass=np.zeros(count, int),
        arrival_s=np.arange(count) / 10,
        tokens=np.asarray(tokens),
        budget=budget,
        seats=seats,
        load=np.asarray(load, float),
        taken=np.zeros(np.shape(load)[1:]) if taken is None else taken,
    )


# --- composition ---------------------------------------------------------------


def test_the_oldest_comes_in_with_whom_it_fits_best():
    """Row 0 loads GPU 0; row 2 loads GPU 1 and fills the gap that row 1 would not."""
    load = [[[8, 0]], [[8, 0]], [[0, 8]]]

    assert least_peak(waiting(load, [8, 8, 8], 16)) == [0, 2]
    assert LeastPeak().sequence(waiting(load, [8, 8, 8], 16), NOW).tolist() == [0, 2, 1]


def test_what_is_in_already_counts():
    """Other ranks' and running requests' work on GPU 1 makes GPU 0 the better place."""
    load = [[[1, 1]], [[0, 4]], [[4, 0]]]
    taken = np.array([[0.0, 9.0]])

    assert least_peak(waiting(load, [2, 4, 4], 6)) == [0, 1]
    assert least_peak(waiting(load, [2, 4, 4], 6, taken=taken)) == [0, 2]


def plain_least_peak(view):
    """Return the rule in plain words."""
    chosen = [0]
    while len(chosen) < view.seats:
        best = None
        for row in range(len(view.load)):
            tokens = sum(view.tokens[r] for r in [*chosen, row])
            if row in chosen or tokens > view.budget:
                continue
            peak = (view.taken + sum(view.load[r] for r in [*chosen, row])).max(axis=1)
            score = peak.sum() / tokens
            if best is None or score < best[0] * (1 - 1e-9):
                best = score, row
        if best is None:
            break
        chosen.append(best[1])
    return chosen


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(0, 60))
def test_composition_is_the_rule_in_plain_words(seed, count, budget):
    rng = np.random.default_rng(seed)
    load = rng.integers(0, 4, (count, 2, 3))
    tokens = rng.integers(1, 20, count)
    view = waiting(load, tokens, budget, int(rng.integers(1, 6)))

    rows = least_peak(view)

    assert rows == plain_least_peak(view)
    rest = tokens[rows[1:]].sum()
    assert rows[0] == 0
    assert len(rows) == 1 or tokens[0] + rest <= budget


def test_nothing_known_is_by_arrival():
    empty = np.zeros((0, 1, 1))
    view = waiting(np.zeros((3, 1, 1)), [4, 4, 4], 9)

    assert CrossLayer().sequence(replace(view, load=empty), NOW).tolist() == [0, 1, 2]


# --- order ---------------------------------------------------------------------


def test_a_crowd_is_share_of_time_and_of_work_ahead():
    """Each over its mean, 1 on average; nothing known is 1 everywhere."""
    use, ahead = ROAD.use / 0.1, ROAD.ahead_s / 2.0

    np.testing.assert_allclose(crowd(ROAD), (use + ahead) / 2)
    assert crowd(ROAD).mean() == pytest.approx(1.0)
    nothing = Road(np.zeros((2, 2)), np.zeros((2, 2)))
    assert (crowd(nothing) == 1).all()


def test_congestion_weighs_the_road_to_come():
    """Weight 1 is in proportion to the crowd, 0 is as any other; attention is as is."""
    crowded = EXPERTS * crowd(ROAD)

    found = stage_bottlenecks(batch(road=ROAD), 1.0)
    assert found.tolist() == [2, crowded[0].max(), 4, crowded[1].max()]
    assert stage_bottlenecks(batch(road=ROAD)).tolist() == [2, 30, 4, 20]
    assert stage_bottlenecks(batch(), 1.0).tolist() == [2, 30, 4, 20]


def test_decode_has_settings_of_its_own():
    """-1 is the prefill's; only micro-batches that only decode obey the others."""
    policy = CrossLayer(ageing=0.5, decode_ageing=2.0, decode_order=0.0)

    assert policy.key(batch(), NOW) == 56 + 0.5 * 2
    assert policy.key(batch(decoding=True), NOW) == 2.0 * 2
    assert CrossLayer().key(batch(decoding=True), NOW) == CrossLayer().key(batch(), NOW)


def test_blind_is_cross_layer_with_its_eyes_shut():
    """Same key from the same view; what it is shown is the counts'."""
    blind = make_policy("blind")

    assert Blind().key(batch(), NOW) == CrossLayer().key(batch(), NOW)
    assert blind.knowledge == blind.foresight.knowledge == "counts"
    assert blind.foresight.look == CrossLayer().foresight.look
    assert blind.wait_budget_s == CrossLayer().wait_budget_s


# --- release -------------------------------------------------------------------


def test_the_excess_is_what_others_would_not_meet():
    """GPU 1 is busiest in layer 0; 6 s are ahead there, 3 s on average."""
    assert excess_ahead(batch(road=ROAD), 1) == 3.0
    assert excess_ahead(batch(road=ROAD), 2) == 6 - 4
    assert excess_ahead(batch(), 2) == 0.0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 9), st.integers(0, 2**32 - 1))
def test_nobody_is_held_beyond_the_budget(hold, patience, budget, seed):
    rng = np.random.default_rng(seed)
    road = Road(rng.random((2, 2)), 9 * rng.random((2, 2)), patience)
    policy = CrossLayer(hold=hold, wait_budget_s=budget)

    delay = policy.delay(batch(road=road), NOW)

    assert 0 <= delay <= hold * patience * budget
    assert delay <= excess_ahead(batch(road=road), policy.early)


def test_held_back_with_no_end_is_as_long_as_it_helps():
    policy = CrossLayer(hold=1.0, wait_budget_s=inf)

    assert policy.delay(batch(road=ROAD), NOW) == 2.0


# --- laws ----------------------------------------------------------------------

OFF = {"name": "cross_layer", "look": 0, "order": 0, "ageing": 0, "hold": 0}
WORLDS = {
    "rush": ("seed_rush_hour", 30, {}),
    "chat": ("quickstart", 10, {"serving.max_in_flight": 4}),
    "classes": ("rush_hour", 24, {}),
    "lockstep": ("seed_rush_hour", 30, {"serving.coupling": "lockstep"}),
    "per_expert": ("seed_rush_hour", 30, {"kernels.experts": "per_expert"}),
    "data_parallel": ("rush_hour", 24, {"cluster.tensor_parallel": 1}),
}


def played(world, policy, **changes):
    """Return what is written down of a shipped scenario, cut short, under a policy."""
    name, prompts, more = WORLDS[world]
    scenario = moesim.load(FOLDER / f"{name}.yaml")
    more = {"num_prompts": prompts, **more, **changes}
    if name == "quickstart":
        more["output_len"] = {"type": "uniform", "min": 1, "max": 5}
    parts = build(scenario.with_(more), scenario.seed)
    instance = Instance(
        parts.system, parts.serving, parts.source, parts.requests, make_policy(policy)
    )
    return play(instance)


@pytest.mark.parametrize("world", WORLDS)
def test_everything_off_is_fifo_to_the_tick(world):
    assert played(world, OFF).digest() == played(world, "fifo").digest()


PARTS = {
    "whole": {},
    "by_class, congestion": {"congestion": 1.0},
    "held": {"hold": 1.0, "wait_budget": "3ms", "congestion": 0.5},
    "lookahead": {"predictor": "lookahead", "hit_rate": 0.5},
    "oracle": {"knowledge": "oracle"},
    "present": {"knowledge": "present"},
    "decode": {"decode_order": 0.0, "decode_hold": 0.5},
}


@pytest.mark.parametrize(
    ("world", "part"),
    [("classes", part) for part in PARTS]
    + [("chat", "decode"), ("chat", "held"), ("rush", "held"), ("rush", "oracle")]
    + [("data_parallel", "whole"), ("data_parallel", "lookahead")],
)
def test_both_engines_play_every_part_alike(world, part):
    """All that a policy remembers changes only at instants that both engines share."""
    policy = {"name": "cross_layer", **PARTS[part]}
    runs = [
        played(world, policy, **{"serving.engine": engine})
        for engine in ("event", "array")
    ]

    assert [run.engine for run in runs] == ["event", "array"]
    assert runs[0].digest() == runs[1].digest()


def test_every_part_makes_a_difference():
    """The tests above can fail: no part is idle where experts follow the class."""
    digests = {
        part: played("classes", {"name": "cross_layer", **PARTS[part]}).digest()
        for part in PARTS
        if part not in ("decode", "present")
    }

    assert len(set(digests.values())) == len(digests)


@pytest.mark.parametrize("world", ["rush", "classes"])
def test_an_oracle_that_only_orders_does_the_same_work(world):
    """With all there from the start: every expert's tokens and seconds, to the tick."""
    changes = {"workload.arrivals": "batch", "num_prompts": 90}
    order = {"name": "cross_layer", "knowledge": "oracle", "look": 0}

    plain, ordered = (played(world, policy, **changes) for policy in ("fifo", order))

    assert ordered.digest() != plain.digest()
    assert (ordered.slot_tokens == plain.slot_tokens).all()
    assert (ordered.slot_service == plain.slot_service).all()


def test_one_in_flight_leaves_nothing_to_order():
    """A negative control: ordering one micro-batch changes no event."""
    order = {"name": "cross_layer", "look": 0, "congestion": 1}
    alone = {"serving.max_in_flight": 1}

    assert played("classes", order, **alone).digest() == (
        played("classes", "fifo", **alone).digest()
    )


def test_a_predictor_that_never_hits_is_worth_as_much_as_popularity():
    """Hit rate 0 sees popularity draws only: the oracle's path is not in it."""
    blindfold = {"name": "cross_layer", "predictor": "lookahead", "hit_rate": 0.0}
    sure = {"name": "cross_layer", "predictor": "lookahead", "hit_rate": 1.0}
    oracle = {"name": "cross_layer", "predictor": "oracle"}

    digests = [played("classes", policy).digest() for policy in (blindfold, oracle)]
    assert digests[0] != digests[1]
    assert played("classes", sure).digest() == digests[1]


class Against:
    """An adversary: one micro-batch goes last everywhere, if keys alone decide."""

    def __init__(self, victim, budget_s):
        self.victim = victim
        self.wait_budget_s = budget_s

    def key(self, batch, view):
        return float(batch.batch == self.victim)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.integers(1, 12))
def test_no_job_waits_past_budget_residual_and_overdue_work(seed, count, budget):
    """Whoever the adversary starves: the budget, one job, and what was there before.

    Of each other micro-batch at most one segment can have come to a GPU before.
    """
    rng = np.random.default_rng(seed)
    system = tiny_system(3, 8, 4, experts="per_expert")
    costs = [random_cost(rng, system, empty=0.1) for _ in range(count)]
    admitted = np.sort(rng.integers(0, 20, count)).tolist()
    batches = [batch_of(costs[n], n, admitted[n]) for n in range(count)]
    victim = int(rng.integers(count))
    policy = Policy(order=Against(victim, budget * 1e-12))

    _, recorder = play_batches(system, batches, policy)

    segment = [
        np.concatenate([c.attention, c.experts.sum(axis=1), c.tail[None]])
        for c in costs
    ]
    ahead = sum(parts.max(axis=0) for parts in segment)
    longest = max(max(c.attention.max(), c.experts.max(), c.tail.max()) for c in costs)
    maximum = recorder.waits.maximum.reshape(3, 4, -1).max(axis=(0, 2))
    assert (maximum <= budget + longest + ahead).all()


def test_without_a_budget_the_adversary_starves_its_victim():
    """The bound can fail: the victim comes first, and others with better keys later.

    Nothing is older than its jobs but their own; only the budget protects them.
    """
    rng = np.random.default_rng(1)
    system = tiny_system(1, 4, 1, top_k=1, experts="per_expert")
    costs = [random_cost(rng, system, empty=0.0) for _ in range(8)]
    for cost in costs:
        cost.attention[:] = cost.tx[:] = cost.rx[:] = cost.tail[:] = 0
    batches = [batch_of(costs[n], n, 2 * n) for n in range(8)]

    worst = []
    for budget in (5e-12, inf):
        policy = Policy(order=Against(0, budget))
        done, _ = play_batches(system, batches, policy)
        worst.append(done[0] - costs[0].experts.sum())
    longest = max(cost.experts.max() for cost in costs)

    assert worst[0] <= 5 + longest < worst[1]
