"""An explained run is the same run, and says why."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import moesim
from moesim.policy.bundle import make_policy
from moesim.policy.compose import LeastPeak
from moesim.policy.explain import CROWDED, Notes, crowded, explained
from moesim.policy.road import NOTHING, Road

SCENARIO = Path(__file__).parents[2] / "scenarios" / "rush_hour.yaml"
POLICIES = [
    "fifo",
    "oldest",
    "blind",
    {"name": "cross_layer", "hold": 1, "congestion": 1},
    "easybalance",
]


def run(policy, **changes):
    scenario = moesim.load(SCENARIO).with_({"num_prompts": 30, **changes})
    return moesim.run(scenario, policy=policy)


@pytest.mark.parametrize("given", POLICIES, ids=str)
def test_witnesses_change_nothing(given):
    notes = Notes()
    digests = [
        run(policy).manifest["event_digests"]
        for policy in (make_policy(given), explained(make_policy(given), notes))
    ]

    assert digests[0] == digests[1]
    assert bool(notes.kept) == (given != "fifo")


def test_the_notes_of_a_request_tell_its_story():
    """Tried in the line, then released, then a key for each of its 25 stages."""
    notes = Notes(request=12)
    policy = make_policy({"name": "cross_layer", "hold": 1, "congestion": 1})
    run(explained(policy, notes), **{"workload.arrivals": "batch"})

    kinds = [note.what for note in notes.kept]
    assert kinds[0] == "line"
    assert kinds[kinds.index("held") :] == ["held"] + ["key"] * 25
    assert all(12 in note.requests for note in notes.kept)
    keys = [note.figures for note in notes.kept if note.what == "key"]
    for figures in keys:
        assert figures["key"] == pytest.approx(figures["work"] + figures["age"])
    works = [figures["work"] for figures in keys]
    assert works[0] > works[12] > works[-1] == 0.0
    assert max(figures["before"] for figures in keys) > 0
    assert "micro-batch" in str(notes.kept[-1])
    assert "ms: waiting line: line: place" in str(notes.kept[0])


def test_who_was_passed_over_in_lockstep_is_told():
    notes = Notes()
    run(explained(make_policy("easybalance"), notes))

    joins = [note.figures["joins"] for note in notes.kept if note.what == "stage"]
    assert 0 < sum(joins) < len(joins)


class Shy:
    """An order that goes by what it is shown, and asks for no map."""

    knowledge = "predicted"

    def key(self, batch, view):
        return float(batch.batch) if batch.road is None else -float(batch.batch)

    def delay(self, batch, view):
        return 0.0 if batch.road is None else 1e-3


@pytest.mark.parametrize(
    "policy",
    [make_policy(Shy()), replace(make_policy("oldest"), compose=LeastPeak())],
    ids=["a role that looks for a road", "a composition with foresight"],
)
def test_roles_are_shown_what_the_policy_asks_for(policy):
    notes = Notes()
    plain, told = (run(each) for each in (policy, explained(policy, notes)))

    assert told.manifest["event_digests"] == plain.manifest["event_digests"]
    assert notes.kept


def test_the_most_crowded_experts_on_the_road_are_told():
    """Only those to which it brings more than to others; the fullest layers first."""
    own = np.array([[4.0, 0, 0, 0], [0, 2, 2, 0], [1, 1, 1, 1], [0, 0, 0, 4]])
    rate = np.array([[2.0, 6, 0, 0], [9, 1, 5, 1], [8, 0, 0, 0], [4, 4, 4, 4]])
    road = Road(use=NOTHING, ahead_s=NOTHING, experts=rate, own=own)

    found = crowded(road)

    cells = [(cell["layer"], cell["expert"], cell["crowd"]) for cell in found]
    assert cells == [(1, 2, 1.25)]
    assert found[0]["tokens_per_s"] == 5.0
    assert found[0]["brings"] == 2.0


def test_crowded_experts_are_those_of_passes_that_have_ended():
    """None is told of the first micro-batch, and what it brings is what is guessed."""
    notes = Notes()
    policy = make_policy("cross_layer")
    run(explained(policy, notes))

    roads = [note for note in notes.kept if note.what == "road"]
    assert roads
    assert roads[0].batch > 0
    assert all(note.figures["crowd"] > 1 for note in roads)
    counts = Counter(note.batch for note in roads)
    assert max(counts.values()) == CROWDED


def test_notes_of_several_requests():
    notes = Notes(request=(3, 12))
    run(explained(make_policy("oldest"), notes))

    assert {3, 12} <= {r for note in notes.kept for r in note.requests}
    assert all({3, 12} & set(note.requests) for note in notes.kept)
