"""Routing by the class of a request: each class has favourite experts of its own.

Axes: ``T`` tokens, ``L`` MoE layers, ``E`` experts, ``k`` experts of a token, ``K``
classes.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moesim.errors import Problem
from moesim.routing.checks import check_count, check_number
from moesim.routing.draw import Sizes, draw_experts
from moesim.routing.source import TokenKeys
from moesim.routing.topk import Law
from moesim.streams import stream
from moesim.types import Floats, Ids, Ints

MOST_CLASSES = 1 << 10
LEAST_SHARE = 1e-9
"""A popularity that rounds to nothing becomes this: every expert can be drawn."""


@dataclass(frozen=True)
class ByClass(Sizes):
    """Each class has its own popularity in each layer, drawn from a Dirichlet law.

    Layers and classes are independent, tokens of one class and layer are alike.

    Parameters
    ----------
    classes : int
        Kinds of requests; a request's class is taken modulo this.
    concentration : float
        Of the symmetric Dirichlet law: 1 is uniform over all popularities, less makes
        a few experts hot, more makes them alike.
    """

    classes: int = 6
    concentration: float = 0.5

    def problems(self) -> list[Problem]:
        """Return what is wrong with the parameters of a scenario."""
        problems = check_count("classes", self.classes, 1, MOST_CLASSES)
        return problems + check_number("concentration", self.concentration, 1e-2, 1e6)

    @cached_property
    def popularity(self) -> Floats:
        """``(K, L, E)``: shares of the first choices of each class in each layer."""
        rng = stream(self.seed, "class popularity")
        size = self.classes, self.layers
        shares = rng.dirichlet(np.full(self.experts, self.concentration), size)
        return np.maximum(shares, LEAST_SHARE)

    @cached_property
    def _law(self) -> Law:
        return self.law(self.popularity.reshape(-1, self.experts))

    def route(self, keys: TokenKeys) -> Ids:
        """Return ``(T, L, k)``: distinct expert ids of each token in each layer."""
        return draw_experts(self, self._law, keys, self._rows)

    def taste(self, keys: TokenKeys) -> tuple[Law, Ints]:
        """Return the law, and the ``(T, L)`` rows of its weights that tokens draw by."""
        return self._law, self._rows(keys)

    def _rows(self, keys: TokenKeys) -> Ints:
        klass = keys.klass % self.classes
        return klass[:, None] * self.layers + np.arange(self.layers)
