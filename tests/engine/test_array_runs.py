"""Whole runs with continuous batching: the engine makes no difference to any request."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import moesim
from moesim.engine.instance import Instance
from moesim.engine.play import play
from moesim.policy.bundle import make_policy
from moesim.scenario.build import build

SCENARIO = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
POLICIES = ["fifo", "oldest", "per_layer", "cross_layer"]
TIMES = ("arrival", "admitted", "first", "last", "finish", "status", "generated")


def run(engine, policy, in_flight, seed):
    """Return what is written down of the first requests of the quickstart."""
    scenario = moesim.load(SCENARIO).with_(
        num_prompts=16, output_len={"type": "uniform", "min": 1, "max": 6}
    )
    parts = build(scenario, seed)
    serving = replace(parts.serving, max_in_flight=in_flight, engine=engine)
    made = make_policy(policy)
    return play(Instance(parts.system, serving, parts.source, parts.requests, made))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("in_flight", "seed"), [(1, 0), (2, 1), (4, 2)])
def test_every_request_has_the_same_times(policy, in_flight, seed):
    """Arrival, first token, every gap and the end, of every request; and all waits."""
    fast = run("array", policy, in_flight, seed)
    plain = run("event", policy, in_flight, seed)

    for name in TIMES:
        mine, yours = getattr(fast.requests, name), getattr(plain.requests, name)
        assert (mine == yours).all(), name
    mine, yours = (run.requests.gaps.part(slice(None)) for run in (fast, plain))
    assert np.array_equal(mine, yours)
    assert (fast.waits.histogram == plain.waits.histogram).all()
    assert fast.digest() == plain.digest()
    assert np.count_nonzero(fast.requests.generated) == 16
