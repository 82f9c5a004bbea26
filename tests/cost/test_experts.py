"""Expert time is a roofline with a fixed price per activated expert."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.experts import EXPERT_KERNELS, expected_expert_time, expert_time
from moesim.spec.hardware import load_gpu
from moesim.spec.system import Precision
from worlds import GPU, tiny_system

# T = max(2 m 3hf / F, 2 (3hf + m (2h + 3f)) / B) at F = 989.4 Tflop/s, B = 3.35 TB/s:
# weights, input, output, gate, up and their product moved once, all of 2 bytes.
ROOFLINE = {
    (7168, 2048): {
        1: 2.6304878805970148e-05,
        16: 2.6488281791044777e-05,
        128: 2.7857690746268656e-05,
        512: 4.5580307871437234e-05,
        4096: 0.00036464246297149787,
    },
    (4096, 14336): {
        1: 0.00010520117492537313,
        16: 0.0001056596823880597,
        128: 0.0001090832047761194,
        512: 0.00018232123148574894,
        4096: 0.0014585698518859915,
    },
}


GPUS = [load_gpu(name) for name in ("a100-80", "b200")]


def system_of(hidden=64, width=128, gpu=GPU, gpus=4, speed=(), **options):
    base = tiny_system(gpus=gpus, **options)
    topology = replace(base.topology, gpu=gpu, speed=speed)
    model = replace(base.model, hidden=hidden, expert_width=width)
    return replace(base, topology=topology, model=model)


@pytest.mark.parametrize(("shape", "times"), [*ROOFLINE.items()], ids=["v3", "mixtral"])
def test_an_expert_takes_the_roofline(shape, times):
    """The table above, to nine digits."""
    system = system_of(*shape, gpus=1)

    found = expert_time(np.array([*times])[:, None, None], system)[:, 0, 0]

    np.testing.assert_allclose(found, [*times.values()], rtol=1e-9)


@pytest.mark.parametrize("kernel", ["grouped", "per_expert"])
def test_a_slot_without_tokens_makes_no_job(kernel):
    """Zero tokens cost exactly zero, launch included."""
    system = system_of(gpu=replace(GPU, launch_s=1e-6), experts=kernel)
    tokens = np.array([[[0, 3, 0, 1]], [[0, 0, 0, 0]]])

    assert ((expert_time(tokens, system) > 0) == (tokens > 0)).all()


def test_a_grouped_kernel_is_launched_once_per_gpu_and_layer():
    """The first slot with tokens pays; the others only their work."""
    launched = system_of(gpu=replace(GPU, launch_s=1e-6), experts="grouped")
    free = system_of(experts="grouped")
    tokens = np.array([[[0, 3, 0, 1], [2, 2, 0, 0], [5, 0, 0, 1]]])
    price = expert_time(tokens, launched) - expert_time(tokens, free)

    first = np.array([[[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]])
    np.testing.assert_allclose(price, first * EXPERT_KERNELS * 1e-6, atol=1e-15)


def test_kernels_per_expert_are_launched_for_each():
    launched = system_of(gpu=replace(GPU, launch_s=1e-6), experts="per_expert")
    tokens = np.array([[[0, 3, 0, 1], [2, 2, 0, 0]]])
    price = expert_time(tokens, launched) - expert_time(tokens, system_of())

    np.testing.assert_allclose(price, (tokens > 0) * EXPERT_KERNELS * 1e-6, atol=1e-15)


def test_a_slow_gpu_takes_longer_by_its_speed():
    """A GPU at half speed takes twice as long, for its own slots alone."""
    tokens = np.full((2, 2, 4), 7)
    even = expert_time(tokens, system_of())

    slow = expert_time(tokens, system_of(speed=(1.0, 0.5, 1.0, 1.0)))

    np.testing.assert_allclose(slow / even, np.broadcast_to([1, 2, 1, 1], even.shape))


def test_narrow_experts_are_read_in_proportion():
    """Few tokens are bound by memory: 8-bit weights take half the time of 16-bit ones."""
    wide = system_of(7168, 2048)
    narrow = replace(wide, precision=Precision(experts="fp8"))
    one = np.ones((1, 1, 4))

    np.testing.assert_allclose(expert_time(one, wide) / expert_time(one, narrow), 2.0)


def test_efficiencies_slow_the_bound_they_belong_to():
    """Expert share where arithmetic binds, memory share where memory does."""
    gpu = replace(GPU, expert_efficiency=0.5, hbm_efficiency=0.25)
    tokens = np.array([1, 10**6])[:, None, None] * np.ones((1, 1, 4))
    ideal, real = (expert_time(tokens, system_of(7168, 2048, g)) for g in (GPU, gpu))

    ratio = (real / ideal)[:, 0, 0]
    np.testing.assert_allclose(ratio, [4.0, 2.0])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(GPUS))
def test_more_tokens_never_take_less(fewer, more, gpu):
    """Monotone in tokens, and splitting a batch in two is never quicker."""
    system = system_of(gpu=gpu, experts="per_expert")
    fewer, more = sorted((fewer, more))
    tokens = np.array([fewer, more, fewer + more])[:, None, None] * np.ones((1, 1, 4))
    short, long, joint = expert_time(tokens, system)[:, 0, 0]

    assert short <= long
    assert joint <= (short + long) * (1 + 1e-12)


def poisson_mean(mean, system):
    """Return the expected expert time by summing over the Poisson law."""
    counts = np.arange(int(mean + 12 * np.sqrt(mean) + 30))
    logs = np.cumsum(np.log(np.maximum(counts, 1)))
    law = np.exp(counts * np.log(mean) - mean - logs)
    return law @ expert_time(counts[:, None, None], system)[:, 0, 0]


@pytest.mark.parametrize("mean", [0.01, 0.5, 3.0, 20.0])
def test_expected_time_is_exact_where_memory_binds(mean):
    """Below the ridge (295 tokens) only activation is random."""
    system = system_of(7168, 2048, replace(GPU, launch_s=4e-6), 1, experts="per_expert")
    found = expected_expert_time(np.array([[mean]]), system).item()

    np.testing.assert_allclose(found, poisson_mean(mean, system), rtol=1e-9)


@pytest.mark.parametrize("mean", [250.0, 300.0, 350.0, 2000.0])
def test_expected_time_is_a_close_lower_bound_at_the_ridge(mean):
    """Jensen: the roofline is convex; the gap is below 4 % where the bounds meet."""
    system = system_of(7168, 2048, gpus=1, experts="per_expert")
    found = expected_expert_time(np.array([[mean]]), system).item()
    exact = poisson_mean(mean, system)

    assert exact * 0.96 <= found <= exact * (1 + 1e-9)


def test_an_expected_grouped_launch_is_paid_once_per_gpu():
    """Over a GPU's slots the launches add up to the chance of any token at all."""
    mean = np.array([[0.2, 0.0], [0.3, 0.0], [0.0, 0.0]])
    launched, free = (
        expected_expert_time(mean, system_of(gpu=g, gpus=2, experts="grouped"))
        for g in (replace(GPU, launch_s=1e-6), GPU)
    )

    paid = (launched - free).sum(axis=0)
    expected = [EXPERT_KERNELS * 1e-6 * (1 - np.exp(-0.5)), 0.0]
    np.testing.assert_allclose(paid, expected, atol=1e-15)
