"""Latent routing: clusters, domains, and what its defaults reproduce."""

import numpy as np
import pytest

from moesim.routing import stats
from moesim.routing.latent import REACH, Latent
from moesim.routing.source import TokenKeys, count

SEEDS = range(6)
SEQUENCES, LENGTH = 128, 64


def sequences(domain=0, count_=SEQUENCES, length=LENGTH):
    """Return the keys of whole sequences of one domain, other requests in each."""
    request = np.repeat(np.arange(count_) + 1000 * domain, length)
    position = np.tile(np.arange(length), count_)
    return TokenKeys(request, np.full(len(request), domain), position)


def small(**given):
    return Latent(**{"layers": 6, "experts": 16, "top_k": 3, "seed": 1} | given)


def measured(seed):
    """Return the statistics that the docstring of `Latent` names, for one seed."""
    source = Latent(26, 64, 6, seed=seed)
    ids, other = (source.route(sequences(domain)) for domain in (0, 1))
    counts, others = count(ids, 64), count(other, 64)
    lengths = np.full(SEQUENCES, LENGTH)
    first = np.concatenate([ids, other])[:, :, 0]
    bits = {
        f"bits_{gap}": stats.mutual_information(first, gap, 64).mean()
        for gap in (1, 2, 4, 8)
    }
    norm = np.sqrt((counts**2).sum(axis=1) * (others**2).sum(axis=1))
    return bits | {
        "peak": np.median(stats.max_over_mean(counts)),
        "variation": np.median(stats.variation(counts)),
        "entropy": np.median(stats.normalised_entropy(counts)),
        "top": np.median(stats.top_share(counts, 6 / 64)),
        "overlap": stats.next_token_overlap(ids, lengths).mean(),
        "strangers": np.median(stats.independent_overlap(counts, len(ids), 6)),
        "ranks_64": ranks(ids, 64),
        "ranks_256": ranks(ids, 256),
        "ranks_1024": ranks(ids, 1024),
        "cosine": ((counts * others).sum(axis=1) / norm).mean(),
    }


def ranks(ids, tokens):
    rng = np.random.default_rng(1)
    batches = [rng.choice(len(ids), tokens, replace=False) for _ in range(20)]
    loads = [stats.rank_counts(count(ids[batch], 64), 8) for batch in batches]
    return np.median(stats.max_over_mean(np.array(loads)))


@pytest.fixture(scope="module")
def worlds():
    return [measured(seed) for seed in SEEDS]


@pytest.mark.parametrize(
    ("statistic", "recorded", "tolerance"),
    [
        ("peak", 3.96, 0.4),
        ("variation", 0.80, 0.06),
        ("entropy", 0.932, 0.01),
        ("top", 0.268, 0.02),
        ("overlap", 0.262, 0.015),
        ("strangers", 0.154, 0.01),
        ("ranks_64", 1.48, 0.05),
        ("ranks_256", 1.45, 0.05),
        ("ranks_1024", 1.45, 0.05),
        ("bits_1", 2.42, 0.12),
        ("bits_2", 2.39, 0.12),
        ("bits_4", 2.35, 0.12),
        ("bits_8", 2.23, 0.12),
        ("cosine", 0.66, 0.07),
    ],
)
def test_the_defaults_reproduce_a_recorded_log(worlds, statistic, recorded, tolerance):
    """Means over six seeds against DeepSeek-V2-Lite's figures (docstring of Latent)."""
    found = np.mean([world[statistic] for world in worlds])

    assert found == pytest.approx(recorded, abs=tolerance)


def test_what_layers_share_fades_slowly(worlds):
    """Information falls with every doubling of the gap, by a tenth at most by gap 8."""
    for world in worlds:
        bits = [world[f"bits_{gap}"] for gap in (1, 2, 4, 8)]
        assert sorted(bits, reverse=True) == bits
        assert bits[3] > 0.9 * bits[0]


def test_without_drift_nothing_fades():
    """A token that keeps its cluster keeps it through all layers."""
    kept, moved = (
        small(drift=drift).clusters_of(sequences(count_=20)) for drift in (0, 1)
    )

    assert (kept == kept[:, :1]).all()
    changes = (np.diff(moved, axis=1) != 0).sum(axis=1)
    assert changes.max() == 1
    assert changes.mean() > 0.4


@pytest.mark.parametrize("key", ["spread", "tilt", "loyalty", "focus", "drift"])
@pytest.mark.parametrize("value", [0, 1e-320, 1.0])
def test_parameters_may_be_as_small_as_can_be(key, value):
    """The smallest float is as good as zero, and no warning is given."""
    ids = small(**{key: value}).route(sequences(count_=2))

    assert (np.diff(np.sort(ids, axis=2), axis=2) > 0).all()


def test_drift_is_the_share_of_tokens_that_change_their_cluster():
    """30 %, less those that change to the same one or in the first layer."""
    source = small(layers=100, drift=0.3, focus=0.0, stickiness=0.0, clusters=50)
    clusters = source.clusters_of(sequences())
    changed = (clusters != clusters[:, :1]).any(axis=1).mean()

    assert changed == pytest.approx(0.3 * 0.98 * 0.99, abs=0.02)


def test_a_token_keeps_its_predecessor_s_cluster_as_often_as_it_sticks():
    """With many equal clusters: stickiness, plus meeting the same one by chance."""
    source = small(clusters=50, focus=0.0, stickiness=0.7, drift=0.0)
    cluster = source.clusters_of(sequences(count_=200))[:, 0].reshape(200, LENGTH)
    kept = (np.diff(cluster, axis=1) == 0).mean()

    assert kept == pytest.approx(0.7 + 0.3 / 50, abs=0.02)


def test_a_stretch_ends_at_a_known_distance():
    """With stickiness 1, clusters last from one multiple of `REACH` to the next."""
    source = small(clusters=1000, stickiness=1.0, drift=0.0, focus=0.0)
    cluster = source.clusters_of(sequences(count_=1, length=4 * REACH))[:, 0]
    starts = np.flatnonzero(np.diff(cluster)) + 1

    assert starts.tolist() == [REACH, 2 * REACH, 3 * REACH]


def test_requests_draw_their_clusters_on_their_own():
    """Equal positions of two requests share a cluster by chance only."""
    source = small(clusters=50, focus=0.0, drift=0.0)
    cluster = source.clusters_of(sequences(count_=200))[:, 0].reshape(200, LENGTH)

    assert (cluster[1:] == cluster[:-1]).mean() < 0.04


def test_clusters_stay_in_range_and_all_are_used():
    """32 of them, in each of the domains."""
    for domain in (0, 3):
        used = np.unique(small(focus=0.3).clusters_of(sequences(domain)))
        assert used.tolist() == list(range(32))


def test_focus_makes_domains_use_clusters_unevenly():
    """Shares differ by e**focus; without it they are equal."""
    even, uneven = (
        np.bincount(small(focus=focus).clusters_of(sequences())[:, 0], minlength=32)
        for focus in (0.0, 2.0)
    )

    assert even.max() < 1.5 * even.mean()
    assert uneven.max() > 4 * uneven.mean()


def test_loyal_tokens_follow_the_favourites_of_their_cluster():
    """At 1, equal (domain, cluster) means equal experts in every layer; at 0, rarely."""
    keys = sequences(count_=20)
    for loyalty, low, high in ((1.0, 1.0, 1.0), (0.0, 0.0, 0.5)):
        source = small(loyalty=loyalty, drift=0.0, clusters=2)
        ids, cluster = source.route(keys), source.clusters_of(keys)[:, 0]
        same = ids[cluster == 0]
        assert low <= (same == same[:1]).all(axis=2).mean() <= high


def test_slots_go_on_being_loyal_with_the_same_probability():
    """P(first j slots are favourites) is loyalty ** j, when weights are even."""
    source = small(spread=1e-9, tilt=0.0, experts=1000, loyalty=0.6, clusters=1)
    ids = source.route(sequences())
    favourites = small(
        spread=1e-9, tilt=0.0, experts=1000, loyalty=1.0, clusters=1
    ).route(sequences(count_=1, length=1))
    following = np.logical_and.accumulate(ids == favourites, axis=2).mean(axis=(0, 1))

    assert following == pytest.approx(0.6 ** np.arange(1, 4), abs=0.01)


def test_layers_decide_on_their_own_how_long_a_token_is_loyal():
    """The number of favourites in one layer says nothing of the next."""
    given = {"spread": 1e-9, "tilt": 0.0, "experts": 1000, "clusters": 1}
    ids = small(loyalty=0.6, **given).route(sequences())
    favourites = small(loyalty=1.0, **given).route(sequences(count_=1, length=1))
    followed = (ids == favourites).sum(axis=2)

    assert abs(np.corrcoef(followed[:, 0], followed[:, 1])[0, 1]) < 0.05


def test_a_class_beyond_the_domains_starts_them_again():
    """Class 6 of 4 domains is domain 2."""
    keys = sequences(count_=3)
    two, six = (
        small().route(TokenKeys(keys.request, keys.klass + klass, keys.position))
        for klass in (2, 6)
    )

    assert (two == six).all()


def test_domains_differ_more_the_more_they_are_tilted():
    """Without tilt and focus domains are alike; with tilt their counts part."""
    distance = []
    for tilt in (0.0, 2.0):
        source = small(tilt=tilt, focus=0.0)
        shares = [count(source.route(sequences(d)), 16) for d in (0, 1)]
        distance.append(np.abs(shares[0] - shares[1]).sum() / shares[0].sum())

    assert distance[0] < 0.1
    assert distance[1] > 0.4
