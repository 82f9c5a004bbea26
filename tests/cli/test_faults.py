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
@pytest.mark.parametrize(
    ("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)]
)
def test_an_interrupt_leaves_nothing(tmp_path, name, code):
    """Ctrl-C, or what ends a process or its terminal: a message, and nothing else."""
    running = subprocess.Popen(
        [sys.executable, "-m", "moesim", "run", QUICKSTART, "-n", "500"],
        cwd=tmp_path,
        env=os.environ | {"NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    sleep(3)
    running.send_signal(getattr(signal, name))
    out, err = running.communicate(timeout=60)

    assert running.returncode == code
    assert (out, err) == ("", "interrupted: nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def child(code, folder, **streams):
    """Run Python code with the command's arguments in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1", "PYTHONPATH": str(ROOT / "tests")},
        text=True,
        check=False,
        **streams,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
def test_what_is_half_written_is_taken_away(tmp_path):
    """The signal comes while the files of a run are on their way to the disk."""
    code = (
        "import os, signal, sys\n"
        "from moesim.cli.main import main\n"
        "from moesim.measure import folder\n"
        "def killed(draft):\n"
        "    assert list(draft.iterdir())\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "folder.sync = killed\n"
        f"sys.argv = ['moesim', 'run', {QUICKSTART!r}, '--num-prompts', '3']\n"
        "main()\n"
    )
    done = child(code, tmp_path, capture_output=True)

    assert done.returncode == 143
    assert (done.stdout, done.stderr) == ("", "interrupted: nothing was written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
def test_a_signal_that_is_ignored_stays_so(tmp_path):
    """`nohup` means it: a terminal that goes away stops nothing."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from moesim.cli.main import main\n"
        "from moesim.measure import folder\n"
        "folder.sync = lambda draft: os.kill(os.getpid(), signal.SIGHUP)\n"
        f"sys.argv = ['moesim', 'run', {QUICKSTART!r}, '--num-prompts', '3', '-q']\n"
        "main()\n"
    )
    assert child(code, tmp_path, capture_output=True).returncode == 0
    assert list(tmp_path.iterdir())


def test_an_interrupt_before_anything_has_begun_is_quiet(tmp_path):
    """While the libraries are imported there is nothing to tell."""
    code = (
        "import sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "from moesim.cli.main import main\n"
        "main()\n"
    )
    done = child(code, tmp_path, capture_output=True)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


COMMANDS = [["--help"], ["--version"], ["list", "--gpus"], ["list", "--json"]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_disk_is_no_fault_of_ours(command, tmp_path):
    """One line, 74 and no traceback, also of what waits in a buffer till the end."""
    with open("/dev/full", "w") as full:
        done = command_of(command, tmp_path, stdout=full, stderr=subprocess.PIPE)

    assert done.returncode == 74
    assert done.stderr.startswith("error: the output cannot be written: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_closed_output_is_not_taken_for_written(command, tmp_path):
    line = f"{sys.executable} -m moesim {' '.join(command)} >&-"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 74
    assert done.stderr.startswith("error: the output cannot be written: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("end", ["2>&-", "2>/dev/full"])
def test_messages_that_nobody_can_read_change_nothing(end, tmp_path):
    """They do not stray into the results, and the exit code stays."""
    for command, code in (("list --gpus", 0), ("run none.yaml", 2)):
        line = f"{sys.executable} -m moesim {command} {end}"
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code
        assert done.stdout.startswith("gpus:" if code == 0 else "")
        assert (code == 0) == bool(done.stdout)
        assert done.stderr == ""


def command_of(command, folder, **streams):
    """Run the command in a process of its own."""
    whole = [sys.executable, "-m", "moesim", *command]
    return subprocess.run(whole, cwd=folder, text=True, check=False, **streams)


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


def test_why_nothing_was_served_is_told(monkeypatch, tmp_path, capsys):
    """Not that nothing queued: every request was turned away, and this is why."""
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "serving.kv_blocks=3", "--num-prompts", "4"]

    assert called(monkeypatch, "run", QUICKSTART, *settings) == 0
    out = capsys.readouterr().out
    assert "Rejected requests:                       4   (request 0: needs " in out
    assert "KV blocks, a rank holds 3)" in out
    assert "every request was rejected" in out
    assert "Nothing queued" not in out
    settings += ["--explain", "2", "--policy", "cross_layer"]
    assert called(monkeypatch, "run", QUICKSTART, *settings) == 0
    out = capsys.readouterr().out
    assert "rejected as it arrived; the first that was: request 0: needs " in out
    assert "nothing to explain" not in out


def test_what_failed_was_not_rejected(monkeypatch, tmp_path, capsys):
    """The instance died before its first pass; each request says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(
        "model: seed-8x32\ncluster: {gpus_per_node: 4}\nrouting: uniform\n"
        "workload: {num_prompts: 4, input_len: 30}\n"
        "serving: {max_num_batched_tokens: 64, block_size: 4, kv_blocks: 20}\n"
        "memory: {capacity: 0.28126}\n"
    )

    assert called(monkeypatch, "run", "s.yaml") == 0
    assert "every request failed, so no policy mattered" in capsys.readouterr().out
    more = ["--explain", "1", "--policy", "cross_layer"]
    assert called(monkeypatch, "run", "s.yaml", *more) == 0
    out = capsys.readouterr().out
    assert "failed with the instance, out of memory at 0.000000 s on GPU " in out
    assert "nothing to explain" not in out
