"""Symptoms of finished runs: each is found where it was put, and nowhere else."""

from dataclasses import replace

import numpy as np
import pytest

from moesim.cli.diagnose_lines import symptoms_screen
from moesim.diagnose.growth import exponent
from moesim.diagnose.symptoms import symptoms
from moesim.errors import InputError
from moesim.measure.tables import COLUMNS
from results import SMALL, empty_result, frame, make_result

GPUS = SMALL.gpus
NAMES = ("utilisation", "memory", "exchange", "tail", "cold")
FACTS = {
    "policy": "fifo",
    "num_gpus": GPUS,
    "gpu": "h100",
    "nodes": 1,
    "preemptions": 0,
    "rejected": 0,
    "balancedness_vllm": 0.9,
    "mean_ttft_ms": 50.0,
    "p99_ttft_ms": 100.0,
    "mean_e2el_ms": 500.0,
    "p99_e2el_ms": 900.0,
    "p99_queue_ms": 20.0,
    "max_expert_wait_us": 100.0,
    "queue_frac": 0.1,
    "straggler_frac": 0.1,
}


def made(name, columns):
    """Return a table of the run's own kind; single values stand for every row."""
    rows = max(np.size(column) for column in columns.values())
    full = {key: np.broadcast_to(column, rows) for key, column in columns.items()}
    whole = {key for key, kind in COLUMNS[name].items() if kind == "int64"}
    return frame(
        name, {k: v.astype(np.int64) if k in whole else v for k, v in full.items()}
    )


def gpus_table(**columns):
    base = {
        "replication": 0,
        "gpu": np.arange(GPUS),
        "span_s": 10.0,
        "busy_s": 8.0,
        "useful_s": 7.8,
        "experts_s": 4.0,
        "straggler_s": 0.5,
        "transfer_s": 0.5,
        "tokens": 1000,
        "padding_tokens": 0,
        "expert_tokens": 4000,
        "kv_peak_blocks": 30,
        "kv_blocks": 100,
    }
    return made("gpus", base | columns)


def passes_table(power=0.9, count=60):
    tokens = np.round(np.geomspace(64, 4096, count))
    seconds = 1e-6 * tokens**power
    return made(
        "passes",
        {
            "replication": 0,
            "pass_id": np.arange(count),
            "tokens": tokens,
            "padding_tokens": 0,
            "experts_s": 1e-6 * tokens,
            "dispatch_s": seconds,
            "combine_s": seconds,
        },
    )


def links_table(busy):
    return made(
        "links",
        {
            "replication": 0,
            "gpu": np.arange(GPUS),
            "port": "nvlink",
            "direction": "rx",
            "phase": "dispatch",
            "busy_s": busy,
        },
    )


def experts_table(cold_cost=1.0):
    experts = 40
    tokens = np.geomspace(10, 1000, experts)
    service = tokens * np.where(np.arange(experts) < 10, cold_cost, 1.0) * 1e-6
    return made(
        "experts",
        {
            "layer": 0,
            "expert": np.arange(experts),
            "tokens": tokens,
            "service_s": service,
        },
    )


def healthy(policy="fifo", facts=(), rank_load=None, **tables):
    made = make_result(size=SMALL)
    usual = {
        "gpus": gpus_table(),
        "passes": passes_table(),
        "links": links_table(np.ones(GPUS)),
        "experts": experts_table(),
    }
    load = np.full((1, 3, GPUS), 100) if rank_load is None else rank_load
    return replace(
        made,
        tables=replace(made.tables, **(usual | tables)),
        summaries=[FACTS | {"policy": policy} | dict(facts)],
        rank_load=load,
    )


def found(*results):
    record = symptoms(list(results))
    yes = {n for n, s in zip(NAMES, record["symptoms"], strict=True) if s["found"]}
    return yes, dict(zip(NAMES, record["symptoms"], strict=True)), record["verdict"]


def test_a_healthy_run_has_none():
    """And what one run cannot tell is not claimed."""
    yes, parts, verdict = found(healthy())

    assert yes == set()
    assert parts["tail"]["found"] is None
    assert verdict == "None of these is it. 1 could not be told from what was given."


def test_two_alike_runs_have_none():
    yes, _, verdict = found(healthy(), healthy())

    assert yes == set()
    assert verdict == "None of these is it."


def busy_waiting(**more):
    return gpus_table(busy_s=4.0, useful_s=3.9, straggler_s=4.5, transfer_s=0.5, **more)


def test_waiting_for_a_slow_gpu_is_told_from_waiting_for_a_full_one():
    """The same wait; one GPU has twice the price of a token, or twice the tokens."""
    price = np.array([4.0, 4.0, 8.0, 4.0])
    slow = busy_waiting(experts_s=price)
    full = busy_waiting(experts_s=price, expert_tokens=1000 * price)
    load = np.tile([100, 100, 200, 100], (1, 3, 1))

    yes, parts, _ = found(healthy(gpus=slow))
    assert yes == {"utilisation"}
    assert "GPU 2 is slow, not overloaded" in parts["utilisation"]["text"]
    yes, parts, _ = found(healthy(gpus=full, rank_load=load))
    assert yes == {"utilisation"}
    assert "Some GPUs hold the popular experts" in parts["utilisation"]["text"]
    yes, parts, _ = found(healthy(gpus=busy_waiting()))
    assert "Each pass is uneven by itself" in parts["utilisation"]["text"]


def test_padding_is_named_where_it_is_the_cause():
    yes, parts, _ = found(healthy(gpus=gpus_table(busy_s=9.0, useful_s=4.0)))

    assert yes == {"utilisation"}
    assert "padding" in parts["utilisation"]["text"]
    assert "max_num_batched_tokens" in parts["utilisation"]["next"]


def test_an_idle_cluster_is_not_busy():
    idle = gpus_table(busy_s=1.0, useful_s=0.3, straggler_s=0.1, transfer_s=0.1)

    assert found(healthy(gpus=idle))[0] == set()


def test_shares_of_lost_time_are_of_the_gpus_own_time():
    """Waits of micro-batches overlap with computing; they are bounded by idle time."""
    many = gpus_table(busy_s=6.0, useful_s=5.0, straggler_s=30.0, transfer_s=10.0)
    _, parts, _ = found(healthy(gpus=many))
    evidence = " ".join(parts["utilisation"]["evidence"])

    assert "monitors would show 100%" in evidence
    assert "of the time and do useful work 50%" in evidence
    assert "slowest GPU: 30.0% of GPU time" in evidence
    assert "all-to-all: 10.0% of GPU time" in evidence


def test_one_full_pool_is_told_from_all_full():
    one = gpus_table(kv_peak_blocks=[20, 100, 30, 20], tokens=[900, 1300, 900, 900])
    every = gpus_table(kv_peak_blocks=[98, 100, 97, 99])

    yes, parts, _ = found(healthy(gpus=one))
    assert yes == {"memory"}
    assert "GPU 1 holds" in parts["memory"]["text"]
    assert "1.30 times the mean tokens" in parts["memory"]["evidence"][-1]
    yes, parts, _ = found(healthy(gpus=every))
    assert yes == {"memory"}
    assert "every one" in parts["memory"]["text"]


def test_all_to_all_that_grows_faster_than_tokens_is_found():
    hot = links_table(np.array([1.0, 1.0, 1.0, 4.0]))

    yes, parts, _ = found(healthy(passes=passes_table(power=1.5), links=hot))
    assert yes == {"exchange"}
    assert "GPU 3" in parts["exchange"]["text"]
    assert "power of 1.50" in parts["exchange"]["evidence"][0]
    yes, parts, _ = found(healthy(passes=passes_table(power=1.5)))
    assert "Ports are evenly loaded" in parts["exchange"]["text"]


def test_alike_passes_cannot_tell_but_two_runs_can():
    """Passes of one size have no slope; a second run with three times the time has."""
    same = passes_table().assign(tokens=1000.0, dispatch_s=1e-4, combine_s=1e-4)
    slower = same.assign(dispatch_s=3e-4, combine_s=3e-4)

    assert found(healthy(passes=same))[1]["exchange"]["found"] is None
    yes, _, _ = found(healthy(passes=same), healthy(passes=slower))
    assert "exchange" in yes
    more = slower.assign(tokens=3000.0)
    assert "exchange" not in found(healthy(passes=same), healthy(passes=more))[0]


def test_a_longer_tail_is_found_with_what_grew_most():
    after = healthy(
        "cross_layer",
        {"p99_ttft_ms": 140.0, "mean_ttft_ms": 45.0, "max_expert_wait_us": 900.0},
    )
    yes, parts, _ = found(healthy(), after)

    assert yes == {"tail"}
    assert (
        "some expert's jobs are passed over for longer (9.00 times)"
        in parts["tail"]["text"]
    )
    assert parts["tail"]["next"].startswith(
        "moesim compare SCENARIO --policies fifo,cross_layer"
    )
    assert found(after, healthy())[0] == set()


def test_cold_experts_that_cost_much_are_found():
    yes, parts, _ = found(healthy(experts=experts_table(cold_cost=20.0)))

    assert yes == {"cold"}
    assert "reads all its weights for few tokens" in parts["cold"]["text"]


def test_slow_first_passes_are_found_by_passes_of_their_size():
    passes = passes_table().assign(tokens=500.0, experts_s=1e-3)
    passes.loc[:2, "experts_s"] = 1e-2
    yes, parts, _ = found(healthy(passes=passes))

    assert yes == {"cold"}
    assert "first passes are slower" in parts["cold"]["text"]


def test_a_run_in_which_nothing_happened_is_refused():
    with pytest.raises(InputError, match="no pass was run"):
        symptoms([empty_result()])


@pytest.mark.parametrize("power", [0.3, 1.0, 2.0])
def test_an_exponent_is_found_through_noise(power):
    rng = np.random.default_rng(1)
    load = rng.uniform(10, 1000, 400)
    time = load**power * rng.lognormal(0, 0.05, 400)

    assert exponent(load, time) == pytest.approx(power, abs=0.02)
    assert exponent(np.full(400, 5.0), time) is None


def test_runs_of_other_traffic_are_told_apart_before_they_are_compared():
    """What both should have met is held side by side; what is compared is not."""
    text = "seed: 1\nworkload: {num_prompts: 5, input_len: {value: 3}}\npolicy: fifo\n"
    before = replace(healthy(), scenario_text=text)
    after = replace(
        healthy(),
        scenario_text=text.replace("value: 3", "value: 4").replace("fifo", "oldest"),
    )

    found = symptoms([before, after])
    assert found["unlike"] == ["workload.input_len.value (3, then 4)"]
    screen = " ".join(symptoms_screen(found).split())
    assert "did not meet the same: workload.input_len.value (3, then 4)" in screen
    same = symptoms([before, replace(before, scenario_text=text + "slo: {}\n")])
    assert same["unlike"] == []
    assert "Careful" not in symptoms_screen(same)
