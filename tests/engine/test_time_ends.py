"""Where whole picoseconds end, a run says so: no fault, no wrong sum."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import moesim
from moesim.engine.clock import LONGEST_S, ticks_of
from moesim.engine.instance import Instance
from moesim.engine.play import play
from moesim.errors import InputError, SimulationError
from moesim.measure import columns
from moesim.scenario.build import build

FOLDER = Path(__file__).parents[2] / "scenarios"
TINY = moesim.load_text("""\
model: seed-8x32
routing: uniform
workload: {num_prompts: 6, input_len: 4, output_len: 3}
serving: {max_num_batched_tokens: 4, max_in_flight: 2}
""")


@pytest.mark.parametrize("speed", [1e-12, 1e-9, 0.999e-3, 10.1])
def test_a_speed_nobody_has_is_refused(speed):
    with pytest.raises(InputError, match=r"cluster\.speed\.0"):
        TINY.with_({"cluster.speed": {0: speed}})


@pytest.mark.parametrize("engine", ["array", "event"])
def test_the_slowest_gpu_that_may_be_is_simulated(engine):
    """A thousand times the work, a thousand times the time."""
    slow = dict.fromkeys(range(8), 0.001)
    own = TINY.with_({"serving.engine": engine})
    found, usual = (
        moesim.run(scenario) for scenario in (own.with_({"cluster.speed": slow}), own)
    )

    ratio = found.gpus["attention_s"].sum() / usual.gpus["attention_s"].sum()
    assert ratio == pytest.approx(1000, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"placement.rebalance": {"name": "vllm", "planning": "1e9 s"}}, "planning"),
        ({"residency": {"hbm_experts": "50%", "sync": "1e9 s"}}, "sync"),
        ({"warmup": "1e300 s"}, "warmup"),
        ({"slo": {"ttft": "1297 h"}}, "ttft"),
    ],
    ids=["planning", "sync", "warmup", "slo"],
)
def test_a_duration_longer_than_any_run_is_refused(changes, key):
    with pytest.raises(InputError, match=key):
        TINY.with_(changes)


@pytest.mark.parametrize(
    ("bandwidth", "sync_s"),
    [(1e9, 4e6), (1.0, 0.0), (1e3, 0.0)],
    ids=["sync", "one load", "many loads"],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_a_run_that_outlives_the_clock_says_so(bandwidth, sync_s):
    """No file may ask for such hosts; who builds a system of their own may."""
    parts = build(TINY.with_({"residency": {"hbm_experts": "50%"}}), 0)
    system = parts.system
    gpu = replace(system.topology.gpu, host_bandwidth=bandwidth)
    system = replace(
        system,
        topology=replace(system.topology, gpu=gpu),
        residency=replace(system.residency, sync_s=sync_s),
    )
    made = parts.serving, parts.source, parts.requests, parts.policy

    with pytest.raises(SimulationError, match=r"time ends|picoseconds end"):
        play(Instance(system, *made))


def test_plans_that_take_longer_than_all_time_say_so():
    """Each is allowed, one after the other they are not."""
    moving = moesim.load(FOLDER / "rebalance.yaml").with_(num_prompts=60)
    loop = {"planning": "4e6 s", "window": 2, "interval": 2}

    with pytest.raises(SimulationError, match="simulated time ends"):
        moesim.run(moving.with_(placement={"rebalance": loop}))


def test_gpu_seconds_are_counted_over_all_gpus_and_passes(monkeypatch):
    """What sums over both would hold is the first to be too long."""
    passes = moesim.run(TINY).passes
    spans = passes["done_s"] - passes["admitted_s"]
    total = round(float(spans.sum()) * 8 * 1e12)

    monkeypatch.setattr(columns, "MOST", total + 8 * len(passes))
    moesim.run(TINY)
    monkeypatch.setattr(columns, "MOST", total - 8 * len(passes))
    with pytest.raises(SimulationError, match="GPU-seconds"):
        moesim.run(TINY)


def test_a_duration_beyond_the_clock_is_no_fault():
    with pytest.raises(SimulationError, match=r"time ends at 4\.6e"):
        ticks_of(np.array([1.0, 2 * LONGEST_S]))
