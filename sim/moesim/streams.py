"""Chance: generators named by purpose and entity, so that a new one shifts no other.

Everything random is drawn from a stream before any policy acts, so two policies meet
the same traffic and their comparison is paired.
"""

from zlib import crc32

import numpy as np


def stream(seed: int, purpose: str, entity: int = 0) -> np.random.Generator:
    """Return the generator of one purpose ("arrivals") and one entity (a request)."""
    key = (crc32(purpose.encode()), entity)
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return np.random.Generator(np.random.PCG64DXSM(sequence))
