"""Studies that measure, and the closed form that they are held against."""

import csv
import sys

import pytest

import moesim
from moesim.cli.main import main
from moesim.cost.binding import even_seconds
from moesim.cost.even import EvenBatch
from moesim.errors import InputError
from moesim.scenario.pieces import serving_of
from moesim.scenario.system import system_of
from moesim.study.closed import FORESEEN, FULL, closed_form, cycle_of, refusal
from moesim.study.read import read_study
from moesim.study.table import run_study

FULL_BATCHES = """\
model: mixtral-8x7b
routing: {name: uniform, draw: counts}
workload: {num_prompts: 512, input_len: 256, output_len: 64}
serving: {max_num_batched_tokens: 4096, max_num_seqs: 32}
"""
ASKED = """\
question: How fast?
scenario: full.yaml
closed_form: true
replications: 2
set: {workload.output_len: 8}
measures:
  - name: few
    points:
      - {serving.max_num_seqs: 2, workload.num_prompts: 16}
      - {serving.max_num_seqs: 4, workload.num_prompts: 32}
    grid: {workload.input_len: [16, 32]}
    metrics: [mean_tpot_ms, binding, binding_decode, preemptions]
  - closed_form: false
    set: {workload.num_prompts: 16}
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "full.yaml").write_text(FULL_BATCHES)

    def written(text):
        path = tmp_path / "asked.yaml"
        path.write_text(text)
        return path

    return written


def test_a_row_is_a_metric_at_a_point(write):
    rows = run_study(read_study(write(ASKED)))
    few = [row for row in rows if row["measure"] == "few"]

    spots = [(r["serving.max_num_seqs"], r["workload.input_len"]) for r in few[::4]]
    assert spots == [(2, 16), (2, 32), (4, 16), (4, 32)]
    assert [row["metric"] for row in few[:4]] == [
        "mean_tpot_ms",
        "binding",
        "binding_decode",
        "preemptions",
    ]
    assert {row["replications"] for row in rows} == {2}
    assert rows[-1]["measure"] == "full"
    assert rows[-1]["closed_form"] is None


def test_a_measure_is_the_run_it_stands_for(write):
    asked = read_study(write(ASKED))
    part = asked.measures[3]
    direct = moesim.run(part.scenario, replications=2)
    tpot, bound, decode, preempted = [
        row for row in run_study(asked) if row["measure"] == "few"
    ][-4:]

    assert part.scenario.serving.max_num_seqs == 4
    assert tpot["value"] == pytest.approx(direct.summary["mean_tpot_ms"], rel=1e-5)
    low, high = direct.ci95["mean_tpot_ms"]
    assert (tpot["low"], tpot["high"]) == (
        pytest.approx(low, rel=1e-5),
        pytest.approx(high, rel=1e-5),
    )
    expected = closed_form(part.scenario)
    assert tpot["closed_form"] == pytest.approx(expected["mean_tpot_ms"], rel=1e-5)
    off = direct.summary["mean_tpot_ms"] / expected["mean_tpot_ms"] - 1
    assert tpot["deviation"] == pytest.approx(off, rel=1e-4)
    assert bound["value"] == direct.summary["binding"]
    assert bound["closed_form"] == expected["binding"]
    assert (decode["value"], decode["closed_form"]) == (None, "expert weights")
    assert preempted["value"] == 0


def test_a_full_batch_is_as_fast_as_arithmetic_says():
    """Chance makes it slower: GPUs wait for the busiest; nothing makes it faster."""
    scenario = moesim.load_text(FULL_BATCHES).with_(
        {"serving.max_num_seqs": 128, "num_prompts": 4096}
    )
    measured, foreseen = moesim.run(scenario).summary, closed_form(scenario)

    for key, most in (("output_tput_per_gpu", 0.05), ("p50_itl_ms", 0.06)):
        assert measured[key] == pytest.approx(foreseen[key], rel=most), key
    assert measured["output_tput_per_gpu"] < foreseen["output_tput_per_gpu"]
    assert measured["p50_itl_ms"] > foreseen["p50_itl_ms"]


def test_all_prompts_in_one_pass_leave_nothing_but_decode():
    scenario = moesim.load_text(FULL_BATCHES).with_({"serving.max_num_seqs": 8})
    foreseen, system = closed_form(scenario), system_of(scenario)
    decode = even_seconds([EvenBatch(8, 1, 256 + 31)], system)
    prompts = even_seconds([EvenBatch(8, 256, 0)], system)

    assert foreseen["mean_tpot_ms"] == pytest.approx(1e3 * decode)
    assert foreseen["p50_itl_ms"] == pytest.approx(1e3 * decode)
    assert foreseen["output_tput_per_gpu"] == pytest.approx(
        8 * 64 / (prompts + 63 * decode)
    )


def test_memory_that_is_full_binds():
    """20 blocks of 16 hold one request of 256 + 63 tokens; 41 hold two."""
    scenario = moesim.load_text(FULL_BATCHES)
    two = closed_form(scenario.with_({"serving.kv_blocks": 41}))
    enough = closed_form(scenario.with_({"serving.kv_blocks": 20 * 32}))
    asked_two = closed_form(scenario.with_({"serving.max_num_seqs": 2}))

    assert two["binding"] == FULL
    assert two["binding_decode"] == asked_two["binding_decode"]
    assert two["output_tput_per_gpu"] == asked_two["output_tput_per_gpu"]
    assert enough["binding"] != FULL


def test_no_more_run_at_once_than_there_are():
    scenario = moesim.load_text(FULL_BATCHES).with_({"num_prompts": 16})

    foreseen = closed_form(scenario)

    assert foreseen == closed_form(scenario.with_({"serving.max_num_seqs": 2}))


def test_prompts_longer_than_a_pass_are_computed_in_several():
    scenario = moesim.load_text(FULL_BATCHES).with_(
        {
            "input_len": 1024,
            "output_len": 256,
            "serving.max_num_batched_tokens": 256,
            "serving.max_num_seqs": 16,
            "num_prompts": 512,
        }
    )
    foreseen, measured = closed_form(scenario), moesim.run(scenario).summary

    assert measured["output_tput_per_gpu"] == pytest.approx(
        foreseen["output_tput_per_gpu"], rel=0.08
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"routing": "zipf"}, "not uniform"),
        (
            {"workload.arrivals": {"type": "poisson", "request_rate": 3}},
            "arrive at once",
        ),
        ({"max_concurrency": 8}, "arrive at once"),
        ({"output_len": 1}, "nobody decodes"),
        ({"input_len": {"type": "uniform", "min": 4, "max": 9}}, "lengths differ"),
        ({"serving.mode": "static"}, "not continuous"),
        ({"serving.max_in_flight": 2}, "several micro-batches"),
        ({"serving.chunked_prefill": False}, "not be cut"),
        ({"cluster.speed": {3: 0.5}}, "unequal"),
        ({"placement.rebalance": "vllm"}, "experts move"),
        (
            {"cluster.gpus_per_node": 2, "residency.hbm_experts": "50%"},
            "not all in device memory",
        ),
        ({"memory.preemption": "swap"}, "rules of its own"),
        ({"serving.coupling": "lockstep"}, "in lockstep"),
        ({"policy": "capacity"}, "choices of experts"),
        ({"policy": "sign_bias"}, "choices of experts"),
    ],
)
def test_other_scenarios_have_no_closed_form(changes, said):
    base = moesim.load_text(FULL_BATCHES.replace(", draw: counts", ""))

    assert said in refusal(base.with_(changes))
    assert refusal(base) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ASKED.replace("few", "few\n    policies: [fifo]"), "unknown key 'policies'"),
        (ASKED.replace("true", "3"), "true or false is expected; got '?3"),
        (ASKED.replace("[16, 32]", "16"), "a list is expected"),
        (ASKED + "comparisons: []\n", "unknown key 'comparisons'"),
        ("question: Q\nmeasures: []\n", "a list of measures is expected"),
        ("question: Q\nmeasures: [{}]\n", "names its scenario"),
        (
            ASKED.replace("{serving.max_num_seqs: 2, workload.num_prompts: 16}", "3"),
            "map",
        ),
        (ASKED.replace("closed_form: true", "closed_form: false"), "binding_decode"),
        (ASKED.replace("preemptions]", "preemptions, preemptions]"), "given twice"),
        (ASKED.replace("preemptions]", "stages]"), r"needs serving\.coupling"),
        (ASKED.replace("preemptions]", "label]"), "no metric 'label'"),
        (ASKED.replace("[16, 32]", "[16, 16]"), "comes twice"),
        (
            ASKED.replace("output_len: 8", "output_len: 1"),
            "no closed form: nobody decodes",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(write, text, said):
    with pytest.raises(InputError, match=said):
        read_study(write(text))


def test_an_unknown_metric_has_a_neighbour(write):
    text = ASKED.replace("mean_tpot_ms", "mean_tpt_ms")

    with pytest.raises(InputError, match="'mean_tpt_ms'; did you mean mean_tpot_ms"):
        read_study(write(text))


def test_what_is_foreseen_is_named():
    """And is known to every measure that has a closed form, to no other."""
    assert set(closed_form(moesim.load_text(FULL_BATCHES))) == set(FORESEEN)


def test_the_command_writes_the_table(write, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["moesim", "study", str(write(ASKED))])
    with pytest.raises(SystemExit) as caught:
        main()

    with (tmp_path / "results" / "studies" / "asked.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert not caught.value.code
    assert len(rows) == 4 * 4 + 4
    assert capsys.readouterr().out.startswith("How fast? 20 rows: ")


def test_a_cycle_is_a_request_s_own_prompt_and_the_passes_between_its_tokens():
    """A prompt cut in pieces takes several passes, which are nobody's time per token."""
    scenario = moesim.load_text(FULL_BATCHES).with_(
        {
            "input_len": 1024,
            "output_len": 256,
            "serving.max_num_batched_tokens": 256,
            "serving.max_num_seqs": 16,
        }
    )
    system, foreseen = system_of(scenario), closed_form(scenario)
    cycle = cycle_of(scenario, serving_of(scenario, system), system)
    mixed = even_seconds(cycle.mixed, system)
    period = 16 * 256 / foreseen["output_tput_per_gpu"]
    own = 1024 / (256 - 16)

    assert sum(batch.tokens for batch in cycle.mixed) == pytest.approx(256, abs=1)
    assert cycle.arrivals == pytest.approx(1 / own)
    assert foreseen["mean_tpot_ms"] == pytest.approx(1e3 * (period - own * mixed) / 255)
