"""Results on stdout, messages on stderr, faults as exit codes."""

import json
from math import nan

import numpy as np
import pytest

from moesim.cli.terminal import (
    SHOWN,
    orderly,
    printable,
    problem_text,
    progress,
    show_json,
    show_problems,
)
from moesim.cli.validate import annotation
from moesim.errors import InputError, Problem, SimulationError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("no such thing"), 2, "no such thing"),
        (SimulationError("t=3 s: nothing can run"), 3, "t=3 s: nothing can run"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("by 0"), 70, "ZeroDivisionError: by 0"),
    ],
)
def test_every_fault_is_a_message_and_an_exit_code(error, code, said, capsys):
    """No traceback, nothing on stdout."""
    with pytest.raises(SystemExit) as caught, orderly(debug=False):
        raise error
    out, err = capsys.readouterr()

    assert caught.value.code == code
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_a_fault_of_ours_is_shown_whole_when_asked():
    with pytest.raises(ZeroDivisionError), orderly(debug=True):
        raise ZeroDivisionError


def test_the_caret_stands_under_the_mistake():
    """Also after characters two columns wide, and tabs."""
    text = problem_text(Problem("m", "f", 3, 5, "k", "日本\t: x"))

    place, source, caret = text.splitlines()

    assert place == "f:3:5: error: k: m"
    assert source == "    3 | 日本 : x"
    assert caret == "      |       ^"


def test_a_long_line_is_cut_around_the_mistake():
    line = "a" * 400 + "X" + "b" * 400
    _, source, caret = problem_text(Problem("m", "f", 1, 401, "k", line)).splitlines()

    assert len(source) == len("    1 | ") + SHOWN
    assert source[caret.index("^")] == "X"


def test_a_problem_without_a_line_is_one_line():
    assert problem_text(Problem("m", "f")) == "f: error: m"


def test_nothing_written_by_others_steers_the_terminal(capsys):
    """Escapes in names, keys, messages and lines are spelt out."""
    evil = "\x1b[31m\r\u202e"
    show_problems([Problem(evil, evil, 1, 1, evil, evil)])
    text = capsys.readouterr().err

    assert not set(evil.replace("[31m", "")) & set(text)
    assert printable("ok é 日") == "ok é 日"


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        ([Problem("m", "f")], "1 error in f"),
        ([Problem("m", "f"), Problem("n", "g")], "2 errors in f, g"),
        ([Problem("m"), Problem("n")], "2 errors"),
    ],
)
def test_the_last_line_counts_the_errors(problems, said, capsys):
    show_problems(problems)

    assert capsys.readouterr().err.splitlines()[-1] == said


def test_json_has_no_numbers_that_do_not_exist(capsys):
    """NaN is null, and NumPy's numbers are numbers."""
    show_json({"b": nan, "a": [np.float64(1.5), np.int64(2), (None, True)]})

    assert json.loads(capsys.readouterr().out) == {
        "a": [1.5, 2, [None, True]],
        "b": None,
    }


@pytest.mark.parametrize("quiet", [True, False])
def test_progress_is_for_terminals(quiet, capsys):
    """A pipe or a log file gets none."""
    with progress(quiet=quiet) as report:
        assert report is None

    assert capsys.readouterr().err == ""


def test_progress_waits_a_second(monkeypatch, capsys):
    """Short work shows nothing even on a terminal."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress(quiet=False) as report:
        report("fifo 1/1", 0.5)

    assert "fifo" not in capsys.readouterr().err


def test_an_annotation_cannot_break_out():
    """Line ends and separators in names and messages are escaped."""
    text = annotation(Problem("a\n::error::b 50%", "x,y:z\n.yaml", 1, 2, "k"))

    assert (
        text == "::error file=x%2Cy%3Az%0A.yaml,line=1,col=2::k: a%0A::error::b 50%25"
    )
