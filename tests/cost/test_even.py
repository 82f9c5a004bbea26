"""Even passes: what they ask at their mean is what many drawn passes ask on average."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from moesim.cost.even import EvenBatch, even_load, mean_price
from moesim.cost.exchange import exchange_load
from moesim.cost.experts import expert_time
from moesim.cost.pass_ import COMBINE
from moesim.cost.price import port_seconds, price
from moesim.engine.assemble.assembler import pass_load
from moesim.engine.draft import Draft
from moesim.routing.source import TokenKeys
from moesim.routing.synthetic import Uniform
from moesim.spec.placement import contiguous, round_robin
from worlds import tiny_system

KERNELS = ["normal", "low_latency"]


def system_of(spare=0, groups=(1, 1), nodes=2, **options):
    """Return 16 experts, top 3, on 4 GPUs of two nodes, with copies of some."""
    base = tiny_system(layers=2, count=16, gpus=4, nodes=nodes, top_k=3, **options)
    model = replace(base.model, groups=groups[0], top_groups=groups[1])
    placement = contiguous(2, 16, 4, spare)
    return replace(base, model=model, placement=placement)


def drawn(system, tokens, seed=0):
    """Return slots of uniform routes, each copy of an expert in turn, and sources."""
    model = system.model
    source = Uniform(
        2, model.experts, model.top_k, model.groups, model.top_groups, seed
    )
    number = np.arange(tokens)
    ids = source.route(TokenKeys(number, 0 * number, 0 * number)).astype(np.int64)
    copies = system.placement.log2phy
    rng = np.random.default_rng(seed)
    turn = rng.integers(0, 60, ids.shape) % copies.shape[2]
    layer = np.arange(2)[None, :, None]
    return copies[layer, ids, turn], number % system.topology.gpus


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("spare", [0, 8])
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_copies_and_slots_are_the_mean_of_drawn_ones(kernel, spare, groups, nodes):
    system = system_of(spare, groups, nodes, dispatch=kernel)
    tokens = 40_000
    slots, source = drawn(system, tokens)

    real = exchange_load(slots, source, system)
    mean = even_load([EvenBatch(tokens // 4, 1, 0)], system)

    for found, wanted in (
        (mean.slots, real.slots),
        (mean.tx, real.tx),
        (mean.rx, real.rx),
    ):
        np.testing.assert_allclose(found, wanted, rtol=0.04, atol=60)
        assert found.sum() == pytest.approx(wanted.sum(), rel=0.004, abs=1)


def test_the_chance_to_meet_a_gpu_is_that_of_all_choices():
    """Every choice of 3 of 16 experts counted, each GPU without copies."""
    system = system_of(nodes=1)
    met = [len({expert // 4 for expert in some}) for some in combinations(range(16), 3)]

    copies = even_load([EvenBatch(1)], system).tx[0, 0].sum()

    # A token lies on one of the GPUs it needs as often as on another.
    assert copies / 4 == pytest.approx(np.mean(met) * 3 / 4)


def test_groups_keep_a_token_on_few_gpus():
    """With one group of four a token meets the GPU of its group, and no other."""
    system = system_of(groups=(4, 1), nodes=1)

    assert even_load([EvenBatch(1)], system).rx[:, 0].sum() == pytest.approx(
        2 * 4 * 3 / 4
    )


@pytest.mark.parametrize("parts", [1, 2])
def test_what_ranks_do_themselves_is_what_a_run_counts(parts):
    """Decode beside a whole prompt: the same columns as of a draft of these requests."""
    system = system_of(tensor_parallel=parts)
    ranks = system.ranks
    chunk, start = np.tile([[1, 1, 7], [40, 40, 0]], (1, ranks))
    draft = Draft(
        number=0,
        now=0,
        oldest_arrival_s=0.0,
        requests=np.arange(3 * ranks),
        rank=np.repeat(np.arange(ranks), 3),
        klass=np.zeros(3 * ranks, np.int64),
        start=start,
        chunk=chunk,
        samples=np.ones(3 * ranks, np.int64),
        padding=np.zeros(ranks, np.int64),
    )
    real = pass_load(draft, exchange_load(*drawn(system, 9), system), system)

    own = even_load([EvenBatch(2, 1, 40), EvenBatch(1, 7, 0)], system).own

    for name in ("tokens", "sequences", "attended", "kv_read", "padding"):
        assert getattr(own, name).tolist() == getattr(real, name).tolist(), name


def test_batches_add_up():
    system = system_of(spare=8)
    apart = [
        even_load([batch], system) for batch in (EvenBatch(3, 1, 9), EvenBatch(1, 5))
    ]
    both = even_load([EvenBatch(3, 1, 9), EvenBatch(1, 5)], system)

    for name in ("slots", "tx", "rx"):
        total = sum(getattr(load, name) for load in apart)
        np.testing.assert_allclose(getattr(both, name), total)
    assert both.own.attended[0] == 3 * 10 + 15


def test_mean_experts_cost_what_drawn_ones_do_on_average():
    """Of a few tokens, bound by weights: some experts are not read at all."""
    system = system_of(nodes=1)
    times = []
    for seed in range(300):
        slots, source = drawn(system, 8, seed)
        times.append(
            expert_time(exchange_load(slots, source, system).slots, system).sum()
        )

    mean = mean_price(even_load([EvenBatch(2)], system), system).experts.sum()

    # Poisson for without replacement: a token's three experts differ, so more are read.
    assert mean == pytest.approx(np.mean(times), rel=0.05)
    assert mean < 0.9 * expert_time(np.ones((2, 4, 4)), system).sum()


def test_ports_and_attention_are_priced_as_in_a_run():
    """Where counts are whole the price is that of the same `PassLoad`."""
    system = system_of(groups=(4, 1), nodes=1, dispatch="low_latency")
    load = even_load([EvenBatch(16, 1, 99)], system)
    whole = replace(load.own, tx=load.tx.astype(int), rx=load.rx.astype(int))
    assert (whole.tx == load.tx).all()

    real, mean = price(whole, system), mean_price(load, system)

    np.testing.assert_array_equal(real.attention, mean.attention)
    np.testing.assert_array_equal(real.tx, mean.tx)
    np.testing.assert_array_equal(real.rx, mean.rx)


def test_where_experts_lie_decides_who_is_busiest():
    """Copies of the first experts: GPUs that hold them have less to do."""
    system = replace(system_of(nodes=1), placement=round_robin(2, 16, 4, 8))
    slots = even_load([EvenBatch(100)], system).slots

    assert slots.sum() == pytest.approx(2 * 400 * 3)
    assert np.unique(slots.round(6)).size == 2


def test_combine_is_dispatch_the_other_way():
    """Where GPUs receive unequally they also send back unequally."""
    system = system_of(spare=8, nodes=1)
    load = even_load([EvenBatch(100)], system)
    seconds = port_seconds(system)[:, :1]
    cost = mean_price(load, system)

    assert not np.allclose(load.tx, load.rx)
    np.testing.assert_allclose(cost.tx[:, COMBINE, 0], load.rx[:, 0] * seconds[COMBINE])
    np.testing.assert_allclose(cost.rx[:, COMBINE, 0], load.tx[:, 0] * seconds[COMBINE])
