"""What is compared, and in what: told before anything is simulated."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import moesim
from moesim import simulate
from moesim.contest import checked_metrics, contest
from moesim.errors import InputError
from moesim.measure.names import METRICS, NEEDS, WORDS, metric_of
from moesim.policy.bundle import Policy
from moesim.policy.order import Oldest

SCENARIO = moesim.load_text("""\
model: seed-8x32
routing: uniform
workload: {num_prompts: 6, input_len: 4, output_len: 3}
serving: {max_num_batched_tokens: 4, max_in_flight: 2}
""")
SHARED = {"model": "deepseek-v2-lite", "kernels.shared_experts": "waterfill"}
MANY = {
    "plain": {"workload.arrivals": {"type": "poisson", "request_rate": 2000}},
    "limits": {"slo": {"ttft": "1 s"}},
    "lockstep": {"serving.coupling": "lockstep"},
    "moves": {"placement.rebalance": {"name": "vllm", "window": 2, "interval": 2}},
    "residency": {"residency": {"hbm_experts": "50%"}},
    "memory": {"memory": {"kv_allocator": "paged"}},
    "shared": SHARED,
    "turned away": {"serving.kv_blocks": 1, "input_len": 40},
}


@pytest.fixture(scope="module")
def records():
    """One record for each thing that a record may need."""
    return {
        name: moesim.run(SCENARIO.with_(changes)).summaries[0]
        for name, changes in MANY.items()
    }


@pytest.fixture
def unplayed(monkeypatch):
    """Nothing may be simulated."""

    def refuse(*_):
        raise AssertionError("simulated")

    monkeypatch.setattr(simulate, "replicate_all", refuse)
    monkeypatch.setattr(simulate, "replicate", refuse)


def test_the_names_are_those_of_real_records(records):
    """All that runs measure, and nothing else."""
    found: dict[str, object] = {}
    for record in records.values():
        found |= {key: value for key, value in record.items() if value is not None}
    numbers = {key for key, value in found.items() if isinstance(value, int | float)}
    kinds = ("useful", "late", "wasted")
    idle = {"rebalance_s", *(f"prefetch_{kind}_frac" for kind in kinds)}
    assert not idle & numbers  # so short a run moves and fetches nothing

    assert numbers | idle == set(METRICS)
    assert len(METRICS) == len(set(METRICS))
    assert set(WORDS) <= {key for record in records.values() for key in record}


def test_what_a_metric_needs_is_what_its_record_has(records):
    """What a plain run lacks is what it is said to need, and no more."""
    plain = {k for k, v in records["plain"].items() if v is not None}
    needing = {name for names in NEEDS.values() for name in names}

    given = {k for k in METRICS if metric_of(k) in plain}
    assert set(METRICS) - needing <= given
    assert needing & given == {
        name
        for need, names in NEEDS.items()
        if need.startswith(("outputs", "arrivals"))
        for name in names
    }


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (["p99_tft"], "no metric 'p99_tft'; did you mean p99_ttft_ms"),
        (["mean_ttft", "mean_tft"], "no metric 'mean_tft'"),
        (["duration", "duration"], "duration is given twice"),
        (["mean_ttft", "mean_ttft_ms"], "mean_ttft_ms is given twice"),
        (["@@@"], "keys of result.json"),
        ([3], "no metric"),
        ([], "one metric or more"),
        (["label"], "no metric 'label'"),
        (["stages"], "no value here: it needs serving.coupling: lockstep"),
        (["request_goodput"], "needs limits in slo"),
        (["request_rate"], "needs arrivals at a rate"),
        (["moved_bytes"], "needs experts that move"),
        (["swaps"], "needs a section memory"),
        (["expert_hit_rate"], "needs a section residency"),
        (["shared_away_frac"], "needs kernels.shared_experts"),
    ],
    ids=str,
)
def test_a_metric_is_checked_first(unplayed, metrics, said):
    with pytest.raises(InputError, match=said):
        moesim.compare(SCENARIO, ["fifo", "oldest"], metrics=metrics)


@pytest.mark.parametrize("metric", ["p99_tpot_ms", "mean_itl", "median_intvty"])
def test_one_token_has_no_time_per_token(unplayed, metric):
    """It exists, but not here: that is what is said."""
    with pytest.raises(InputError, match="needs outputs of two tokens or more"):
        moesim.compare(
            SCENARIO.with_(output_len=1), ["fifo", "oldest"], metrics=[metric]
        )


@pytest.mark.parametrize(
    ("policies", "variants", "baseline", "said"),
    [
        (["fifo", "oldestt"], {}, None, "oldest"),
        (["fifo"], {}, None, "or a variant, are needed"),
        ([], {}, None, "got 0"),
        (["fifo"], {"a": {"serving.max_in_flite": 2}}, None, "max_in_flight"),
        (["fifo"], {"a": 3}, None, "variants.a: keys and values"),
        (["fifo"], ["a"], None, "variants are a mapping"),
        (None, {}, None, "lists"),
        (["fifo", "oldest"], {}, "fifoo", "did you mean 'fifo'"),
        ([], {"a": {"serving.max_in_flight": 3}}, "b", "not one of as it stands, a"),
    ],
)
def test_names_are_checked_first(unplayed, policies, variants, baseline, said):
    with pytest.raises(InputError, match=said):
        moesim.compare(SCENARIO, policies, variants=variants, baseline=baseline)


def test_variants_alone_are_held_against_the_scenario_as_it_stands():
    """Its own policy, its own settings."""
    asked = SCENARIO.with_(policy="oldest")
    found = moesim.compare(
        asked, variants={"three": {"serving.max_in_flight": 3}}, replications=2
    )

    assert found.policies == ["as it stands", "three"]
    assert found.baseline == "as it stands"
    own = found.results["as it stands"]
    direct = moesim.run(asked, replications=2)
    assert own.manifest["event_digests"] == direct.manifest["event_digests"]
    assert own.summary["policy"] == "oldest"


def test_a_variant_that_is_the_baseline_needs_nobody_else():
    variants = {f"{n}": {"serving.max_in_flight": n} for n in (1, 3)}

    assert contest(SCENARIO, [], variants, "3").names == ["1", "3"]
    assert contest(SCENARIO, [], variants).names == ["as it stands", "1", "3"]


def test_a_metric_without_a_value_is_named_and_the_others_are_compared():
    """Nothing said before the run that no plan would be carried out."""
    moving = SCENARIO.with_(MANY["moves"])
    found = moesim.compare(
        moving, ["fifo", "oldest"], metrics=["duration", "rebalance_s"], replications=2
    )

    assert {row["metric"] for row in found.rows} == {"duration"}
    assert list(found.empty) == ["rebalance_s"]
    assert found.to_dict()["empty"] == ["rebalance_s"]
    with pytest.raises(InputError, match="nothing to compare: rebalance_s"):
        moesim.compare(
            moving, ["fifo", "oldest"], metrics=["rebalance_s"], replications=2
        )


def test_every_metric_may_be_named_without_its_unit():
    for metric in METRICS:
        assert checked_metrics([metric.removesuffix("_ms")])[0] in METRICS
        assert checked_metrics([metric]) == [metric]


@dataclass
class LastReady:
    """Lets one micro-batch into a stage."""

    def stage(self, ready, keys):
        return [len(ready) - 1]


@dataclass
class LastReadyAndOldest(LastReady):
    """Orders as well."""

    def key(self, batch, view):
        return batch.ready_s


@pytest.mark.parametrize(
    "policy",
    [LastReady(), LastReady, Policy("mine", select=LastReady())],
    ids=["object", "class", "policy"],
)
def test_who_joins_a_stage_needs_stages(unplayed, policy):
    """Queues would never ask: that is refused, not ignored."""
    for call in (
        lambda: moesim.run(SCENARIO, policy=policy),
        lambda: moesim.compare(SCENARIO, ["fifo", policy], replications=2),
    ):
        with pytest.raises(InputError, match=r"serving\.coupling: lockstep"):
            call()


def test_stages_ask_who_joins_them():
    lockstep = SCENARIO.with_({"serving.coupling": "lockstep"}, num_prompts=40)
    last, every = (moesim.run(lockstep, policy=p) for p in (LastReady(), "fifo"))

    assert last.manifest["event_digests"] != every.manifest["event_digests"]
    other = Policy("both", select=LastReady(), order=Oldest())
    for policy in (LastReadyAndOldest(), other):
        assert moesim.run(SCENARIO, policy=policy).summary["completed"] == 6


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: moesim.run({"model": "seed-8x32"}), "got a dict"),
        (lambda: moesim.run(None), "a Scenario .* is expected; got nothing"),
        (lambda: moesim.compare(3, ["fifo", "oldest"]), "got an int"),
        (lambda: moesim.load(None), "the path of a scenario file is expected"),
        (lambda: moesim.load_text(b"model: x"), "YAML text is expected"),
        (lambda: moesim.open_run(2), "the path of a saved run is expected"),
        (lambda: moesim.run(SCENARIO, out=5), "the path of a folder is expected"),
        (lambda: SCENARIO.with_(4), "dotted keys and values are expected"),
    ],
    ids=range(8),
)
def test_the_wrong_kind_of_thing_is_told(unplayed, call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_a_path_is_text_or_a_path(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(SCENARIO.text())

    assert moesim.load(str(path)).digest() == moesim.load(Path(path)).digest()


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (
            {"num_prompts": np.int64(5), "seed": np.uint8(3)},
            {"num_prompts": 5, "seed": 3},
        ),
        ({"serving.chunked_prefill": np.bool_(False)}, None),
        ({"slo": {"ttft": np.str_("2 s")}}, {"slo": {"ttft": "2 s"}}),
        ({"warmup": np.str_("1 s")}, {"warmup": "1 s"}),
        (
            {"cluster.speed": {np.int64(3): np.float32(0.5)}},
            {"cluster.speed": {3: 0.5}},
        ),
        (
            {
                "workload.arrivals": {
                    "type": "gamma",
                    "request_rate": np.array(4.0),
                    "burstiness": np.float16(0.5),
                }
            },
            {
                "workload.arrivals": {
                    "type": "gamma",
                    "request_rate": 4.0,
                    "burstiness": 0.5,
                }
            },
        ),
        (
            {"policy": {"name": "cross_layer", "ageing": np.float64(0.25)}},
            {"policy": {"name": "cross_layer", "ageing": 0.25}},
        ),
    ],
    ids=range(7),
)
def test_numpys_numbers_are_numbers(given, plain):
    """And come out as plain ones, so that the scenario can be written down."""
    plain = plain or {"serving.chunked_prefill": False}
    changed = SCENARIO.with_(given)

    assert changed == SCENARIO.with_(plain)
    assert changed.text() == SCENARIO.with_(plain).text()


def test_numpys_lists_are_lists():
    hot = [{"layer": 2, "expert": 5}, {"layer": 3, "expert": 1}]
    routing = {"name": "rush_hour", "probability": 0.3}
    as_arrays = np.array([{k: np.int64(v) for k, v in h.items()} for h in hot])

    given = SCENARIO.with_(routing={**routing, "hot": as_arrays})
    assert given == SCENARIO.with_(routing={**routing, "hot": hot})
    with pytest.raises(InputError, match="a whole number is expected; got a list"):
        SCENARIO.with_(num_prompts=np.array([1, 2]))
    with pytest.raises(InputError, match="request_rate"):
        SCENARIO.with_({"workload.arrivals": "poisson"}, request_rate=np.float64("nan"))
