"""``memory``: what a scenario may say, and what comes of whole runs."""

import json

import pytest

import moesim
from moesim.errors import InputError
from moesim.scenario.build import build
from moesim.scenario.load import load_text
from moesim.spec.memory import MemorySpec

BASE = """\
model: seed-8x32
cluster: {gpu: h100, gpus_per_node: 4}
routing: uniform
workload: {num_prompts: 12, input_len: 30, output_len: 12}
serving: {max_num_batched_tokens: 64, block_size: 4, kv_blocks: 20}
"""


def scenario_of(section, extra=""):
    return load_text(f"{BASE}memory: {json.dumps(section)}\n{extra}", "s.yaml")


def spec_of(section):
    return build(scenario_of(section), 0).serving.memory


def problems_of(section, extra=""):
    with pytest.raises(InputError) as caught:
        scenario_of(section, extra)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_without_the_section_nothing_is_said():
    given = load_text(BASE)

    assert build(given, 0).serving.memory is None
    assert "memory" not in given.resolved()


def test_an_empty_section_has_the_defaults():
    assert spec_of({}) == MemorySpec()
    assert scenario_of({}).resolved()["memory"] == {
        "kv_allocator": "paged",
        "preemption": "recompute",
        "over_capacity": "wait",
        "capacity": 1.0,
    }


def test_every_key_can_be_said():
    swap = {"preemption": "swap", "swap_space": "2 GiB", "over_capacity": "fail"}
    whole = {"kv_allocator": "contiguous", "max_model_len": "60", "capacity": 0.5}

    assert spec_of(swap) == MemorySpec(
        preemption="swap", swap_space_bytes=2 * 2**30, over_capacity="fail"
    )
    assert spec_of(whole) == MemorySpec("contiguous", max_model_len=60, capacity=0.5)
    assert spec_of({"kv_allocator": "contiguous", "reserve": "pow2"}).reserve == "pow2"


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"preemption": "swap"},
        {"preemption": "swap", "swap_space": "1.5 MB"},
        {"kv_allocator": "contiguous", "max_model_len": 64},
        {"kv_allocator": "contiguous", "reserve": "exact"},
    ],
)
def test_the_text_of_a_scenario_says_all_of_it(section):
    first = scenario_of(section)
    second = load_text(first.text())

    assert second == first
    assert second.text() == first.text()
    assert build(second, 0).serving == build(first, 0).serving
    shown = first.resolved()["memory"]
    assert set(section) <= set(shown)
    assert ("swap_space" in shown) == ("preemption" in section)
    assert ("reserve" in shown) == ("kv_allocator" in section)


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ({"kv_alocator": "paged"}, "kv_alocator", "did you mean 'kv_allocator'?"),
        ({"kv_allocator": "page"}, "kv_allocator", "did you mean 'paged'?"),
        ({"reserve": "exact"}, "reserve", "unless memory.kv_allocator is contiguous"),
        (
            {"kv_allocator": "contiguous", "reserve": "exact", "max_model_len": 9},
            "max_model_len",
            "unless memory.reserve is max_model_len",
        ),
        ({"swap_space": "1 GiB"}, "swap_space", "unless memory.preemption is swap"),
        ({"preemption": "swap", "swap_space": 4}, "swap_space", "4 has no unit"),
        ({"preemption": "swap", "swap_space": "4 G"}, "swap_space", "is no unit"),
        (
            {"kv_allocator": "contiguous", "reserve": "exact", "preemption": "swap"},
            "preemption",
            "nobody is preempted",
        ),
        (
            {"kv_allocator": "contiguous", "max_model_len": 81},
            "max_model_len",
            "81 tokens in a row are set aside for every request, and a rank has KV "
            "memory for 80",
        ),
        ({"over_capacity": "die"}, "over_capacity", "not one of wait, fail, ignore"),
        ({"capacity": 0}, "capacity", "greater than 0"),
        ({"capacity": 1.1}, "capacity", "less than or equal to 1"),
    ],
)
def test_mistakes_are_told_once_with_the_right_thing(section, key, message):
    found = problems_of(section)

    assert list(found) == [f"memory.{key}"]
    assert message in found[f"memory.{key}"]


def test_several_mistakes_come_together():
    found = problems_of({"capacity": 2, "reserve": "exat"}, "slo: {ttft: 3}\n")

    assert set(found) == {"memory.capacity", "memory.reserve", "slo.ttft"}


def test_swapping_beside_experts_on_the_host_is_refused():
    found = problems_of({"preemption": "swap"}, "residency: {}\n")

    assert "both need the host's ports" in found["memory.preemption"]


def test_settings_change_the_section_or_end_it():
    given = load_text(BASE).with_({"memory.preemption": "swap"})
    assert build(given, 0).serving.memory == MemorySpec(preemption="swap")
    back = given.with_({"memory.preemption": "recompute"})
    assert back.memory.swap_space is None
    whole = given.with_(
        {
            "memory": {"preemption": "recompute", "reserve": "pow2"}
            | {"kv_allocator": "contiguous"}
        }
    )
    assert build(whole, 0).serving.memory.reserve == "pow2"
    with pytest.raises(InputError, match="kv_allocator is contiguous"):
        given.with_({"memory.reserve": "exact"})
    paged = whole.with_({"memory.kv_allocator": "paged"})
    assert build(paged, 0).serving.memory == MemorySpec()
    assert given.with_({"memory": None}) == load_text(BASE)


def test_a_result_says_what_became_of_memory(tmp_path):
    given = scenario_of({"preemption": "swap"}).with_({"replications": 2})
    result = moesim.run(given, out=tmp_path / "run")

    record = result.summary
    assert record["swaps"] == record["preemptions"] > 0
    assert record["swapped_bytes"] > 0
    assert record["oom"] is None
    assert record["ooms"] == 0
    assert 0 < record["kv_used_frac_mean"] < 1
    assert record["kv_external_frag_mean"] == 0
    assert (
        record["mem_peak_frac"]
        == (result.gpus["mem_peak_bytes"] / result.gpus["mem_bytes"])
        .groupby(result.gpus["replication"])
        .max()
        .mean()
    )
    parts = ["weights", "kv_pool", "buffers", "activations"]
    total = sum(result.gpus[f"mem_{part}_bytes"] for part in parts)
    assert (total == result.gpus["mem_peak_bytes"]).all()
    table = result.memory
    filled = sum(table[f"{part}_bytes"] for part in parts)
    peaks = filled.groupby([table["replication"], table["gpu"]]).max()
    assert peaks.tolist() == result.gpus["mem_peak_bytes"].tolist()


def test_a_folder_has_the_levels_over_time_if_they_were_watched(tmp_path):
    result = moesim.run(scenario_of({}), out=tmp_path / "run")

    assert (tmp_path / "run" / "memory.parquet").exists()
    assert (tmp_path / "run" / "plots" / "memory.png").exists()
    again = moesim.open_run(tmp_path / "run")
    assert again.memory.equals(result.memory)
    plain = moesim.run(load_text(BASE), out=tmp_path / "plain")
    assert not (tmp_path / "plain" / "memory.parquet").exists()
    assert not len(plain.memory)
    assert "swaps" not in plain.summary
    assert plain.summary["mem_peak_frac"] > 0


def test_a_run_out_of_memory_is_told_plainly(tmp_path):
    given = scenario_of({"capacity": 0.28126}).with_({"replications": 2})
    result = moesim.run(given, out=tmp_path / "run")
    found = json.loads((tmp_path / "run" / "result.json").read_text())

    assert found["completed"] == 0
    assert found["failed"] == 12
    assert found["ooms"] == 1
    assert found["oom"].startswith("out of memory at 0.000000 s on GPU ")
    assert found["oom"].endswith(" of 22.5 GiB")
    assert (result.requests["status"] == "failed").all()
    assert moesim.open_run(tmp_path / "run").summary["oom"] == found["oom"]
    said = "nothing to compare.*no value here; fifo ran out of memory in 2 of 2 runs: "
    with pytest.raises(InputError, match=f"{said}out of memory at .*[^.]$") as caught:
        moesim.compare(
            given, ["fifo"], variants={"more": {"memory.capacity": 1}}, replications=2
        )
    assert "more ran out" not in str(caught.value)


def test_what_is_always_in_memory_fits_into_it():
    found = problems_of({"capacity": 0.28125})["memory.capacity"]
    assert "22.5 GiB weights + 10 MiB KV pool = 22.5 GiB of 22.5 GiB" in found
    assert "serving.kv_blocks auto" in found
    assert "kv_blocks" not in problems_of({"capacity": 0.2})["memory.capacity"]

    assert scenario_of({"capacity": 0.2, "over_capacity": "ignore"})
    with pytest.raises(InputError, match=r"seed-8x32 does not fit .*16 GiB of 80 GiB"):
        load_text(BASE.replace("20}", "auto}") + "memory: {capacity: 0.2}\n")


@pytest.mark.parametrize(("capacity", "share"), [(0.5, 0.5), (0.95, 0.9)])
def test_a_pool_is_sized_within_what_may_be_in_use(capacity, share):
    auto = {"serving.kv_blocks": "auto"}
    given = scenario_of({"capacity": capacity}).with_(auto)
    plain = load_text(BASE).with_({**auto, "serving.gpu_memory_utilization": share})

    assert build(given, 0).serving.kv_blocks == build(plain, 0).serving.kv_blocks
    assert moesim.run(given).summary["ooms"] == 0


def test_what_is_wrong_with_experts_is_not_told_of_memory_too():
    for more, place in (
        ("residency: {hbm_experts: 999}\n", "residency.hbm_experts"),
        ("placement: {redundant_experts: 3}\n", "placement"),
        ("placement: {name: file, path: none.npy}\n", "placement.path"),
    ):
        (key,) = problems_of({}, more)
        assert key.startswith(place)


def test_one_run_of_several_that_dies_is_named():
    given = scenario_of({"over_capacity": "fail"}).with_(
        {"routing": {"name": "zipf", "exponent": 1.0}, "replications": 4}
    )
    peaks = moesim.run(given).gpus.groupby("replication")["mem_peak_bytes"].max()
    limit = (peaks.sort_values().iloc[-1] + peaks.sort_values().iloc[-2]) / 2
    share = float(limit / moesim.run(given).gpus["mem_bytes"].iloc[0])
    result = moesim.run(given.with_({"memory.capacity": share}))

    assert [record["ooms"] for record in result.summaries].count(1) == 1
    assert result.summary["ooms"] == 0.25
    assert result.summary["oom"].startswith("out of memory")
