"""Verdicts are right: seldom a false alarm, seldom a missed effect, never without proof."""

from math import isnan, sqrt

import numpy as np
import pytest

from moesim.errors import InputError
from moesim.measure.compare import (
    DEFAULT_METRICS,
    compare_paired,
    higher_is_better,
    lower_is_better,
    verdict,
)
from moesim.measure.intervals import LEVEL, holm

TTFT, RATE = "p99_ttft_ms", "request_throughput"


def records(**columns):
    """Return one record a replication from the columns of metrics."""
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]


def only_row(summaries, metric=TTFT):
    (row,) = compare_paired(summaries, "fifo", [metric])
    return row


def test_a_row_says_what_was_measured():
    """Worked by hand: differences -1, -2, -3; t(2, 0.975) = 4.302653."""
    row = only_row(
        {
            "fifo": records(p99_ttft_ms=[10.0, 20.0, 30.0]),
            "new": records(p99_ttft_ms=[9.0, 18.0, 27.0]),
        }
    )

    reach = 4.302653 / sqrt(3)
    assert (row["policy"], row["metric"]) == ("new", TTFT)
    assert (row["baseline"], row["value"], row["difference"]) == (20.0, 18.0, -2.0)
    assert row["relative"] == pytest.approx(-0.1)
    assert (row["low"], row["high"]) == pytest.approx((-2 - reach, -2 + reach))
    assert row["p_value"] == pytest.approx(0.0742, abs=1e-4)
    assert row["verdict"] == "no difference"


def test_needed_runs_narrow_the_interval_to_two_percent():
    """Standard deviation 1 against a half width of 0.02 x 20: t(26) / sqrt(27) = 0.396."""
    row = only_row(
        {
            "fifo": records(p99_ttft_ms=[10.0, 20.0, 30.0]),
            "new": records(p99_ttft_ms=[9.0, 18.0, 27.0]),
        }
    )

    assert row["needed"] == 27


@pytest.mark.parametrize(
    ("metric", "shift", "expected"),
    [
        (TTFT, -1.0, "better"),
        (TTFT, +1.0, "worse"),
        (RATE, +1.0, "better"),
        (RATE, -1.0, "worse"),
        ("kv_peak_frac", +1.0, "differs"),
        (TTFT, 0.0, "no difference"),
    ],
)
def test_verdicts_know_the_good_direction(metric, shift, expected):
    before = np.arange(1.0, 9.0)
    after = before + shift * np.linspace(0.9, 1.1, 8)
    pair = {"fifo": records(**{metric: before}), "new": records(**{metric: after})}

    assert only_row(pair, metric)["verdict"] == expected


def test_equal_runs_are_no_difference():
    """Order-only policies leave total work alone, to the last digit: no spread at all."""
    same = records(p99_ttft_ms=[3.3, 4.4, 5.5])
    row = only_row({"fifo": same, "new": same})

    assert (row["difference"], row["low"], row["high"]) == (0.0, 0.0, 0.0)
    assert (row["verdict"], row["needed"]) == ("no difference", 2)


def test_one_run_gives_no_verdict():
    row = only_row(
        {"fifo": records(p99_ttft_ms=[9.0]), "new": records(p99_ttft_ms=[1.0])}
    )

    assert row["difference"] == -8.0
    assert isnan(row["low"])
    assert (row["verdict"], row["needed"]) == ("no difference", None)


def test_a_baseline_of_zero_has_no_percentage():
    row = only_row(
        {
            "fifo": records(rejected=[0, 0, 0]),
            "new": records(rejected=[1, 2, 1]),
        },
        "rejected",
    )

    assert (row["relative"], row["needed"]) == (None, None)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_what_some_run_lacks_is_not_compared(missing):
    """A run in which no request finished has no latency."""
    rows = compare_paired(
        {
            "fifo": records(p99_ttft_ms=[1.0, missing], failed=[1, 2]),
            "new": records(p99_ttft_ms=[1.0, 2.0], failed=[1, 2]),
        },
        "fifo",
        [TTFT, "failed", "no_such_metric"],
    )

    assert [row["metric"] for row in rows] == ["failed"]


def test_rows_come_metric_by_metric_in_the_order_asked():
    runs = records(p99_ttft_ms=[1.0, 2.0], failed=[1, 2])
    rows = compare_paired(
        {"b": runs, "fifo": runs, "a": runs}, "fifo", ["failed", TTFT]
    )

    names = [(row["metric"], row["policy"]) for row in rows]
    assert names == [("failed", "b"), ("failed", "a"), (TTFT, "b"), (TTFT, "a")]


def test_an_unknown_baseline_gets_the_nearest_name():
    with pytest.raises(InputError, match="did you mean 'fifo'"):
        compare_paired({"fifo": [{}], "new": [{}]}, "fifoo", [TTFT])


def test_unequally_many_runs_cannot_be_paired():
    with pytest.raises(InputError, match=r"\{'fifo': 2, 'new': 1\}"):
        compare_paired({"fifo": [{}, {}], "new": [{}]}, "fifo", [TTFT])


def family(rng, effect=0.0, runs=8):
    """Return three policies and four metrics; each pair shares a large common noise."""
    common = rng.normal(100, 20, (4, runs))
    return {
        name: [
            {f"m{i}_ms": common[i, r] + shift + rng.normal() for i in range(4)}
            for r in range(runs)
        ]
        for name, shift in {"fifo": 0.0, "a": effect, "b": 0.0}.items()
    }


def verdicts(summaries):
    rows = compare_paired(summaries, "fifo", [f"m{i}_ms" for i in range(4)])
    assert len(rows) == 8
    return rows


def test_false_alarms_in_a_family_are_one_in_twenty():
    """No policy differs: some verdict says so in at most 5 % of comparisons.

    600 comparisons: four standard errors are 3.6 %. Uncorrected it would be 30 %.
    """
    rng = np.random.default_rng(5)
    alarms = [
        any(row["verdict"] != "no difference" for row in verdicts(family(rng)))
        for _ in range(600)
    ]

    assert 0.01 < np.mean(alarms) < 0.05 + 0.036


def test_effects_are_found_beneath_a_common_noise():
    """Two units, a tenth of the noise between seeds: pairing removes that noise.

    Of all effects 90 % are found, and the verdict is never the wrong way round.
    """
    rng = np.random.default_rng(6)
    found = [
        row["verdict"]
        for _ in range(100)
        for row in verdicts(family(rng, effect=-2.0, runs=16))
        if row["policy"] == "a"
    ]

    assert found.count("better") / len(found) > 0.9
    assert "worse" not in found


def test_intervals_and_corrected_p_values_agree():
    """An interval excludes 0 exactly when Holm's procedure rejects."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        rows = verdicts(family(rng, effect=1.0))
        rejected = holm([row["p_value"] for row in rows]) <= 1 - LEVEL
        assert [not row["low"] <= 0 <= row["high"] for row in rows] == rejected.tolist()


def test_no_metric_is_better_both_ways():
    names = [*DEFAULT_METRICS, "request_goodput", "balancedness_vllm", "slo_attainment"]
    names += ["expert_cv_max", "straggler_wait_frac", "a2a_frac", "gpu_useful_frac"]
    names += ["output_tput_per_gpu", "median_intvty", "max_queue_ms", "rejected"]
    names += ["mean_expert_wait_us", "completed", "max_output_tokens_per_s"]

    for name in names:
        assert higher_is_better(name) != lower_is_better(name), name


@pytest.mark.parametrize("metric", ["gpu_busy_frac", "passes", "num_prompts"])
def test_a_metric_may_have_no_good_direction(metric):
    assert verdict(1.0, 2.0, metric) == "differs"
