"""Statistics of routing: hand-worked numbers, laws, and a recorded log's own table."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moesim.routing import stats
from moesim.routing.catalogue import SOURCES
from moesim.routing.source import TokenKeys, count

HAND = np.array([[8, 4, 4, 0], [4, 4, 4, 4]])
RATIOS = [
    stats.max_over_mean,
    stats.variation,
    stats.normalised_entropy,
    stats.top_share,
]
loads = hnp.arrays(
    np.int64, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.integers(1, 1000)
)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (stats.max_over_mean, [2, 1]),
        (stats.variation, [np.sqrt(0.5), 0]),
        (stats.normalised_entropy, [0.75, 1]),
        (stats.top_share, [0.5, 0.25]),
        (stats.dead_experts, [1, 0]),
    ],
)
def test_metrics_of_small_counts_are_as_worked_by_hand(metric, expected):
    """(8, 4, 4, 0): mean 4, variance 8, entropy 1.5 of 2 bits, one dead expert."""
    assert metric(HAND) == pytest.approx(expected)


def test_the_top_tenth_is_rounded_up():
    """7 of 64 experts, 2 of 11, 1 of 10; 7 % of 100 is 7, though more in binary."""
    for experts, fraction, top in (
        (64, 0.1, 7),
        (11, 0.1, 2),
        (10, 0.1, 1),
        (100, 0.07, 7),
    ):
        counts = np.arange(1, experts + 1)
        expected = counts[-top:].sum() / counts.sum()
        assert stats.top_share(counts, fraction) == pytest.approx(expected)


@pytest.mark.parametrize("metric", RATIOS)
def test_a_layer_without_tokens_has_no_ratio(metric):
    """NaN, without a warning, and only there."""
    found = metric(np.array([[0, 0], [1, 3]]))

    assert np.isnan(found).tolist() == [True, False]


@pytest.mark.parametrize("metric", RATIOS)
def test_a_single_expert_is_balanced(metric):
    """Whatever its load."""
    assert metric(np.array([[5]]))[0] == (0 if metric is stats.variation else 1)


@settings(max_examples=60)
@given(loads, st.integers(2, 9), st.randoms())
def test_metrics_ignore_scale_and_order(counts, factor, random):
    """Only the shape of the load matters."""
    order = list(range(counts.shape[1]))
    random.shuffle(order)

    for metric in RATIOS:
        assert metric(counts[:, order] * factor) == pytest.approx(metric(counts))


@settings(max_examples=60)
@given(loads)
def test_metrics_stay_within_their_bounds(counts):
    """1 <= max/mean <= E; entropy and shares within 0 and 1; max/mean bounds CV."""
    experts = counts.shape[1]
    peak = stats.max_over_mean(counts)

    assert ((peak >= 1 - 1e-12) & (peak <= experts)).all()
    assert (stats.variation(counts) <= np.sqrt(experts * peak) + 1e-9).all()
    for metric in (stats.normalised_entropy, stats.top_share):
        assert ((metric(counts) >= 0) & (metric(counts) <= 1 + 1e-12)).all()


@pytest.mark.parametrize("ranks", [1, 3, 4, 10])
def test_ranks_hold_neighbouring_experts(ranks):
    """Every expert once, in order, runs of equal length but for one."""
    runs = np.array_split(np.arange(10), ranks)
    held = stats.rank_counts(10 ** np.arange(10), ranks)
    sizes = stats.rank_counts(np.ones(10, int), ranks)

    assert held.sum() == 1111111111
    assert sorted(sizes) == sorted(len(run) for run in runs)
    assert (np.diff(held) > 0).all()


def test_the_noise_floor_is_what_uniform_routing_shows():
    """Root mean square over 400 layers, within 1 %; E02 gives 0.17399 for this size."""
    floor = stats.variation_floor(1024, 256, 8)
    token = np.arange(1024)
    ids = SOURCES["uniform"](400, 256, 8).route(TokenKeys(token, token, token))
    seen = np.sqrt((stats.variation(count(ids, 256)) ** 2).mean())

    assert floor == pytest.approx(0.17399263633843817, rel=1e-12)
    assert seen == pytest.approx(floor, rel=0.01)


def test_overlap_counts_shared_experts_within_sequences():
    """Two sequences: (0 1)(1 2)(1 2) | (1 2)(3 0): 1/2, 2/2, and 0/2."""
    ids = np.array([[0, 1], [1, 2], [2, 1], [1, 2], [3, 0]], np.uint16)[:, None]

    assert stats.next_token_overlap(ids, np.array([3, 2])) == pytest.approx([0.5])


def test_overlap_needs_a_successor():
    """Sequences of one token have none."""
    ids = np.zeros((3, 2, 1), np.uint16)

    assert np.isnan(stats.next_token_overlap(ids, np.array([1, 1, 1]))).all()
    assert np.isnan(stats.next_token_overlap(ids[:0], np.array([], int))).all()


def test_independent_tokens_overlap_as_their_counts_say():
    """Zipf tokens are independent: both figures agree."""
    token = np.arange(20_000)
    ids = SOURCES["zipf"](4, 16, 3).route(TokenKeys(token * 0, token * 0, token))
    expected = stats.independent_overlap(count(ids, 16), 20_000, 3)

    assert stats.next_token_overlap(ids, np.array([20_000])) == pytest.approx(
        expected, abs=0.01
    )


def test_information_is_the_entropy_between_copies_and_nothing_between_strangers():
    """Layers 0 and 2 are equal, two bits; layer 1 is independent of both."""
    copy = np.tile(np.arange(4), 4)
    top = np.stack([copy, np.repeat(np.arange(4), 4), copy], axis=1).astype(np.uint16)

    assert stats.mutual_information(top, 1, 4) == pytest.approx([0, 0], abs=1e-12)
    assert stats.mutual_information(top, 2, 4) == pytest.approx([2])


def test_information_of_a_half_reliable_hint():
    """A bit passed on rightly 3 times of 4: 1 - H(1/4) = 0.1887 bits."""
    top = np.array([[0, 0]] * 3 + [[0, 1]] + [[1, 1]] * 3 + [[1, 0]], np.uint16)

    assert stats.mutual_information(top, 1, 2) == pytest.approx([0.18872187554086717])


@pytest.fixture(scope="module")
def logs():
    if "MOESIM_DATA" not in os.environ:
        pytest.skip("needs MOESIM_DATA")
    folder = Path(os.environ["MOESIM_DATA"]) / "routing"
    found = {}
    for name in ("intent", "summary"):
        with np.load(folder / f"deepseek-v2-lite_{name}.npz") as file:
            found[name] = {key: file[key] for key in file.files}
    return found


def test_a_recorded_log_has_its_known_statistics(logs):
    """DeepSeek-V2-Lite on intent prompts: medians over 26 layers, to three digits.

    The published share 0.268 is that of 6 experts; a tenth of 64 rounded up is 7.
    """
    log = logs["intent"]
    counts = count(log["expert_ids"], 64)
    overlap = stats.next_token_overlap(log["expert_ids"], log["seq_lens"])
    independent = stats.independent_overlap(counts, len(log["expert_ids"]), 6)

    assert np.median(stats.max_over_mean(counts)) == pytest.approx(3.96, abs=0.005)
    assert np.median(stats.variation(counts)) == pytest.approx(0.80, abs=0.005)
    assert np.median(stats.normalised_entropy(counts)) == pytest.approx(0.932, abs=5e-4)
    assert np.median(stats.top_share(counts, 6 / 64)) == pytest.approx(0.268, abs=5e-4)
    assert np.median(stats.top_share(counts)) == pytest.approx(0.298, abs=5e-4)
    assert overlap.mean() == pytest.approx(0.262, abs=5e-4)
    assert np.median(independent) == pytest.approx(0.154, abs=5e-4)
    assert not stats.dead_experts(counts).any()


@pytest.mark.parametrize(
    ("tokens", "expected"), [(64, 1.48), (256, 1.45), (1024, 1.45)]
)
def test_a_recorded_log_loads_eight_ranks_as_known(logs, tokens, expected):
    """Median of max/mean over layers and 60 batches of random tokens."""
    ids, rng = logs["intent"]["expert_ids"], np.random.default_rng(1)
    batches = [rng.choice(len(ids), tokens, replace=False) for _ in range(60)]
    ranks = [stats.rank_counts(count(ids[batch], 64), 8) for batch in batches]

    assert np.median(stats.max_over_mean(np.array(ranks))) == pytest.approx(
        expected, abs=0.02
    )


@pytest.mark.parametrize(("gap", "bits"), [(1, 2.42), (2, 2.39), (4, 2.35), (8, 2.23)])
def test_layers_of_recorded_logs_inform_each_other_as_known(logs, gap, bits):
    """First choices by weight, intent and summary pooled, mean over layers."""
    first = [
        np.take_along_axis(
            log["expert_ids"], log["expert_weights"].argmax(2)[:, :, None], 2
        )[:, :, 0]
        for log in logs.values()
    ]
    found = stats.mutual_information(np.concatenate(first), gap, 64)

    assert found.mean() == pytest.approx(bits, abs=0.01)
