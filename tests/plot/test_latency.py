"""Curves are the empirical distributions of measured requests, marked at percentiles."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.plot.latency import POINTS, curve_of, merged, steps
from results import SMALL, make_result

PERCENTILES = (50, 90, 99)


def curve(figure, label):
    """Return the points of the curve whose legend begins with `label`."""
    lines = figure.axes[0].lines
    return next(line for line in lines if line.get_label().startswith(label))


def marks(figure):
    """Return the positions of the percentiles of every curve."""
    lines = figure.axes[0].lines
    return [line.get_xdata() for line in lines if line.get_marker() == "o"]


def with_requests(result, **columns):
    table = result.requests.assign(**columns)
    return replace(result, tables=replace(result.tables, requests=table))


def share_below(line, value):
    x, y = line.get_xdata(), line.get_ydata()
    return y[x <= value][-1]


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40).map(sorted))
@settings(max_examples=50)
def test_a_short_curve_has_every_value_at_its_exact_share(values):
    """Of n values, the i-th is reached by the share i / n."""
    x, y = steps(np.array(values))

    assert x[1:].tolist() == values
    assert np.allclose(y, np.arange(len(values) + 1) / len(values))


def test_a_long_curve_keeps_exact_points_but_few():
    """Thinning drops points; it never moves one, and it keeps both ends."""
    values = np.sort(np.random.default_rng(0).lognormal(size=50_000))

    x, y = steps(values)

    assert len(x) <= POINTS + 1
    assert np.allclose(y[1:], np.searchsorted(values, x[1:], side="right") / 50_000)
    assert (x[1], x[-1]) == (values[0], values[-1])


def test_a_long_curve_is_fine_in_its_tail():
    """The last two per cent, where p99 is read, have as many points as the rest."""
    _, y = steps(np.arange(1.0, 100_001))

    assert (y > 0.98).sum() > POINTS // 3


def test_percentiles_are_marked_where_numpy_puts_them(result):
    """A mark is the same number as in the summary."""
    expected = np.percentile(result.requests["ttft_ms"], PERCENTILES)

    assert np.allclose(marks(result.plot.cdf("ttft"))[0], expected)


def test_the_legend_names_the_percentiles(result):
    """Whoever cannot read a log axis reads the number."""
    line = curve(result.plot.cdf("ttft"), "TTFT")

    assert "p50  160 ms   p90  326 ms   p99  560 ms" in line.get_label()


def test_the_axis_is_logarithmic_and_says_what_it_measures(result):
    axes = result.plot.cdf("ttft").axes[0]

    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "time to first token (2,000 finished requests)"


def test_only_finished_requests_count():
    """A rejected request has no latency, whatever its row says."""
    status = ["finished"] * 20 + ["rejected"] * 20
    result = with_requests(make_result(size=SMALL), status=status)
    expected = np.percentile(result.requests["ttft_ms"][:20], PERCENTILES)

    figure = result.plot.cdf("ttft")

    assert np.allclose(marks(figure)[0], expected)
    assert "20 finished requests of 40" in figure.axes[0].get_xlabel()


def test_the_warm_up_is_left_out_of_each_replication():
    """What the summary leaves out, its picture leaves out."""
    made = make_result(size=SMALL)
    records = [
        {"duration": 50.0, "measured_window_s": 40.0},
        {"duration": 50.0, "measured_window_s": 50.0},
    ]
    result = replace(
        with_requests(
            made,
            replication=[0] * 20 + [1] * 20,
            arrival_s=[9.0, 10.0] * 20,
            ttft_ms=np.arange(40.0) + 1,
        ),
        summaries=records,
    )
    measured = [*range(2, 21, 2), *range(21, 41)]

    line = curve(result.plot.cdf("ttft"), "TTFT")

    assert line.get_xdata()[1:].tolist() == measured


def test_gaps_are_those_of_measured_requests():
    """A gap belongs to its request in its replication, not to a namesake's."""
    made = make_result(size=SMALL)
    status = np.where(made.requests["request_id"] == 3, "unfinished", "finished")
    result = with_requests(made, status=status)
    kept = result.gaps.loc[result.gaps["request_id"] != 3, "gap_ms"]

    figure = result.plot.cdf("itl")

    assert np.allclose(marks(figure)[0], np.percentile(kept, PERCENTILES))
    assert "195 gaps" in figure.axes[0].get_xlabel()


def test_requests_without_the_metric_are_left_out():
    """A request of one token has no TPOT; it is not a TPOT of 0."""
    tpot = np.where(np.arange(40) < 10, np.nan, 30.0)
    result = with_requests(make_result(size=SMALL), tpot_ms=tpot)

    assert curve(result.plot.cdf("tpot"), "TPOT").get_xdata().min() == 30.0


def test_each_metric_has_its_own_line_style(result):
    """In grey, curves are told apart by their dashes."""
    lines = result.plot.cdf("ttft", "tpot", "e2el").axes[0].lines
    curves = [line for line in lines if line.get_marker() == "None"]
    drawn = [line for line in curves if not line.get_label().startswith("_")]

    assert len({str(line._dash_pattern) for line in drawn}) == 3


def test_equal_curves_share_a_line():
    """First and last token are one when only one is generated."""
    curves = {"TTFT": np.arange(3.0), "TPOT": np.zeros(0), "E2EL": np.arange(3.0)}
    drawn = {label: curve_of(values) for label, values in curves.items()}

    assert list(merged(drawn)) == ["TTFT = E2EL"]


def test_an_unknown_metric_is_refused_with_the_nearest_name(result):
    with pytest.raises(InputError, match="did you mean 'ttft'"):
        result.plot.cdf("tftt")


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("ttft", "No request finished."),
        ("itl", "No gaps between output tokens were recorded."),
    ],
)
def test_no_data_gives_a_figure_that_says_so(nothing, metric, reason):
    axes = nothing.plot.cdf(metric).axes[0]

    assert [text.get_text() for text in axes.texts] == [reason]


def test_requests_of_one_token_have_no_tpot_to_draw():
    result = with_requests(make_result(size=SMALL), tpot_ms=np.full(40, np.nan))
    axes = result.plot.cdf("tpot").axes[0]

    assert (
        axes.texts[0].get_text() == "No finished request has a time per output token."
    )


def test_policies_are_overlaid_on_one_axis(comparison):
    """One curve per policy, each with its own percentiles."""
    figure = comparison.plot.cdf("e2el")
    expected = [
        np.percentile(result.requests["e2el_ms"], PERCENTILES)
        for result in comparison.results.values()
    ]

    assert np.allclose(marks(figure), expected)
    for policy in comparison.policies:
        assert curve(figure, policy)


def test_the_title_of_a_comparison_names_both_ends(comparison):
    title = comparison.plot.cdf("ttft").get_suptitle()

    assert title == "p99 of TTFT: from 470 ms (cross_layer) to 605 ms (per_layer)"


def test_a_comparison_without_data_says_so(comparison, nothing):
    empty = replace(comparison, results={"fifo": nothing, "oldest": nothing})

    assert "no data" in empty.plot.cdf("ttft").get_suptitle()
