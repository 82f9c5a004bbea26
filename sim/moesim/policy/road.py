"""What a micro-batch may be told of the road as it is formed: crowds, absent experts.

Axes: ``L`` MoE layers, ``G`` GPUs.
"""

from dataclasses import dataclass, field

import numpy as np

from moesim.types import Floats

NOTHING: Floats = np.zeros((0, 0))
"""What a view holds where there is nothing to show."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Which experts a micro-batch lacked when it was formed, and who loads others.

    Parameters
    ----------
    absent : (L, G) array of float
        Experts that it should lack, as far as the policy's knowledge goes; NaN in
        layers it knows nothing about.
    backlog_s : (G,) array of float
        Seconds for which others in flight should still keep each GPU's port busy.
    """

    absent: Floats
    backlog_s: Floats


@dataclass(frozen=True, slots=True)
class Road:
    """How full the road was when a micro-batch was formed.

    It is a picture of that instant and stays as it is while the micro-batch walks.

    Parameters
    ----------
    use : (L, G) array of float
        Share of its time that each GPU spent on the experts of each layer lately, by
        the passes that have ended.
    ahead_s : (L, G) array of float
        Seconds of expert work that micro-batches in flight should still bring, as far
        as the policy's knowledge goes and as if all moved at the usual pace.
    patience : float
        Share of its budget of holding back that feedback leaves the policy.
    experts, own : (L, E) arrays of float
        Tokens per second of each expert lately; and tokens that the micro-batch should
        bring it, as far as the policy's knowledge goes. Empty unless asked for.
    """

    use: Floats
    ahead_s: Floats
    patience: float = 1.0
    experts: Floats = field(default_factory=lambda: NOTHING)
    own: Floats = field(default_factory=lambda: NOTHING)
