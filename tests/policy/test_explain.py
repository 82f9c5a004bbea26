"""An explained run is the same run, and says why."""

from pathlib import Path

import pytest

import moesim
from moesim.policy.bundle import make_policy
from moesim.policy.explain import Notes, explained

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
