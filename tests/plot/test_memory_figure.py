"""The stack of the fullest GPU adds up to what was in it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from moesim.plot.memory import LAYERS, fullest, headline, steps
from results import SMALL, frame, make_result

GIB = 2**30


@pytest.fixture
def table():
    """Return two GPUs and three instants; GPU 1 is the fuller at the second."""
    return frame(
        "memory",
        {
            "gpu": np.repeat([0, 1], 3),
            "at_s": [0.0, 0.5, 1.0] * 2,
            "weights_bytes": np.full(6, 10 * GIB),
            "kv_pool_bytes": np.full(6, 8 * GIB),
            "kv_used_bytes": np.array([0, 2, 1, 0, 4, 2]) * GIB,
            "buffers_bytes": np.array([0, 1, 0, 0, 2, 0]) * GIB,
            "activations_bytes": np.array([0, 1, 0, 0, 3, 0]) * GIB,
            "limit_bytes": np.full(6, 24 * GIB),
        },
    )


def result_of(table):
    result = make_result(size=SMALL)
    return replace(result, tables=replace(result.tables, memory=table))


def test_the_fullest_gpu_is_shown(table):
    rows = fullest(table)

    assert set(rows["gpu"]) == {1}
    assert headline(rows) == (
        "GPU 1 is fullest: 23 GiB of 24 GiB, 5 GiB of it activations and buffers; at "
        "most 50 % of KV blocks are in use"
    )


def test_bands_add_up_to_all_that_is_taken(table):
    edges, bands = steps(fullest(table))

    assert len(bands) == len(LAYERS)
    assert edges.tolist() == [0, 0.5, 1.0, 1.5]
    assert np.sum(bands, axis=0).tolist() == [18, 23, 18, 18]
    assert bands[1].tolist() == [0, 4, 2, 2]


def test_the_figure_has_every_band_and_the_limit(table):
    figure = result_of(table).plot.memory()
    axes = figure.axes[0]

    assert len(axes.collections) == len(LAYERS)
    assert axes.lines[0].get_ydata()[0] == 24
    assert axes.get_ylim()[1] >= 24
    greys = [
        np.dot(b.get_facecolor()[0][:3], (0.3, 0.6, 0.1)) for b in axes.collections
    ]
    assert all(abs(a - b) > 0.1 for a, b in pairwise(greys))


@pytest.mark.parametrize(("limit", "cut"), [(38, False), (39, True), (140, True)])
def test_a_limit_far_above_is_said_and_not_drawn(table, limit, cut):
    """The peak is 23 GiB: 60 % of 38.3."""
    table["limit_bytes"] = limit * GIB
    figure = result_of(table).plot.memory()
    axes = figure.axes[0]

    assert bool(axes.lines) != cut
    assert axes.get_ylim()[1] == pytest.approx(1.08 * (23 if cut else limit))
    said = f"23 GiB of {limit} GiB (the limit, above the picture)"
    assert (said in headline(fullest(table))) == cut


def test_a_run_that_nobody_watched_says_so():
    figure = make_result(size=SMALL).plot.memory()

    assert "no section memory" in figure.axes[0].texts[0].get_text()
