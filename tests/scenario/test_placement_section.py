"""Placements and replicas by name: what a scenario may say, and whole runs of each."""

import json

import numpy as np
import pytest

import moesim
from moesim.engine.instance import Instance
from moesim.engine.play import play
from moesim.errors import InputError
from moesim.policy.dispatch import DISPATCHES
from moesim.policy.place.catalogue import NAMES, PILOT_TOKENS
from moesim.policy.place.flat import greedy
from moesim.routing.source import count
from moesim.scenario.build import build
from moesim.scenario.load import load_text
from moesim.scenario.system import placement_of

BASE = """\
model: mixtral-8x7b
routing: {name: zipf, exponent: 1.2}
cluster: {gpus_per_node: 4}
workload: {num_prompts: 6, input_len: 40, output_len: 3}
"""


def scenario_of(placement, extra=""):
    return load_text(f"{BASE}placement: {json.dumps(placement)}\n{extra}", "s.yaml")


def problems_of(placement, extra=""):
    with pytest.raises(InputError) as caught:
        scenario_of(placement, extra)
    return {problem.key: problem.message for problem in caught.value.problems}


@pytest.fixture
def loads(tmp_path):
    """Return a file in which expert 7 of every layer has most of the load."""
    table = np.ones((32, 8), int)
    table[:, 7] = 100
    path = tmp_path / "loads.npz"
    np.savez(path, loads=table)
    return str(path)


@pytest.fixture
def slots(tmp_path):
    """Return a file of 12 slots: expert 3 has three copies, 5 and 0 two... of 8."""
    path = tmp_path / "slots.json"
    row = [0, 1, 3, 2, 3, 4, 5, 3, 6, 7, 5, 0]
    path.write_text(json.dumps({"phy2log": [row] * 32}))
    return str(path)


def keys_for(name, slots):
    """Return a placement section of this name."""
    if name == "file":
        return {"name": name, "path": slots}
    spare = 0 if name in ("greedy", "affinity") else 4
    return {"name": name, "redundant_experts": spare}


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_each_placement_loses_nothing(name, slots):
    """Every token computed meets its two experts in every layer, wherever they live."""
    played = run_of(keys_for(name, slots))
    tokens = 6 * (40 + 3 - 1)

    assert (played.slot_tokens.sum(axis=(1, 2)) == tokens * 2).all()
    assert (played.requests.generated == 3).all()


@pytest.mark.parametrize("name", DISPATCHES)
def test_a_run_of_each_replica_choice_does_the_same_work(name, slots):
    """An expert's tokens are the same, however its copies share them."""
    played = run_of(keys_for("file", slots), f"serving: {{replica: {name}}}\n")
    plain = run_of(keys_for("contiguous", slots))

    assert (by_expert(played) == by_expert(plain)).all()


def run_of(placement, extra=""):
    scenario = scenario_of(placement, extra)
    parts = build(scenario, 0)
    return play(
        Instance(
            parts.system, parts.serving, parts.source, parts.requests, parts.policy
        )
    )


def by_expert(recorder):
    """Return ``(L, E)``: tokens of each expert on all its slots."""
    tokens = recorder.slot_tokens.transpose(0, 2, 1).reshape(32, -1)
    phy2log = recorder.system.placement.phy2log
    result = np.zeros((32, 8), int)
    np.add.at(result, (np.arange(32)[:, None], phy2log), tokens)
    return result


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_says_all_of_its_placement(name, slots):
    """Loading what it writes gives it again, and the same placement."""
    scenario = scenario_of(keys_for(name, slots))
    again = load_text(scenario.text())

    assert again == scenario
    assert again.text() == scenario.text()
    assert placement_of(again, 3) == placement_of(scenario, 3)
    measured = NAMES[name] and name != "file"
    said = scenario.resolved()["placement"].get("tokens")
    assert said == (PILOT_TOKENS if measured else None)


def test_what_no_placement_goes_by_is_not_written():
    """Scenarios of placements without loads are what they were."""
    assert scenario_of("round_robin").resolved()["placement"] == {
        "name": "round_robin",
        "redundant_experts": 0,
    }


def test_a_measured_placement_knows_the_hot_experts_but_not_the_run():
    """The hottest expert of the run's law gets a copy; the run's length plays no part."""
    scenario = scenario_of({"name": "eplb", "redundant_experts": 4})
    parts = build(scenario, 0)
    copies = parts.system.placement.replicas
    keys = moesim_keys(20_000)
    popular = count(parts.source.route(keys), 8).argmax(axis=1)

    assert (copies[np.arange(32), popular] > 1).all()
    longer = scenario.with_(num_prompts=9)
    assert placement_of(longer, 0) == parts.system.placement
    assert placement_of(scenario, 1) != parts.system.placement


def moesim_keys(tokens):
    from moesim.routing.source import TokenKeys

    row = np.arange(tokens)
    return TokenKeys(row, np.zeros_like(row), np.zeros_like(row))


def test_loads_may_come_from_a_file(loads):
    scenario = scenario_of({"name": "eplb", "redundant_experts": 4, "path": loads})
    placement = placement_of(scenario, 0)

    assert (placement.replicas[:, 7] == 5).all()
    assert placement_of(scenario, 1) == placement
    assert "tokens" not in scenario.resolved()["placement"]


def test_a_change_of_name_keeps_what_still_has_a_meaning(loads):
    measured = scenario_of({"name": "eplb", "redundant_experts": 4, "tokens": 99})

    def placement(**changes):
        keyed = {f"placement.{key}": value for key, value in changes.items()}
        return measured.with_(keyed).resolved()["placement"]

    assert placement(name="tensorrt_llm")["tokens"] == 99
    assert placement(name="contiguous") == {
        "name": "contiguous",
        "redundant_experts": 4,
    }
    assert placement(path=loads) == {
        "name": "eplb",
        "redundant_experts": 4,
        "path": loads,
    }
    assert placement(name="greedy", redundant_experts=0)["tokens"] == 99
    from_contiguous = scenario_of("contiguous").with_({"placement.name": "eplb"})
    assert from_contiguous.placement.name == "eplb"
    assert measured.with_(placement="round_robin").placement.redundant_experts == 0


def test_what_does_nothing_is_told(loads):
    assert (
        "eplb" in problems_of({"name": "contiguous", "tokens": 5})["placement.tokens"]
    )
    assert set(problems_of({"name": "affinity", "path": loads})) == {"placement.path"}
    assert "placement.tokens" in problems_of(
        {"name": "eplb", "path": loads, "tokens": 5}
    )
    assert "needs path" in problems_of("file")["placement.name"]


def test_mistakes_are_told_when_the_scenario_is_read(slots, loads):
    """Before anything runs: the file, its shape, copies where there are none."""
    there = problems_of({"name": "file", "path": slots + "x"})["placement.path"]
    assert "did you mean 'slots.json'" in there
    other = problems_of({"name": "file", "path": loads})["placement.path"]
    assert "phy2log.npy is expected" in other
    wrong = problems_of({"name": "greedy", "redundant_experts": 4})
    assert "makes no copies" in wrong["placement.redundant_experts"]
    wrong = problems_of({"name": "file", "path": slots, "redundant_experts": 8})
    assert "the file has 4" in wrong["placement.redundant_experts"]
    wrong = problems_of({"name": "eplb", "redundant_experts": 3})
    assert "nearest that can" in wrong["placement"]
    assert "did you mean 'eplb'" in problems_of("elpb")["placement.name"]


def test_a_relative_path_starts_at_the_file(tmp_path, slots):
    text = f"{BASE}placement: {{name: file, path: slots.json}}\n"

    scenario = load_text(text, base=tmp_path)

    assert scenario.resolved()["placement"]["path"] == slots


def test_a_log_must_leave_something_to_measure(tmp_path):
    """Placing by the sequences that are replayed would be knowing the future."""
    rng = np.random.default_rng(0)
    ids = rng.permuted(np.tile(np.arange(8, dtype=np.uint8), (60, 32, 1)), axis=2)
    path = tmp_path / "log.npz"
    np.savez(path, expert_ids=ids[:, :, :2], seq_lens=[20, 20, 20])
    text = BASE.replace("{name: zipf, exponent: 1.2}", f"{{name: log, path: {path}}}")
    text = text.replace("num_prompts: 6, input_len: 40", "num_prompts: N, input_len: 9")

    scenario = load_text(text.replace("N", "2") + "placement: greedy\n")
    held_out = count(ids[40:, :, :2], 8)
    assert placement_of(scenario, 0) == greedy(held_out, 4)
    with pytest.raises(InputError, match="replays all 3 sequences"):
        load_text(text.replace("N", "3") + "placement: greedy\n", "s.yaml")


def test_eplb_evens_out_a_whole_run():
    """The measured balance of the run is what placement is for."""
    found = {}
    for name in ("contiguous", "eplb"):
        scenario = scenario_of({"name": name, "redundant_experts": 8}).with_(
            num_prompts=40
        )
        found[name] = moesim.run(scenario).summaries[0]["balancedness_vllm"]

    assert found["contiguous"] + 0.1 < found["eplb"]
