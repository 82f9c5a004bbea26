"""The busiest resource of a run: what its own tables say was busy longest."""

import numpy as np
import pytest

import moesim
from moesim.cost.binding import expert_bound
from moesim.measure.binding import busiest
from moesim.scenario.load import load_text

TEXT = """\
model: mixtral-8x7b
cluster: {gpus_per_node: 8}
routing: zipf
workload: {num_prompts: 24, input_len: 64, output_len: 6}
"""
DEEPSEEK = """\
model: deepseek-v3
cluster: {gpu: h800, nodes: 4}
precision: fp8
kernels: {dispatch: low_latency}
routing: {name: uniform, draw: counts}
workload: {num_prompts: 64, input_len: 2048}
serving: {mode: prefill_only, max_num_batched_tokens: 4096}
"""
LONG = {
    "input_len": 200_000,
    "output_len": 1,
    "num_prompts": 8,
    "routing": {"name": "uniform", "draw": "counts"},
}


def shares(result):
    """Return the share of the time that each resource was busy, from the tables."""
    gpus, links = result.gpus, result.links
    span = gpus["span_s"].iloc[0]
    busy = {name: gpus[f"{name}_s"].max() / span for name in ("attention", "lm_head")}
    busy["experts"] = gpus["experts_s"].max() / span
    ports = links[links["phase"] != "weights"]
    for port in ("nvlink", "nic"):
        mine = ports[ports["port"] == port]
        total = mine.groupby(["gpu", "direction"])["busy_s"].sum()
        busy[port] = total.max() / span if len(total) else 0.0
    return busy


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (TEXT, {}, ("expert weights", "experts")),
        (TEXT, {"input_len": 4000, "output_len": 1}, ("expert compute", "experts")),
        (TEXT, LONG, ("attention", "attention")),
        (DEEPSEEK, {}, ("NIC", "nic")),
    ],
)
def test_it_is_the_largest_of_the_tables(text, changes, expected):
    result = moesim.run(moesim.load_text(text).with_(changes))
    busy = shares(result)
    name, table = expected

    assert result.summary["binding"] == name
    assert max(busy, key=busy.get) == table
    assert result.summary["binding_frac"] == pytest.approx(busy[table])
    assert 0 < result.summary["binding_frac"] <= 1


@pytest.mark.parametrize("engine", ["event", "array"])
def test_engines_agree(engine):
    scenario = moesim.load_text(TEXT)
    one = moesim.run(scenario.with_({"serving.engine": engine})).summary
    other = moesim.run(scenario.with_({"serving.coupling": "lockstep"})).summary

    assert one["binding"] == other["binding"]
    assert one["binding_frac"] == pytest.approx(other["binding_frac"])


def test_it_is_said_of_the_mean_job_whatever_moves():
    """Jobs are counted though experts change places."""
    loop = {"name": "vllm", "window": 4, "interval": 4, "mode": "sync"}
    copies = {"placement.redundant_experts": 8}
    scenario = moesim.load_text(TEXT).with_({"output_len": 20, **copies})
    still = moesim.run(scenario).summary
    moved = moesim.run(scenario.with_({"placement.rebalance": loop})).summary

    assert moved["rebalances"] > 0
    assert moved["binding"] == still["binding"] == "expert weights"


def test_a_run_in_which_nothing_happened_has_none():
    class Nothing:
        span = 0

    assert busiest(Nothing()) == {"binding": None, "binding_frac": None}


def test_replications_have_their_own():
    result = moesim.run(moesim.load_text(TEXT), replications=2)

    found = [record["binding_frac"] for record in result.summaries]
    assert result.summary["binding_frac"] == pytest.approx(np.mean(found))


def test_work_behind_dispatch_is_work():
    """Shared experts take a GPU as long wherever they run; only the span changes."""
    text = TEXT.replace("mixtral-8x7b", "deepseek-v2-lite")
    before = moesim.run(moesim.load_text(text))
    overlapped = moesim.load_text(text).with_({"kernels.shared_experts": "overlapped"})
    behind = moesim.run(overlapped)
    busy = [
        result.summary["binding_frac"] * result.summary["duration"]
        for result in (before, behind)
    ]

    assert before.summary["binding"] == behind.summary["binding"] == "attention"
    assert behind.summary["duration"] < before.summary["duration"]
    assert busy[1] == pytest.approx(busy[0], rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "name", "key"),
    [
        ({}, "PCIe", "busy"),
        ({"residency.host_experts": 8}, "NVMe", "reading"),
        (
            {"residency.on_miss": "cpu", "residency.cache": "static"},
            "host processor",
            "computing",
        ),
    ],
)
def test_absent_experts_need_the_host(changes, name, key):
    table = {"hbm_experts": "50%"}
    given = load_text(TEXT.replace("node: 8", "node: 2"))
    given = given.with_({"residency": table} | changes)

    result = moesim.run(given)

    busy = result.residency[key][0].max() / 1e12
    assert result.summary["binding"] == name
    assert result.summary["binding_frac"] == pytest.approx(
        busy / result.summary["duration"]
    )


def seen_by_busiest(monkeypatch, changes):
    """Return the tokens of the mean job that a run's experts are judged by."""
    asked = []

    def watch(mean, system):
        asked.append(mean)
        return expert_bound(mean, system)

    monkeypatch.setattr("moesim.measure.binding.expert_bound", watch)
    text = TEXT.replace("mixtral-8x7b", "deepseek-v2-lite").replace(
        "node: 8", "node: 2"
    )
    result = moesim.run(load_text(text).with_(changes))
    (mean,) = asked
    assert np.ptp(mean) == 0
    return float(mean.flat[0]), result


@pytest.mark.parametrize("kernel", ["per_expert", "grouped"])
@pytest.mark.parametrize("shared", ["before", "fused", "waterfill"])
def test_a_mean_job_is_one_of_routed_experts(monkeypatch, shared, kernel):
    """Tokens over jobs as the table of experts has them, wherever shared ones run."""
    changes = {"kernels.shared_experts": shared, "kernels.experts": kernel}
    found, result = seen_by_busiest(monkeypatch, changes)
    table = result.experts

    assert found == pytest.approx(table["tokens"].sum() / table["jobs"].sum())


def test_jobs_of_processors_are_not_those_of_gpus(monkeypatch):
    """One GPU, every expert as popular: jobs on the GPU are as large as with all there.

    Half of the experts never leave the host, so half of the tokens have no job.
    """
    one = {"cluster.gpus_per_node": 1, "routing": "uniform"}
    there, _ = seen_by_busiest(monkeypatch, one)
    away = {"hbm_experts": "50%", "on_miss": "cpu", "cache": "static"}
    found, result = seen_by_busiest(monkeypatch, one | {"residency": away})
    table = result.experts

    assert result.summary["experts_on_cpu"] > 0
    assert table["tokens"].sum() / table["jobs"].sum() > 1.8 * there
    assert found == pytest.approx(there, rel=0.05)
