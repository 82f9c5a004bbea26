"""Golden runs: nothing changes unnoticed; every run is also held to the laws.

The figures of a run against its baseline are written to ``results/ci``.
``make baseline`` accepts what runs give now.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import moesim
from moesim.plot.regression import against_baseline
from moesim.plot.style import png

ROOT = Path(__file__).parents[2]
BASELINES = Path(__file__).parent / "baselines"
PICTURES = ROOT / "results" / "ci"
KEPT = (
    "duration",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "total_token_throughput",
    "balancedness_vllm",
    "straggler_wait_frac",
    "a2a_frac",
    "gpu_busy_frac",
    "gpu_useful_frac",
    "passes",
)
RUNS = {
    f"{scenario}-{policy}": (scenario, policy)
    for scenario in ("quickstart", "seed_uniform", "seed_rush_hour")
    for policy in ("fifo", "cross_layer")
}


@pytest.fixture(scope="module", params=RUNS, ids=lambda name: name)
def golden(request):
    scenario, policy = RUNS[request.param]
    path = ROOT / "scenarios" / f"{scenario}.yaml"
    result = moesim.run(moesim.load(path).with_(num_prompts=40), policy=policy)
    return request.param, result


def test_a_run_gives_its_baseline(golden, request):
    """The same figures as before, to rounding; a picture says what changed."""
    name, result = golden
    now = {key: result.summary[key] for key in KEPT if result.summary[key] is not None}
    path = BASELINES / f"{name}.json"
    if request.config.getoption("--update-baseline"):
        BASELINES.mkdir(exist_ok=True)
        path.write_text(json.dumps(now, indent=2, sort_keys=True) + "\n")
    before = json.loads(path.read_text())
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = png(
        against_baseline(name, now, {key: before[key] for key in KEPT if key in before})
    )
    (PICTURES / f"{name}.png").write_bytes(picture)

    assert sorted(now) == sorted(before)
    for key, value in now.items():
        assert value == pytest.approx(before[key], rel=1e-9), key


def test_a_golden_run_keeps_the_laws(golden):
    """Beside every golden figure stands a law: all requests end, all parts sum."""
    _, result = golden
    passes = result.passes
    parts = passes[
        [c for c in passes if c.endswith("_s") and c not in ("admitted_s", "done_s")]
    ]

    assert (result.requests["status"] == "finished").all()
    np.testing.assert_allclose(
        parts.sum(axis=1), passes["done_s"] - passes["admitted_s"], rtol=1e-9
    )
    assert result.experts.groupby("layer")["tokens"].sum().nunique() == 1
