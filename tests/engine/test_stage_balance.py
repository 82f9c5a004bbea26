"""Idle work of joint stages: what a run reports is what its stages were."""

from dataclasses import dataclass, field

import numpy as np
import pytest

import moesim
from moesim.policy.easybalance import EasyBalance

TEXT = """\
model: seed-8x32
routing: zipf
workload: {num_prompts: 40, input_len: 5}
serving: {mode: prefill_only, max_num_batched_tokens: 5, max_in_flight: 4}
"""


@dataclass
class Watched:
    """EasyBalance, which writes down the loads of every stage."""

    inner: EasyBalance = field(default_factory=lambda: EasyBalance(n_min=2))
    stages: list = field(default_factory=list)
    coupling = "lockstep"

    def stage(self, ready, keys):
        rows = list(self.inner.stage(ready, keys))
        self.stages.append(np.sum([ready[row].loads for row in rows], axis=0))
        return rows


def test_idle_work_is_that_of_the_stages():
    """Sum over stages of (max - mean), over the sum of means."""
    policy = Watched()

    summary = moesim.run(moesim.load_text(TEXT), policy=policy).summary

    loads = np.array([stage for stage in policy.stages if stage.sum()])
    idle = loads.max(axis=1).sum() / loads.mean(axis=1).sum() - 1
    assert summary["stages"] == len(loads)
    assert summary["stage_imbalance"] == pytest.approx(idle)
    assert idle > 0.1


def test_without_joint_stages_there_is_no_such_number():
    summary = moesim.run(moesim.load_text(TEXT)).summary

    assert "stage_imbalance" not in summary


def test_all_ready_at_once_have_the_imbalance_of_their_sum():
    """With all chunks in step it is the balance of one large pass."""
    text = TEXT.replace("num_prompts: 40", "num_prompts: 32")
    lockstep = {"policy": {"name": "easybalance", "strategy": "none"}}
    one = {"serving.max_num_batched_tokens": 20, "serving.max_in_flight": 1}

    four = moesim.run(moesim.load_text(text).with_(lockstep)).summary
    large = moesim.run(moesim.load_text(text).with_({**lockstep, **one})).summary

    assert four["stages"] == large["stages"] == 8
    assert four["stage_imbalance"] == pytest.approx(large["stage_imbalance"])
