"""Routing sources are pure, draw distinct experts, and draw them as they say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.routing.catalogue import SOURCES
from moesim.routing.source import TokenKeys, count

HOT = ((0, 5), (2, 20))
EXTRA = {"rush_hour": {"hot": HOT}}
SYNTHETIC = sorted(set(SOURCES) - {"log"})

every_source = pytest.mark.parametrize("name", SYNTHETIC)


def source_of(name, layers=4, experts=32, top_k=4, **given_):
    return SOURCES[name](layers, experts, top_k, **EXTRA.get(name, {}) | given_)


def tokens(count_, klass=0):
    """Return the keys of single-token requests."""
    number = np.arange(count_)
    return TokenKeys(number, np.full(count_, klass), np.zeros(count_, int))


def some_tokens(count_, seed=0):
    rng = np.random.default_rng(seed)
    return TokenKeys(*(rng.integers(0, top, count_) for top in (40, 5, 300)))


def picked(keys, index):
    return TokenKeys(keys.request[index], keys.klass[index], keys.position[index])


@every_source
@settings(max_examples=15)
@given(order=st.permutations(range(60)), cut=st.integers(0, 60))
def test_a_token_is_routed_the_same_in_any_batch(name, order, cut):
    """Permuting and splitting a batch permutes and splits its routes."""
    source, keys, order = source_of(name), some_tokens(60), np.array(order)
    whole = source.route(keys)
    parts = [source.route(picked(keys, part)) for part in (order[:cut], order[cut:])]

    assert (np.concatenate(parts) == whole[order]).all()


@every_source
def test_a_batch_is_routed_the_same_in_however_many_pieces(name, monkeypatch):
    """The size of the pieces that are drawn together shows nowhere."""
    keys = some_tokens(500)
    whole = source_of(name).route(keys)
    monkeypatch.setattr("moesim.routing.draw.CHUNK", 1000)

    assert (source_of(name).route(keys) == whole).all()


@every_source
def test_a_source_has_no_memory(name):
    """A used source routes like a new one, and equals it."""
    used, keys = source_of(name), some_tokens(50)
    used.route(some_tokens(200, seed=1))

    assert (used.route(keys) == source_of(name).route(keys)).all()
    assert used == source_of(name)
    assert hash(used) == hash(source_of(name))


@every_source
def test_experts_of_a_token_are_distinct(name):
    """In every layer, within range, as ``(T, L, k)`` ids."""
    ids = source_of(name).route(some_tokens(3000))

    assert ids.shape == (3000, 4, 4)
    assert ids.dtype == np.uint16
    assert (np.diff(np.sort(ids.astype(int), axis=2), axis=2) > 0).all()
    assert ids.max() == 31


@every_source
def test_no_tokens_have_no_routes(name):
    """An empty batch keeps its axes."""
    assert source_of(name).route(tokens(0)).shape == (0, 4, 4)


@every_source
def test_seeds_route_differently(name):
    """Another seed moves most tokens."""
    keys = some_tokens(200)
    one, other = (source_of(name, seed=seed).route(keys) for seed in (0, 1))

    assert (one != other).mean() > 0.5


@every_source
@pytest.mark.parametrize("other", ["request", "position"])
def test_each_part_of_a_key_matters(name, other):
    """Tokens that differ in request or position alone are drawn on their own."""
    keys = some_tokens(200)
    moved = replace(keys, **{other: getattr(keys, other) + 1000})
    source = source_of(name)

    assert (source.route(keys) != source.route(moved)).mean() > 0.3


@every_source
def test_layers_are_drawn_on_their_own(name):
    """No two layers give all tokens the same experts."""
    ids = source_of(name, stickiness=0.0) if name == "latent" else source_of(name)
    ids = ids.route(tokens(500))

    assert all(
        (ids[:, one] == ids[:, other]).mean() < 0.5
        for one in range(4)
        for other in range(one)
    )


def test_no_slot_of_a_layer_repeats_a_slot_of_another():
    """Uniform experts agree across any two (layer, slot) once in 32, by chance."""
    ids = source_of("uniform", layers=6).route(tokens(4000)).reshape(4000, -1)
    alike = (ids[:, :, None] == ids[:, None, :]).mean(axis=0)
    apart = np.abs(np.subtract.outer(np.arange(24) // 4, np.arange(24) // 4)) > 0

    assert np.abs(alike[apart] - 1 / 32).max() < 5 * np.sqrt(1 / 32 / 4000)


@every_source
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (21, 21)])
def test_a_token_may_use_all_experts(name, experts, top_k):
    """k = E ends, with every expert once; so does the only expert of a model."""
    hot = {"hot": ((0, experts - 1),)} if name == "rush_hour" else {}
    ids = source_of(name, experts=experts, top_k=top_k, **hot).route(tokens(40))

    assert (np.sort(ids, axis=2) == np.arange(experts)).all()


# Expected largest loads under uniform routing, with the numbers' own ids. E01 is the
# exact maximum of a multinomial; E02 is a simulation that shares no code with this one.
MAX_LOADS = [
    ("E01.T32_E8", 32, 8, 1, 7.047784071615151, 0.0),
    ("E01.T256_E8", 256, 8, 1, 40.27315501456958, 0.0),
    ("E01.T1024_E32", 1024, 32, 1, 44.264124790905896, 0.0),
    ("E01.T1024_E256", 1024, 256, 1, 10.692919929748665, 0.0),
    ("E02.T32_E8_k2", 32, 8, 2, 11.854375, 0.007155975767434138),
    ("E02.T256_E8_k2", 256, 8, 2, 74.6647, 0.026813143096849658),
    ("E02.T200_E32_k2", 200, 32, 2, 20.20785, 0.013240512997396349),
    ("E02.T128_E256_k8", 128, 256, 8, 10.552625, 0.012254492961628127),
    ("E02.T1024_E256_k8", 1024, 256, 8, 48.93666666666667, 0.06767192941235407),
]


@pytest.mark.parametrize(
    ("size", "experts", "top_k", "expected", "error"),
    [pytest.param(*case[1:], id=case[0]) for case in MAX_LOADS],
)
def test_the_largest_load_of_uniform_routing_is_known(
    size, experts, top_k, expected, error
):
    """Within 4 standard errors; each layer is a replication."""
    source = source_of("uniform", layers=400, experts=experts, top_k=top_k, seed=11)
    largest = count(source.route(tokens(size)), experts).max(axis=1)
    own = largest.std(ddof=1) / np.sqrt(len(largest))

    assert abs(largest.mean() - expected) < 4 * np.hypot(own, error)


# B23: groups that k distinct experts touch, G (1 - C(E - E/G, k) / C(E, k)).
DESTINATIONS = [
    ("B23.nodes8", 256, 8, 8, 5.29465200038248),
    ("B23.gpus64", 256, 8, 64, 7.6757501917700885),
    ("B23.mixtral_gpus4_k2", 8, 2, 4, 1.8571428571428572),
    ("B23.article_8gpu_32exp_k2", 32, 2, 8, 1.903225806451613),
]


@pytest.mark.parametrize(
    ("experts", "top_k", "groups", "expected"),
    [pytest.param(*case[1:], id=case[0]) for case in DESTINATIONS],
)
def test_the_destinations_of_a_uniform_token_are_known(
    experts, top_k, groups, expected
):
    """Within 4 standard errors of distinct sampling."""
    source = source_of("uniform", layers=50, experts=experts, top_k=top_k, seed=7)
    ranks = np.sort(source.route(tokens(2000)) // (experts // groups), axis=2)
    touched = 1 + (np.diff(ranks.astype(int), axis=2) > 0).sum(axis=2)

    assert abs(touched.mean() - expected) < 4 * touched.std() / np.sqrt(touched.size)


def test_zipf_weights_fall_by_rank_in_an_order_of_each_layer_s_own():
    """With k = 1, shares are r ** -a over their sum; layers have different leaders."""
    source = source_of("zipf", layers=8, experts=8, top_k=1, exponent=1.5)
    counts = count(source.route(tokens(20_000)), 8)
    expected = np.arange(1, 9) ** -1.5
    expected /= expected.sum()

    shares = -np.sort(-counts, axis=1) / 20_000
    assert np.abs(shares - expected).max() < 5 * np.sqrt(0.25 / 20_000)
    assert len(set(counts.argmax(axis=1).tolist())) > 3


def test_lognormal_weights_have_the_spread_they_are_given():
    """With k = 1, the log shares of 64 x 256 experts have standard deviation 0.5."""
    source = source_of("lognormal", layers=64, experts=256, top_k=1, sigma=0.5)
    logs = np.log(count(source.route(tokens(40_000)), 256))

    assert logs.std() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("name", "key"), [("zipf", "exponent"), ("lognormal", "sigma")]
)
def test_a_flat_popularity_is_uniform(name, key):
    """At 0 the same tokens meet the same experts as under uniform routing."""
    flat, keys = source_of(name, **{key: 0.0}), some_tokens(300)

    assert (flat.route(keys) == source_of("uniform").route(keys)).all()


def test_the_rush_takes_its_share_of_requests_whole():
    """35 % of requests, 4 standard errors; tokens of a request go together."""
    source = source_of("rush_hour", probability=0.35)
    request = np.repeat(np.arange(10_000), 3)
    inside = source.in_rush(
        TokenKeys(request, request * 0, np.tile(np.arange(3), 10_000))
    )
    inside = inside.reshape(-1, 3)

    assert (inside == inside[:, :1]).all()
    assert abs(inside[:, 0].mean() - 0.35) < 4 * np.sqrt(0.35 * 0.65 / 10_000)


def test_a_rush_of_tokens_divides_requests():
    """Per token, tokens of one request join or stay out on their own."""
    source = source_of("rush_hour", probability=0.35, per="token")
    position = np.arange(10_000)
    inside = source.in_rush(TokenKeys(position * 0, position * 0, position))

    assert abs(inside.mean() - 0.35) < 4 * np.sqrt(0.35 * 0.65 / 10_000)


def test_the_rush_goes_through_the_hot_experts_and_no_other():
    """All of the rush in the named layers; outside it and elsewhere, background."""
    source, keys = source_of("rush_hour"), tokens(20_000)
    ids, inside = source.route(keys), source.in_rush(keys)

    for layer, expert in HOT:
        uses = (ids[:, layer] == expert).any(axis=1)
        assert (ids[inside, layer, 0] == expert).all()
        assert abs(uses[~inside].mean() - 4 / 32) < 4 * np.sqrt(0.11 / 13_000)
    elsewhere = count(ids[inside][:, [1, 3]], 32)
    assert np.abs(elsewhere / inside.sum() - 4 / 32).max() < 5 * np.sqrt(0.11 / 7000)


def test_the_other_experts_of_a_rush_come_from_the_background():
    """They are spread evenly over the other 31."""
    source, keys = source_of("rush_hour", probability=1.0), tokens(20_000)
    others = np.delete(count(source.route(keys), 32)[0], HOT[0][1])

    assert np.abs(others / 20_000 - 3 / 31).max() < 5 * np.sqrt(0.09 / 20_000)


def test_a_rush_may_have_a_skewed_background():
    """An exponent makes the others' popularity Zipf's."""
    keys = tokens(5000)
    flat, steep = (
        count(source_of("rush_hour", exponent=a).route(keys), 32)[1] for a in (0.0, 2.0)
    )

    assert steep.max() > 3 * flat.max()


BAD = [
    ("zipf", {"exponent": -1}, "exponent"),
    ("zipf", {"exponent": float("nan")}, "exponent"),
    ("zipf", {"exponent": True}, "exponent"),
    ("zipf", {"exponent": "1"}, "exponent"),
    ("zipf", {"exponent": 10.5}, "exponent"),
    ("lognormal", {"sigma": float("inf")}, "sigma"),
    ("lognormal", {"sigma": None}, "sigma"),
    ("rush_hour", {"hot": ()}, "hot"),
    ("rush_hour", {"hot": 5}, "hot"),
    ("rush_hour", {"hot": ((1, 2, 3),)}, "hot"),
    ("rush_hour", {"hot": ((4, 0),)}, "hot.0.layer"),
    ("rush_hour", {"hot": ((0, 5), (1, 32))}, "hot.1.expert"),
    ("rush_hour", {"hot": ((0, 1.5),)}, "hot.0.expert"),
    ("rush_hour", {"hot": ((-1, 0),)}, "hot.0.layer"),
    ("rush_hour", {"hot": ((1, 2), (1, 3))}, "hot"),
    ("rush_hour", {"probability": 1.01}, "probability"),
    ("rush_hour", {"per": "batch"}, "per"),
    ("rush_hour", {"per": ["token"]}, "per"),
    ("rush_hour", {"exponent": "x"}, "exponent"),
    ("latent", {"domains": 0}, "domains"),
    ("latent", {"domains": 2.5}, "domains"),
    ("latent", {"clusters": 10**12}, "clusters"),
    ("latent", {"clusters": 1 << 20}, "clusters"),
    ("latent", {"spread": -0.1}, "spread"),
    ("latent", {"tilt": "a"}, "tilt"),
    ("latent", {"focus": float("nan")}, "focus"),
    ("latent", {"stickiness": 1.1}, "stickiness"),
    ("latent", {"drift": -0.1}, "drift"),
    ("uniform", {"layers": 0}, "layers"),
    ("uniform", {"experts": 1 << 17}, "experts"),
    ("uniform", {"top_k": 33}, "top_k"),
    ("uniform", {"top_k": 0}, "top_k"),
    ("uniform", {"seed": -1}, "seed"),
    ("uniform", {"groups": 5}, "groups"),
    ("uniform", {"groups": 0}, "groups"),
    ("uniform", {"groups": 4, "top_groups": 5}, "top_groups"),
    ("uniform", {"groups": 16, "top_groups": 1}, "top_k"),
]


@pytest.mark.parametrize(("name", "given_", "key"), BAD)
def test_a_bad_parameter_is_named_with_what_was_found_and_expected(name, given_, key):
    """Bad parameters raise the one error for people, with one problem each."""
    with pytest.raises(InputError) as caught:
        source_of(name, **given_)

    (problem,) = caught.value.problems
    assert problem.key == key
    assert "found" in problem.message
    assert "expected" in problem.message


def test_all_bad_parameters_are_told_of_at_once():
    """Three mistakes, three problems."""
    with pytest.raises(InputError) as caught:
        source_of("rush_hour", probability=2, per="x", hot=((9, 0),))

    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["probability", "per", "hot.0.layer"]
