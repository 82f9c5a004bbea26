"""What the compose role is shown of paths to come while a micro-batch is filled.

Axes: ``M`` requests, ``W`` waiting requests, ``L`` MoE layers, ``G`` GPUs.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moesim.policy.outlook import Outlook
from moesim.policy.view import WaitingView
from moesim.types import Floats
from moesim.workload.requests import Requests

Counts = NDArray[np.integer]


class Sight:
    """The loads of requests: of those that wait, and of those that are in.

    Parameters
    ----------
    outlook : Outlook
        What knows of paths.
    requests : Requests
        All of them, for their classes.
    """

    def __init__(self, outlook: Outlook, requests: Requests) -> None:
        self.outlook = outlook
        self.requests = requests
        self.taken: Floats = np.zeros((0, 0))

    def start(self, requests: Counts, chunk: Counts) -> None:
        """Begin to fill a micro-batch in which ``(M,)`` running requests are already."""
        size = self.outlook.source.layers, self.outlook.system.topology.gpus
        self.taken = np.zeros(size)
        self.add(requests, chunk)

    def add(self, requests: Counts, chunk: Counts) -> None:
        """Take in ``(M,)`` requests with so many tokens each."""
        if len(requests):
            rows = requests.astype(np.int64)
            klass = self.requests.klass[rows].astype(np.int64)
            tokens = chunk.astype(np.int64)
            self.taken += self.outlook.loads(rows, klass, tokens).sum(axis=0)

    def show(self, waiting: WaitingView) -> WaitingView:
        """Return the view with the loads that the policy asks for."""
        first = slice(self.outlook.foresight.look)
        request, klass = waiting.request[first], waiting.klass[first]
        load = self.outlook.loads(request, klass, waiting.tokens[first])
        return replace(waiting, load=load, taken=self.taken)
