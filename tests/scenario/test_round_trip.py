"""A scenario's text says all of it, and no data of any shape breaks the checks."""

import json
from copy import deepcopy
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.scenario.build import build
from moesim.scenario.load import load, load_text

FOLDER = Path(__file__).parents[2] / "scenarios"
DATA = [
    load(path).resolved()
    for path in sorted(FOLDER.glob("*.yaml"))
    if "${" not in path.read_text()
]
WORDS = [
    "fifo",
    "cross_layer",
    "per_layer",
    "trace",
    "log",
    "zipf",
    "latent",
    "rush_hour",
    "lognormal",
    "normal",
    "uniform",
    "geometric",
    "empirical",
    "constant",
    "batch",
    "gamma",
    "inf",
    "nan",
    "-1",
    "1e400",
    "0x10",
    "${HOME}",
    "/dev/zero",
    "a:b",
    "../x.json",
    "lockstep",
    "2K",
    "static",
    "round_robin",
    "name",
    "type",
    "path",
    "format",
    "layer",
    "expert",
    "value",
    "mean",
    "cv",
    "min",
    "max",
    "request_rate",
    "hot",
    "probability",
    "exponent",
    "sigma",
    "values",
    "speed",
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([10**9, 2**63, 10**30, 1e-320, 1e308, 0.5, -0.5, 3.7]),
    st.sampled_from([*WORDS, "", "\x00", "5 ms", "\N{HIRAGANA LETTER A}", "x" * 5000]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(WORDS), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(data, at=()):
    yield at
    if isinstance(data, dict):
        for key, value in data.items():
            yield from places(value, (*at, key))


@st.composite
def broken(draw):
    """Return complete data with one or two values or keys replaced."""
    data = deepcopy(draw(st.sampled_from(DATA)))
    for _ in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from(list(places(data))[1:]))
        table = data
        for step in path:
            table = table[step]
        key = draw(st.sampled_from([last, last, *WORDS]))
        table[key] = draw(values)
    return data


@settings(max_examples=80, deadline=None)
@given(broken())
def test_data_of_any_shape_loads_and_returns_or_is_refused(data):
    """What loads is written, loads equal, and is written the same."""
    try:
        scenario = load_text(json.dumps(data))
    except InputError:
        return
    again = load_text(scenario.text())

    assert again == scenario
    assert again.text() == scenario.text()


def test_a_digest_is_of_everything():
    scenario = load_text(json.dumps(DATA[0]))

    assert len(scenario.digest()) == 64
    assert scenario.with_(seed=1).digest() != scenario.digest()
    assert scenario.with_(seed=scenario.seed).digest() == scenario.digest()


def test_defaults_are_written_out():
    """Nobody has to know this version's defaults to repeat a run."""
    resolved = load_text(
        "model: mixtral-8x7b\nrouting: zipf\nworkload: {input_len: 5}\n"
        "policy: cross_layer\nslo: mlperf/deepseek-r1\nprecision: fp8\n"
    ).resolved()

    assert resolved["routing"] == {
        "name": "zipf",
        "draw": "tokens",
        "exponent": 1.0,
    }
    assert resolved["policy"]["wait_budget"] == "0.05 s"
    assert resolved["slo"] == {"ttft": "2.0 s", "tpot": "0.08 s"}
    assert resolved["precision"]["kv"] == "bf16"
    assert resolved["precision"]["experts"] == "fp8"
    assert resolved["workload"]["output_len"] == {"type": "constant", "value": 1}


def test_a_variable_stays_in_the_text(monkeypatch, tmp_path):
    """A saved scenario works on the next machine; a relative path is anchored."""
    (tmp_path / "t.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,9,9\n"
    )
    monkeypatch.setenv("MOESIM_FOLDER", str(tmp_path))
    text = (
        "model: mixtral-8x7b\nrouting: uniform\nworkload:\n  num_prompts: 1\n"
        '  arrivals: {type: trace, path: "${MOESIM_FOLDER}/t.csv"}\n'
        "  input_len: {type: trace, path: t.csv}\n"
    )
    workload = load_text(text, base=tmp_path).resolved()["workload"]

    assert workload["arrivals"]["path"] == "${MOESIM_FOLDER}/t.csv"
    assert workload["input_len"]["path"] == str(tmp_path / "t.csv")


def test_a_scenario_and_a_seed_give_the_parts():
    """Requests change with the seed; what is fixed does not."""
    scenario = load_text(json.dumps(DATA[-1]))
    one, two = build(scenario, 1), build(scenario, 2)

    assert len(one.requests) == scenario.workload.num_prompts
    assert one.system.placement == two.system.placement
    assert one.requests.arrival_s.tolist() != two.requests.arrival_s.tolist()
    assert one.serving.kv_blocks > 1000
    assert one.policy.name == scenario.policy["name"]
