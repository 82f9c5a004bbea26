"""Scenario files: every mistake at once, with its place; nothing else ever raised."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.scenario.change import parse_setting
from moesim.scenario.load import Scenario, load, load_text

FOLDER = Path(__file__).parents[2] / "scenarios"
SHIPPED = sorted(FOLDER.glob("*.yaml"))
PLAIN = [path for path in SHIPPED if "${" not in path.read_text()]
MINIMAL = """\
model: mixtral-8x7b
routing: uniform
workload:
  arrivals: {type: poisson, request_rate: 12}
  num_prompts: 5
  input_len: 100
"""


def problems_of(text, **options):
    with pytest.raises(InputError) as caught:
        load_text(text, "s.yaml", **options)
    return caught.value.problems


def test_eight_lines_are_enough():
    """Everything but model, routing and workload has a default."""
    scenario = load_text(MINIMAL)

    assert scenario.cluster.gpu == "h100"
    assert scenario.policy == {"name": "fifo"}
    assert scenario.serving.coupling == "queued"


def test_every_mistake_comes_at_once_with_its_place():
    """Line, column, dotted key, what was wrong, and the nearest right name."""
    text = """\
model: mixtral-8x7b
routing: uniform
cluster: {gpus_per_nod: 8}
workload:
  arrivals: {type: batch}
  num_prompt: 2000
  input_len: 100
serving:
  coupling: lockstepp
  max_in_flight: true
warmup: 5 mss
"""

    found = {(p.line, p.column, p.key): p.message for p in problems_of(text)}

    assert set(found) == {
        (3, 11, "cluster.gpus_per_nod"),
        (6, 3, "workload.num_prompt"),
        (9, 13, "serving.coupling"),
        (10, 18, "serving.max_in_flight"),
        (11, 9, "warmup"),
    }
    assert "did you mean 'gpus_per_node'" in found[3, 11, "cluster.gpus_per_nod"]
    assert "did you mean 'num_prompts'" in found[6, 3, "workload.num_prompt"]
    assert "did you mean 'lockstep'" in found[9, 13, "serving.coupling"]
    assert "'ms'" in found[11, 9, "warmup"] or "ms" in found[11, 9, "warmup"]


@pytest.mark.parametrize(
    ("old", "new", "key", "said"),
    [
        ("mixtral-8x7b", "mixtral-8x7", "model", "mixtral-8x7b"),
        ("routing: uniform", "routing: unifrom", "routing", "uniform"),
        ("type: poisson", "type: poison", "workload.arrivals.type", "poisson"),
        ("request_rate: 12", "rate: 12", "workload.arrivals.rate", "request_rate"),
        (
            "request_rate: 12",
            "request_rate: -1",
            "workload.arrivals.request_rate",
            "-1",
        ),
        ("input_len: 100", "input_len: 0", "workload.input_len", "0"),
        (
            "input_len: 100",
            "input_len: {type: logn}",
            "workload.input_len",
            "lognormal",
        ),
    ],
)
def test_named_parts_report_like_everything_else(old, new, key, said):
    """Routing, arrivals, lengths and policies name their parameters when wrong."""
    found = problems_of(MINIMAL.replace(old, new))

    assert any(p.key.startswith(key) and p.line for p in found)
    assert any(said in p.message for p in found)


@pytest.mark.parametrize(
    ("extra", "key", "said"),
    [
        ("policy: crosslayer\n", "policy", "cross_layer"),
        ("policy: {name: cross_layer, budget: 1ms}\n", "policy", "wait_budget"),
        ("policy: {name: fifo, ageing: 1}\n", "policy", "ageing"),
        ("policy: my_module:Class\n", "policy.name", "--policy"),
        ("cluster: {gpu: h1000}\n", "cluster", "h100"),
        ("cluster: {gpus_per_node: 3}\n", "placement", "3"),
        ("cluster: {tensor_parallel: 3}\n", "cluster.tensor_parallel", "3"),
        ("cluster: {speed: {9: 0.5}}\n", "cluster.speed.9", "9"),
        ("cluster: {gpus_per_node: 1}\n", "serving", "fit"),
        ("serving: {assign: rr}\n", "serving.assign", "round_robin"),
        ("slo: mlperf/deepseek-r2\n", "slo", "mlperf/deepseek-r1"),
        ("seed: 1.5\n", "seed", "1.5"),
        ("replications: 0\n", "replications", "1"),
    ],
)
def test_what_cannot_work_together_is_refused(extra, key, said):
    """Cross-field checks speak before anything is simulated."""
    found = problems_of(MINIMAL + extra)

    assert any(p.key.startswith(key) for p in found), [str(p) for p in found]
    assert any(said in p.message for p in found), [str(p) for p in found]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "- a list\n",
        "a: &x 1\nb: *x\n",
        "a: 1\na: 2\n",
        "a: 1\n---\nb: 2\n",
        "a: !!python/object/apply:os.system [ls]\n",
        "\ta: 1\n",
        "a: [" * 200,
        "a: \x00\n",
        "<<: {a: 1}\n",
    ],
)
def test_hostile_yaml_is_refused(text):
    """No file loops, grows, runs anything or slips through."""
    assert problems_of(text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="none\\.yaml"):
        load(tmp_path / "none.yaml")


def test_an_unset_variable_is_named(monkeypatch):
    monkeypatch.delenv("NOWHERE_DATA", raising=False)
    text = MINIMAL.replace(
        "routing: uniform", 'routing: {name: log, path: "${NOWHERE_DATA}/x.npz"}'
    )

    assert any("NOWHERE_DATA" in problem.message for problem in problems_of(text))


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_a_written_scenario_loads_equal(path):
    """The resolved text repeats the run: it loads to an equal scenario, stably."""
    scenario = load(path)
    again = load_text(scenario.text())

    assert again == scenario
    assert again.text() == scenario.text()
    assert again.digest() == scenario.digest()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_scenario_opens_with_its_question(path):
    first = path.read_text().splitlines()[0]

    assert first.startswith("# ")
    assert first.endswith("?")


def test_with_changes_and_checks():
    """Dotted keys, shortcuts and whole sections; wrong ones are refused."""
    scenario = load_text(MINIMAL)
    changed = scenario.with_(
        {"serving.max_in_flight": 2}, request_rate=24, policy="oldest", seed=3
    )

    assert isinstance(changed, Scenario)
    assert changed.serving.max_in_flight == 2
    assert changed.workload.arrivals["request_rate"] == 24
    assert (changed.policy, changed.seed) == ({"name": "oldest"}, 3)
    assert changed.with_(cluster={"gpu": "h200"}).cluster.gpus_per_node == 8
    with pytest.raises(InputError, match="max_in_flight"):
        scenario.with_({"serving.max_in_fligt": 2})
    with pytest.raises(InputError, match="unknown key"):
        scenario.with_({"seed.deeper": 2})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("serving.max_in_flight=2", ("serving.max_in_flight", 2)),
        ("policy=oldest", ("policy", "oldest")),
        ("slo.ttft=200ms", ("slo.ttft", "200ms")),
        (
            "policy={name: cross_layer, ageing: 0.1}",
            ("policy", {"name": "cross_layer", "ageing": 0.1}),
        ),
    ],
)
def test_settings_are_yaml_values(text, expected):
    assert parse_setting(text) == expected


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([p.read_text() for p in PLAIN]), st.data())
def test_a_broken_file_gives_nothing_but_an_input_error(text, data):
    """Cut, splice or overwrite anywhere: it loads, or says what is wrong."""
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 40))
    junk = data.draw(st.text(max_size=12))
    broken = text[:at] + junk + text[at + length :]

    try:
        load_text(broken)
    except InputError as error:
        problems = error.problems
    else:
        problems = ("it loads",)

    assert problems


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_nothing_but_an_input_error(text):
    with pytest.raises(InputError):
        load_text(text)
