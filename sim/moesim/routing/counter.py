"""Chance by counter: every random number is a pure function of what it is for.

A token's key is mixed from the seed, the purpose, the request and the position; the
numbers of that token are the SplitMix64 stream that starts at its key. So nothing needs
to be remembered, any batch can be drawn in one vectorised call, and a token draws the
same numbers in whatever batch it comes.

The mixer is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014) with the finaliser "Mix13" of D. Stafford. Arithmetic is modulo
2**64, which NumPy does silently on arrays of uint64.
"""

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from moesim.types import Floats, Ints

Bits = NDArray[np.uint64]
"""Arrays of 64 random (or to be randomised) bits."""

GAMMA = 0x9E3779B97F4A7C15
"""The step of the stream: 2**64 over the golden ratio, made odd."""
_MASK = 2**64 - 1
_GAMMA = np.uint64(GAMMA)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S12, _S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (12, 27, 30, 31, 32))


def mix(bits: Bits) -> Bits:
    """Scramble an array of 64-bit words in place, one to one, and return it."""
    shifted = bits >> _S30
    bits ^= shifted
    bits *= _FIRST
    np.right_shift(bits, _S27, out=shifted)
    bits ^= shifted
    bits *= _SECOND
    np.right_shift(bits, _S31, out=shifted)
    bits ^= shifted
    return bits


def root(seed: int, purpose: str) -> np.uint64:
    """Return the 64-bit root of one purpose ("routing.experts") under one seed."""
    key = (crc32(purpose.encode()),)
    return np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0]


def token_keys(origin: np.uint64 | Bits, request: Ints, position: Ints) -> Bits:
    """Return ``(T,)`` keys, one for each (request, position), from a `root`."""
    stream = mix(origin ^ (request.astype(np.uint64) * _GAMMA))
    return mix(stream + (position.astype(np.uint64) * _GAMMA + _GAMMA))


def step(counter: int) -> np.uint64:
    """Return how far draw number `counter` lies from the start of its stream."""
    return np.uint64(counter * GAMMA & _MASK)


def bits_at(start: Bits, steps: np.uint64 | Bits) -> Bits:
    """Return fresh random bits: those `steps` after each stream's start (broadcast)."""
    return mix(start + steps)


def uniform(bits: Bits) -> Floats:
    """Return floats in the open interval (0, 1), spaced 2**-52, from random bits."""
    return ((bits >> _S12).astype(np.float64) + 0.5) * 2.0**-52


def below(bits: Bits, bound: int) -> Ints:
    """Return integers in ``[0, bound)`` from the upper halves of random bits.

    `bound` is at most 2**32; each value's probability is off by at most 2**-32.
    """
    power = bound.bit_length() - 1
    if power > 0 and bound == 1 << power:
        return (bits >> np.uint64(64 - power)).view(np.int64)
    found = bits >> _S32
    found *= np.uint64(bound)
    found >>= _S32
    return found.view(np.int64)
