"""Results as a person reads them: a line, or a small table in a notebook."""

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite, nan
from numbers import Real
from typing import Any, Final

LATENCIES: Final = (
    ("TTFT", "ttft"),
    ("TPOT", "tpot"),
    ("ITL", "itl"),
    ("E2EL", "e2el"),
)
STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99")
RATES: Final = (
    ("Requests finished", "completed", ""),
    ("Request throughput", "request_throughput", " req/s"),
    ("Goodput", "request_goodput", " req/s"),
    ("Output throughput", "output_throughput", " tok/s"),
    ("Total throughput", "total_token_throughput", " tok/s"),
)
HEADLINES: Final = ("completed", "p99_ttft_ms", "p99_tpot_ms", "output_throughput")
"""The numbers that fit on a line."""


def plain(value: object) -> str:
    """Return a value for reading: four significant digits, a dash for no number.

    Examples
    --------
    >>> [plain(x) for x in (2000, 0.123456, 12345.6, float("nan"), "fifo", None)]
    ['2000', '0.1235', '12346', '–', 'fifo', '–']
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    number = float(value)
    if not isfinite(number):
        return "–"
    whole = abs(number) >= 1000 or number.is_integer()
    return f"{number:.0f}" if whole else f"{number:.4g}"


def result_line(name: str, replications: int, numbers: Mapping[str, Any]) -> str:
    """Return a result in one line: the scenario, its size, and its headlines."""
    parts = [f"{name!r}", f"replications={replications}"]
    parts += [f"{key}={plain(numbers[key])}" for key in HEADLINES if key in numbers]
    return f"Result({', '.join(parts)})"


def result_html(
    numbers: Mapping[str, Any], intervals: Mapping[str, tuple[float, float]]
) -> str:
    """Return latencies in ms, with the interval of each p99, above the rates."""
    head = ["ms", *STATISTICS, "95 % interval of p99"]
    rows = [latency_row(label, name, numbers, intervals) for label, name in LATENCIES]
    rates = [
        [label, f"{plain(numbers[key])}{unit}"]
        for label, key, unit in RATES
        if key in numbers
    ]
    return table_html(head, rows) + table_html(["", "mean"], rates)


def latency_row(
    label: str,
    name: str,
    numbers: Mapping[str, Any],
    intervals: Mapping[str, tuple[float, float]],
) -> list[str]:
    """Return one latency's statistics as cells."""
    cells = [plain(numbers.get(f"{stat}_{name}_ms", nan)) for stat in STATISTICS]
    interval = intervals.get(f"p99_{name}_ms")
    span = f"[{plain(interval[0])}, {plain(interval[1])}]" if interval else ""
    return [label, *cells, span]


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table whose every cell is escaped.

    Examples
    --------
    >>> table_html(["a"], [["<b>"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"
