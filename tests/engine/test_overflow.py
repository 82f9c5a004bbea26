"""Capacity: the first tokens stay; the others are dropped or move on, and are counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moesim
from moesim.engine.assemble.overflow import admit
from moesim.errors import InputError
from moesim.policy.bundle import Policy, make_policy
from moesim.policy.capacity import Capacity
from moesim.policy.order import Oldest
from moesim.scenario.load import load_text

shapes = st.tuples(
    st.integers(0, 2**32 - 1),
    st.integers(1, 3),
    st.integers(0, 15),
    st.integers(1, 3),
    st.integers(0, 8),
)
EXPERTS = 6


def draw(shape):
    """Return choices, room, and each (token, layer)'s next experts, in an order."""
    seed, layers, tokens, top_k, room = shape
    rng = np.random.default_rng(seed)
    weight = rng.random(EXPERTS) + 0.1
    noise = rng.gumbel(size=(tokens, layers, EXPERTS))
    ranked = (noise + 2 * np.log(weight)).argsort(axis=2)[:, :, ::-1]
    return ranked[:, :, :top_k].astype(np.uint16), room, ranked[:, :, top_k:]


def plain(ids, room, after):
    """Return the same one choice at a time: the first stay, then rounds of asking."""
    served = np.full(ids.shape, -1)
    for layer in range(ids.shape[1]):
        load = [0] * EXPERTS
        asks = [
            (t, s, int(ids[t, layer, s])) for t, s in np.ndindex(len(ids), ids.shape[2])
        ]
        asked = [0] * len(ids)
        while asks:
            over = []
            for token, slot, expert in asks:
                if load[expert] < room:
                    load[expert] += 1
                    served[token, layer, slot] = expert
                else:
                    over.append((token, slot))
            asks = []
            for token, slot in over:
                if asked[token] < after.shape[2]:
                    asks.append((token, slot, int(after[token, layer, asked[token]])))
                    asked[token] += 1
    return served


@settings(max_examples=300, deadline=None)
@given(shapes, st.booleans())
def test_it_agrees_with_one_choice_at_a_time(shape, reroute):
    """And whatever happens, T k choices are served or dropped in every layer."""
    ids, room, after = draw(shape)
    if not reroute:
        after = after[:, :, :0]

    def further(token, layer, has):
        np.testing.assert_array_equal(has, ids[token, layer].T)
        return after[token, layer].T

    found = admit(ids, room, EXPERTS, further if reroute else None)
    wanted = plain(ids, room, after)

    np.testing.assert_array_equal(found.kept, wanted >= 0)
    np.testing.assert_array_equal(found.ids[found.kept], wanted[wanted >= 0])
    np.testing.assert_array_equal(found.ids[~found.kept], ids[~found.kept])
    moved = found.kept & (found.ids != ids)
    for layer in range(ids.shape[1]):
        served = found.ids[:, layer][found.kept[:, layer]]
        load = np.bincount(served, minlength=EXPERTS)
        assert load.max(initial=0) <= room
        assert load.sum() + found.dropped[layer].sum() == ids[:, layer].size
        old = ids[:, layer][moved[:, layer]]
        counted = np.bincount(old, minlength=EXPERTS)
        np.testing.assert_array_equal(found.rerouted[layer], counted)
    for token, layer in np.ndindex(ids.shape[:2]):
        mine = found.ids[token, layer][found.kept[token, layer]]
        assert len(set(mine.tolist())) == len(mine)


def test_hand_worked():
    """Four tokens, top 1 of 3 experts, room 1: the first token of expert 0 keeps it."""
    ids = np.array([0, 0, 0, 1], np.uint16).reshape(4, 1, 1)
    after = {1: [1, 2], 2: [2, 1]}

    dropped = admit(ids, 1, 3, None)
    moved = admit(ids, 1, 3, lambda token, _, __: np.array([after[t] for t in token]).T)

    assert dropped.kept.ravel().tolist() == [True, False, False, True]
    assert dropped.dropped.tolist() == [[2, 0, 0]]
    # Token 1 asks expert 1, which token 3 fills; token 2 asks expert 2 and gets it;
    # token 1 asks expert 2, now full, and is dropped.
    assert moved.ids.ravel().tolist() == [0, 0, 2, 1]
    assert moved.kept.ravel().tolist() == [True, False, True, True]
    assert (moved.dropped.tolist(), moved.rerouted.tolist()) == (
        [[1, 0, 0]],
        [[1, 0, 0]],
    )


@pytest.mark.parametrize(
    ("factor", "tokens", "top_k", "experts", "room"),
    [
        (1.25, 100, 2, 8, 32),  # ceil(31.25)
        (1.0, 64, 8, 256, 2),
        (1.2, 10, 1, 4, 3),  # 1.2 x 2.5 is 3, whatever floats say
        (0.0, 10, 1, 4, 0),
        (100.0, 10, 1, 4, 10),
    ],
)
def test_room_is_a_factor_times_the_mean(factor, tokens, top_k, experts, room):
    assert Capacity(factor).room(tokens, top_k, experts) == room


SKEWED = """
model: deepseek-v2-lite
cluster: {gpu: h100, nodes: 2, gpus_per_node: 4}
placement: {redundant_experts: 8}
routing: {name: zipf, exponent: 0.8}
workload: {num_prompts: 24, input_len: 400, output_len: 2}
serving: {max_num_batched_tokens: 400, max_in_flight: 2}
"""


@pytest.fixture(scope="module")
def skewed():
    return load_text(SKEWED)


def test_a_large_factor_is_fifo(skewed):
    """The same events, to the last tick, dropped or rerouted."""
    plain_run = moesim.run(skewed)
    for overflow in ("drop", "reroute"):
        policy = {"name": "capacity", "factor": 1e5, "overflow": overflow}
        limited = moesim.run(skewed, policy=policy)

        digests = (run.manifest["event_digests"] for run in (limited, plain_run))
        assert next(digests) == next(digests)
        assert limited.summary["dropped_frac"] == limited.summary["rerouted_frac"] == 0


@pytest.mark.parametrize("overflow", ["drop", "reroute"])
def test_choices_are_served_or_dropped_and_less_room_means_less_time(skewed, overflow):
    """As the factor falls, time falls and the share that overflows rises."""
    time, share = [], []
    for factor in (1e5, 4.0, 2.0, 1.25):
        policy = {"name": "capacity", "factor": factor, "overflow": overflow}
        run = moesim.run(skewed, policy=policy)
        layers = run.experts.groupby("layer")[["tokens", "dropped", "rerouted"]].sum()
        # The last output token is computed by nobody.
        wanted = 24 * (400 + 2 - 1) * 6
        assert (layers["tokens"] + layers["dropped"] == wanted).all()
        lost = layers["dropped"].sum() / (wanted * len(layers))
        assert run.summary["dropped_frac"] == pytest.approx(lost)
        time.append(run.summary["duration"])
        share.append(lost + run.summary["rerouted_frac"])
        if overflow == "drop":
            assert run.summary["rerouted_frac"] == 0

    assert time == sorted(time, reverse=True)
    assert share == sorted(share)
    assert share[-1] > 0.1


def test_rerouting_keeps_what_dropping_loses(skewed):
    """With room for all, few are dropped: those whose next experts all were full."""
    policy = {"name": "capacity", "overflow": "reroute", "reach": 58}
    moved = moesim.run(skewed, policy=policy).summary
    lost = moesim.run(skewed, policy="capacity").summary

    assert moved["dropped_frac"] < 0.01
    assert lost["dropped_frac"] > 0.1
    assert moved["model_outputs"] == "changed"


def test_capacity_goes_with_any_order(skewed):
    """From Python the role is combined with another one's order."""
    policy = Policy("old", order=Oldest(), admit=Capacity(1.25))
    run = moesim.run(skewed, policy=policy)

    assert run.summary["dropped_frac"] > 0.1
    assert run.summary["completed"] == 24


class Greedy:
    def __init__(self, room):
        self.given = room

    def room(self, tokens, top_k, experts):
        return self.given


@pytest.mark.parametrize("room", [-1, 2.5, None])
def test_a_room_that_is_no_number_of_tokens_is_refused(skewed, room):
    with pytest.raises(InputError, match="a number of tokens from 0"):
        moesim.run(skewed, policy=Greedy(room))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"factor": -1}, "factor is a number from 0"),
        ({"overflow": "lose"}, "drop or reroute"),
        ({"reach": 1.5}, "reach is a whole number"),
    ],
)
def test_bad_parameters_are_refused(changes, said):
    with pytest.raises(InputError, match=said):
        make_policy({"name": "capacity", **changes})


def test_counts_do_not_suffice(skewed):
    """Who drops tokens has to know them."""
    with pytest.raises(InputError, match="changes the choices of single tokens"):
        skewed.with_({"policy": "capacity", "routing.draw": "counts"})
