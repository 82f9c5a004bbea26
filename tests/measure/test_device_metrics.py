"""What experts, GPUs and passes did, summed up: worked by hand on one small run."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from moesim.measure.metrics import summarise, top_by_chance
from moesim.measure.tables import COLUMNS, Tables

NAN = float("nan")
FACTS = {"num_gpus": 2, "span_s": 5.0, "warmup_s": 0.0, "slo_ms": {}}
PARTS = ("attention", "experts", "lm_head", "queue", "straggler", "dispatch", "combine")
EXPERTS = [
    {"layer": layer, "expert": expert, "tokens": tokens, "jobs": jobs}
    | {"wait_mean_us": mean, "wait_max_us": longest}
    for layer, expert, tokens, jobs, mean, longest in [
        (0, 0, 30, 3, 2.0, 5.0),
        (0, 1, 10, 1, 6.0, 6.0),
        (1, 0, 20, 2, 1.0, 1.5),
        (1, 1, 20, 2, 1.0, 1.0),
        (2, 0, 0, 0, NAN, NAN),
        (2, 1, 0, 0, NAN, NAN),
    ]
]
GPU = {"span_s": 5.0, "kv_blocks": 10}
GPUS = [
    GPU | {"busy_s": 4.0, "useful_s": 3.0, "kv_peak_blocks": 8, "tokens": 60},
    GPU | {"busy_s": 2.0, "useful_s": 1.0, "kv_peak_blocks": 5, "padding_tokens": 20},
]
PASSES = [
    {f"{part}_s": second for part, second in zip(PARTS, row, strict=True)}
    for row in [(1, 2, 0, 0, 3, 1, 1), (1, 0, 1, 0, 0, 0, 0)]
]


def frame(name, rows):
    """Return one of the tables; columns left out of every row are 0."""
    made = pd.DataFrame([{**dict.fromkeys(COLUMNS[name], 0), **row} for row in rows])
    return made[list(COLUMNS[name])]


@pytest.fixture
def record():
    rows = {"experts": EXPERTS, "gpus": GPUS, "passes": PASSES}
    filled = {name: frame(name, found) for name, found in rows.items()}
    return summarise(replace(Tables.empty(), **filled), FACTS)


def test_uneven_experts_are_measured_by_layer(record):
    """Loads 30 and 10: CV 0.5, hottest 3/4. 20 and 20: 0 and 1/2. An idle layer: none."""
    assert record["expert_cv_median"] == pytest.approx(0.25)
    assert record["expert_cv_max"] == pytest.approx(0.5)
    assert record["top10pct_expert_share"] == pytest.approx((3 / 4 + 1 / 2) / 2)


@pytest.mark.parametrize("experts", [8, 32, 128])
@pytest.mark.parametrize("each", [1, 4, 30, 1000])
def test_the_share_by_chance_is_that_of_equal_experts(experts, each):
    """Held against draws: near for many choices, and not far off for few."""
    rng = np.random.default_rng(1)
    top, choices = -(-experts // 10), each * experts
    drawn = rng.multinomial(choices, np.full(experts, 1 / experts), 400)
    share = np.sort(drawn)[:, -top:].sum(axis=1).mean() / choices

    near = 0.05 if each < 10 else 0.01
    assert top_by_chance(choices, experts, top) == pytest.approx(share, abs=near)


@pytest.mark.parametrize(
    ("exponent", "share"), [(0.3, 0.2068), (0.8, 0.4147), (1.0, 0.5133)]
)
def test_a_tenth_of_32_experts_are_4(exponent, share):
    """Rounded up. Closed form: Zipf over 32 experts, in millions of tokens."""
    load = np.arange(1, 33.0) ** -exponent
    rows = [
        {"layer": 0, "expert": n, "tokens": round(1e6 * tokens)}
        for n, tokens in enumerate(load)
    ]
    record = summarise(replace(Tables.empty(), experts=frame("experts", rows)), FACTS)

    assert record["top10pct_expert_share"] == pytest.approx(share, abs=5e-5)


def test_jobs_weigh_the_waits_of_experts(record):
    """(3 x 2 + 1 x 6 + 4 x 1) / 8 microseconds; the longest 6."""
    assert record["mean_expert_wait_us"] == pytest.approx(2.0)
    assert record["max_expert_wait_us"] == 6.0


def test_shares_of_pass_time_sum_to_one(record):
    """Long passes weigh more: 10 seconds in all."""
    shares = {part: record[f"{part}_frac"] for part in PARTS}

    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["attention"] == pytest.approx(0.2)
    assert record["straggler_wait_frac"] == pytest.approx(0.3)
    assert record["a2a_frac"] == pytest.approx(0.2)
    assert record["passes"] == 2


def test_devices_are_measured_over_all_gpus(record):
    assert record["gpu_busy_frac"] == pytest.approx(0.6)
    assert record["gpu_useful_frac"] == pytest.approx(0.4)
    assert record["kv_peak_frac"] == pytest.approx(0.8)
    assert record["padding_frac"] == pytest.approx(0.25)
