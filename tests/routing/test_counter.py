"""Chance by counter: fixed for ever, uniform, and different for different tokens."""

import numpy as np
import pytest
from scipy import stats

from moesim.routing.counter import (
    below,
    bits_at,
    mix,
    root,
    step,
    token_keys,
    uniform,
)

GRID = np.meshgrid(np.arange(512), np.arange(512), indexing="ij")
REQUEST, POSITION = (axis.ravel() for axis in GRID)


def words(*values):
    return np.array(values, np.uint64)


def test_the_stream_is_splitmix64():
    """The first three numbers of seed 0 in the published generator."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]

    assert [int(bits_at(words(0), step(n))[0]) for n in (1, 2, 3)] == expected


def test_a_step_is_taken_modulo_the_word():
    """Steps add up however far the counter has gone."""
    far = bits_at(words(7) + step(2**40), step(2**23))

    assert far == bits_at(words(7), step(2**40 + 2**23))


def test_one_bit_in_turns_half_the_bits_out():
    """Each output bit flips with probability 1/2, whichever input bit was flipped."""
    start = np.random.default_rng(1).integers(0, 2**64, 4000, np.uint64)
    bits = np.arange(64, dtype=np.uint64)
    flipped = start ^ (np.uint64(1) << bits[:, None])
    turned = mix(start.copy()) ^ mix(flipped)
    share = ((turned[:, :, None] >> bits) & np.uint64(1)).mean(axis=1)

    assert np.abs(share - 0.5).max() < 5 * 0.5 / np.sqrt(4000)


def test_neighbours_never_share_a_key():
    """Requests and positions that count up never share a key."""
    keys = token_keys(root(0, "routing"), REQUEST, POSITION)

    assert len(np.unique(keys)) == len(keys)


@pytest.mark.parametrize("low", [0, 16, 32, 48])
def test_keys_of_neighbours_fill_every_sixteen_bits_evenly(low):
    """Chi-square of 65536 cells, over tokens that differ by one."""
    keys = token_keys(root(3, "routing"), REQUEST, POSITION)
    cell = (keys >> np.uint64(low)) & np.uint64(0xFFFF)
    found = stats.chisquare(np.bincount(cell.astype(int), minlength=1 << 16))

    assert found.pvalue > 1e-4


def test_request_and_position_do_not_change_places():
    """Token 3 of request 5 is not token 5 of request 3."""
    origin = root(0, "routing")
    one, other = token_keys(origin, words(3, 5), words(5, 3))

    assert one != other


def test_roots_differ_by_purpose_and_seed():
    """Nothing is shared between purposes, nor between seeds."""
    roots = [root(seed, purpose) for seed in (0, 1) for purpose in ("a", "b")]

    assert len(set(roots)) == 4


def test_the_interval_is_open():
    """Neither end is returned, so a logarithm is finite."""
    ends = uniform(words(0, 2**64 - 1))

    assert 0 < ends[0] < 1e-15
    assert 1 - 1e-15 < ends[1] < 1


def test_uniform_is_uniform():
    """Kolmogorov and Smirnov against the interval, over one token's stream."""
    drawn = uniform(bits_at(words(9), np.array([step(n) for n in range(50_000)])))

    assert stats.kstest(drawn, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("bound", [1, 3, 256, 1000])
def test_below_reaches_every_value_below_its_bound(bound):
    """All of ``[0, bound)``, equally often, and nothing else."""
    drawn = below(token_keys(root(0, "x"), REQUEST, POSITION), bound)

    assert (drawn.min(), drawn.max()) == (0, bound - 1)
    if bound > 1:
        assert stats.chisquare(np.bincount(drawn)).pvalue > 1e-4
