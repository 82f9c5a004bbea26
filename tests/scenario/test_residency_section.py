"""The section ``residency``: every key, every mistake, and the memory that it frees."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import moesim
from moesim.cli.commands import app
from moesim.cost.memory import memory_budget
from moesim.errors import InputError
from moesim.measure.residency import by_gpu, by_layer
from moesim.scenario.build import build
from moesim.scenario.load import load_text
from moesim.scenario.system import system_of
from moesim.spec.residency import HostSpec, PrefetchSpec

BASE = """\
model: mixtral-8x7b
cluster: {gpu: h100, gpus_per_node: 2CLUSTER}
routing: {name: zipf, exponent: 0.8}
workload: {num_prompts: 4, input_len: 20, output_len: 3}
serving: {max_num_batched_tokens: 64}
"""


def scenario_of(section, extra="", cluster=""):
    text = BASE.replace("CLUSTER", cluster)
    section = {} if section is None else {"residency": section}
    return load_text(f"{text}{json.dumps(section)[1:-1]}\n{extra}", "s.yaml")


def problems_of(section, extra="", cluster=""):
    with pytest.raises(InputError) as caught:
        scenario_of(section, extra, cluster)
    return {problem.key: problem.message for problem in caught.value.problems}


def spec_of(section, **options):
    return build(scenario_of(section, **options), 0).system.residency


def test_nothing_is_said_and_nothing_changes():
    assert build(scenario_of(None), 0).system.residency is None
    assert "residency" not in scenario_of(None).resolved()


def test_a_section_of_defaults_keeps_what_fits():
    spec = spec_of({})

    assert spec.copies == 128  # 4 slots of 32 layers, 45 GB of 80
    assert (spec.scope, spec.cache, spec.on_miss) == ("layer", "lru", "load")
    assert spec.prefetch == PrefetchSpec("none", 0.0, 1, 0)
    assert spec.host == HostSpec()
    assert not spec.pinned.any()


def test_every_key_can_be_said():
    section = {
        "hbm_experts": "40%",
        "scope": "gpu",
        "cache": "lfu",
        "pinned": [{"layer": 3, "expert": 5}],
        "on_miss": "cheaper",
        "prefetch": {"name": "next_layer", "hit_rate": 0.5, "lookahead": 2},
        "sync": "0.7 ms",
        "host_experts": 200,
    }
    cluster = (
        ", host_bandwidth: 25 GB/s, host: {memory_bandwidth: 100 GB/s, "
        "flops: 2.5 TFLOPS, nvme_bandwidth: 3 GB/s, memory: 256 GiB}"
    )

    system = build(scenario_of(section, cluster=cluster), 7).system
    spec = system.residency
    assert spec.copies == 51
    assert spec.prefetch == PrefetchSpec("next_layer", 0.5, 2, 7)
    assert spec.sync_s == 0.7e-3
    assert spec.host_experts == 200
    assert spec.host == HostSpec(100e9, 2.5e12, 3e9, 256 * 2**30)
    assert system.topology.gpu.host_bandwidth == 25e9
    assert np.argwhere(spec.pinned).tolist() == [[3, 1, 1]]  # the second GPU's


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"hbm_experts": "37.5%", "prefetch": "path", "sync": "1 ms"},
        {"hbm_experts": 70, "pinned": 1, "cache": "static"},
        {"threshold": 0.5, "pinned": [{"layer": 0, "expert": 0}]},
        {"prefetch": {"name": "class", "lookahead": 0}, "host_experts": 9},
    ],
)
def test_the_text_of_a_scenario_says_all_of_it(section):
    cluster = ", host_bandwidth: 25.6 GB/s, host: {flops: 3.3 TFLOPS, memory: 1 TB}"
    first = scenario_of(section, cluster=cluster)
    second = load_text(first.text())

    assert second == first
    assert second.text() == first.text()


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ({"hbm_expert": 3}, "hbm_expert", "did you mean 'hbm_experts'"),
        ({"hbm_experts": "most"}, "hbm_experts", "auto, a whole number or a share"),
        ({"hbm_experts": "140%"}, "hbm_experts", "a share from 0% to 100%"),
        ({"hbm_experts": 129}, "hbm_experts", "128 slots in all layers; got 129"),
        ({"hbm_experts": 31}, "hbm_experts", "no place is left"),
        ({"hbm_experts": 0, "scope": "gpu"}, "hbm_experts", "no place is left"),
        ({"threshold": 0}, "threshold", "greater than 0"),
        ({"threshold": 0.95}, "threshold", "leave nothing for the KV cache"),
        ({"hbm_experts": 64, "threshold": 0.5}, "threshold", "unless hbm_experts is"),
        ({"cache": "lruu"}, "cache", "did you mean 'lru'"),
        ({"cache": "belady"}, "cache", "knows the future"),
        ({"pinned": 9}, "pinned", "a layer has 8 experts"),
        ({"pinned": "many"}, "pinned", "a whole number or a list"),
        ({"pinned": [{"layer": 1}]}, "pinned", "a whole number or a list"),
        (
            {"pinned": [{"layer": 32, "expert": 0}]},
            "pinned.0.layer",
            "they are 0 to 31",
        ),
        (
            {
                "hbm_experts": 64,
                "pinned": [{"layer": 1, "expert": n} for n in range(3)],
            },
            "pinned",
            "do not fit into 2",
        ),
        (
            {
                "hbm_experts": 32,
                "pinned": [{"layer": n, "expert": 0} for n in range(32)],
            },
            "hbm_experts",
            "1 of them pinned",
        ),
        ({"on_miss": "wait"}, "on_miss", "not one of load, cpu, cheaper"),
        ({"on_miss": "cpu"}, "cache", "nobody ever comes in"),
        ({"prefetch": "nextlayer"}, "prefetch.name", "did you mean 'next_layer'"),
        ({"prefetch": {"name": "path", "hit_rate": 1}}, "prefetch.hit_rate", "nothing"),
        ({"prefetch": {"lookahead": 1}}, "prefetch.lookahead", "does nothing with"),
        ({"sync": 3}, "sync", "has no unit"),
        ({"sync": "61 s"}, "sync", "less than or equal to 60"),
        ({"host_experts": 0}, "host_experts", ">= 1"),
        ({"host_experts": "some"}, "host_experts", "all or a whole number"),
    ],
)
def test_mistakes_are_told_once_with_the_right_thing(section, key, message):
    found = problems_of(section)

    assert list(found) == [f"residency.{key}"]
    assert message in found[f"residency.{key}"]


@pytest.mark.parametrize(
    ("extra", "cluster", "key"),
    [
        ("", ", host_bandwidth: 25 GB/s", "cluster.host_bandwidth"),
        ("", ", host: {flops: 1 TFLOPS}", "cluster.host"),
        ("policy: {name: cross_layer, swap_hold: 0.1}", "", "policy.swap_hold"),
        (
            "placement: {redundant_experts: 2, rebalance: vllm}",
            ", host_bandwidth: 25 GB/s",
            "cluster.host_bandwidth",
        ),
        (
            "memory: {preemption: recompute}",
            ", host_bandwidth: 25 GB/s",
            "cluster.host_bandwidth",
        ),
    ],
)
def test_what_does_nothing_without_it_is_told_where_it_is_said(extra, cluster, key):
    with pytest.raises(InputError) as caught:
        scenario_of(None, extra, cluster)
    (problem,) = caught.value.problems
    line = 2 if cluster else 7
    assert (problem.key, problem.line) == (key, line)
    assert "does nothing without a section residency" in problem.message


@pytest.mark.parametrize(
    "extra",
    [
        "memory: {preemption: swap}",
        "placement: {redundant_experts: 2, rebalance: tensorrt_llm}",
    ],
)
def test_others_use_the_port_to_the_host_too(extra):
    given = scenario_of(None, extra, ", host_bandwidth: 25 GB/s")

    assert build(given, 0).system.topology.gpu.host_bandwidth == 25e9


@pytest.mark.parametrize(
    ("extra", "cluster", "section", "message"),
    [
        ("placement: {redundant_experts: 2, rebalance: vllm}", "", {}, "rebalance"),
        ("", ", host: {memory: 50 GiB}", {}, "and its host has 50 GiB"),
    ],
)
def test_what_does_not_go_together_is_refused(extra, cluster, section, message):
    (found,) = problems_of(section, extra, cluster).values()

    assert message in found


@pytest.mark.parametrize("placed", ["contiguous", "round_robin", "eplb"])
@pytest.mark.parametrize("scope", ["layer", "gpu"])
@pytest.mark.parametrize("count", [2, 5, 8])
def test_of_the_most_popular_each_gpu_pins_what_fits(placed, scope, count):
    """Half of the places: 2 of 4 a layer, one left for others; or 64 a GPU, 63."""
    section = {"hbm_experts": 64, "pinned": count, "scope": scope}
    given = scenario_of(section, f"placement: {placed}")

    for seed in range(3):
        system = build(given, seed).system
        spec, placement = system.residency, system.placement
        worth = np.take_along_axis(spec.popularity, placement.phy2log, axis=1)
        ranks = np.argsort(np.argsort(-worth, axis=1), axis=1)  # one slot an expert
        wanted = (ranks < count).reshape(32, 2, 4).swapaxes(1, 2)
        worth = worth.reshape(32, 2, 4).swapaxes(1, 2)
        assert (spec.pinned <= wanted).all()
        by_cache = spec.pinned.sum(axis=1 if scope == "layer" else (0, 1))
        most = 1 if scope == "layer" else 63
        asked = wanted.sum(axis=1 if scope == "layer" else (0, 1))
        assert (by_cache == np.minimum(asked, most)).all()
        axis = 1 if scope == "layer" else (0, 1)
        least = np.where(spec.pinned, worth, np.inf).min(axis=axis)
        beaten = np.where(wanted & (spec.pinned == 0), worth, -1).max(axis=axis)
        assert (beaten <= least).all()


@pytest.mark.parametrize("placed", ["contiguous", "round_robin"])
def test_any_number_pinned_runs_with_every_seed(placed):
    """It depends on the pilot which GPU has how many of them: that is no mistake."""
    section = {"hbm_experts": 64, "pinned": 8, "cache": "lru"}
    result = moesim.run(scenario_of(section, f"placement: {placed}"), replications=2)

    assert len(result.summaries) == 2


def test_a_list_is_pinned_as_far_as_it_fits_where_placement_is_measured():
    pinned = [{"layer": 0, "expert": n} for n in range(8)]
    section = {"hbm_experts": 64, "pinned": pinned}
    spec = build(scenario_of(section, "placement: eplb"), 0).system.residency

    assert spec.pinned[0].tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]
    assert not spec.pinned[1:].any()
    assert "pinned" in problems_of(section, "placement: contiguous").popitem()[0]


@pytest.mark.parametrize("key", ["threshold", "prefetch.hit_rate"])
def test_what_is_left_empty_is_the_default(key):
    section = {"prefetch": {"name": "next_layer", "hit_rate": None}, "threshold": None}
    filled = {"prefetch": "next_layer"}

    assert spec_of(section) == spec_of(filled)
    given = scenario_of(filled).with_({f"residency.{key}": None})
    assert given.resolved() == scenario_of(filled).resolved()


def test_experts_leave_room_within_what_may_be_in_use():
    found = problems_of({}, "memory: {capacity: 0.8}")

    assert list(found) == ["residency.threshold"]
    assert found["residency.threshold"].startswith(
        "experts up to 0.85 of the GPU leave nothing for the KV cache: "
        "memory.capacity is 0.8"
    )


@pytest.mark.parametrize(
    ("cluster", "key", "message"),
    [
        ("host_bandwidth: 1e-300 B/s", "host_bandwidth", "1 MB/s or more is expected"),
        (
            "host_bandwidth: 0 B/s",
            "host_bandwidth",
            "1 MB/s or more is expected; got 0",
        ),
        ("host: {nvme_bandwidth: 999999 B/s}", "host.nvme_bandwidth", "1 MB/s or more"),
        ("host: {memory_bandwidth: 1 B/s}", "host.memory_bandwidth", "got 1 B/s"),
        ("host: {flops: 1e-300 TFLOPS}", "host.flops", "1 GFLOPS or more is expected"),
    ],
)
def test_no_machine_is_so_slow(cluster, key, message):
    found = problems_of({}, cluster=f", {cluster}")

    assert list(found) == [f"cluster.{key}"]
    assert message in found[f"cluster.{key}"]


def test_the_slowest_machine_still_serves():
    slow = (
        ", host_bandwidth: 1 MB/s, host: {memory_bandwidth: 1 MB/s, flops: 1 GFLOPS, "
        "nvme_bandwidth: 1 MB/s}"
    )
    for on_miss in ("load", "cheaper"):
        section = {"hbm_experts": 64, "host_experts": 1, "on_miss": on_miss}
        given = scenario_of(section, "", slow)
        assert moesim.run(given).summary["completed"] == 4


def test_where_all_are_there_all_may_be_pinned():
    assert spec_of({"hbm_experts": 128, "pinned": 8}).pinned.all()


def test_where_nobody_comes_in_no_place_is_left():
    section = {"hbm_experts": 64, "pinned": 8, "cache": "static", "on_miss": "cpu"}
    spec = spec_of(section)

    assert (spec.pinned.sum(axis=1) == 2).all()


def test_fewer_experts_fit_into_a_smaller_host():
    """100 of them take 33 GiB; with all 256 the same host is refused."""
    cluster = ", host: {memory: 50 GiB}"

    assert scenario_of({"host_experts": 100}, cluster=cluster).residency


def test_only_the_event_engine_plays_it():
    assert moesim.run(scenario_of({"hbm_experts": 64})).manifest["engine"] == "event"
    for change, said in (
        ({"serving.coupling": "lockstep"}, "lockstep"),
        ({"serving.engine": "array"}, "event engine"),
    ):
        with pytest.raises(InputError, match=said):
            scenario_of({}).with_(change)
    with pytest.raises(InputError, match="class learns from tokens"):
        scenario_of({"prefetch": "class"}).with_({"routing.draw": "counts"})


def test_settings_change_it():
    given = scenario_of({"prefetch": {"name": "next_layer", "hit_rate": 0.3}})

    path = given.with_({"residency.prefetch": "path"})
    assert path.resolved()["residency"]["prefetch"] == {"name": "path", "lookahead": 1}
    fewer = given.with_({"residency.hbm_experts": 64})
    assert "threshold" not in fewer.resolved()["residency"]
    assert given.with_({"residency": None}).residency is None
    begun = scenario_of(None).with_({"residency.hbm_experts": "50%"})
    assert build(begun, 0).system.residency.copies == 64


def test_experts_that_leave_make_room_for_the_cache():
    """64 of 128 experts of 352 MB each, in blocks of 16 tokens of 128 KiB."""
    every, half = scenario_of({}), scenario_of({"hbm_experts": 64})
    blocks = [build(scenario, 0).serving.kv_blocks for scenario in (every, half)]

    assert blocks[1] - blocks[0] == pytest.approx(
        64 * 352_321_536 / (16 * 131072), abs=1
    )
    assert build(scenario_of(None), 0).serving.kv_blocks == blocks[0]


def test_auto_fills_up_to_the_threshold():
    """On one GPU of 80 GiB not all 256 fit: as many as stay below 85 %."""
    given = scenario_of({}).with_({"cluster.gpus_per_node": 1})
    parts = build(given, 0)
    budget = memory_budget(parts.system, parts.serving)
    used = sum(budget.parts.values())

    assert parts.system.residency.copies < 256
    assert used <= 0.85 * budget.hbm_bytes < used + 352_321_536


@pytest.mark.parametrize("kept", ["auto", 100, "60%"])
def test_a_plan_agrees_with_the_run(kept, tmp_path):
    given = scenario_of({"hbm_experts": kept}).with_({"cluster.gpus_per_node": 1})
    file = tmp_path / "s.yaml"
    file.write_text(given.text())

    shown = CliRunner().invoke(app, ["plan", str(file), "--json"])
    plan = json.loads(shown.stdout)

    parts = build(given, 0)
    blocks = parts.serving.kv_blocks
    assert str(blocks) in json.dumps(plan)
    explained = CliRunner().invoke(app, ["plan", str(file), "--explain"]).stdout
    assert f"routed experts, {parts.system.residency.copies} of 256" in explained
    assert system_of(given).resident_copies == parts.system.residency.copies


def test_a_result_says_what_moved(tmp_path):
    section = {"hbm_experts": 64, "prefetch": "path"}
    result = moesim.run(scenario_of(section), replications=2, out=tmp_path / "run")
    plain = moesim.run(scenario_of(None))

    record = result.summaries[0]
    assert 0 < record["expert_hit_rate"] < 1
    assert record["swapped_in_bytes"] == record["swapped_in_experts"] * 352_321_536
    assert record["resident_experts"] == 64
    assert 0 < record["load_stall_frac"] <= record["queue_frac"]
    assert 0 < record["pcie_busy_frac"] <= 1
    assert "expert_hit_rate" not in plain.summary
    assert result.experts["tokens"].sum() == 2 * plain.experts["tokens"].sum()
    again = moesim.open_run(tmp_path / "run")
    assert set(again.residency) == set(result.residency)
    for name, array in result.residency.items():
        assert (again.residency[name] == array).all()
    layers, gpus = by_layer(result.residency), by_gpu(result.residency)
    assert len(layers) == 2 * 32
    assert len(gpus) == 2 * 2
    for frame in (layers, gpus):
        first = frame[frame["replication"] == 0]
        share = first["hits"].sum() / (first["hits"] + first["misses"]).sum()
        assert share == pytest.approx(record["expert_hit_rate"])
    assert gpus["bytes"].iloc[:2].sum() == record["swapped_in_bytes"]
