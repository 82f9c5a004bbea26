"""Dotted keys change a scenario: what they keep, what they drop, what they refuse."""

import pytest

from moesim.errors import InputError
from moesim.scenario.change import changed, known_keys, parse_setting
from moesim.scenario.load import load_text

SCENARIO = load_text("""\
model: mixtral-8x7b
routing: {name: lognormal, sigma: 0.3}
workload:
  num_prompts: 5
  arrivals: {type: gamma, request_rate: 12, burstiness: 0.5}
  input_len: {type: lognormal, mean: 100, cv: 1.0}
policy: {name: cross_layer, wait_budget: 1ms}
""")


def refused(*arguments, **more):
    with pytest.raises(InputError) as caught:
        SCENARIO.with_(*arguments, **more)
    return [str(problem) for problem in caught.value.problems]


def test_the_scenario_itself_stays():
    before = SCENARIO.text()
    SCENARIO.with_({"routing.sigma": 1.0}, seed=3)

    assert SCENARIO.text() == before


def test_naming_the_policy_that_is_there_keeps_its_parameters():
    """A comparison of `cross_layer` with others means the scenario's `cross_layer`."""
    assert SCENARIO.with_(policy="cross_layer") == SCENARIO


@pytest.mark.parametrize(
    "change",
    [{"policy": "oldest"}, {"policy.name": "oldest"}, {"policy": {"name": "oldest"}}],
)
def test_naming_another_policy_drops_them(change):
    assert SCENARIO.with_(change).policy == {"name": "oldest"}


def test_a_new_name_comes_before_its_parameters():
    """Whatever their order on the command line."""
    changes = {"routing.exponent": 0.7, "routing.name": "zipf"}

    assert SCENARIO.with_(changes).routing == {
        "name": "zipf",
        "draw": "tokens",
        "exponent": 0.7,
    }


def test_a_mapping_changes_only_the_keys_it_has():
    arrivals = SCENARIO.with_(
        workload={"arrivals": {"burstiness": 2}}
    ).workload.arrivals

    assert arrivals == {"type": "gamma", "request_rate": 12, "burstiness": 2}


def test_none_brings_back_the_default():
    limited = SCENARIO.with_(max_concurrency=4)

    assert limited.workload.max_concurrency == 4
    assert limited.with_(max_concurrency=None) == SCENARIO


def test_a_part_with_keys_of_its_own_is_replaced():
    slow = SCENARIO.with_({"cluster.speed": {1: 0.5}})

    assert slow.with_({"cluster.speed": {2: 0.5}}).cluster.speed == {2: 0.5}
    assert slow.with_({"cluster.speed.2": 0.5}).cluster.speed == {1: 0.5, 2: 0.5}


@pytest.mark.parametrize(
    ("value", "law"),
    [
        (7, {"type": "constant", "value": 7}),
        ("2k", {"type": "constant", "value": 2000}),
        ({"type": "geometric", "mean": 9}, {"type": "geometric", "mean": 9}),
    ],
)
def test_short_forms_work_as_in_a_file(value, law):
    assert SCENARIO.with_(output_len=value).workload.output_len.items() >= law.items()


def test_all_unknown_keys_come_at_once_with_the_nearest():
    found = refused(
        {"scheduler.polcy": "fifo", "serving.max_in_fligt": 2, "burstiness": 1}
    )

    assert len(found) == 3
    assert "did you mean 'serving.max_in_flight'" in found[1]
    assert "did you mean 'workload.arrivals.burstiness'" in found[2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": -1}, "seed: -1 is negative"),
        ({"policy": "my_module:Class"}, "--policy module:Class"),
        ({"cluster.gpus_per_node": 3}, "placement"),
        ({"routing.name": "batch"}, "'batch' is not one of uniform"),
        ({"policy": 5}, "a mapping of keys is expected; got 5"),
        ({"seed.deeper": 1}, "unknown key 'seed.deeper'"),
        ({"workload.arrivals.sigma": 1}, "unknown key"),
    ],
)
def test_changes_are_checked_as_a_file_is(changes, said):
    assert any(said in text for text in refused(changes))


def test_every_key_of_a_scenario_can_be_changed():
    known = known_keys()

    assert {"routing.hot", "policy.wait_budget", "workload.arrivals.path"} <= set(known)
    assert "routing.layers" not in known
    assert changed(SCENARIO.resolved(), {"slo": {"ttft": "1s"}})["slo"]["ttft"] == "1s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed", "key=value is expected"),
        ("=3", "key=value is expected"),
        ("seed=[1", "not YAML"),
        ("routing={name: zipf, name: log}", "given twice"),
        ("seed=010", "may not begin with 0"),
        ("seed=\x1b", "U+001B"),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused(text, said):
    with pytest.raises(InputError, match="--set") as caught:
        parse_setting(text)

    assert said in str(caught.value)


def test_a_setting_may_hold_an_equals_sign():
    assert parse_setting("name=a=b") == ("name", "a=b")


@pytest.mark.parametrize("change", [{"memory": {}}, dict([parse_setting("memory={}")])])
def test_an_empty_section_is_a_section(change):
    """As in a file: there with all its defaults; one that is there stays as it is."""
    found = SCENARIO.with_(change)

    assert "memory" not in SCENARIO.resolved()
    assert found == load_text(SCENARIO.text() + "memory: {}\n")
    assert found.resolved()["memory"]["over_capacity"] == "wait"
    swaps = SCENARIO.with_({"memory.preemption": "swap"})
    assert swaps.with_(change) == swaps
    assert SCENARIO.with_({"policy": {}, "workload": {"arrivals": {}}}) == SCENARIO


def test_an_empty_section_is_no_number_and_no_secret_key():
    assert "workload.num_prompts" in refused({"workload.num_prompts": {}})[0]
    assert "did you mean 'memory'" in refused({"memry": {}})[0]
