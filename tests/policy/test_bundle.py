"""Policies are made from names, mappings, classes and objects; mistakes explained."""

from dataclasses import dataclass
from math import inf

import numpy as np
import pytest

from moesim.errors import InputError
from moesim.policy.blind import Blind
from moesim.policy.bundle import ROLES, Policy, Setting, make_policy, policy_parameters
from moesim.policy.catalogue import POLICIES
from moesim.policy.compose import ArrivalOrder, LeastKv, LeastTokens, RoundRobin
from moesim.policy.cross_layer import CrossLayer
from moesim.policy.dispatch import LocalFirst, RoundRobinReplica
from moesim.policy.easybalance import EasyBalance
from moesim.policy.order import Fifo, Oldest, PerLayer


class Everything:
    """Plays two roles, one of which looks at the instant."""

    needs = "global_instant"

    def key(self, batch, view):
        return view.backlog_s.sum()

    def rank(self, request, ranks):
        return 0


class NoRole:
    pass


@dataclass
class Mine:
    """Someone's own order, with parameters."""

    pause_s: float = 1.0
    weight: int = 2

    def key(self, batch, view):
        return self.pause_s * self.weight


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fifo", Fifo),
        ("oldest", Oldest),
        ("per_layer", PerLayer),
        ("cross_layer", CrossLayer),
        ("blind", Blind),
    ],
)
def test_a_name_is_an_order(name, kind):
    policy = make_policy(name)

    assert policy.name == name
    assert policy.order == kind()
    assert type(POLICIES[name]()) is kind


def test_easybalance_selects_and_leaves_the_order_alone():
    policy = make_policy({"name": "easybalance", "n_min": 2})

    assert policy.select == EasyBalance(2)
    assert policy.order == Fifo()
    assert (policy.coupling, make_policy("fifo").coupling) == ("lockstep", "")


def test_cross_layer_composes_orders_and_releases():
    policy = make_policy("cross_layer")

    assert policy.order is policy.compose is policy.release
    assert policy.foresight.predictor == "by_class"
    assert policy.foresight.look == 32
    assert policy.feedback == 0.5
    assert make_policy("fifo").foresight.look == 0


def test_what_is_not_said_is_what_engines_do_today():
    policy = make_policy("fifo")

    assert policy == Policy("fifo")
    assert (policy.assign, policy.compose) == (RoundRobin(), ArrivalOrder())
    assert (policy.dispatch, policy.select.width) == (RoundRobinReplica(), 0)
    assert (policy.knowledge, policy.wait_budget_s) == ("present", inf)
    assert policy.needs == "barrier_local"


def test_a_mapping_gives_parameters_with_units():
    given = {
        "name": "cross_layer",
        "wait_budget": "250us",
        "knowledge": "oracle",
        "ageing": 0.25,
    }

    policy = make_policy(given)

    assert policy.order == CrossLayer("oracle", 0.25, 250e-6)
    assert policy.name == "cross_layer"
    assert (policy.knowledge, policy.wait_budget_s) == ("oracle", 250e-6)


@pytest.mark.parametrize("never", ["inf", inf])
def test_a_budget_may_be_infinite(never):
    assert (
        make_policy({"name": "cross_layer", "wait_budget": never}).wait_budget_s == inf
    )


def test_the_settings_of_a_scenario_choose_the_other_roles():
    policy = make_policy("oldest", Setting("least_tokens", "local_first", 3))

    assert policy.assign == LeastTokens()
    assert policy.dispatch == LocalFirst()
    assert policy.select.width == 3
    assert make_policy("fifo", Setting(assign="least_kv")).assign == LeastKv()


def test_a_class_by_path_is_built_with_its_parameters():
    name = "moesim.policy.cross_layer:CrossLayer"

    assert make_policy(name).order == CrossLayer()
    given = {"name": name, "wait_budget": "2ms"}
    assert make_policy(given).order == CrossLayer(wait_budget_s=2e-3)
    assert make_policy(given).name == name


def test_a_class_is_built_and_an_object_is_used():
    mine = Mine(3.0)

    assert make_policy(Mine).order == Mine()
    assert make_policy(Mine).name == "Mine"
    assert make_policy(mine).order is mine
    assert make_policy(mine).name == "Mine"


def test_an_object_plays_every_role_it_has_a_method_for():
    """What it does not play stays as the settings say."""
    thing = Everything()

    policy = make_policy(thing, Setting("least_kv", "local_first"))

    assert policy.order is thing
    assert policy.assign is thing
    assert policy.dispatch == LocalFirst()
    assert policy.needs == "global_instant"


@pytest.mark.parametrize(
    ("method", "role"),
    [
        ("rank", "assign"),
        ("sequence", "compose"),
        ("key", "order"),
        ("stage", "select"),
        ("slots", "dispatch"),
        ("delay", "release"),
    ],
)
def test_each_role_is_known_by_its_method(method, role):
    thing = type("Thing", (), {method: lambda self, *_: None})()

    policy = make_policy(thing)

    assert getattr(policy, role) is thing
    assert [r for r in ROLES if getattr(policy, r) is thing] == [role]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("fifoo", "'fifoo'; did you mean 'fifo'?"),
        ("crosslayer", "did you mean 'cross_layer'?"),
        (
            "zzz",
            "known: blind, capacity, cross_layer, easybalance, fifo, gate_temperature, ",
        ),
        ({}, "no such name ''"),
        ({"name": "per_layr"}, "did you mean 'per_layer'?"),
        (
            {"name": "cross_layer", "wait_bugdet": "5ms"},
            "no parameter 'wait_bugdet'; did you mean 'wait_budget'?",
        ),
        ({"name": "fifo", "ageing": 1}, "'fifo' has no parameter 'ageing'"),
        (
            {"name": "cross_layer", "wait_budget": 5},
            "policy.wait_budget: 5 has no unit",
        ),
        ({"name": "cross_layer", "wait_budget": "-5ms"}, "policy.wait_budget"),
        ({"name": "cross_layer", "wait_budget": "soon"}, "policy.wait_budget"),
        ("no_such_module_x:Class", "'no_such_module_x:Class' cannot be imported"),
        ("moesim.policy.cross_layer:Crosslayer", "cannot be imported"),
        ("math:pi", "policy 'math:pi'"),
        ("os:getcwd", "plays no role"),
        (":", "cannot be imported"),
        (NoRole, "'NoRole' plays no role: it needs one of the methods key"),
        (NoRole(), "'NoRole' plays no role"),
        (None, "plays no role"),
        (5, "plays no role"),
    ],
)
def test_a_mistake_in_a_policy_is_explained(given, message):
    """Always an InputError, that says what was found and what is near."""
    with pytest.raises(InputError) as error:
        make_policy(given)

    assert message in str(error.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            Setting(assign="least_token"),
            "serving.assign: no such name 'least_token'; did you mean 'least_tokens'?",
        ),
        (
            Setting(replica="local"),
            "serving.replica: no such name 'local'; did you mean 'local_first'?",
        ),
    ],
)
def test_a_mistake_in_a_setting_is_explained(setting, message):
    with pytest.raises(InputError) as error:
        make_policy("fifo", setting)

    assert message in str(error.value)


def test_the_parameters_of_a_policy_are_as_a_scenario_writes_them():
    first = ("knowledge", "ageing", "wait_budget", "predictor", "hit_rate", "look")
    assert policy_parameters("cross_layer")[:6] == first
    assert policy_parameters("easybalance") == ("n_min", "d_max", "strategy", "seed")
    assert policy_parameters("fifo") == ()


def test_everyones_order_can_be_asked_for_a_key():
    """The protocols are met by plain objects."""
    for name in POLICIES:
        order = make_policy(name).order

        assert np.ndim(getattr(order, "wait_budget_s", inf)) == 0
        assert isinstance(order, ROLES["order"])
