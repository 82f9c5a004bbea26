"""Candidates on several cores come out as they do on one, to the last row."""

import os
from signal import SIGKILL

import numpy as np
import pytest

import moesim
from moesim import workers
from moesim.errors import InputError, SimulationError
from moesim.policy.bundle import make_policy
from moesim.replicate import Candidate
from moesim.scenario.load import load_text

SCENARIO = load_text("""\
model: mixtral-8x7b
routing: {name: zipf, exponent: 0.8}
workload: {num_prompts: 12, input_len: 100, output_len: 3}
serving: {max_in_flight: 2}
""")
POLICIES = ["fifo", "oldest", "cross_layer"]


class Backwards:
    """A role that no other process knows."""

    def key(self, batch, view):
        return -float(batch.batch)


@pytest.fixture
def spread(monkeypatch):
    """Say that starting processes always pays, and count how often they are started."""
    started = []
    real = workers._Spread

    def counted(candidates, *rest):
        started.append(len(candidates))
        return real(candidates, *rest)

    monkeypatch.setattr(workers, "WORTH_S", -1.0)
    monkeypatch.setattr(workers, "_cores", lambda: 2)
    monkeypatch.setattr(workers, "_Spread", counted)
    return started


def test_processes_change_nothing(spread, monkeypatch):
    """Rows, tables, digests and figures are those of a comparison in one process."""
    told = []
    many = moesim.compare(
        SCENARIO, POLICIES, replications=2, progress=lambda *news: told.append(news)
    )
    assert spread == [2]
    monkeypatch.setattr(workers, "_cores", lambda: 1)
    one = moesim.compare(SCENARIO, POLICIES, replications=2)

    assert spread == [2]
    assert many.rows == one.rows
    for name in POLICIES:
        ours, theirs = many.results[name], one.results[name]
        assert ours.manifest["event_digests"] == theirs.manifest["event_digests"]
        assert ours.summaries == theirs.summaries
        for table in ("requests", "gaps", "passes", "experts", "gpus", "links"):
            assert getattr(ours, table).equals(getattr(theirs, table)), table
        np.testing.assert_array_equal(ours.traffic, theirs.traffic)
        assert ours.plot.cdf() is not None
    assert told
    assert all(0 <= part <= 1 for _, part in told)


def test_a_class_of_the_callers_own_stays_in_this_process(spread):
    """Another process might not know it."""
    moesim.compare(SCENARIO, ["fifo", "oldest", Backwards], replications=2)

    assert spread == []


def test_short_comparisons_start_no_processes(spread, monkeypatch):
    """Starting one costs a second."""
    monkeypatch.setattr(workers, "WORTH_S", 1e9)

    moesim.compare(SCENARIO, POLICIES, replications=2)

    assert spread == []


def candidates_of(*scenarios):
    policy = make_policy("fifo")
    return [Candidate(scenario, policy) for scenario in scenarios]


def no_figures(result):
    return None


def test_an_error_in_a_process_is_told_here(spread):
    """As it would be if it had happened in this one."""
    far = {"workload.arrivals": {"type": "poisson", "request_rate": 1e-6}}
    broken = SCENARIO.with_(far)

    with pytest.raises(InputError, match="simulated time ends"):
        workers.replicate_all(
            candidates_of(SCENARIO, SCENARIO, broken), lambda *_: None, no_figures
        )


def test_a_process_that_is_killed_is_noticed(spread):
    """Nobody waits for ever for what will not come."""

    def kill(spread):
        for process in spread.running.values():
            os.kill(process.pid, SIGKILL)

    long = SCENARIO.with_({"workload.num_prompts": 3000})
    one = workers._Spread(candidates_of(long, long), lambda *_: kill(one), no_figures)

    with pytest.raises(SimulationError, match="was killed"):
        one.results(2)
