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
]


@pytest.mark.parametrize("parameters", BAD, ids=str)
def test_a_senseless_value_is_an_input_error(parameters):
    (name,) = parameters

    with pytest.raises(InputError, match=name.removesuffix("_s")):
        make_policy({"name": "cross_layer", **parameters})


def test_a_whole_policy_is_taken_as_it_is():
    policy = Policy("mine")

    assert make_policy(policy) is policy
