"""The Python interface: what it gives, and what it refuses before it simulates."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import moesim
from moesim.errors import InputError, SimulationError
from moesim.policy.bundle import Policy
from moesim.policy.order import Oldest
from moesim.simulate import compare, run

FOLDER = Path(__file__).parents[1] / "scenarios"


@pytest.fixture(scope="module")
def scenario():
    return moesim.load(FOLDER / "seed_rush_hour.yaml").with_(num_prompts=12)


def test_a_run_can_be_saved_and_opened(scenario, tmp_path):
    result = run(scenario, seed=np.int64(3), replications=2, out=tmp_path / "r")
    again = moesim.open_run(tmp_path / "r")

    assert again.summary == result.summary
    assert again.manifest["engine"] == "array"
    assert result.manifest["seed"] == 3
    assert set(result.ci95) > {"p99_ttft_ms"}


def test_results_can_be_pickled(scenario):
    """Whole: tables, numbers, figures, and comparisons that hold several."""
    found = compare(scenario, ["fifo", "oldest"], replications=2)
    again = pickle.loads(pickle.dumps(found))  # noqa: S301 - it is our own

    assert again.rows == found.rows
    for name, result in found.results.items():
        assert again.results[name].summaries == result.summaries
        assert again.results[name].requests.equals(result.requests)
        assert again.results[name].gaps.equals(result.gaps)
    assert again.plot.differences().axes


def test_replication_i_is_the_run_with_seed_plus_i(scenario):
    several = run(scenario, seed=5, replications=2).manifest["event_digests"]

    assert several[1] == run(scenario, seed=6).manifest["event_digests"][0]


def test_both_engines_give_the_same_result(scenario):
    """Every table is the same, whoever keeps the time."""
    tables = [
        run(scenario.with_({"serving.engine": engine}), policy="cross_layer").tables
        for engine in ("event", "array")
    ]

    for name in ("requests", "passes", "experts", "gpus", "links"):
        first, second = (getattr(table, name) for table in tables)
        assert first.equals(second), name


def test_a_comparison_is_paired_and_can_be_saved(scenario, tmp_path):
    mine = Policy("mine", order=Oldest())
    comparison = compare(
        scenario,
        ["fifo", mine],
        replications=2,
        metrics=["p99_ttft"],
        out=tmp_path / "c",
    )
    (row,) = comparison.rows

    assert (row["policy"], row["metric"]) == ("mine", "p99_ttft_ms")
    text = comparison.results["mine"].scenario_text
    assert text.startswith("# run with the policy mine")
    with pytest.raises(InputError, match="mine"):
        moesim.load_text(text)
    assert (tmp_path / "c" / "compare.json").exists()


class Slots:
    """A dispatch role that answers as it is told."""

    def __init__(self, answer):
        self.answer = answer

    def slots(self, ids, source, placement):
        return self.answer(ids)


@pytest.mark.parametrize(
    "answer",
    [
        lambda ids: ids.astype(int) * 0,
        lambda ids: ids.astype(int) - 1,
        lambda ids: ids.astype(float),
        lambda ids: ids[:1],
        lambda ids: None,
    ],
    ids=["one expert", "negative", "floats", "shape", "nothing"],
)
def test_a_token_reaches_the_experts_it_is_routed_to(scenario, answer):
    """No dispatch role may send it elsewhere."""
    with pytest.raises(InputError, match="slots"):
        run(scenario, policy=Slots(answer))


@pytest.mark.parametrize("rank", [-1, 8, 1.5, None])
def test_a_rank_that_is_not_there_is_refused(scenario, rank):
    class Odd:
        def rank(self, request, ranks):
            return rank

    with pytest.raises(InputError, match="rows"):
        run(scenario, policy=Odd())


class Everywhere:
    """An order that looks at the whole instance at any instant."""

    needs = "global_instant"

    def key(self, batch, view):
        assert np.isfinite(view.backlog_s).all()
        return float(view.backlog_s.sum())


def test_a_policy_that_looks_everywhere_is_played_event_by_event(scenario):
    assert run(scenario, policy=Everywhere()).manifest["engine"] == "event"
    with pytest.raises(InputError, match="not be exact"):
        run(scenario.with_({"serving.engine": "array"}), policy=Everywhere())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policies": "fifo,oldest"}, "lists"),
        ({"policies": ["fifo"]}, "two policies"),
        ({"policies": ["fifo", "fifo"]}, "different names"),
        ({"policies": ["fifo", "oldest"], "baseline": "x"}, "baseline"),
        ({"policies": ["fifo", "oldest"], "replications": 1}, "two replications"),
        ({"policies": ["fifo", "oldest"], "replications": 0}, "two replications"),
        ({"policies": ["fifo", "oldest"], "metrics": ["p99_tft"]}, "p99_ttft_ms"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused(scenario, options, said):
    with pytest.raises(InputError, match=said):
        compare(scenario, **({"replications": 2} | options))


def test_a_folder_with_strange_files_is_never_replaced(scenario, tmp_path):
    """Before anything is simulated, and however it came to lie there."""
    run(scenario, out=tmp_path / "r")
    (tmp_path / "r" / "my_notes.txt").write_text("mine")

    with pytest.raises(InputError, match=r"my_notes\.txt"):
        run(scenario, out=tmp_path / "r")
    assert (tmp_path / "r" / "my_notes.txt").read_text() == "mine"


def test_more_kv_blocks_than_memory_are_refused(scenario):
    with pytest.raises(InputError, match="do not fit"):
        scenario.with_({"serving.kv_blocks": 10**9})


def test_a_wait_budget_longer_than_time_is_none(scenario):
    policies = [{"name": "cross_layer", "wait_budget": b} for b in ("inf", "1e9 s")]
    digests = [run(scenario, policy=p).manifest["event_digests"] for p in policies]

    assert digests[0] == digests[1]


def test_arrivals_beyond_the_clock_are_refused(scenario):
    slow = scenario.with_(
        {"workload.arrivals": {"type": "constant", "request_rate": 1e-6}}
    )

    with pytest.raises(InputError, match="53 days"):
        run(slow)


def test_a_secret_variable_is_not_read(scenario, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "s3cret")

    with pytest.raises(InputError, match="MOESIM_") as caught:
        scenario.with_(model="${MY_SECRET}/config.json")
    assert "s3cret" not in str(caught.value)


def test_a_request_that_never_fits_is_rejected_and_others_go_on(scenario):
    long = scenario.with_(
        {
            "serving.kv_blocks": 2,
            "serving.max_num_batched_tokens": 512,
            "workload.input_len": {"type": "uniform", "min": 1, "max": 64},
        }
    )
    result = run(long)

    assert set(result.requests["status"]) == {"finished", "rejected"}
    assert result.summary["rejected"] + result.summary["completed"] == 12


def test_an_instance_that_can_do_nothing_more_says_so(scenario):
    """A compose role that lets nobody in ends in an error, not in silence."""

    class Nobody:
        def sequence(self, waiting, view):
            return np.zeros(0, int)

    with pytest.raises(SimulationError, match="nothing can happen any more"):
        run(scenario, policy=Nobody())


def test_routed_padding_is_busy_but_not_useful(scenario):
    """The fault loads experts with rows that are nobody's tokens."""
    padded, plain = (
        run(scenario.with_({"serving.padding": mode})) for mode in ("routed", "none")
    )

    assert padded.gpus["busy_s"].sum() > plain.gpus["busy_s"].sum()
    assert padded.gpus["useful_s"].sum() <= 1.02 * plain.gpus["useful_s"].sum()


def test_variants_are_compared_like_policies(scenario):
    """Other settings by name, on the same traffic, with the policies' own rows."""
    patient = {"policy": {"name": "cross_layer", "wait_budget": "1 s"}}
    eager = {"policy.name": "cross_layer", "policy.wait_budget": "0 s"}

    found = moesim.compare(
        scenario,
        ["fifo"],
        variants={"patient": patient, "eager": eager},
        replications=2,
    )

    assert found.policies == ["fifo", "patient", "eager"]
    digests = {name: r.manifest["event_digests"] for name, r in found.results.items()}
    assert digests["eager"] == digests["fifo"]
    assert {row["policy"] for row in found.rows} == {"patient", "eager"}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 3},
        {"workload.input_len": 9},
        {"routing": "uniform"},
        {"num_prompts": 4},
    ],
)
def test_a_variant_may_not_change_the_traffic(scenario, change):
    """Pairs would be none."""
    with pytest.raises(InputError, match="would meet other traffic"):
        moesim.compare(scenario, ["fifo"], variants={"other": change}, replications=2)


def test_a_variant_that_is_wrong_is_told_by_its_key(scenario):
    """As any other change would be."""
    with pytest.raises(InputError, match="max_in_flite"):
        moesim.compare(scenario, ["fifo"], variants={"x": {"serving.max_in_flite": 2}})
