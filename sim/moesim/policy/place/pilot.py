"""What a pilot of the traffic shows: tokens like the run's, of requests not in it.

Whoever places experts by the very tokens that are then served knows the future. The
pilot's tokens come from the same laws (classes, lengths, routing), but from requests
whose numbers and seed no run has. Of a recorded log they are the sequences after those
that the run replays.

Axes: ``T`` tokens of the pilot, ``n`` requests of it.
"""

from dataclasses import replace

import numpy as np

from moesim.errors import InputError, Problem
from moesim.routing.source import TokenKeys
from moesim.types import Ints
from moesim.workload.arrivals import BatchArrivals
from moesim.workload.generate import WorkloadSpec, generate
from moesim.workload.lengths import EmpiricalLength, Lengths, TraceLength

FIRST = 1 << 40
"""Number of the pilot's first request, beyond any run's."""
OTHER_SEED = 1 << 64
"""Added to a run's seed for the pilot's workload: no run's seed is that large."""


def drawn_pilot(workload: WorkloadSpec, tokens: int, seed: int) -> TokenKeys:
    """Return the first `tokens` tokens of other requests of the same laws.

    Lengths that a trace lists in order are drawn from it at random.

    Parameters
    ----------
    workload : WorkloadSpec
        The run's.
    tokens : int
        Tokens, ``T``; the last request is cut.
    seed : int
        The run's; the pilot's requests follow from it, but are not the run's.
    """
    spec = replace(
        workload,
        num_prompts=tokens,
        arrivals=BatchArrivals(),
        input_len=_at_random(workload.input_len),
        output_len=_at_random(workload.output_len),
    )
    requests = generate(spec, seed + OTHER_SEED)
    # The last new token of a request is never computed.
    computed = requests.input_tokens + requests.output_tokens - 1
    klass = requests.klass.astype(np.int64)
    return _keys(FIRST, computed.astype(np.int64), klass, tokens)


def recorded_pilot(lengths: Ints, used: int, tokens: int) -> TokenKeys:
    """Return tokens of a log's sequences that the run does not replay.

    Parameters
    ----------
    lengths : (n,) array of int
        Tokens of each recorded sequence.
    used : int
        How many the run replays, from the first on.
    tokens : int
        Tokens at most: fewer, if fewer are left.

    Raises
    ------
    InputError
        No sequence is left.
    """
    left = lengths[used:]
    if not len(left):
        message = (
            f"the run replays all {len(lengths)} sequences of the log, so none is left "
            "to measure loads; give measured loads as path, or fewer num_prompts"
        )
        raise InputError([Problem(message)])
    return _keys(used, left, np.zeros_like(left), tokens)


def _at_random(law: Lengths | int) -> Lengths | int:
    return EmpiricalLength(law.values) if isinstance(law, TraceLength) else law


def _keys(first: int, lengths: Ints, klass: Ints, tokens: int) -> TokenKeys:
    """Return the first `tokens` tokens of requests numbered from `first` on."""
    begin = np.cumsum(lengths) - lengths
    kept = np.minimum(lengths, np.maximum(tokens - begin, 0))
    row = np.repeat(np.arange(len(lengths)), kept)
    return TokenKeys(first + row, klass[row], np.arange(len(row)) - begin[row])
