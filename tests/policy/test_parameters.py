"""Parameters that mean nothing are refused by name, whoever gives them."""

import pytest

from moesim.errors import InputError
from moesim.policy.bundle import Policy, make_policy

BAD = [
    {"knowledge": "orcale"},
    {"ageing": float("nan")},
    {"ageing": -1},
    {"ageing": "abc"},
    {"ageing": True},
    {"wait_budget_s": -1.0},
    {"wait_budget_s": float("nan")},
    {"wait_budget": "5 mss"},
    {"predictor": "classes"},
    {"hit_rate": 1.1},
    {"look": -1},
    {"look": 2.5},
    {"order": -1},
    {"congestion": float("inf")},
    {"hold": 2},
    {"early": True},
    {"feedback": -0.5},
    {"alpha": 0},
    {"window": "0 s"},
    {"decode_order": -2},
    {"decode_hold": 1.5},
]
"""Of `cross_layer`."""
BAD_STAGES = [
    {"n_min": 0},
    {"n_min": -2},
    {"n_min": 2.5},
    {"d_max": -1},
    {"d_max": True},
    {"strategy": "enumerate"},
    {"seed": -1},
]
"""Of `easybalance`."""


@pytest.mark.parametrize("parameters", BAD, ids=str)
def test_a_senseless_value_is_an_input_error(parameters):
    (name,) = parameters

    with pytest.raises(InputError, match=name.removesuffix("_s")):
        make_policy({"name": "cross_layer", **parameters})


@pytest.mark.parametrize("parameters", BAD_STAGES, ids=str)
def test_a_senseless_stage_is_an_input_error(parameters):
    (name,) = parameters

    with pytest.raises(InputError, match=name):
        make_policy({"name": "easybalance", **parameters})


def test_a_whole_policy_is_taken_as_it_is():
    policy = Policy("mine")

    assert make_policy(policy) is policy
