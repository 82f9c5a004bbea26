"""The command line as people use it: screens, files, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "scenarios" / "quickstart.yaml"
SMALL = ("--num-prompts", "12")


def moesim(*arguments, cwd, **environment):
    """Run the command in a folder; return exit code, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "moesim", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"NO_COLOR": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_run_shows_and_saves(tmp_path):
    """The screen has vLLM's labels; the folder has everything, whole."""
    code, out, err = moesim("run", QUICKSTART, *SMALL, cwd=tmp_path)
    (folder,) = (tmp_path / "results" / "quickstart").glob("2*")

    assert (code, err) == (0, "")
    assert "Successful requests:" in out
    assert "TTFT (ms)" in out
    assert str(folder.relative_to(tmp_path)) in out
    names = {path.name for path in folder.iterdir()}
    assert {"scenario.yaml", "manifest.json", "result.json"} <= names
    assert {"requests.parquet", "experts.parquet", "links.parquet"} <= names
    assert len(list((folder / "plots").glob("*.png"))) >= 4


def test_run_as_json_is_one_object(tmp_path):
    """Machines read stdout; nothing else is on it."""
    code, out, _ = moesim("run", QUICKSTART, *SMALL, "-n", 2, "--json", cwd=tmp_path)
    record = json.loads(out)

    assert code == 0
    assert record["completed"] == 12
    assert record["ci95"]["p99_ttft_ms"][0] <= record["p99_ttft_ms"]


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    """Across processes and hash seeds; only the manifest knows the day."""
    folders = []
    for seed in ("0", "1"):
        folders.append(tmp_path / seed)
        options = ("--out", folders[-1], "-q")
        code, _, _ = moesim(
            "run", QUICKSTART, *SMALL, *options, cwd=tmp_path, PYTHONHASHSEED=seed
        )
        assert code == 0
    first, second = (
        {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()}
        for f in folders
    )
    first.pop(Path("manifest.json"))
    second.pop(Path("manifest.json"))

    assert first == second
    assert len(first) >= 14


def test_a_saved_scenario_repeats_the_run(tmp_path):
    moesim("run", QUICKSTART, *SMALL, "--out", tmp_path / "a", "-q", cwd=tmp_path)
    saved = tmp_path / "a" / "scenario.yaml"
    moesim("run", saved, "--out", tmp_path / "b", "-q", cwd=tmp_path)
    a, b = (
        json.loads((tmp_path / name / "manifest.json").read_text()) for name in "ab"
    )

    assert a["event_digests"] == b["event_digests"]


def test_compare_shows_paired_differences(tmp_path):
    """Differences, intervals and verdicts; a policy of one's own is imported."""
    (tmp_path / "mine.py").write_text(
        "class Fewest:\n    def key(self, batch, view):\n        return batch.tokens\n"
    )
    code, out, err = moesim(
        "compare",
        QUICKSTART,
        "--policies",
        "fifo,oldest,mine:Fewest",
        *SMALL,
        "-n",
        3,
        "--json",
        cwd=tmp_path,
    )
    table = json.loads(out)

    assert (code, err) == (0, "")
    assert table["policies"] == ["fifo", "oldest", "mine:Fewest"]
    assert {row["policy"] for row in table["rows"]} == {"oldest", "mine:Fewest"}
    assert all(row["low"] <= row["difference"] <= row["high"] for row in table["rows"])


def test_bad_input_says_everything_and_writes_nothing(tmp_path):
    """Exit code 2, every mistake with its place, no traceback, no folder."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(QUICKSTART.read_text().replace("zipf", "zipff") + "sede: 1\n")
    code, out, err = moesim("run", "bad.yaml", cwd=tmp_path)

    assert (code, out) == (2, "")
    assert "bad.yaml:" in err
    assert "did you mean 'seed'" in err
    assert "^" in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "none.yaml"),
        ("run", QUICKSTART, "--set", "serving.nothing=1"),
        ("run", QUICKSTART, "--set", "nonsense"),
        ("run", QUICKSTART, "--policy", "nobody"),
        ("run", QUICKSTART, "--policy", "no_module:Class"),
        ("run", QUICKSTART, "--out", "/dev/null"),
        ("run", QUICKSTART, "--replications", "0"),
        ("compare", QUICKSTART, "--policies", "fifo"),
        ("compare", QUICKSTART, "--policies", "fifo,fifo"),
        ("compare", QUICKSTART, "--policies", "fifo,oldest", "--baseline", "x"),
        ("validate", "none.yaml"),
        ("validate", QUICKSTART, "--format", "xml"),
        ("rum", QUICKSTART),
    ],
)
def test_every_refusal_is_an_exit_code_of_2(arguments, tmp_path):
    code, out, err = moesim(*arguments, *(), cwd=tmp_path)

    assert code == 2
    assert "Traceback" not in out + err
    assert not (tmp_path / "results").exists()


def test_validate_in_the_form_of_a_workflow(tmp_path):
    (tmp_path / "bad.yaml").write_text("model: mixtral-8x7\n")
    code, out, _ = moesim("validate", "bad.yaml", "--format", "github", cwd=tmp_path)

    assert code == 2
    assert out.startswith("::error file=bad.yaml,line=")


def test_validate_accepts_what_is_shipped(tmp_path):
    code, out, _ = moesim("validate", QUICKSTART, cwd=tmp_path)

    assert code == 0
    assert "ok" in out


def test_list_names_everything(tmp_path):
    code, out, _ = moesim("list", "--json", cwd=ROOT)
    found = json.loads(out)

    assert code == 0
    assert "deepseek-v3" in found["models"]
    assert "h100" in found["gpus"]
    assert "cross_layer" in found["policies"]
    assert "latent" in found["routing"]
    assert "quickstart" in found["scenarios"]


def test_help_answers_without_heavy_libraries():
    """`moesim --help` loads neither pandas nor matplotlib nor SciPy nor SimPy."""
    code = (
        "import sys\nsys.argv = ['moesim', '--help']\n"
        "from moesim.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'pandas', 'matplotlib', 'scipy', 'pyarrow', 'simpy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_help_says_each_command_in_one_whole_line():
    """No summary is cut short."""
    code, out, _ = moesim("--help", cwd=ROOT)

    assert code == 0
    commands = out.partition("Commands:")[2]
    assert "..." not in commands
    assert "…" not in commands
    assert commands.count("\n  ") == 9
