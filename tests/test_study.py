"""Studies: what a file may say, the table that comes out, and what stays unwritten."""

import csv
from pathlib import Path

import pytest

from moesim.errors import InputError
from moesim.study import table
from moesim.study.read import read_study
from moesim.study.table import run_study, write_table

TINY = """\
model: seed-8x32
workload: {num_prompts: 6, input_len: 1, arrivals: {type: poisson, request_rate: 2000}}
serving: {mode: prefill_only, max_num_batched_tokens: 2, max_in_flight: 2}
routing: uniform
"""
TWO_GRIDS = """\
question: Does age matter?
scenario: tiny.yaml
replications: 2
policies: [fifo, oldest]
metrics: [mean_ttft_ms, request_throughput]
comparisons:
  - name: flight
    grid: {serving.max_in_flight: [1, 4], workload.num_prompts: [4, 6]}
  - name: parts
    set: {policy: cross_layer}
    variants: {blind to age: {policy.ageing: 0}}
"""

FINE = "question: Q\nscenario: tiny.yaml\npolicies: [fifo, oldest]\n"

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "results" / "studies"
STUDIES = [
    path
    for path in sorted((ROOT / "scenarios" / "studies").glob("*.yaml"))
    if (TABLES / f"{path.stem}.csv").exists()
]


@pytest.fixture
def write(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)

    def written(text):
        path = tmp_path / "asked.yaml"
        path.write_text(text)
        return path

    return written


def test_a_grid_is_one_comparison_a_point(write):
    rows = run_study(read_study(write(TWO_GRIDS)))

    spots = [
        (r["serving.max_in_flight"], r["workload.num_prompts"]) for r in rows[:8:2]
    ]
    assert spots == [(1, 4), (1, 6), (4, 4), (4, 6)]
    assert [row["comparison"] for row in rows] == ["flight"] * 8 + ["parts"] * 4
    assert {row["policy"] for row in rows[8:]} == {"oldest", "blind to age"}
    assert rows[8]["serving.max_in_flight"] is None


def test_rows_are_those_of_the_comparison_as_shares_of_its_baseline(write):
    asked = read_study(write(TWO_GRIDS))
    point = asked.points[3]

    rows = [row for row in run_study(asked) if row["comparison"] == "flight"][6:]

    direct = table.compare(
        point.scenario, ["fifo", "oldest"], replications=2, metrics=point.metrics
    ).rows
    assert point.scenario.serving.max_in_flight == 4
    for row, true in zip(rows, direct, strict=True):
        base = true["baseline"]
        assert row["baseline_value"] == pytest.approx(base, rel=1e-5)
        assert row["low"] == pytest.approx(true["low"] / base, rel=1e-5)
        assert row["high"] == pytest.approx(true["high"] / base, rel=1e-5)
        assert row["verdict"] == true["verdict"]
        assert row["low"] <= row["relative"] <= row["high"]


def test_one_comparison_may_stand_at_the_top(write):
    text = "question: Why?\nscenario: tiny.yaml\npolicies: [fifo, oldest]\n"

    (point,) = read_study(write(text)).points

    assert point.name == "tiny"
    assert point.at == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "a study is a mapping"),
        ("scenario: tiny.yaml", "asks a question"),
        ("question: Q\npolicy: [fifo]", "did you mean 'policies'"),
        ("question: Q\npolicies: fifo", "a list is expected; got 'fifo'"),
        ("question: Q\nreplications: true", "a whole number is expected; got true"),
        ("question: Q\ngrid: {seed: 3}", "a list is expected"),
        ("question: Q\nvariants: {a: 3}", "a mapping is expected"),
        ("question: Q\ncomparisons: []", "a list of comparisons is expected"),
        ("question: Q\ncomparisons: [3]", "a mapping is expected; got 3"),
        ("question: Q", "names its scenario"),
        (
            "question: Q\nscenario: tiny.yaml\npolicies: [fifo]",
            "two policies or variants",
        ),
        ("question: Q\nmetrics: [3]", "a list of words"),
        (
            "question: Q\nscenario: tniy.yaml\npolicies: [fifo, oldest]",
            "did you mean 'tiny.yaml'",
        ),
        (FINE + "set: {sede: 1}", "did you mean 'seed'"),
        (FINE + "grid: {sede: [1]}", "did you mean 'seed'"),
        (FINE + "variants: {a: {sede: 1}}", "'seed'"),
        ("question: Q\nscenario: tiny.yaml\npolicies: ['os:x']", "known by name"),
        (FINE + "baseline: fofi", "is not one of fifo, oldest"),
        (FINE + "metrics: [p99_tft]", "did you mean p99_ttft_ms"),
        (FINE + "metrics: [duration, duration]", "given twice"),
        (FINE + "metrics: [p99_tpot_ms]", "needs outputs of two tokens"),
        (FINE.replace("oldest", "oldestt"), "oldest"),
        (FINE.replace("oldest", "{name: oldest, x: 1}"), "unknown key for oldest"),
        (FINE + "grid: {serving.max_in_flight: [1, 1]}", "comes twice"),
        (FINE + "points: [{seed: 1}, {seed: 1.0}]", "comes twice"),
        (FINE + "points: []", "asked.yaml:4:.*a list with something in it"),
        (
            FINE + "points: [{seed: 1}]\ngrid: {seed: [2, 3]}",
            "asked.yaml:5:.*'seed' is in points too",
        ),
        (
            FINE + "comparisons:\n  - points: [{num_prompts: 5}]\n"
            "    grid: {workload.num_prompts: [2, 3]}",
            "asked.yaml:6:.*'workload.num_prompts' is in points too",
        ),
        (FINE + "variants: {fifo: {serving.max_in_flight: 2}}", "'fifo' twice"),
        (FINE + "variants: {a: {seed: 1}}", "would meet other traffic"),
        (FINE + "comparisons: [{name: a}, {name: a}]", "comes twice"),
        (FINE + "comparisons: [{}, {}]", "comes twice"),
        (
            FINE + "comparisons: [{name: a}, {name: b, metrics: [p99_tft]}]",
            "asked.yaml:4:.*p99_ttft_ms",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(write, monkeypatch, text, said):
    monkeypatch.setattr(table, "compare", None)

    with pytest.raises(InputError, match=said):
        read_study(write(text))


def test_a_mistake_has_its_line(write, moesim):
    text = "question: Q\nscenario: tiny.yaml\npolicys: [fifo]\n"

    code, _, err = moesim("study", str(write(text)))

    assert code == 2
    assert "asked.yaml:3:1" in err
    assert "did you mean 'policies'" in err


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("metrics: [p99_tft]\n", "asked.yaml:4:10"),
        ("comparisons:\n  - name: a\n  - name: b\n    metrics: [x]\n", ":7:14"),
        ("comparisons:\n  - name: a\n  - name: b\n    policies: [x, fifo]\n", ":7:"),
        ("comparisons:\n  - name: a\n  - name: a\n", ":6:11"),
        ("metrics: [x]\ncomparisons:\n  - name: a\n", ":4:10"),
    ],
)
def test_a_mistake_in_any_part_has_its_line(write, moesim, more, place):
    """Also in one that would only be run after others."""
    code, _, err = moesim("study", str(write(FINE + more)))

    assert code == 2
    assert place in err


def test_validate_checks_a_study_as_one(write, moesim):
    """Each mistake of it at its line, not those of a scenario that it is none of."""
    assert moesim("validate", str(write(FINE)))[0] == 0
    code, out, err = moesim("validate", str(write(FINE + "metrics: [p99_tft]\n")))

    assert code == 2
    assert out == "1 file, 1 error\n"
    assert "asked.yaml:4:10" in err
    code, _, err = moesim("validate", str(write("comparisons: [{}]\n")))
    assert "a study asks a question" in err


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "scenarios" / "studies").glob("*.yaml")),
    ids=lambda p: p.stem,
)
def test_every_study_here_is_right(path):
    try:
        read_study(path)
    except InputError as error:
        if "MOESIM_DATA" not in str(error):
            raise
        pytest.skip("needs recorded data")


def test_the_command_writes_the_table(write, moesim, tmp_path):
    code, out, _ = moesim("study", str(write(TWO_GRIDS)))

    with (tmp_path / "results" / "studies" / "asked.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert code == 0
    assert out.startswith("Does age matter?")
    assert len(rows) == 12
    assert rows[0]["study"] == "asked"


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, InputError("no")])
def test_a_study_that_is_cut_short_leaves_the_old_table(
    write, moesim, tmp_path, monkeypatch, trouble
):
    old = tmp_path / "t.csv"
    old.write_text("old")
    real, calls = table.compare, []

    def second_fails(*arguments, **options):
        calls.append(1)
        if len(calls) > 1:
            raise trouble
        return real(*arguments, **options)

    monkeypatch.setattr(table, "compare", second_fails)

    code, _, _ = moesim("study", str(write(TWO_GRIDS)), "--out", str(old))

    assert code in (2, 130)
    assert old.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "asked.yaml",
        "t.csv",
        "tiny.yaml",
    ]


def test_a_table_goes_nowhere_strange(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.csv").mkdir()

    for place in ("t.txt", "folder.csv", "file/t.csv"):
        with pytest.raises(InputError, match="nothing was written"):
            write_table([], tmp_path / place)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_committed_table_is_that_of_its_study(path):
    """Each comparison, policy and variant the file asks for now, and no other."""
    try:
        asked = read_study(path)
    except InputError as error:
        if "MOESIM_DATA" in str(error):
            pytest.skip("needs recorded data")
        raise
    with (TABLES / f"{path.stem}.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert {row["study"] for row in rows} == {path.stem}
    if asked.caches or asked.measures:
        assert found_points(asked, rows) == wanted_points(asked)
        return
    found = {(row["comparison"], row["policy"]) for row in rows}
    wanted = {
        (point.name, name)
        for point in asked.points
        for name in [*point.policies, *point.variants]
    }
    baselines = {(row["comparison"], row["baseline"]) for row in rows}
    assert found | baselines == wanted


def found_points(asked, rows):
    """Return what a table of measures or caches has rows of."""
    if asked.caches:
        keys = ("log", "tokens", "order", "residency", "cache")
        return {tuple(row[key] for key in keys) for row in rows}
    spots = {key for part in asked.measures for key in part.at}
    keys = ("measure", "metric", *sorted(spots))
    return {tuple(row[key] for key in keys) for row in rows}


def wanted_points(asked):
    """Return what the study asks for now."""
    if asked.caches:
        it = asked.caches
        orders = [("log", str(order)) for order in it.orders]
        orders += [(control, "1") for control in it.controls]
        return {
            (path.stem, *order, str(share), cache)
            for path in it.logs
            for order in orders
            for share in it.residency
            for cache in it.caches
        }
    spots = sorted({key for part in asked.measures for key in part.at})
    return {
        (part.name, metric, *(str(part.at[key]) for key in spots))
        for part in asked.measures
        for metric in part.metrics
    }
