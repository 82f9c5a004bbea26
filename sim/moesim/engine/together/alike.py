"""Which replications may advance together, and how many of them.

Together they must come out as each does alone. So nothing may be shared that remembers,
and nothing may be asked that a lane cannot know before it waits for the others.
"""

from collections.abc import Sequence

from moesim.engine.instance import Instance
from moesim.policy.bundle import ROLES
from moesim.policy.capacity import Unlimited
from moesim.policy.compose import ASSIGNS, ArrivalOrder, SmallestKeys
from moesim.policy.dispatch import DISPATCHES
from moesim.policy.gate import AsRouted
from moesim.policy.order import Fifo, Oldest, PerLayer
from moesim.policy.rebalance import Still
from moesim.policy.release import AtOnce

OURS = (
    *ASSIGNS.values(),
    *DISPATCHES.values(),
    ArrivalOrder,
    AsRouted,
    AtOnce,
    Fifo,
    Oldest,
    PerLayer,
    SmallestKeys,
    Still,
    Unlimited,
)
"""Roles that remember nothing, and take no look at the road to come."""
MOST_LANES = 32
MOST_GPUS, MOST_REQUESTS = 256, 1 << 18
"""Of all lanes that advance together: what bounds memory."""


def lanes_of(instance: Instance) -> int:
    """Return how many instances like this one should advance together."""
    if refusal(instance):
        return 1
    gpus = instance.recorder.system.topology.gpus
    requests = max(len(instance.requests), 1)
    return max(1, min(MOST_LANES, MOST_GPUS // gpus, MOST_REQUESTS // requests))


def refusal(instance: Instance) -> str:
    """Return why replications like this one run one by one, or nothing if they do not.

    Keys of the order do not matter while nobody else is in flight.
    """
    policy, sees = instance.policy, instance.outlook.foresight
    if instance.recorder.engine != "array":
        return f"the {instance.recorder.engine} engine plays one instance"
    roles = [getattr(policy, role) for role in ROLES]
    strange = [type(role).__name__ for role in roles if type(role) not in OURS]
    if strange or sees.look or instance.outlook.learns:
        return f"policy {policy.name!r} looks at the road to come, or may remember"
    if instance.serving.memory is not None:
        return "memory is watched, and may be waited for, instance by instance"
    several = instance.serving.max_in_flight > 1
    if several and type(policy.order) is not Fifo and policy.wait_budget_s:
        return f"policy {policy.name!r} gives keys to several micro-batches in flight"
    return ""


def are_alike(instances: Sequence[Instance]) -> bool:
    """Tell whether instances may advance together: one system, and no `refusal`."""
    first = instances[0]
    system = first.recorder.system
    same = all(other.recorder.system == system for other in instances[1:])
    return same and not refusal(first)
