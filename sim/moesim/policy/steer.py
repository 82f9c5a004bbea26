"""A routing source under a policy's gate: what it remembers, and how it routes.

The bias changes only when passes end (`policy.outlook`), so what tokens of a pass use
depends on when it is formed, and not on how an engine plays it.

Axes: ``T`` tokens, ``L`` MoE layers, ``E`` experts, ``k`` experts of a token.
"""

from dataclasses import replace

import numpy as np

from moesim.errors import InputError
from moesim.policy.bundle import Policy
from moesim.policy.capacity import Unlimited
from moesim.policy.gate import AsRouted
from moesim.routing.bend import Bend
from moesim.routing.draw import Sizes
from moesim.routing.further import Tasteful
from moesim.routing.source import RoutingSource, TokenKeys
from moesim.routing.topk import Law
from moesim.types import Floats, Ids, Ints


def gate_refusal(policy: Policy, source: RoutingSource) -> str:
    """Return why a policy's gate or capacity cannot act on this routing, or nothing."""
    if is_gated(policy) and not isinstance(source, Tasteful):
        return "a replayed log holds choices that were made; no gate can change them"
    reroutes = getattr(policy.admit, "overflow", "drop") == "reroute"
    if reroutes and not isinstance(source, Tasteful):
        return "a replayed log knows no next experts of a token: use overflow: drop"
    if getattr(source, "draw", "tokens") == "counts" and is_limiting(policy):
        return f"policy {policy.name!r} changes the choices of single tokens"
    return ""


def is_gated(policy: Policy) -> bool:
    """Return whether a policy bends routers."""
    return type(policy.gate) is not AsRouted


def is_limiting(policy: Policy) -> bool:
    """Return whether a policy changes choices after or in the router."""
    return is_gated(policy) or type(policy.admit) is not Unlimited


def steered(source: RoutingSource, policy: Policy) -> RoutingSource:
    """Return the source as the policy's gate has it.

    Raises
    ------
    InputError
        It cannot act on this source.
    """
    reason = gate_refusal(policy, source)
    if reason:
        raise InputError(f"policy {policy.name!r}: {reason}")
    if is_gated(policy) and isinstance(source, Sizes):
        return Steered(source, policy)
    return source


class Steered:
    """Synthetic routing whose log weights a gate bends.

    Attributes
    ----------
    bias : (L, E) array of float
        What is added to log weights as of now.
    """

    def __init__(self, source: Sizes, policy: Policy) -> None:
        self.source = source
        self.policy = policy
        self.layers, self.experts = source.layers, source.experts
        self.top_k, self.seed = source.top_k, source.seed
        self.temperature = float(getattr(policy.gate, "temperature", 1.0))
        self.bias: Floats = np.zeros((self.layers, self.experts))
        self._bend()

    def _bend(self) -> None:
        plain = self.temperature == 1 and not self.bias.any()
        bend = None if plain else Bend(self.bias, self.temperature)
        self.bent = replace(self.source, bend=bend)

    def learn(self, seen: Ints) -> None:
        """Let the gate move after a pass in which experts had ``(L, E)`` tokens.

        Raises
        ------
        InputError
            A gate of the user's own gives anything but a bias for each expert.
        """
        bias = np.asarray(self.policy.gate.steer(self.bias, seen), float)
        if bias.shape != self.bias.shape or not np.isfinite(bias).all():
            message = f"policy {self.policy.name!r}: steer() must give finite numbers "
            raise InputError(message + f"of shape {self.bias.shape}")
        if not np.array_equal(bias, self.bias):
            self.bias = bias
            self._bend()

    @property
    def reachable(self) -> int:
        """How many experts of a layer a token may choose among."""
        return self.source.reachable

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return self.bent.route(keys)  # type: ignore[attr-defined]

    def taste(self, keys: TokenKeys) -> tuple[Law, Ints]:
        """Return the law as it is bent now, and the rows that tokens draw by."""
        return self.bent.taste(keys)  # type: ignore[attr-defined]
