"""temporary."""

from dataclasses import dataclass

import numpy as np

from moesim.routing.counter import root, step, token_keys
from moesim.routing.topk import Cells, PlackettLuce, distinct


@dataclass(frozen=True)
class Zipf:
    """Zipf."""

    layers: int
    experts: int
    top_k: int
    seed: int
    groups: int = 1
    top_groups: int = 1
    exponent: float = 0.0

    def route(self, keys):
        w = np.arange(1, self.experts + 1) ** -self.exponent
        rng = np.random.default_rng(0)
        law = PlackettLuce.of(
            np.stack([rng.permutation(w) for _ in range(self.layers)])
        )
        start = token_keys(root(self.seed, "r"), keys.request, keys.position)
        s = (
            start[:, None] + np.array([step(l * 2**24) for l in range(self.layers)])
        ).ravel()
        row = np.tile(np.arange(self.layers, dtype=np.uint64), len(keys))
        return distinct(law, Cells(s, row), self.top_k).T.reshape(
            len(keys), self.layers, self.top_k
        )


SOURCES = dict.fromkeys(
    ("uniform", "zipf", "lognormal", "latent", "rush_hour", "log"), Zipf
)
