"""The short form of the benchmark: gates on equality and growth, never on seconds."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import moesim
from bench import (
    engines,
    growth,
    ledger,
    memory,
    micro,
    replications,
    routing,
    runs,
    suite,
)
from bench.clusters import BY_NAME
from bench.plays import Shape, Trial
from bench.rooms import PARTS
from bench.table import Column, table
from bench.timing import Form, Spread, fit

HUSH = Form(rounds=1, say=lambda _: None)
TRIALS = [Trial("fifo", True), Trial("oldest", True, 4), Trial("fifo", False, 1)]
SMALL = [
    replace(BY_NAME["seed-8x32"], passes=6),
    replace(BY_NAME["mixtral-8"], passes=4),
    replace(BY_NAME["dsv3-ep32"], batch=4, passes=2),
    replace(BY_NAME["dsv3-ep32"], name="thin", share=1 / 64, passes=2),
]


@pytest.mark.parametrize("cluster", SMALL, ids=lambda cluster: cluster.name)
def test_the_passes_that_are_timed_are_equal(cluster):
    """A ratio of speeds means something only between engines that do the same."""
    rows = list(engines.rows(HUSH, [cluster], TRIALS))

    assert [row["engine"] for row in rows].count("lockstep") == 1
    assert all(row["equal"] for row in rows), rows
    assert all(row["us_per_barrier"] > 0 for row in rows)


def test_whole_runs_that_are_timed_are_equal():
    cluster = replace(BY_NAME["seed-8x32"], batch=4, turns=4)

    assert runs.compared(cluster.scenario(), rounds=1)["equal"]

    row = runs.stretched(cluster, runs.TOKENS, 2, looks=60)
    assert sum(row[part] for part in PARTS) == pytest.approx(100)
    assert row["outside"] == pytest.approx(100 - row["engine"])
    assert 0 < row["engine"] < 100


def test_replications_are_the_single_runs():
    scenario = BY_NAME["seed-8x32"].scenario(40, "3")

    assert replications.measured(scenario, 3, rounds=1)["equal"]


def test_keeping_account_of_memory_changes_no_tick():
    """Runs without an account are really without: the cluster's peak is what it holds."""
    scenario = BY_NAME["seed-8x32"].scenario(40, "3")

    assert ledger.measured(scenario, rounds=1)["equal"]
    with ledger.no_account():
        blind = moesim.run(scenario).gpus
    seen = moesim.run(scenario).gpus
    assert (seen["mem_peak_bytes"] > blind["mem_peak_bytes"]).all()


GATES = {
    "GPUs": ([Shape(gpus=n) for n in (8, 32, 128, 512)], 0.22),
    "layers": ([Shape(layers=n) for n in (4, 16, 64)], 0.95),
    "experts per GPU": ([Shape(slots=n) for n in (1, 6, 32)], 0.16),
}


COUNTS = {
    "requests, at a steady load": (400, 1_600, 6_400),
    "requests, all there at the start": (1_000, 3_000, 9_000),
}
NARROW = replace(BY_NAME["seed-8x32"], batch=2)
"""Many small passes: what each does for all requests shows."""


@pytest.mark.parametrize("size", GATES)
def test_time_of_a_pass_grows_slowly(size):
    """50 ns for each GPU at each barrier are enough to fail, or 2 us for each slot."""
    shapes, most = GATES[size]
    row = next(growth.rows(replace(HUSH, rounds=5), {size: shapes}))

    assert row["size"] == size
    assert row["fit"].exponent < most, row


def test_passes_in_flight_cost_hardly_anything():
    spent = growth.by_flight("fifo", 3)

    assert growth.fitted("", "", growth.IN_FLIGHT, spent)["fit"].exponent < 0.3, spent


@pytest.mark.parametrize("size", COUNTS)
def test_time_is_linear_in_requests(size):
    """100 ns for every request at every pass are enough to fail."""
    counts, arrivals = COUNTS[size], growth.ARRIVALS[size]
    spent = growth.by_requests(counts, arrivals, HUSH, NARROW, outputs="1")

    assert growth.fitted("", size, counts, spent)["fit"].exponent < 1.12, spent


def test_an_exponent_and_its_error():
    sizes = np.array([1, 10, 100, 1000])
    exact, bent = fit(sizes, 3.0 * sizes**1.5), fit(sizes, [1, 10, 100, 2000])

    assert (exact.exponent, exact.error) == pytest.approx((1.5, 0))
    y = np.log([1, 10, 100, 2000]) / np.log(10)
    slope = np.polyfit([0, 1, 2, 3], y, 1)[0]
    assert bent.exponent == pytest.approx(slope)
    assert bent.error == pytest.approx(
        np.sqrt(np.polyfit([0, 1, 2, 3], y, 1, cov=True)[1][0, 0])
    )


def test_small_steps_and_all_routing_are_measured():
    steps = list(micro.rows(HUSH, ["seed-8x32"]))
    draws = list(routing.rows(HUSH, tokens=32, layers=3))

    assert len(steps) == 8
    assert all(row["us"].median > 0 for row in steps)
    assert {row["source"] for row in draws} == set(routing.SOURCES)
    assert all(row["ns"].median > 0 for row in draws)


def test_memory_is_that_of_the_run_alone():
    """A process inherits its parent's largest size; it must not be reported."""
    ballast = np.ones(2**26)

    row = memory.in_child(20, "tokens", 2, "seed-8x32")

    assert ballast.sum() == 2**26
    assert 20 < row["imported_mib"] <= row["ready_mib"] <= row["peak_mib"] < 512
    assert row["tokens"] >= 20


@pytest.fixture
def groups(monkeypatch):
    def fake(*endings, equal=True):
        def rows(_):
            yield {"name": "first", "equal": equal}
            yield from (ending() for ending in endings)

        columns = [Column("name", "name"), Column("equal", "equal")]
        return SimpleNamespace(TITLE="fake", COLUMNS=columns, rows=rows)

    def stop():
        raise KeyboardInterrupt

    def broken():
        message = "moved away"
        raise AttributeError(message)

    known = {
        "good": fake(),
        "stopped": fake(stop),
        "broken": fake(broken),
        "unequal": fake(equal=False),
    }
    monkeypatch.setattr(suite, "GROUPS", known)
    return known


@pytest.mark.parametrize(
    ("only", "status", "tables"),
    [
        (["good"], 0, 1),
        (["stopped", "good"], 130, 1),
        (["broken", "good"], 1, 2),
        (["unequal", "good"], 1, 2),
    ],
)
def test_what_there_is_is_printed(groups, tmp_path, capsys, only, status, tables):
    """Ctrl-C ends the suite, a broken group does not; neither loses a row."""
    path = tmp_path / "bench.json"

    assert suite.main(["--only", *only, "--json", str(path)]) == status

    shown, report = capsys.readouterr().out, json.loads(path.read_text())
    assert shown.count("first") == tables
    assert [g["rows"][0]["name"] for g in report["groups"].values()] == (
        ["first"] * tables
    )
    assert report["machine"]["processor"]


def test_a_table_reads_well():
    columns = [Column("name", "what"), Column("x", "us", ".1f"), Column("n", "n", "d")]
    rows = [
        {"name": "a", "x": Spread(1, 2, 3), "n": 7},
        {"name": "longer", "x": 10.04},
    ]

    assert table("title", columns, rows).splitlines()[2:] == [
        "what                us  n",
        "------  --------------  -",
        "a       2.0 [1.0, 3.0]  7",
        "longer            10.0  -",
    ]
