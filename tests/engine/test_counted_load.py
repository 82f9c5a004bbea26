"""Loads drawn as counts: what is conserved, and that tokens give the same on average."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.engine.assemble import ways
from moesim.engine.assemble.counted import FEWEST_TOKENS, CountedLoad, whole
from moesim.engine.assemble.tokens import TokenLoad
from moesim.engine.draft import Draft
from moesim.errors import InputError
from moesim.policy.bundle import Policy, make_policy
from moesim.policy.dispatch import LocalFirst
from moesim.routing.synthetic import Lognormal, Uniform
from moesim.spec.placement import Placement, contiguous
from moesim.spec.system import System
from moesim.spec.topology import NIC, NVLINK, Topology
from worlds import GPU, tiny_model

LAYERS, EXPERTS, TOP_K = 2, 32, 6


def system_of(nodes=2, per_node=4, spare=0, **options):
    gpus = nodes * per_node
    return System(
        model=tiny_model(LAYERS, EXPERTS, TOP_K),
        topology=Topology(GPU, nodes, per_node),
        placement=contiguous(LAYERS, EXPERTS, gpus, spare),
        **options,
    )


def source_of(kind=Lognormal, groups=1, top_groups=1, seed=3):
    return kind(LAYERS, EXPERTS, TOP_K, groups, top_groups, seed)


def draft_of(tokens, number=0):
    """Return a pass with so many tokens at each rank, a request each."""
    tokens = np.asarray(tokens)
    ranks, none = np.arange(len(tokens)), np.zeros(len(tokens), np.int64)
    return Draft(number, 0, 0.0, ranks, ranks, none, none, tokens, none, none)


NOTHING = np.zeros(8, np.int64)


@pytest.mark.parametrize("kernel", ["normal", "low_latency"])
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(1, 8), (2, 4), (4, 2), (8, 1)]),
    spare=st.sampled_from([0, 8, 16]),
)
def test_whatever_leaves_arrives(kernel, seed, shape, spare):
    """In every layer and port class; and every choice has a slot."""
    system = system_of(*shape, spare, dispatch=kernel)
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 400, 8) * (rng.random(8) < 0.7)
    tokens[0] += FEWEST_TOKENS
    with patch.object(ways, "TOKENS", ways.CHUNK):
        counted = CountedLoad(system, source_of(seed=seed), Policy())

    load, padding = counted.load(draft_of(tokens), NOTHING)

    total = int(tokens.sum())
    assert (load.slots.sum(axis=(1, 2)) == total * TOP_K).all()
    assert (load.tx.sum(axis=2) == load.rx.sum(axis=2)).all()
    assert min(load.tx.min(), load.rx.min(), load.slots.min()) >= 0
    assert not padding.any()
    assert (load.tx[:, :, tokens == 0] == 0).all() or kernel == "normal"
    if shape[0] == 1:
        assert not load.tx[:, NIC].any()
    if kernel == "low_latency":
        assert (load.tx.sum(axis=(1, 2)) == total * TOP_K).all()
        assert (load.rx.sum(axis=1) == load.slots.sum(axis=1)).all()


@pytest.mark.parametrize("kernel", ["normal", "low_latency"])
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)], ids=["plain", "grouped"])
@pytest.mark.parametrize("spare", [0, 8])
def test_tokens_give_the_same_on_average(kernel, groups, spare):
    """Every slot, port and pair of GPUs, over 20 passes of the same tokens.

    The tolerance covers the noise of both sides and the pilot's (1 to 2 %).
    """
    system, source = system_of(spare=spare, dispatch=kernel), source_of(Lognormal)
    source = replace(source, groups=groups[0], top_groups=groups[1])
    tokens = np.array([200, 50, 150, 100, 25, 125, 175, 75])
    drafts = [
        replace(draft_of(tokens, number), requests=np.arange(8) + 8 * number)
        for number in range(20)
    ]

    loads = [
        [maker(system, source, Policy()).load(draft, NOTHING)[0] for draft in drafts]
        for maker in (CountedLoad, TokenLoad)
    ]

    for name in ("slots", "tx", "rx", "traffic"):
        ours, theirs = (
            np.mean([getattr(load, name) for load in side], axis=0) for side in loads
        )
        if name == "traffic":
            ours, theirs = ours.sum(axis=0), theirs.sum(axis=0)
        scale = theirs.mean()
        np.testing.assert_allclose(ours, theirs, rtol=0.06, atol=0.06 * scale)


@pytest.mark.parametrize("kernel", ["normal", "low_latency"])
def test_the_busiest_port_is_a_few_percent_less_busy_than_with_tokens(kernel):
    """What counts leave out: who sends what is at its mean, so the maximum is lower."""
    system, source = system_of(dispatch=kernel), source_of(Uniform)
    busiest = {}
    for maker in (CountedLoad, TokenLoad):
        found = []
        for number in range(40):
            draft = draft_of(np.full(8, 64), number)
            draft = replace(draft, requests=np.arange(8) + 8 * number)
            load, _ = maker(system, source, Policy()).load(draft, NOTHING)
            found.append(load.tx.max(axis=2))
        busiest[maker] = np.mean(found, axis=(0, 1))

    ratio = busiest[CountedLoad] / busiest[TokenLoad]

    assert (ratio <= 1.01).all()
    assert ratio[NVLINK] > 0.8
    assert ratio[NIC] > 0.85


def test_few_tokens_and_routed_padding_are_routed_token_by_token():
    """Below 128 tokens a pass has the very load of its tokens."""
    system, source = system_of(), source_of()
    counted, plain = (m(system, source, Policy()) for m in (CountedLoad, TokenLoad))
    few = draft_of(np.full(8, (FEWEST_TOKENS - 1) // 8))
    many, rows = draft_of(np.full(8, FEWEST_TOKENS)), np.full(8, 3)

    for draft, padding in ((few, NOTHING), (many, rows)):
        ours, theirs = counted.load(draft, padding), plain.load(draft, padding)
        np.testing.assert_array_equal(ours[0].slots, theirs[0].slots)
        np.testing.assert_array_equal(ours[0].tx, theirs[0].tx)
        np.testing.assert_array_equal(ours[1], theirs[1])


def test_experts_of_two_to_seven_replicas_keep_their_tokens():
    """All replicas take their share, of experts with few as of one with many."""
    spare = np.repeat([[0, 1, 2], [5, 6, 7]], [8 - 2, 1, 1], axis=1)
    system = system_of()
    phy2log = np.concatenate([system.placement.phy2log, spare], axis=1)
    uneven = replace(system, placement=Placement(phy2log, 8))
    draft = draft_of(np.full(8, 500))

    load, _ = CountedLoad(uneven, source_of(), Policy()).load(draft, NOTHING)

    by_slot = load.slots.swapaxes(1, 2).reshape(LAYERS, -1)
    assert (by_slot.sum(axis=1) == 4000 * TOP_K).all()
    assert by_slot.min() > 0
    for layer, many in enumerate((0, 5)):
        shares = by_slot[layer][phy2log[layer] == many]
        assert len(shares) == 7
        np.testing.assert_allclose(shares, shares.mean(), rtol=0.3)


def test_local_replicas_are_taken_as_the_pilot_takes_them():
    """The share of each replica follows the policy's dispatch role."""
    system = system_of(spare=8)
    policies = (Policy(), Policy(dispatch=LocalFirst()))
    draft = draft_of(np.full(8, 500))

    plain, local = (
        CountedLoad(system, source_of(), policy).load(draft, NOTHING)[0].slots
        for policy in policies
    )

    assert (plain != local).any()
    assert (plain.sum(axis=(1, 2)) == local.sum(axis=(1, 2))).all()


def test_a_policy_that_looks_at_tokens_is_refused():
    """Composing by tokens, or choosing replicas by them, needs tokens."""

    class Shortest:
        def sequence(self, waiting, view):
            return np.argsort(waiting.tokens, kind="stable")

    class First:
        def slots(self, ids, source, placement):
            return placement.log2phy[np.arange(LAYERS)[None, :, None], ids, 0]

    refused = {"composes": Shortest(), "First chooses replicas token by token": First()}
    for why, role in refused.items():
        with pytest.raises(InputError, match=f"counts do not suffice: .*{why}"):
            CountedLoad(system_of(), source_of(), make_policy(role))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_whole_numbers_keep_their_sum(wanted):
    """Each within one of what was wanted, all together within a half."""
    found = whole(np.array([wanted]))[0]

    assert abs(int(found.sum()) - sum(wanted)) <= 0.5 + 1e-4
    assert (np.abs(found - np.array(wanted)) <= 1 + 1e-4).all()
