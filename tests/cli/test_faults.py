"""What goes wrong on the way ends with an exit code and leaves nothing half done."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest

from moesim import simulate
from moesim.cli.main import main
from moesim.errors import SimulationError

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "scenarios" / "quickstart.yaml")


def called(monkeypatch, *arguments):
    """Run the command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["moesim", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_simulation_that_cannot_finish_is_3(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulate, "run", failing(SimulationError("t=12.4 s: stuck")))

    assert called(monkeypatch, "run", QUICKSTART) == 3
    assert capsys.readouterr().err == "error: t=12.4 s: stuck\n"
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_ours_is_told_without_a_traceback(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulate, "compare", failing(RuntimeError("oh")))
    code = called(monkeypatch, "compare", QUICKSTART, "--policies", "fifo,oldest")
    err = capsys.readouterr().err

    assert code not in (0, 1, 2, 3)
    assert "RuntimeError: oh" in err
    assert "--debug" in err


def test_debug_shows_where_it_happened(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["moesim", "run", QUICKSTART, "--debug"])
    monkeypatch.setattr(simulate, "run", failing(RuntimeError("oh")))
    with pytest.raises(RuntimeError, match="oh"):
        main()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
def test_an_interrupt_leaves_nothing(tmp_path):
    """Ctrl-C in the middle: a message, 130, and no half-written folder."""
    running = subprocess.Popen(
        [sys.executable, "-m", "moesim", "run", QUICKSTART, "-n", "500"],
        cwd=tmp_path,
        env=os.environ | {"NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    sleep(3)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)

    assert running.returncode == 130
    assert (out, err) == ("", "interrupted: nothing was written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "setting",
    [
        "workload.num_promts=3",
        "seed=-1",
        "routing={name: zipf, name: log}",
        "policy=x:Y",
    ],
)
def test_a_wrong_setting_is_told_as_one(setting, monkeypatch, tmp_path, capsys):
    """The message begins with where it was typed, not with a file."""
    monkeypatch.chdir(tmp_path)

    assert called(monkeypatch, "run", QUICKSTART, "--set", setting) == 2
    assert capsys.readouterr().err.startswith(("command line: error:", "--set "))
    assert list(tmp_path.iterdir()) == []
