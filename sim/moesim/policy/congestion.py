"""How full the road is: a map over (layer, expert) and (layer, GPU), and who is on it.

What has passed is averaged over windows of time; what is under way is reckoned from the
micro-batches in flight, as if all moved at the usual pace: where each of them stands is
not known without a message from every GPU.

Axes: ``L`` MoE layers, ``E`` logical experts, ``G`` GPUs.
"""

from math import inf

import numpy as np

from moesim.types import Floats, Ints

PACE = 0.2
"""Weight of the last pass in the average of how long passes take."""
LEAST_PATIENCE = 1 / 64
RECOVERY = 0.05
"""What patience gains in a window in which the queue has not grown."""


class MovingAverage:
    """An exponential average of amounts per second, window by window.

    Parameters
    ----------
    shape : tuple of int
        Shape of what is averaged.
    alpha : float
        Weight of the last full window, in (0, 1].
    window_s : float
        Its length in seconds.
    """

    def __init__(self, shape: tuple[int, ...], alpha: float, window_s: float) -> None:
        self.alpha = alpha
        self.window_s = window_s
        self.now = 0
        self.weight = 0.0
        self.sum: Floats = np.zeros(shape)
        self.mean: Floats = np.zeros(shape)

    def add(self, amount: Floats | Ints, now_s: float) -> None:
        """Count an amount in the window of `now_s`; time never goes back."""
        self._turn(now_s)
        self.sum += amount

    def rate(self, now_s: float) -> Floats:
        """Return amounts per second, averaged over the full windows up to `now_s`.

        Windows before the first count as not seen, not as empty, so that the average
        is right from the first window on. 0 before that.
        """
        self._turn(now_s)
        return self.mean / self.weight if self.weight else self.mean

    def _turn(self, now_s: float) -> None:
        window = int(now_s / self.window_s)
        passed = window - self.now
        if passed <= 0:
            return
        self.now = window
        keep = 1 - self.alpha
        last = self.alpha * self.sum / self.window_s
        self.mean = (self.mean * keep + last) * keep ** (passed - 1)
        self.weight = 1 - (1 - self.weight) * keep**passed
        self.sum[:] = 0.0


class CongestionMap:
    """What experts and GPUs had to do lately, layer by layer.

    Parameters
    ----------
    layers, experts, gpus : int
        Sizes.
    alpha, window_s : float
        As in `MovingAverage`.
    """

    def __init__(
        self, sizes: tuple[int, int, int], alpha: float, window_s: float
    ) -> None:
        layers, experts, gpus = sizes
        self.by_expert = MovingAverage((layers, experts), alpha, window_s)
        self.by_gpu = MovingAverage((layers, gpus), alpha, window_s)

    def land(self, tokens: Ints, seconds: Floats, now_s: float) -> None:
        """Learn from a pass that ends now: ``(L, E)`` tokens, ``(L, G)`` seconds."""
        self.by_expert.add(tokens, now_s)
        self.by_gpu.add(seconds, now_s)

    def experts(self, now_s: float) -> Floats:
        """Return ``(L, E)``: tokens per second of each expert of each layer."""
        return self.by_expert.rate(now_s)

    def gpus(self, now_s: float) -> Floats:
        """Return ``(L, G)``: share of its time a GPU spends on each layer's experts."""
        return self.by_gpu.rate(now_s)


class Underway:
    """The micro-batches in flight, and what they should still bring to each GPU."""

    def __init__(self, layers: int, gpus: int) -> None:
        self.layers = layers
        self.nothing: Floats = np.zeros((layers, gpus))
        self.pass_s = inf
        self.flying: dict[int, tuple[float, Floats]] = {}

    def admit(self, number: int, now_s: float, seconds: Floats) -> None:
        """Take in a micro-batch that should bring ``(L, G)`` seconds of experts."""
        self.flying[number] = (now_s, seconds)

    def land(self, number: int, now_s: float) -> None:
        """Let a micro-batch go that ends now."""
        began, _ = self.flying.pop(number)
        took = now_s - began
        known = self.pass_s < inf
        self.pass_s = PACE * took + (1 - PACE) * self.pass_s if known else took

    def ahead(self, now_s: float) -> Floats:
        """Return ``(L, G)``: the seconds that should still come."""
        layer = np.arange(self.layers)
        total = self.nothing.copy()
        for began, seconds in self.flying.values():
            place = (now_s - began) / self.pass_s * self.layers
            total += np.clip(layer + 1 - place, 0.0, 1.0)[:, None] * seconds
        return total


class Patience:
    """How much of its budget a policy may hold back: feedback against a snowball.

    Holding back makes queues longer, and longer queues are more congested. So the share
    is multiplied by `factor` in every window in which the queue has grown, and recovers
    slowly in those in which it has not.
    """

    def __init__(self, factor: float, window_s: float) -> None:
        self.factor = factor
        self.window_s = window_s
        self.share = 1.0
        self.window = 0
        self.length = 0

    def look(self, length: int, now_s: float) -> float:
        """Return the share left, having seen how long the queue is now."""
        window = int(now_s / self.window_s)
        if window > self.window:
            if length > self.length:
                self.share = max(LEAST_PATIENCE, self.share * self.factor)
            else:
                self.share = min(1.0, self.share + RECOVERY)
            self.window, self.length = window, length
        return self.share
