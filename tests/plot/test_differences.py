"""Differences are drawn with the intervals that decide, and only sure ones claimed."""

from dataclasses import replace

import numpy as np

from moesim.plot.differences import differences
from results import row


def with_rows(comparison, *rows):
    return replace(comparison, rows=list(rows))


def points(figure):
    """Return every point drawn: where it is, and whether it is filled."""
    lines = [li for li in figure.axes[0].lines if len(li.get_xdata()) == 1]
    return [
        (li.get_xdata()[0], li.get_markerfacecolor() != "white")
        for li in lines
        if li.get_marker() in "os^D"
    ]


def title_of(comparison):
    """Return the title without its line breaks."""
    return " ".join(comparison.plot.differences().get_suptitle().split("\n"))


def intervals(figure):
    lines = figure.axes[0].lines
    return [tuple(li.get_xdata()) for li in lines if li.get_marker() == "|"]


def test_points_and_intervals_are_shares_of_the_baseline(comparison):
    figure = with_rows(comparison, row("oldest", "p99_ttft_ms", 200.0, -20, 4)).plot

    assert points(figure.differences()) == [(-0.1, True)]
    assert np.allclose(intervals(figure.differences()), [(-0.12, -0.08)])


def test_a_marker_is_open_where_the_interval_contains_zero(comparison):
    figure = with_rows(
        comparison,
        row("oldest", "p99_ttft_ms", 200.0, -20, 40),
        row("per_layer", "p99_ttft_ms", 200.0, 20, 4),
    ).plot.differences()

    assert [filled for _, filled in points(figure)] == [False, True]


def test_each_policy_has_its_own_marker(comparison):
    """In grey, policies are told apart by their markers."""
    lines = comparison.plot.differences().axes[0].lines
    named = {li.get_label(): li.get_marker() for li in lines}

    assert [named[name] for name in comparison.policies[1:]] == ["o", "s", "^"]


def test_rows_of_a_metric_are_in_the_order_of_policies(comparison):
    lines = comparison.plot.differences().axes[0].lines
    heights = [li.get_ydata()[0] for li in lines if li.get_marker() == "|"]
    by_policy = np.array(heights).reshape(3, 4)

    assert (np.diff(by_policy, axis=0) > 0).all()
    assert np.allclose(np.diff(by_policy, axis=1), 1)


def test_the_zero_line_is_drawn(comparison):
    lines = comparison.plot.differences().axes[0].lines

    assert any(list(line.get_xdata()) == [0, 0] for line in lines)


def test_the_title_claims_the_largest_sure_improvement(comparison):
    title = comparison.plot.differences().get_suptitle()

    assert title == "cross_layer lowers p99 TTFT by 18.1 % ± 2.6 % over fifo"


def test_the_title_tells_what_the_gain_costs(comparison):
    """A better mean that is bought with a far worse tail is no good news alone."""
    one = with_rows(
        comparison,
        row("per_layer", "mean_ttft_ms", 160.0, -21, 16),
        row("per_layer", "p99_ttft_ms", 420.0, 212.1, 162.2),
        row("per_layer", "request_throughput", 50.0, -5.0, 1.0),
        row("oldest", "p99_ttft_ms", 420.0, 300, 10),
    )

    assert title_of(one) == (
        "per_layer lowers mean TTFT by 13.1 % ± 10.0 % over fifo, "
        "but surely raises p99 TTFT by 50.5 % ± 38.6 % (and is worse in 1 more)"
    )


def test_the_title_names_the_largest_loss_where_nothing_is_better(comparison):
    one = with_rows(
        comparison,
        row("oldest", "p99_ttft_ms", 200.0, 20, 4),
        row("per_layer", "p99_ttft_ms", 200.0, 60, 4),
    )

    assert title_of(one) == (
        "No policy is surely better than fifo in any of these metrics; "
        "per_layer surely raises p99 TTFT by 30.0 % ± 2.0 %"
    )


def test_more_of_a_good_thing_is_raised(comparison):
    one = with_rows(comparison, row("oldest", "request_throughput", 20.0, 2.0, 0.5))

    assert one.plot.differences().get_suptitle() == (
        "oldest raises request throughput by 10.0 % ± 2.5 % over fifo"
    )


def test_nothing_sure_is_not_claimed(comparison):
    one = with_rows(comparison, row("oldest", "p99_ttft_ms", 200.0, -20, 40))

    assert one.plot.differences().get_suptitle() == (
        "No policy is surely better than fifo in any of these metrics"
    )


def test_metrics_say_which_direction_is_good(comparison):
    axes = comparison.plot.differences().axes[0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]

    assert names[0] == "p99 TTFT\n(less is better)"
    assert names[3] == "request throughput\n(more is better)"


def test_a_baseline_of_zero_has_no_relative_difference(comparison):
    """Nothing is divided by 0: such a row is left to the table."""
    zero = row("oldest", "preemptions", 0.0, 3.0, 1.0)
    kept = row("oldest", "p99_ttft_ms", 200.0, -20, 4)

    assert len(points(differences(with_rows(comparison, zero, kept)))) == 1
    assert (
        "No metric"
        in differences(with_rows(comparison, zero)).axes[0].texts[0].get_text()
    )


def test_one_pair_has_a_point_but_no_interval(comparison):
    """A single replication has no spread: NaN ends are no reason to fail."""
    lone = row("oldest", "p99_ttft_ms", 200.0, -20, np.nan)

    assert points(with_rows(comparison, lone).plot.differences()) == [(-0.1, False)]


def test_a_policy_has_one_colour_in_all_figures_of_a_comparison(comparison):
    """What is orange among the curves is orange among the differences."""
    curves = comparison.plot.cdf("ttft").axes[0].lines
    colours = {line.get_label().split()[0]: line.get_color() for line in curves}
    legend = comparison.plot.differences().legends[0]
    drawn = dict(
        zip((t.get_text() for t in legend.texts), legend.legend_handles, strict=True)
    )

    for policy in comparison.policies:
        if policy != comparison.baseline:
            assert drawn[policy].get_color() == colours[policy]
