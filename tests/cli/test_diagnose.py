"""``moesim diagnose`` and ``moesim links``: screens, files, and what is refused."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from moesim.cli.commands import app
from moesim.measure.folder import is_ours


def call(*arguments):
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def log(tmp_path):
    noise = np.random.default_rng(0).random((2000, 3, 16))
    noise[:, :, 2] += 0.3
    ids = np.argsort(-noise, axis=2)[:, :, :2].astype(np.uint8)
    np.savez(tmp_path / "log.npz", expert_ids=ids, seq_lens=[1500, 500])
    return tmp_path / "log.npz"


def test_the_screen_fits_a_terminal_and_ends_with_findings(log):
    """No line of figures is wider than the others; commands may be."""
    code, out, _ = call("diagnose", log, "--ep", "4,8")
    lines = out.splitlines()

    assert code == 0
    figures = lines[
        lines.index("") : lines.index(next(x for x in lines if " Findings " in x))
    ]
    assert max(len(line) for line in figures) <= 80
    assert "Busiest expert over mean" in out
    assert lines[-1].startswith("   Next: moesim ")


def test_json_is_the_record_and_nothing_else(log):
    code, out, _ = call("diagnose", log, "--ep", "4", "--json")
    record = json.loads(out)

    assert code == 0
    assert list(record["ranks"]) == ["4"]
    assert record["log"]["tokens"] == 2000
    assert record["findings"][0]["rank"] == 1


def test_two_logs_are_compared(log):
    code, out, _ = call("diagnose", log, log, "--ep", "4")

    assert code == 0
    assert "Cosine of their popularity:              1.00" in out
    assert "The two logs agree" in out


def test_a_folder_holds_findings_figures_and_one_page(log, tmp_path):
    """The same log gives the same bytes; the folder may be written again."""
    folder = tmp_path / "out"
    assert call("diagnose", log, "--ep", "4", "--out", folder)[0] == 0
    first = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert call("diagnose", log, "--ep", "4", "--out", folder)[0] == 0
    second = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    assert first == second
    assert is_ours(folder)
    assert {"findings.json", "report.html", "heat_map.png", "lorenz.png"} <= set(first)
    page = first["report.html"].decode()
    assert page.count("<img ") == sum(name.endswith(".png") for name in first)
    assert "http" not in page


def test_a_folder_of_somebody_elses_is_left_alone(log, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    code, _, err = call("diagnose", log, "--out", tmp_path / "mine")

    assert code == 2
    assert "not an earlier result" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one or two logs"),
        (["a", "b", "c"], "got 3"),
        (["LOG", "--run", "x"], "not both"),
        (["--run", "nowhere"], "no such folder"),
        (["nowhere.npz"], "No such file"),
        (["LOG", "--ep", "x"], "whole numbers such as 8,16"),
        (["LOG", "--ep", "99"], "2 to 16 GPUs"),
        (["LOG", "--model", "mixtral-8x7b"], "has 8 experts, the log has 16"),
        (["LOG", "--model", "mixtrel"], "did you mean"),
        (["LOG", "--gpu", "h1000"], "known: "),
        (["LOG", "--format", "cvs"], "did you mean 'csv'"),
        (["LOG", "--hint", "topk=3"], "did you mean 'top_k'"),
    ],
)
def test_what_cannot_be_diagnosed_is_told_plainly(log, arguments, words):
    code, out, err = call("diagnose", *(log if a == "LOG" else a for a in arguments))

    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_a_finished_run_is_looked_at(tmp_path):
    """A real one, from a scenario of the house; its JSON has all five."""
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "model: mixtral-8x7b\nrouting: {name: zipf, exponent: 1.2}\n"
        "workload: {num_prompts: 8, input_len: 64}\n"
    )
    assert call("run", scenario, "--out", tmp_path / "run", "-q")[0] == 0
    code, out, _ = call("diagnose", "--run", tmp_path / "run")
    assert code == 0
    assert "None of these is it" in out or "Found: " in out
    code, out, _ = call("diagnose", "--run", tmp_path / "run", "--json")
    assert len(json.loads(out)["symptoms"]) == 5


def test_links_prints_the_table_of_nccl_tests(log):
    code, out, _ = call("links", "--bytes", "8:128M", "--factor", "2")
    rows = [line.split() for line in out.splitlines() if line[0] != "#"]

    assert code == 0
    assert [int(row[0]) for row in rows] == [8 << n for n in range(25)]
    assert float(rows[-1][3]) == pytest.approx(float(rows[-1][2]) * 7 / 8, abs=0.01)
    assert "Avg bus bandwidth" in out


def test_links_adds_the_skew_of_a_log(log):
    code, out, _ = call(
        "links", "--bytes", "1M", "--gpus-per-node", "4", "--log", log, "--json"
    )
    record = json.loads(out)

    assert code == 0
    assert record["skewed"][0]["seconds"] > record["balanced"][0]["seconds"]
    assert "times as slow" in call("links", "--bytes", "1M", "--log", log)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--collective", "alltoal"], "did you mean 'alltoall'"),
        (["--dispatch", "norml"], "did you mean 'normal'"),
        (["--bytes", "8:x"], "8, 64K or 128M"),
        (["--factor", "1"], "above 1"),
        (["--gpus-per-node", "1"], "2 to 1024"),
        (["--log", "LOG", "--nodes", "4"], "16 experts cannot be spread over 32 GPUs"),
    ],
)
def test_links_refuses_what_it_cannot_measure(log, arguments, words):
    code, _, err = call("links", *(log if a == "LOG" else a for a in arguments))

    assert code == 2
    assert words in err
