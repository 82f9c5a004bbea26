"""Static priorities: append where nobody waits, and choose anew where someone does.

Axes: ``W`` walks in flight, ``S`` slots of a GPU, ``G`` GPUs.
"""

import numpy as np

from moesim.engine.array.choice import Choice, has_slots
from moesim.engine.array.servers import Servers, Walks
from moesim.engine.array.walk import FAR, Walk
from moesim.engine.clock import PS_PER_S
from moesim.engine.microbatch import budget_ticks, checked_key
from moesim.policy.bundle import Policy
from moesim.policy.view import View
from moesim.types import Ints


class KeyedQueues:
    """Every GPU serves the smallest (key, arrival, number), the overdue before all.

    Parameters
    ----------
    ports, gpus : int
        Sizes.
    policy : Policy
        Whom to ask for keys, and after which wait age alone decides.
    """

    def __init__(self, ports: int, gpus: int, policy: Policy) -> None:
        self.servers = Servers(ports, gpus)
        self.policy = policy
        self.budget = budget_ticks(policy.wait_budget_s)
        self.unseen = np.full(gpus, np.nan)
        self.begun: Ints = np.full(gpus, -1)

    def enter(self, walk: Walk, walks: Walks, earliest: int, now: int) -> None:
        """Queue the jobs of a walk that enters a segment, and time all they change."""
        servers = self.servers
        self._ask(walk)
        late = self._late(walk, walks)
        if walk.whole[walk.segment]:
            servers.append(walk)
        else:
            servers.append_some(walk)
        self._start(walk)
        if late.size:
            choice = Choice(walks, walk, late, self.budget)
            choice.play()
            choice.write()
            servers.resend(walks, late, now)
            servers.recall(walks)
            self.begun = np.maximum.reduce([last_start(walk) for walk in walks])
        else:
            servers.arrived = np.maximum(servers.arrived, walk.entered[walk.segment])
            self.begun = np.maximum(self.begun, last_start(walk))

    def _ask(self, walk: Walk) -> None:
        """Ask for the segment's key as its first GPU with work enters."""
        working = walk.work[walk.segment] > 0
        first = np.where(working, walk.entered[walk.segment], FAR).min()
        if first < FAR:
            view = View(int(first) / PS_PER_S, self.unseen)
            walk.key = checked_key(self.policy, walk.view(), view)

    def _late(self, walk: Walk, walks: Walks) -> Ints:
        """Return the GPUs at which the walk may have to be served before others.

        Not where nobody waits as it comes; nor, if its key is the largest, where all
        others have come before.
        """
        segment = walk.segment
        arrival = walk.entered[segment]
        late = arrival <= self.begun
        if walk.key >= max(other.key for other in walks):
            late &= arrival <= self.servers.arrived
        if not walk.whole[segment]:
            late |= (walk.work[segment] == 0) & (arrival <= self.servers.free)
        return np.flatnonzero(late)

    def _start(self, walk: Walk) -> None:
        """Note when the slots start if nothing comes between them."""
        if has_slots(walk):
            segment = walk.segment
            service = walk.batch.cost.experts[segment >> 1]
            start = walk.posted[segment] - walk.work[segment]
            np.add(service.cumsum(axis=0) - service, start, walk.started[segment >> 1])


def last_start(walk: Walk) -> Ints:
    """Return ``(G,)``: when the last job of the segment starts, or the post without one.

    A post counts because jobs that come before it would have to send before it, too.
    """
    segment = walk.segment
    if not has_slots(walk):
        return walk.posted[segment] - walk.work[segment]
    layer = segment >> 1
    jobs = walk.batch.cost.experts[layer] > 0
    latest: Ints = np.where(jobs, walk.started[layer], -1).max(axis=0)
    return np.where(walk.work[segment] > 0, latest, walk.posted[segment])
