"""Studies of caches: what is judged, in what order, and controls with known answers."""

import csv
import sys

import numpy as np
import pytest

from moesim.cli.main import main
from moesim.errors import InputError
from moesim.policy.abreast import hits
from moesim.policy.cache import count_hits, make_cache
from moesim.policy.reuse import touches_of_batches
from moesim.study.controls import (
    REACH,
    independent,
    interleaved,
    shuffled,
    sticky,
)
from moesim.study.read import read_study
from moesim.study.table import run_study

ASKED = """\
question: Which cache?
caches:
  logs: [log.npz]
  residency: [0.25, 0.5]
  caches: [lru, static]
"""
EXPERTS, LAYERS, TOP = 16, 3, 2


def random_ids(tokens, experts=EXPERTS, seed=0):
    rng = np.random.default_rng(seed)
    return independent(np.zeros((tokens, LAYERS, TOP)), experts, rng).astype(np.uint8)


@pytest.fixture
def write(tmp_path):
    def written(text, ids, lengths):
        np.savez(tmp_path / "log.npz", expert_ids=ids, seq_lens=np.array(lengths))
        path = tmp_path / "asked.yaml"
        path.write_text(text)
        return path

    return written


def table(path):
    """Return hit rates by (tokens, order, experts held, cache)."""
    return {
        (r["tokens"], r["order"], r["experts"], r["cache"]): r
        for r in run_study(read_study(path))
    }


def test_both_halves_are_judged_after_the_other(write):
    """What the plain caches do on the halves, each after the other, in ten parts."""
    ids = random_ids(200, seed=4)
    found = table(write(ASKED, ids, [60, 40, 70, 30]))

    rates = []
    for first, judged in ((ids[:100], ids[100:]), (ids[100:], ids[:100])):
        caches = [make_cache("lru", 4) for _ in range(LAYERS)]
        for layer, cache in enumerate(caches):
            count_hits(cache, np.sort(first[:, layer], axis=1).ravel().tolist())
        for part in np.split(judged, 10):
            found_here = [
                count_hits(cache, np.sort(part[:, layer], axis=1).ravel().tolist())
                for layer, cache in enumerate(caches)
            ]
            rates += [sum(found_here) / part.size]
    row = found["log", 1, 4, "lru"]
    assert row["parts"] == 20
    assert row["hit_rate"] == pytest.approx(np.mean(rates), rel=1e-5)
    half = 2.093024 * np.std(rates, ddof=1) / np.sqrt(20)
    assert row["high"] - row["hit_rate"] == pytest.approx(half, rel=1e-3)


def test_static_learns_from_the_other_half_alone(write):
    """Two halves without an expert in common: what is popular in one never comes."""
    ids = np.concatenate([random_ids(60, 8), 8 + random_ids(60, 8)])
    found = table(write(ASKED, ids, [60, 60]))

    assert found["log", 1, 8, "static"]["hit_rate"] == 0
    assert found["log", 1, 8, "lru"]["hit_rate"] > 0.9
    row = found["log", 1, 8, "lru"]
    assert row["difference_less_static"] == row["hit_rate"]


def test_the_cut_is_between_sequences_where_halves_are_most_alike(write):
    """60 and 10 + 30 tokens, not 70 and 30, although 50 lies between."""
    ids = np.concatenate([random_ids(60, 8), 8 + random_ids(40, 8)])
    found = table(write(ASKED, ids, [60, 10, 30]))

    assert found["log", 1, 8, "static"]["hit_rate"] == 0


def test_differences_are_paired(write):
    rows = table(write(ASKED, random_ids(300), [100, 50, 150]))
    lru, static = rows["log", 1, 8, "lru"], rows["log", 1, 8, "static"]

    gap = lru["hit_rate"] - static["hit_rate"]
    assert lru["difference_less_static"] == pytest.approx(gap, abs=1e-5)
    assert lru["low_less_static"] < gap < lru["high_less_static"]
    assert static["low_less_static"] == static["high_less_static"] == 0


def test_a_pass_of_more_tokens_touches_each_expert_once(write):
    text = ASKED.replace("caches: [lru", "orders: [1, 50]\n  caches: [lru")
    rows = table(write(text, random_ids(400), [200, 200]))

    # All 16 experts in turn: LRU has always just lost the next one.
    assert rows["log", 50, 8, "lru"]["hit_rate"] == 0
    assert rows["log", 50, 8, "static"]["hit_rate"] == pytest.approx(0.5, abs=0.01)
    assert rows["log", 50, 8, "lru"]["parts"] == 8
    assert rows["log", 1, 8, "lru"]["hit_rate"] == pytest.approx(0.5, abs=0.06)


def test_sequences_decode_side_by_side():
    """Three of lengths 2, 3, 2, then one of 2: two at a time."""
    assert interleaved([2, 3, 2, 2], 2).tolist() == [0, 2, 1, 3, 4, 5, 6, 7]
    assert interleaved([5], 2).tolist() == []
    assert interleaved([1, 1, 1], 1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["lru", "fifo", "lifo", "lfu"])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_independent_uniform_choices_hit_with_the_share_that_is_there(name, share):
    """Whatever the rule; for one expert a token and layer exactly, else to 2 points."""
    ids = independent(np.zeros((3000, 4, 1)), 32, np.random.default_rng(1))
    touches = touches_of_batches(ids, 1, 32)

    found = hits(touches, 32, [int(32 * share)], name)[200:].mean()

    assert found == pytest.approx(share, abs=0.02)


def test_shuffling_keeps_popularity_and_loses_order():
    rng = np.random.default_rng(5)
    ids = sticky(np.zeros((1500, 2, 4)), 32, rng)
    mixed = shuffled(ids, 32, rng)
    touches = [touches_of_batches(some, 1, 32) for some in (ids, mixed)]
    before, after = (hits(t, 32, [12], "lru").mean() for t in touches)

    assert np.bincount(ids.ravel()).tolist() == np.bincount(mixed.ravel()).tolist()
    assert before > 0.65
    assert after == pytest.approx(12 / 32, abs=0.04)


def test_sticky_tokens_repeat_as_measured():
    """45 % of the last token, 80 % within eight; no expert is popular in the long run."""
    ids = sticky(np.zeros((2000, 2, 8)), 128, np.random.default_rng(2))
    last, recent = [], []
    for now in range(REACH, 2000):
        for layer in range(2):
            mine = set(ids[now, layer].tolist())
            assert len(mine) == 8
            last.append(len(mine & set(ids[now - 1, layer].tolist())) / 8)
            seen = set(ids[now - REACH : now, layer].ravel().tolist())
            recent.append(len(mine & seen) / 8)
    share = np.sort(np.bincount(ids[:, 0].ravel(), minlength=128))[-51:].sum() / 16_000

    assert np.mean(last) == pytest.approx(0.45, abs=0.01)
    assert np.mean(recent) == pytest.approx(0.80, abs=0.01)
    assert share < 0.5  # of the 40 % most popular: hardly more than 40 %


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ASKED.replace("lru", "lur"), "'lur' is not one of .*did you mean 'lru'"),
        (ASKED.replace("0.25", "25"), "a share from 0 to 1 is expected; got '?25"),
        (ASKED.replace("[0.25, 0.5]", "[]"), "a list with something in it"),
        (
            ASKED.replace("log.npz", "lag.npz"),
            "there is no file .*did you mean 'log.npz'",
        ),
        (ASKED.replace("[lru, static]", "[]"), "a list with something in it"),
        (ASKED + "  orders: []\n", "a list with something in it"),
        (ASKED + "  orders: [0]\n", "8, or '8 sequences', is expected"),
        (ASKED + "  orders: [0 sequences]\n", "asked.yaml:6:.*'8 sequences', is exp"),
        (ASKED + "  orders: [2, 1, 2]\n", "asked.yaml:6:.*2 comes twice"),
        (ASKED + "  controls: [shuffled, shuffled]\n", "'shuffled' comes twice"),
        (ASKED.replace("0.25, 0.5", "1, 1.0"), "asked.yaml:4:.*'?1.0'? comes twice"),
        (ASKED.replace("static", "lru"), "asked.yaml:5:.*'lru' comes twice"),
        (ASKED.replace("log.npz", "log.npz, ./log.npz"), ".yaml:3:.*'log' comes twice"),
        (ASKED + "  seed: -1\n", "asked.yaml:6:.*0 to 1000000000000 is .*-1"),
        (ASKED + "  orders: [8 sequence]\n", "8, or '8 sequences', is expected"),
        (ASKED + "  controls: [shufled]\n", "did you mean 'shuffled'"),
        (ASKED + "  rule: lru\n", "unknown key 'rule'"),
        (ASKED + "scenario: a.yaml\n", "unknown key 'scenario'"),
        ("question: Q\ncaches: 3\n", "a mapping is expected"),
    ],
)
def test_mistakes_are_told_before_anything_runs(write, text, said):
    with pytest.raises(InputError, match=said):
        read_study(write(text, random_ids(40), [20, 20]))


@pytest.mark.parametrize(
    ("lengths", "orders", "said"),
    [
        ([40], "[1]", "two sequences or more"),
        ([20, 20], "[2 sequences]", "side by side"),
    ],
)
def test_a_log_that_cannot_be_cut_is_refused(write, lengths, orders, said):
    text = ASKED + f"  orders: {orders}\n"
    with pytest.raises(InputError, match=said):
        run_study(read_study(write(text, random_ids(40), lengths)))


def test_the_command_writes_the_table(write, tmp_path, monkeypatch, capsys):
    path = write(ASKED + "  controls: [shuffled]\n", random_ids(80), [40, 40])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["moesim", "study", str(path)])
    with pytest.raises(SystemExit) as caught:
        main()

    with (tmp_path / "results" / "studies" / "asked.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert not caught.value.code
    assert len(rows) == 2 * 2 * 2
    assert {row["tokens"] for row in rows} == {"log", "shuffled"}
    assert "Which cache? 8 rows: " in capsys.readouterr().out
