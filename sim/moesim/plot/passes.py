"""Where the time of a forward pass goes."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from moesim.measure.result import Result
from moesim.plot.style import COLOURS, MUTED, canvas, notice, styled
from moesim.plot.text import counted, duration
from moesim.types import Floats


class Part(NamedTuple):
    """A part of a pass: its column, its name, and what kind of time it is."""

    column: str
    name: str
    kind: str


PARTS: Final = (
    Part("attention_s", "attention", "computing"),
    Part("queue_s", "queueing", "waiting"),
    Part("experts_s", "experts", "computing"),
    Part("lm_head_s", "LM head", "computing"),
    Part("dispatch_s", "dispatch", "moving tokens"),
    Part("combine_s", "combine", "moving tokens"),
    Part("straggler_s", "straggler", "waiting"),
)
KINDS: Final = {
    "computing": (COLOURS[0], ""),
    "moving tokens": (COLOURS[2], ".."),
    "waiting": (COLOURS[1], "////"),
}
"""Colour and hatch of each kind of time."""
