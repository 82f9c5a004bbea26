"""``moesim run --explain``: what it prints of requests, and which it refuses."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

RUSH = str(Path(__file__).parents[2] / "scenarios" / "rush_hour.yaml")
PLAIN = ("run", RUSH, "--num-prompts", "30")


def test_each_request_is_told_with_its_times_and_decisions(moesim):
    code, out, _ = moesim(*PLAIN, "--policy", "cross_layer", "--explain", "12,3")

    assert code == 0
    told = re.split(r"\n\nRequest ", out)[1:]
    assert [part.split(":")[0] for part in told] == ["3", "12"]
    for part in told:
        assert re.match(
            r"\d+: arrived [\d.]+ ms, admitted [\d.]+ ms, first token", part
        )
        kinds = re.findall(r"(?:micro-batch \d+|waiting line): (\w+):", part)
        assert kinds[:2] == ["line", "held"]
        stages = re.findall(r"as many in its (\d+) next stage", part)
        assert kinds.count("key") + sum(map(int, stages)) == 25
        before = re.findall(r"key: .* before (\d+)", part)
        assert all(one != two for one, two in pairwise(before))
    assert len(set(before)) > 1  # request 12 is passed over at first


def test_an_explained_run_is_the_same_run(moesim, tmp_path):
    digests = []
    for number, more in enumerate([(), ("--explain", "3")]):
        out = tmp_path / str(number)
        moesim(*PLAIN, "--policy", "cross_layer", "--out", str(out), *more)
        digests.append(json.loads((out / "manifest.json").read_text())["event_digests"])

    assert digests[0] == digests[1]


def test_who_goes_by_arrival_has_nothing_to_tell(moesim):
    _, out, _ = moesim(*PLAIN, "--explain", "3", "--explain", "4")

    assert out.count("fifo decides by arrival alone: nothing to explain") == 2


def test_json_has_the_decisions(moesim):
    _, out, _ = moesim(*PLAIN, "--policy", "oldest", "--explain", "3", "--json")

    notes = json.loads(out)["explained"]
    assert [note["what"] for note in notes] == ["key"] * 25
    assert all(3 in note["requests"] for note in notes)
    _, out, _ = moesim(*PLAIN, "--json")
    assert "explained" not in json.loads(out)


def test_a_class_of_ones_own_is_explained(moesim, tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Last:\n    def key(self, batch, view):\n        return -batch.batch\n"
    )

    _, out, _ = moesim(*PLAIN, "--policy", "mine:Last", "--explain", "3")

    assert "key: key -" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x"], "a request's number is expected, or several such as 3,7; got 'x'"),
        (["-1"], "got '-1'"),
        (["1.5"], "got '1.5'"),
        (["3,,4"], "got ''"),
        (["٣"], "a request's number is expected"),
        (["30"], "the run has requests 0 to 29; there is no 30"),
        (["99999999999999999999999"], "there is no 99999999999999999999999"),
        (["1", "-n", "3"], "tells of one run, not of 3: add --replications 1"),
    ],
)
def test_what_is_no_request_is_refused(moesim, words, said):
    code, out, err = moesim(*PLAIN, "--explain", *words)

    assert code == 2
    assert out == ""
    assert f"--explain: error: {said}" in err or said in err
    assert "Traceback" not in err


def test_every_wrong_word_is_told(moesim):
    code, _, err = moesim(*PLAIN, "--explain", "a,3", "--explain", "40,b")

    assert code == 2
    assert err.count("--explain: error:") == 3
