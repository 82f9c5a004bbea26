"""The main job on real input: a recorded routing log under recorded arrivals."""

import os
from pathlib import Path

import numpy as np
import pytest

import moesim

SCENARIO = Path(__file__).parents[2] / "scenarios" / "replay_real_log.yaml"

pytestmark = pytest.mark.skipif(
    "MOESIM_DATA" not in os.environ, reason="needs MOESIM_DATA"
)


@pytest.fixture(scope="module")
def log():
    path = Path(os.environ["MOESIM_DATA"]) / "routing" / "deepseek-v2-lite_intent.npz"
    with np.load(path) as file:
        return {name: file[name] for name in ("expert_ids", "seq_lens")}


@pytest.fixture(scope="module", params=["fifo", "cross_layer"])
def result(request):
    return moesim.run(SCENARIO, policy=request.param)


def test_every_request_of_the_log_finishes_once(result, log):
    """One request per recorded sequence, each with the log's own length."""
    requests = result.requests

    assert (requests["status"] == "finished").all()
    assert requests["request_id"].is_unique
    assert requests["input_tokens"].tolist() == log["seq_lens"].tolist()


def test_routed_tokens_equal_the_log_s_own_counts(result, log):
    """Tokens of every (layer, expert) are the log's, to the unit; 6 a token."""
    ids = log["expert_ids"]
    tokens, layers, top_k = ids.shape
    own = np.stack(
        [np.bincount(ids[:, layer].ravel(), minlength=64) for layer in range(layers)]
    )

    routed = result.experts.pivot_table("tokens", "layer", "expert").to_numpy()
    assert (routed == own).all()
    assert (routed.sum(axis=1) == tokens * top_k).all()


def test_latencies_are_worth_reading(result):
    """There is a distribution: finite, positive, spread, in order."""
    summary = result.summary

    assert 0 < summary["p50_ttft_ms"] < summary["p99_ttft_ms"]
    assert summary["completed"] == len(result.requests)
