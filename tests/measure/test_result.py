"""A result gives means over replications with intervals, and shows itself."""

from dataclasses import replace
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.measure.intervals import student_interval
from moesim.measure.show import LATENCIES, plain
from results import SMALL, make_comparison, make_result

numbers = st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=8)


def of_records(*records):
    return replace(make_result(size=SMALL), summaries=list(records))


@given(numbers)
def test_a_summary_is_the_mean_of_the_records(values):
    result = of_records(*({"p99_ttft_ms": value} for value in values))

    assert np.isclose(
        result.summary["p99_ttft_ms"], np.mean(values), rtol=1e-9, atol=1e-6
    )


@given(numbers)
def test_every_number_has_its_student_interval(values):
    result = of_records(*({"p99_ttft_ms": value, "label": "x"} for value in values))

    assert result.ci95 == {"p99_ttft_ms": student_interval(values)}


def test_one_replication_has_no_interval():
    assert of_records({"p99_ttft_ms": 1.0}).ci95 == {}


def test_whole_numbers_that_never_vary_stay_whole():
    """A count of GPUs is no 8.0: readers index with it."""
    result = of_records({"num_gpus": 8}, {"num_gpus": 8})

    assert repr(result.summary["num_gpus"]) == "8"


def test_what_is_no_number_is_taken_from_the_first_record():
    first = {"label": "a", "chunked": True, "slo": None}
    result = of_records(first, {"label": "b", "chunked": False, "slo": None})

    assert result.summary == first


def test_a_number_missing_in_one_record_has_no_mean():
    """The mean of those that have one would flatter."""
    result = of_records({"p99_ttft_ms": 3.0}, {"p99_ttft_ms": None})

    assert isnan(result.summary["p99_ttft_ms"])
    assert all(isnan(end) for end in result.ci95["p99_ttft_ms"])


def test_a_number_missing_in_the_first_record_has_no_mean_either():
    result = of_records({"p99_ttft_ms": None}, {"p99_ttft_ms": 3.0})

    assert isnan(result.summary["p99_ttft_ms"])


@pytest.mark.parametrize("key", ["seed", "run_number", "replication"])
def test_names_of_replications_are_not_averaged(key):
    """The mean of two seeds means nothing."""
    result = of_records({key: 0, "completed": 1}, {key: 1, "completed": 1})

    assert key not in result.summary


@pytest.mark.parametrize(
    "name", ["requests", "gaps", "passes", "experts", "gpus", "links"]
)
def test_every_table_is_at_hand(name):
    result = make_result(size=SMALL)

    assert getattr(result, name) is getattr(result.tables, name)


def test_figures_are_made_from_the_result_itself():
    result = make_result(size=SMALL, figures=lambda given: ("figures of", given))

    assert result.plot == ("figures of", result)


def test_a_result_without_figures_says_how_to_get_them():
    with pytest.raises(RuntimeError, match="Plots"):
        _ = make_result(size=SMALL, figures=None).plot
    with pytest.raises(RuntimeError, match="ComparisonPlots"):
        _ = make_comparison(SMALL, figures=None).plot


def test_a_result_is_one_line():
    assert repr(make_result(size=SMALL)) == (
        "Result('made up', replications=1, completed=40, p99_ttft_ms=100)"
    )


def test_a_notebook_shows_every_latency_with_the_interval_of_its_p99():
    records = [{"p99_ttft_ms": 10.0}, {"p99_ttft_ms": 12.0}]
    html = of_records(*records)._repr_html_()

    assert all(f"<td>{label}</td>" in html for label, _ in LATENCIES)
    assert "<td>11</td><td>[-1.706, 23.71]</td>" in html


def test_names_are_escaped_in_html():
    made = make_result(size=SMALL)
    result = replace(made, manifest={"scenario": "<script>"})
    comparison = replace(make_comparison(SMALL), rows=[{"policy": "<script>"}])

    assert "<script>" not in result._repr_html_()
    assert "<script>" not in comparison._repr_html_()


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "True"), (np.int64(3), "3"), (np.float64(0.5), "0.5"), (nan, "–")],
)
def test_numbers_are_shown_short(value, text):
    assert plain(value) == text


def test_a_comparison_has_a_table_of_its_rows():
    comparison = make_comparison(SMALL)

    assert len(comparison.table) == len(comparison.rows)
    assert list(comparison.table.columns) == list(comparison.rows[0])


def test_a_comparison_without_rows_has_an_empty_table():
    comparison = replace(make_comparison(SMALL), rows=[])

    assert len(comparison.table) == 0
    assert "<tbody></tbody>" in comparison._repr_html_()


def test_a_comparison_as_data_has_rows_and_summaries():
    comparison = make_comparison(SMALL)
    data = comparison.to_dict()

    assert data["rows"] == list(comparison.rows)
    assert data["baseline"] == "fifo"
    assert data["policies"] == list(data["summaries"])
    assert data["summaries"]["oldest"]["p99_ttft_ms"] == 90.0
    assert data["summaries"]["oldest"]["ci95"] == {}


def test_a_comparison_is_one_line():
    assert repr(make_comparison(SMALL)) == (
        "Comparison(fifo, oldest, per_layer, cross_layer; baseline='fifo', "
        "replications=8)"
    )
