"""One forward pass: what it asks of each GPU, and what that costs.

Axes: ``L`` MoE layers, ``S`` slots of a GPU, ``G`` GPUs, ``P`` phases (dispatch,
combine), ``C`` port classes (NVLink, NIC).
"""

from dataclasses import dataclass, field

import numpy as np

from moesim.types import Floats, Ints

DISPATCH, COMBINE = 0, 1
"""Phases of an all-to-all, the axis ``P``."""
PHASES = ("dispatch", "combine")
NO_CHOICES: Ints = np.zeros((1, 1), np.int64)
"""What stands for choices of experts that were dropped, or rerouted, where none are."""
NO_ROWS: Ints = np.zeros((0, 0), np.int64)
"""What stands for tokens that reach each GPU where buffers do not depend on them."""
NO_PART: Floats = np.zeros((0, 0))
"""What stands for a part of attention that is not cut off."""


@dataclass(frozen=True, slots=True)
class PassLoad:
    """What one micro-batch asks of each GPU.

    Parameters
    ----------
    tokens, padding : (G,) arrays of int
        Real tokens, and rows added to keep ranks equal; a rank without tokens runs a
        dummy step (the fixed prices alone when it has no padding either).
    sequences : (G,) array of int
        Sequences whose next token is sampled: rows of the LM head.
    attended : (G,) array of int
        Query-key pairs: the sum over tokens of the context each looks at.
    kv_read : (G,) array of int
        Cached tokens streamed from memory: the sum over sequences of their context.
    slots : (L, S, G) array of int
        Tokens at each expert slot.
    tx, rx : (L, C, G) arrays of int
        Token copies that leave and reach each port during dispatch. Combine is the
        same exchange the other way.
    rows : (L, G) array of int
        Tokens that need an expert of each GPU, its own among them: what buffers hold;
        empty with ``low_latency`` kernels, whose buffers are reserved beforehand.
    """

    tokens: Ints
    padding: Ints
    sequences: Ints
    attended: Ints
    kv_read: Ints
    slots: Ints
    tx: Ints
    rx: Ints
    rows: Ints = field(default_factory=lambda: NO_ROWS)


@dataclass(frozen=True, slots=True)
class PassCost:
    """Everything an engine needs about one pass; durations in seconds, 0: no work.

    Parameters
    ----------
    attention : (L, G) array of float
        Attention, gate, shared experts, and the dense layers before this MoE layer.
    useful : (L, G) array of float
        The part of `attention` spent on real tokens rather than padding or dummies.
    experts : (L, S, G) array of float
        One job per slot with tokens.
    tx, rx : (L, P, C, G) arrays of float
        Time each port sends and receives.
    tail : (G,) array of float
        Dense layers after the last MoE layer, final norm and LM head.
    latency : (C,) array of float
        Fixed time of a phase on each port class.
    shared : (L, G) array of float
        The part of `attention` that runs while dispatch is on the wire, its shared
        experts; empty where nothing does.
    core : (L, G) array of float
        The part of `attention` that is a second job before dispatch; empty where it is
        one job.
    """

    attention: Floats
    useful: Floats
    experts: Floats
    tx: Floats
    rx: Floats
    tail: Floats
    latency: Floats
    shared: Floats = field(default_factory=lambda: NO_PART)
    core: Floats = field(default_factory=lambda: NO_PART)
