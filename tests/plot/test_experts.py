"""The heat map shows loads, the bars waits, and both name the worst expert."""

from dataclasses import replace

import numpy as np

from moesim.plot.experts import COLDEST, SHOWN, relative_load
from results import SMALL, frame, make_result


def experts(**columns):
    return frame("experts", columns)


def with_experts(**columns):
    result = make_result(size=SMALL)
    tables = replace(result.tables, experts=experts(**columns))
    return replace(result, tables=tables)


def grid(tokens):
    """Return a result with these tokens by layer and expert."""
    tokens = np.asarray(tokens)
    layer, expert = np.indices(tokens.shape)
    return with_experts(
        layer=layer.ravel(), expert=expert.ravel(), tokens=tokens.ravel()
    )


def waiting(p99_us, jobs, **more):
    """Return a result with these waits at the experts of layer 0."""
    count = len(p99_us)
    waits = {
        "wait_p50_us": np.array(p99_us) / 10,
        "wait_p90_us": np.array(p99_us) / 2,
        "wait_p99_us": np.array(p99_us),
    }
    return with_experts(
        **{"expert": np.arange(count) % 30, "jobs": np.array(jobs), **waits, **more}
    )


def test_load_is_relative_to_an_equal_share():
    """Every layer's mean is 1, however many tokens it saw."""
    load = relative_load(grid([[1, 3], [200, 200]]).experts)

    assert load.tolist() == [[0.5, 1.5], [1.0, 1.0]]


def test_replications_are_added_up():
    table = experts(replication=[0, 0, 1, 1], expert=[0, 1, 0, 1], tokens=[1, 0, 2, 1])

    assert relative_load(table).tolist() == [[1.5, 0.5]]


def test_a_layer_without_tokens_has_no_load():
    load = relative_load(grid([[0, 0], [1, 1]]).experts)

    assert np.isnan(load[0]).all()


def test_the_image_holds_the_loads(result):
    image = result.plot.expert_heatmap().axes[0].collections[0]
    shown = image.get_array()
    load = relative_load(result.experts)

    assert np.allclose(shown.filled(0), load)


def test_the_hottest_expert_is_named_and_ringed():
    figure = grid([[1, 1, 1, 1], [1, 1, 12, 2]]).plot.expert_heatmap()
    axes = figure.axes[0]
    rings = [line for line in axes.lines if line.get_marker() == "o"]

    assert figure.get_suptitle() == (
        "Hottest: layer 1, expert 2 gets 3.0× an equal share of tokens"
    )
    assert axes.texts[0].get_text() == "layer 1, expert 2"
    assert {(*r.get_xdata(), *r.get_ydata()) for r in rings} == {(2, 1)}


def test_experts_without_tokens_are_crossed_out():
    axes = grid([[4, 0, 4], [1, 1, 0]]).plot.expert_heatmap().axes[0]
    crosses = next(line for line in axes.lines if line.get_marker() == "x")

    assert list(zip(*crosses.get_data(), strict=True)) == [(1, 0), (2, 1)]
    assert "2 of 6" in axes.get_xlabel()


def test_colours_are_logarithmic_around_an_equal_share():
    """Twice and half an equal share are equally far from it."""
    norm = grid([[1, 64, 8, 8]]).plot.expert_heatmap().axes[0].collections[0].norm

    assert np.isclose(norm(2) - norm(1), norm(1) - norm(0.5))
    assert norm.vmin == COLDEST


def test_equal_loads_are_drawn_in_the_middle_of_the_colours():
    norm = grid([[5, 5], [5, 5]]).plot.expert_heatmap().axes[0].collections[0].norm

    assert np.isclose(norm(1), 0.5)


def test_a_run_without_tokens_says_so(nothing):
    assert "no data" in nothing.plot.expert_heatmap().get_suptitle()
    assert "no data" in nothing.plot.expert_wait().get_suptitle()
    assert "no data" in grid([[0, 0]]).plot.expert_heatmap().get_suptitle()


def test_the_longest_waits_come_first():
    """Bars are p99 in ms, longest on top, one row a named expert."""
    axes = waiting([100.0, 300.0, 200.0], [50, 60, 70]).plot.expert_wait().axes[0]

    assert [bar.get_width() for bar in axes.patches] == [0.3, 0.2, 0.1]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        "layer 0 · expert 1",
        "layer 0 · expert 2",
        "layer 0 · expert 0",
    ]
    assert axes.texts[0].get_text() == "300 µs · 60 jobs"


def test_p50_and_p90_are_marked_on_their_bar():
    axes = waiting([100.0, 300.0], [50, 60]).plot.expert_wait().axes[0]
    found = {line.get_label(): line.get_xdata() for line in axes.lines}

    assert np.allclose(found["p50"], [0.03, 0.01])
    assert np.allclose(found["p90"], [0.15, 0.05])


def test_only_the_longest_are_shown_among_all():
    p99 = np.arange(1.0, 31.0)
    axes = waiting(p99, np.full(30, 5)).plot.expert_wait().axes[0]
    median = next(li for li in axes.lines if li.get_label().startswith("p99 of"))

    assert len(axes.patches) == SHOWN
    assert min(bar.get_width() for bar in axes.patches) == 0.011
    assert np.allclose(median.get_xdata(), 0.0155)


def test_experts_without_jobs_have_no_wait():
    axes = waiting([np.nan, 5.0, 900.0], [0, 3, 0]).plot.expert_wait().axes[0]

    assert [bar.get_width() for bar in axes.patches] == [0.005]


def test_waits_are_means_over_replications():
    """Percentiles cannot be pooled: their mean is drawn, and said to be one."""
    made = waiting([100.0, 300.0], [5, 7], expert=[0, 0], replication=[0, 1])
    result = replace(made, summaries=[{}, {}])
    axes = result.plot.expert_wait().axes[0]

    assert axes.patches[0].get_width() == 0.2
    assert axes.texts[0].get_text() == "200 µs · 12 jobs"
    assert "mean of 2 runs" in axes.get_xlabel()


def test_a_run_in_which_no_job_waited_says_so():
    axes = waiting([0.0, 0.0], [4, 4]).plot.expert_wait().axes[0]

    assert axes.texts[0].get_text().endswith("of jobs waited.")
