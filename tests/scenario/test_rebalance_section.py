"""``placement.rebalance``: what a scenario may say, what it costs in memory, whole runs."""

import json

import pytest

import moesim
from moesim.cost.relocation import staging_bytes
from moesim.errors import InputError
from moesim.policy.rebalance import REBALANCES, Sglang, Still, TensorrtLlm, Vllm
from moesim.scenario.build import build
from moesim.scenario.load import load_text
from moesim.scenario.rebalance import rebalance_of

BASE = """\
model: rush-12x32
cluster: {gpu: h20, gpus_per_node: 4}
routing: {name: by_class, classes: 2, concentration: 0.3}
workload: {num_prompts: 24, input_len: 40, output_len: 4, classes: {a: 1, b: 1}}
serving: {max_num_batched_tokens: 64}
"""


def scenario_of(loop, extra=""):
    section = {"redundant_experts": 4} | ({"rebalance": loop} if loop else {})
    return load_text(f"{BASE}placement: {json.dumps(section)}\n{extra}", "s.yaml")


def problems_of(loop, extra=""):
    with pytest.raises(InputError) as caught:
        scenario_of(loop, extra)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_a_name_stands_for_a_loop_with_its_defaults():
    assert rebalance_of(scenario_of("vllm")) == Vllm()
    assert rebalance_of(scenario_of({"name": "sglang"})) == Sglang()
    assert rebalance_of(scenario_of(None)) == Still()


def test_every_parameter_can_be_said():
    loop = {"name": "vllm", "window": "1K", "interval": 2000, "mode": "sync"}
    given = scenario_of(loop | {"planning": "250 ms"})

    assert rebalance_of(given) == Vllm(1000, 2000, "sync", 0.25)
    assert build(given, 0).policy.rebalance == rebalance_of(given)
    other = scenario_of({"name": "tensorrt_llm", "layer_updates_per_iter": 3})
    assert rebalance_of(other) == TensorrtLlm(3)


@pytest.mark.parametrize("name", REBALANCES)
def test_the_text_of_a_scenario_says_all_of_it(name):
    first = scenario_of({"name": name, "planning": "3 ms"})
    second = load_text(first.text())

    assert second == first
    assert second.text() == first.text()
    assert rebalance_of(second) == rebalance_of(first)
    section = first.resolved()["placement"]["rebalance"]
    assert section["planning"] == "0.003 s"
    assert "planning_s" not in section


@pytest.mark.parametrize(
    ("loop", "key", "message"),
    [
        ("vlm", "name", "'vlm' is not one of vllm, sglang, tensorrt_llm; did you mean"),
        ({"window": 3}, "name", "a name is missing: one of vllm, sglang, tensorrt_llm"),
        ({"name": "vllm", "windo": 3}, "windo", "did you mean 'window'?"),
        ({"name": "vllm", "window": 0}, "window", "a whole number from 1, not 0"),
        ({"name": "vllm", "window": 2.5}, "window", "2.5 is not whole"),
        ({"name": "vllm", "interval": [1]}, "interval", "a whole number is expected"),
        ({"name": "vllm", "mode": "lazy"}, "mode", "'lazy' is not one of async, sync"),
        ({"name": "vllm", "planning": 5}, "planning", "5 has no unit"),
        ({"name": "sglang", "threshold": 2}, "threshold", "a share from 0 to 1, not 2"),
        ({"name": "sglang", "window": 3}, "window", "unknown key for sglang"),
        ({"name": "tensorrt_llm", "decay": "x"}, "decay", "a number is expected"),
    ],
)
def test_mistakes_are_told_once_with_the_right_thing(loop, key, message):
    found = problems_of(loop)

    assert list(found) == [f"placement.rebalance.{key}"]
    assert message in found[f"placement.rebalance.{key}"]


def test_several_mistakes_come_together():
    loop = {"name": "sglang", "interval": -1, "treshold": 0.5}

    found = problems_of(loop, "slo: {ttft: 3}\n")

    assert set(found) == {
        "placement.rebalance.interval",
        "placement.rebalance.treshold",
        "slo.ttft",
    }


def test_settings_change_a_loop_or_end_it():
    given = scenario_of({"name": "vllm", "window": 7})

    assert rebalance_of(given.with_({"placement.rebalance.interval": 9})) == Vllm(7, 9)
    assert rebalance_of(given.with_({"placement.rebalance": "sglang"})) == Sglang()
    assert rebalance_of(given.with_({"placement.rebalance": None})) == Still()
    assert rebalance_of(given.with_({"placement.name": "eplb"})) == Vllm(7)
    begun = scenario_of(None).with_({"placement.rebalance.name": "vllm"})
    assert rebalance_of(begun) == Vllm()
    with pytest.raises(
        InputError, match=r"did you mean 'placement\.rebalance\.window'"
    ):
        given.with_({"placement.rebalance.windo": 3})


def test_counts_are_refused_with_the_reason():
    text = BASE.replace(
        "by_class, classes: 2, concentration: 0.3", "zipf, draw: counts"
    )

    with pytest.raises(
        InputError, match=r"placement\.rebalance moves experts, and counts"
    ):
        load_text(f"{text}placement: {{rebalance: vllm}}\n")


@pytest.mark.parametrize(("name", "staged"), [("vllm", 1), ("tensorrt_llm", 0)])
def test_experts_on_the_move_take_their_memory_from_the_cache(name, staged):
    """One layer's slots of a GPU, unless the second copy lies on the host."""
    still, moving = build(scenario_of(None), 0), build(scenario_of(name), 0)

    model, size = still.system.model, still.serving.block_size
    attention = model.attention
    layer = 2 * attention.kv_heads * attention.head_dim * 2.0
    block = size * layer * model.layers
    taken = staged * staging_bytes(still.system)
    assert still.serving.kv_blocks - moving.serving.kv_blocks == pytest.approx(
        taken / block, abs=1
    )


def test_a_pool_that_no_longer_fits_is_refused():
    blocks = build(scenario_of(None), 0).serving.kv_blocks
    fits = BASE.replace("tokens: 64}", f"tokens: 64, kv_blocks: {blocks}}}")

    load_text(fits + "placement: {redundant_experts: 4}\n")
    with pytest.raises(InputError, match="each rank has memory for"):
        load_text(fits + "placement: {redundant_experts: 4, rebalance: vllm}\n")


def test_a_result_says_what_moved():
    loop = {"name": "sglang", "interval": 1}
    result = moesim.run(scenario_of(loop))
    still = moesim.run(scenario_of(None))

    record = result.summary
    assert record["rebalances"] >= 2
    assert record["moved_bytes"] == record["moved_experts"] * 352_321_536
    assert record["rebalance_stall_s"] > 0
    assert record["rebalance_s"] > 0
    assert 0 < record["balancedness_unmoved"] <= 1
    assert 0 < record["balancedness_moved"] <= 1
    assert "rebalances" not in still.summary
    links = result.links[result.links["phase"] == "weights"]
    sent = links[links["direction"] == "tx"]["bytes"].sum()
    assert sent == record["moved_bytes"]
    assert result.experts["tokens"].tolist() == still.experts["tokens"].tolist()
