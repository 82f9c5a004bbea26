"""A pilot's tokens are like the run's, and none of them is one of the run's."""

import numpy as np
import pytest

from moesim.errors import InputError
from moesim.policy.place.pilot import FIRST, drawn_pilot, recorded_pilot
from moesim.workload.arrivals import PoissonArrivals
from moesim.workload.generate import WorkloadSpec, generate
from moesim.workload.lengths import GeometricLength, TraceLength, UniformLength


def workload(**changes):
    given = {
        "num_prompts": 50,
        "arrivals": PoissonArrivals(3.0),
        "input_len": UniformLength(5, 15),
        "output_len": GeometricLength(4.0),
        "classes": (("chat", 3.0), ("code", 1.0)),
    }
    return WorkloadSpec(**(given | changes))


def test_requests_are_whole_and_others_than_the_runs():
    """Positions ascend from 0, the last request is cut; numbers are beyond any run's."""
    keys = drawn_pilot(workload(), 5000, seed=0)
    begins = keys.position == 0
    lengths = np.diff(np.flatnonzero([*begins, True]))

    assert len(keys) == 5000
    assert keys.request.min() == FIRST
    assert (np.diff(keys.request) == begins[1:]).all()
    assert (np.diff(keys.position)[~begins[1:]] == 1).all()
    assert lengths[:-1].min() >= 5
    own = generate(workload(), 0)
    shared = min(len(lengths) - 1, 50)
    computed = own.input_tokens + own.output_tokens - 1
    assert (lengths[:shared] != computed[:shared]).any()


def test_classes_and_lengths_follow_the_runs_laws():
    keys = drawn_pilot(workload(), 60_000, seed=1)
    first = keys.position == 0

    assert 0.22 < keys.klass[first].mean() < 0.28
    assert 12 < len(keys) / first.sum() < 14


def test_the_pilot_follows_from_the_seed_alone():
    """Neither rate nor number of the run's requests changes what is measured."""
    one = drawn_pilot(workload(), 900, 5)
    same = drawn_pilot(workload(num_prompts=7, arrivals=PoissonArrivals(90.0)), 900, 5)
    other = drawn_pilot(workload(), 900, 6)

    for column in ("request", "klass", "position"):
        assert (getattr(one, column) == getattr(same, column)).all()
    assert (one.klass != other.klass).any()


def test_lengths_of_a_trace_are_drawn_from_it():
    """A trace may have fewer requests than the pilot needs."""
    keys = drawn_pilot(workload(input_len=TraceLength([40, 60]), output_len=1), 3000, 0)
    lengths = np.diff(np.flatnonzero(keys.position == 0))

    assert set(lengths) == {40, 60}


def test_a_log_gives_the_sequences_that_the_run_leaves():
    """Sequences 2 and 3, the latter cut; fewer tokens if no more are left."""
    lengths = np.array([5, 9, 4, 6])
    keys = recorded_pilot(lengths, 2, 7)

    assert keys.request.tolist() == [2] * 4 + [3] * 3
    assert keys.position.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert len(recorded_pilot(lengths, 2, 1000)) == 10


@pytest.mark.parametrize("used", [4, 9])
def test_a_log_that_is_used_up_gives_none(used):
    with pytest.raises(InputError, match="replays all 4 sequences"):
        recorded_pilot(np.array([5, 9, 4, 6]), used, 7)
