"""Parts of a scenario held to each other: both places named, no mistake told twice."""

import numpy as np
import pytest

from moesim.errors import InputError
from moesim.scenario.load import load_text

BASE = """\
model: mixtral-8x7b
routing: uniform
workload: {num_prompts: 5, input_len: 100}
"""


def problems_of(text, **options):
    with pytest.raises(InputError) as caught:
        load_text(text, "s.yaml", **options)
    return {p.key: p for p in caught.value.problems}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("kernels: {attention: split}", "kernels.attention is split"),
        ("kernels: {shared_experts: overlapped}", "kernels.shared_experts is overl"),
    ],
)
def test_an_engine_that_would_not_be_exact_is_refused_where_it_is_asked_for(
    more, reason
):
    text = BASE.replace("mixtral-8x7b", "deepseek-v2-lite") + more
    serving = "\nserving: {engine: ENGINE, max_in_flight: 2}\n"
    for engine in ("auto", "event"):
        assert load_text(text + serving.replace("ENGINE", engine))
    (found,) = problems_of(text + serving.replace("ENGINE", "array")).values()

    assert (found.key, found.line) == ("serving.engine", 5)
    assert f"array would not be exact: {reason}" in found.message


def test_experts_that_come_and_go_need_the_event_engine():
    (found,) = problems_of(
        f"{BASE}serving: {{engine: array}}\nresidency: {{}}"
    ).values()

    assert found.key == "residency"
    assert "needs the event engine" in found.message


def test_one_mistake_hides_no_other():
    """Wrong values, unknown keys and wrong names of every section come at once."""
    found = problems_of("""\
model: mixtral-8x7
cluster: {gpu: h1000, tensor_parallel: 3, speed: {x: 1}}
precision: fp7
kernels: {dispatch: fast}
placement: {name: contiguos}
routing: {name: zipff}
workload:
  num_prompts: true
  arrivals: {type: poison, request_rate: 12}
  input_len: {type: lognormal, mean: 5}
  output_len: 0
  classes: {"a b": 1}
serving: {kv_blocks: many, assign: rr}
policy: {name: cross_layer, wait_budget: 5 mss, knowledge: all, ageing: .nan}
slo: {ttft: 5}
warmup:
seed: 1.5
num_prompts: 5
""")

    assert set(found) == {
        "model",
        "cluster.gpu",
        "cluster.tensor_parallel",
        "cluster.speed.x",
        "precision",
        "kernels.dispatch",
        "placement.name",
        "routing.name",
        "workload.num_prompts",
        "workload.arrivals.type",
        "workload.input_len",
        "workload.output_len.value",
        "workload.classes.a b",
        "serving.kv_blocks",
        "serving.assign",
        "policy.wait_budget",
        "policy.knowledge",
        "policy.ageing",
        "slo.ttft",
        "warmup",
        "seed",
        "num_prompts",
    }
    assert all(problem.line for problem in found.values())


def test_what_is_missing_is_told_with_the_rest():
    assert set(problems_of("seed: x\npolicy: nobody\n")) == {
        "model",
        "routing",
        "workload",
        "seed",
        "policy.name",
    }


def test_a_wrong_model_is_told_once():
    """Nothing that depends on it complains about a model nobody asked for."""
    text = BASE.replace("8x7b", "8x9b") + "cluster: {gpus_per_node: 3}\n"

    assert set(problems_of(text)) == {"model"}


def test_a_misspelt_key_leaves_the_other_parts_to_be_checked():
    text = BASE + "placement: {redundant_expert: 1}\npolicy: nobody\n"

    assert set(problems_of(text)) == {"placement.redundant_expert", "policy.name"}


@pytest.mark.parametrize(
    ("extra", "key", "said", "also"),
    [
        (
            "placement: {redundant_experts: 3}\n",
            "placement",
            "nearest that can",
            "model on line 1",
        ),
        (
            "cluster: {tensor_parallel: 16, nodes: 2, gpus_per_node: 8}\n",
            "cluster.tensor_parallel",
            "GPUs of a node",
            "cluster.gpus_per_node on line 4",
        ),
        (
            "cluster: {nodes: 2, gpus_per_node: 4, speed: {8: 0.5}}\n",
            "cluster.speed.8",
            "0 to 7",
            "cluster.nodes on line 4",
        ),
        (
            "cluster: {nodes: 1024, gpus_per_node: 1024}\n",
            "cluster.nodes",
            "at most",
            "cluster.gpus_per_node on line 4",
        ),
        (
            "cluster: {gpus_per_node: 1}\n",
            "serving",
            "does not fit",
            "cluster on line 4",
        ),
        (
            "serving: {chunked_prefill: false, max_num_batched_tokens: 64}\n",
            "workload.input_len",
            "never fit whole",
            "serving.max_num_batched_tokens on line 4",
        ),
        (
            "serving: {stage_width: 2, coupling: queued}\n",
            "serving.stage_width",
            "lockstep",
            "serving.coupling on line 4",
        ),
    ],
)
def test_a_contradiction_names_both_places(extra, key, said, also):
    problem = problems_of(BASE + extra)[key]

    assert said in problem.message
    assert also in problem.message
    assert problem.line


def test_a_default_that_cannot_hold_is_shown_where_it_was_broken():
    """No line says `placement`, so the cluster's line is shown."""
    problem = problems_of(BASE + "cluster: {gpus_per_node: 3}\n")["placement"]

    assert (problem.line, problem.column) == (4, 26)


def test_prefill_ends_with_one_token():
    text = BASE.replace("100", "100, output_len: 9") + "serving: {mode: prefill_only}\n"
    problem = problems_of(text)["workload.output_len"]

    assert "first token" in problem.message
    assert "serving.mode on line 4" in problem.message


def test_a_hot_expert_must_exist():
    hot = "{name: rush_hour, hot: [{layer: 2, expert: 8}, {layer: 32, expert: 1}]}"
    found = problems_of(BASE.replace("uniform", hot))

    assert "0 to 7 (model on line 1)" in found["routing.hot.0.expert"].message
    assert "0 to 31" in found["routing.hot.1.layer"].message


@pytest.mark.parametrize(
    ("blocks", "said"),
    [("many", "whole number"), ("0", ">= 1"), ("[]", "a list"), ("", "nothing")],
)
def test_kv_blocks_are_counted_or_left_to_memory(blocks, said):
    found = problems_of(BASE + f"serving: {{kv_blocks: {blocks}}}\n")

    assert said in found["serving.kv_blocks"].message
    assert load_text(BASE + "serving: {kv_blocks: 2K}\n").serving.kv_blocks == 2000
    assert load_text(BASE).serving.kv_blocks == "auto"


@pytest.mark.parametrize("hot", ["5", "[5]", "[{layer: 2}]", "[{layer: 2, expert: x}]"])
def test_a_hot_expert_is_a_layer_and_an_expert(hot):
    text = BASE.replace("uniform", f"{{name: rush_hour, hot: {hot}}}")
    (problem,) = problems_of(text).values()

    assert problem.key.startswith("routing.hot")
    assert "{layer: ..., expert: ...}" in problem.message


def test_lengths_of_a_log_need_a_log():
    problem = problems_of(BASE.replace("100", "{type: log}"))["workload.input_len.type"]

    assert "routing of name log" in problem.message
    assert "routing on line 2" in problem.message


def test_a_log_needs_a_sequence_for_every_request(tmp_path):
    """Three sequences cannot give five requests their lengths."""
    ids = np.tile(np.arange(2, dtype=np.uint8), (6, 32, 1))
    np.savez(tmp_path / "log.npz", expert_ids=ids, seq_lens=np.array([1, 2, 3]))
    log = BASE.replace("uniform", "{name: log, path: log.npz}")
    text = log.replace("100", "{type: log}")
    problem = problems_of(text, base=tmp_path)["workload.input_len.type"]

    assert "3 sequences, not 5" in problem.message
    assert load_text(text.replace("5,", "3,"), base=tmp_path).routing["name"] == "log"


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(
    f"2023-11-16 18:17:0{second}.5,{100 + second},7" for second in range(4)
)


def test_a_trace_needs_a_row_for_every_request(tmp_path):
    (tmp_path / "t.csv").write_text(TRACE)
    law = "{type: trace, path: t.csv}"
    text = BASE.replace("100", f"{law}, arrivals: {law}")
    found = problems_of(text, base=tmp_path)

    assert "4 requests, not 5" in found["workload.arrivals.path"].message
    assert "4 requests, not 5" in found["workload.input_len.path"].message


def test_lengths_come_from_the_trace_of_the_arrivals(tmp_path):
    """A trace without a path is the arrivals' trace."""
    (tmp_path / "t.csv").write_text(TRACE)
    text = BASE.replace(
        "{num_prompts: 5, input_len: 100}",
        "{num_prompts: 4, arrivals: {type: trace, path: t.csv}, input_len: trace}",
    )

    path = load_text(text, base=tmp_path).workload.input_len["path"]

    assert path == str(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("arrivals", "key", "said"),
    [
        ("{type: trace}", "workload.arrivals.type", "needs path"),
        ("{type: trace, path: 5}", "workload.arrivals.path", "the path of a file"),
        ("{type: trace, path: t.cvs}", "workload.arrivals.path", "'t.csv'"),
        (
            "{type: trace, path: t.csv, format: {}}",
            "workload.arrivals.format",
            "a mapping is not one of auto",
        ),
        (
            "{type: trace, path: t.csv, format: azur}",
            "workload.arrivals.format",
            "'azure'",
        ),
        ("{type: trace, path: t.csv, pace: 2}", "workload.arrivals.pace", "speedup"),
    ],
)
def test_a_trace_is_a_file_with_a_format(arrivals, key, said, tmp_path):
    (tmp_path / "t.csv").write_text(TRACE)
    text = BASE.replace("100", f"100, arrivals: {arrivals}")
    found = problems_of(text, base=tmp_path)

    assert any(said in p.message for k, p in found.items() if k.startswith(key)), found


def test_a_bad_row_of_a_trace_is_told_with_its_line(tmp_path):
    (tmp_path / "t.csv").write_text(TRACE.replace("102,7", "102,-7"))
    text = BASE.replace("100", "100, arrivals: {type: trace, path: t.csv}")
    (problem,) = problems_of(text, base=tmp_path).values()

    assert problem.line == 3
    assert "t.csv:4" in problem.message


def test_counts_are_refused_where_they_do_not_suffice():
    """A policy that looks at tokens, or a source whose tokens differ."""
    text = BASE.replace("uniform", "{name: uniform, draw: counts}")
    load_text(text, "s.yaml")

    found = problems_of(text + "serving: {replica: random}\n")
    message = found["routing.draw"].message
    assert "chooses replicas token by token" in message
    assert "serving.replica on line 4" in message

    latent = problems_of(BASE.replace("uniform", "{name: latent, draw: counts}"))
    assert "tokens that are all drawn alike" in latent["routing.draw"].message
