"""Numbers mean what the documentation says, worked by hand on one small run.

Five requests in five seconds: three finish, one is rejected, one is left.
"""

import json
from dataclasses import replace
from math import isfinite

import numpy as np
import pandas as pd
import pytest

from moesim.measure.latencies import distribution
from moesim.measure.metrics import published, summarise
from moesim.measure.tables import COLUMNS, Tables

NAN = float("nan")
# id, status, arrival, admitted, first token, finish, input, output
LIVES = [
    (0, "finished", 0.0, 0.1, 0.5, 1.5, 10, 3),
    (1, "finished", 1.0, 1.0, 1.25, 1.25, 20, 1),
    (2, "rejected", 1.2, NAN, NAN, 1.2, 99, 0),
    (3, "finished", 1.5, 2.0, 3.0, 5.0, 30, 5),
    (4, "unfinished", 4.0, 4.3, 4.4, NAN, 40, 2),
]
GAPS = [
    (0, 400.0),
    (3, 500.0),
    (3, 500.0),
    (0, 600.0),
    (3, 500.0),
    (3, 500.0),
    (4, 550.0),
]
FACTS = {
    "num_gpus": 4,
    "tensor_parallel_size": 2,
    "data_parallel_size": 2,
    "model_id": "toy",
    "request_rate": float("inf"),
    "max_concurrency": None,
    "span_s": 5.0,
    "warmup_s": 0.0,
    "slo_ms": {"ttft": 600.0, "tpot": 550.0},
}
STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")


def frame(name, rows):
    """Return one of the tables; columns left out of every row are 0."""
    made = pd.DataFrame([{**dict.fromkeys(COLUMNS[name], 0), **row} for row in rows])
    return made[list(COLUMNS[name])]


def life(row):
    number, status, arrival, admitted, first, finish, prompt, output = row
    done = status == "finished"
    ttft = 1e3 * (first - arrival) if done else NAN
    tpot = 1e3 * (finish - first) / (output - 1) if done and output > 1 else NAN
    return {
        "request_id": number,
        "class": "default",
        "status": status,
        "arrival_s": arrival,
        "admitted_s": admitted,
        "first_token_s": first,
        "finish_s": finish,
        "input_tokens": prompt,
        "output_tokens": output,
        "queue_ms": 1e3 * (admitted - arrival),
        "ttft_ms": ttft,
        "tpot_ms": tpot,
        "e2el_ms": 1e3 * (finish - arrival) if done else NAN,
        "preemptions": number % 2,
        "slo_ok": done and ttft <= 600 and not tpot > 550,
    }


def tables(lives=LIVES, gaps=GAPS):
    gap_rows = [{"request_id": owner, "gap_ms": gap} for owner, gap in gaps]
    return replace(
        Tables.empty(),
        requests=frame("requests", [life(row) for row in lives]),
        **({"gaps": frame("gaps", gap_rows)} if gap_rows else {}),
    )


@pytest.fixture
def record():
    return summarise(tables(), FACTS)


def test_every_request_is_counted_once(record):
    counts = [record[key] for key in ("completed", "rejected", "failed", "num_prompts")]

    assert counts == [3, 1, 1, 5]
    assert record["preemptions"] == 2


@pytest.mark.parametrize(
    ("name", "samples"),
    [
        ("ttft", [500, 250, 1500]),
        ("tpot", [500, 500]),
        ("itl", [400, 600, 500, 500, 500, 500]),
        ("e2el", [1500, 250, 3500]),
        ("queue", [100, 0, 500, 300]),
    ],
)
def test_latencies_are_of_the_right_samples(record, name, samples):
    """TPOT leaves out the request of one token; ITL pools gaps, not requests."""
    expected = [np.mean(samples), np.median(samples), np.std(samples)]
    expected += [np.percentile(samples, share) for share in (50, 90, 95, 99)]

    found = [record[f"{key}_{name}_ms"] for key in STATISTICS]
    assert found == pytest.approx(expected)


def test_throughput_is_of_finished_requests_over_the_duration(record):
    """As vLLM counts: 3 requests, 60 tokens in and 9 out, in 5 seconds on 4 GPUs."""
    assert record["duration"] == record["measured_window_s"] == 5.0
    assert record["request_throughput"] == pytest.approx(3 / 5)
    assert record["output_throughput"] == pytest.approx(9 / 5)
    assert record["total_token_throughput"] == pytest.approx(69 / 5)
    assert record["output_tput_per_gpu"] == pytest.approx(9 / 20)
    assert record["input_tput_per_gpu"] == pytest.approx(60 / 20)
    assert record["tput_per_gpu"] == pytest.approx(69 / 20)
    assert (record["total_input_tokens"], record["total_output_tokens"]) == (60, 9)


def test_goodput_counts_those_within_every_limit(record):
    """Requests 0 and 1; whoever did not finish has failed the limits too."""
    assert record["request_goodput"] == pytest.approx(2 / 5)
    assert record["slo_attainment"] == pytest.approx(2 / 5)
    assert record["slo"] == "ttft<=600 tpot<=550"


def test_without_limits_there_is_no_goodput():
    record = summarise(tables(), FACTS | {"slo_ms": {}})

    keys = ("slo", "request_goodput", "slo_attainment")
    assert [record[key] for key in keys] == [None] * 3


def test_users_see_a_thousand_over_tpot(record):
    assert record["median_intvty"] == pytest.approx(2.0)


def test_the_busiest_second_counts_tokens_of_every_request(record):
    """In the second from 4 to 5: request 3 at 4.0 and 4.5, request 4 at 4.4 and 4.95."""
    assert record["max_output_tokens_per_s"] == 4


def test_concurrency_counts_the_unfinished_but_not_the_rejected(record):
    assert record["max_concurrent_requests"] == 2


def test_who_leaves_makes_room_for_who_comes_in_the_same_instant():
    """A closed loop of one never shows two."""
    chain = [(n, "finished", n, n, n + 0.5, n + 1.0, 1, 1) for n in range(4)]

    assert summarise(tables(chain, []), FACTS)["max_concurrent_requests"] == 1


def test_a_warm_up_is_left_out():
    """After 1.4 s: latencies of request 3 alone, rates of requests 0 and 3."""
    record = summarise(tables(), FACTS | {"warmup_s": 1.4})

    assert (record["duration"], record["measured_window_s"]) == (5.0, 3.6)
    assert record["mean_ttft_ms"] == pytest.approx(1500)
    assert record["mean_itl_ms"] == pytest.approx(500)
    assert record["request_throughput"] == pytest.approx(2 / 3.6)
    assert record["output_throughput"] == pytest.approx(8 / 3.6)
    assert record["request_goodput"] == pytest.approx(1 / 3.6)
    assert record["slo_attainment"] == 0
    assert record["completed"] == 3


def test_rates_after_a_warm_up_are_those_of_a_steady_state():
    """One request in and out each second, each there for ten: the rate is 1.

    Counting only those that arrive after the warm-up would give 0.9.
    """
    steady = [(n, "finished", n, n, n + 9, n + 10.0, 1, 1) for n in range(190)]
    unfinished = [(n, "unfinished", n, n, NAN, NAN, 1, 0) for n in range(190, 200)]
    facts = FACTS | {"span_s": 200.0, "warmup_s": 100.0}

    record = summarise(tables(steady + unfinished, []), facts)
    assert record["request_throughput"] == pytest.approx(1.0, abs=1e-9)


def test_facts_are_carried_as_they_are(record):
    assert (record["model_id"], record["data_parallel_size"]) == ("toy", 2)


def test_concurrency_without_a_limit_is_the_most_there_were(record):
    """InferenceX makes an int of it, vLLM's plots divide by it."""
    assert record["max_concurrency"] == 2
    assert summarise(tables(), FACTS | {"max_concurrency": 64})["max_concurrency"] == 64


REJECTED = [(n, "rejected", float(n), NAN, NAN, float(n), 5, 0) for n in range(3)]
WORLDS = {
    "usual": tables(),
    "one request": tables([LIVES[0]], GAPS[:1] + GAPS[3:4]),
    "one token": tables([LIVES[1]], []),
    "all rejected": tables(REJECTED, []),
    "all unfinished": tables([LIVES[4]], []),
    "nothing": Tables.empty(),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_every_world_has_the_same_keys(world):
    """Whatever happened; a number that does not exist is None, and nothing warns."""
    record = summarise(world, FACTS)

    assert list(record) == list(summarise(tables(), FACTS))
    for value in record.values():
        assert not isinstance(value, float) or isfinite(value) or value == np.inf


def test_nothing_finished_means_no_latency_and_no_rate():
    record = summarise(WORLDS["all rejected"], FACTS)

    assert record["p99_ttft_ms"] is None
    assert (record["request_throughput"], record["completed"]) == (0.0, 0)
    assert record["max_concurrency"] == 1


def test_a_run_of_no_length_has_no_rate():
    record = summarise(WORLDS["nothing"], FACTS | {"span_s": 0.0})

    assert record["request_throughput"] is record["tput_per_gpu"] is None


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_inferencex_can_read_what_is_published(world):
    """Its own arithmetic: floats of all ``ms``, a division by all ``tpot``."""
    record = published(summarise(world, FACTS))
    record = json.loads(json.dumps(record))

    int(record["max_concurrency"])
    for key, value in record.items():
        if key.endswith("ms"):
            assert float(value) / 1000 >= 0
        if "tpot" in key:
            assert 1000 / float(value) > 0


def test_publishing_drops_nothing_else():
    record = summarise(tables(), FACTS)

    assert set(record) - set(published(record)) == {"std_tpot_ms"}


def test_a_distribution_ignores_what_did_not_happen():
    assert distribution(np.array([NAN, 4.0]), "x")["mean_x_ms"] == 4.0
