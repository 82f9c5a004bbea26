"""A row that is not exactly what its format says is a problem with its line and key."""

import json

import pytest

from moesim.errors import Problem
from moesim.workload.formats import azure, mooncake

SECOND = b"2023-11-16 18:17:04.0319600,3180,8\n"
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + SECOND * 2
NEXT = b'{"timestamp": 3030.5, "input_length": 7, "output_length": 1}\n'
MOONCAKE = NEXT * 2


def found(read, data):
    """Return the problems among the good rows before them."""
    lines = data.decode().removesuffix("\n").split("\n")
    return [item for item in read(lines) if isinstance(item, Problem)]


WHEN = b"2023-11-16 18:17:05"
ROWS = {
    "truncated": (b"2023-11-16 18:17:05,31", "", "expected 3 fields; got 2 (the last"),
    "too many fields": (WHEN + b",1,000,3", "", "expected 3 fields; got 4"),
    "open quote": (b'"' + WHEN + b",1,1", "", "expected 3 fields; got 1"),
    "zero": (WHEN + b",0,3", "ContextTokens", "from 1 to 1000000000; got '0'"),
    "negative": (WHEN + b",5,-3", "GeneratedTokens", "got '-3'"),
    "fraction": (WHEN + b",5.0,3", "ContextTokens", "got '5.0'"),
    "nan": (WHEN + b",nan,3", "ContextTokens", "got 'nan'"),
    "empty": (WHEN + b",,3", "ContextTokens", "got ''"),
    "huge": (WHEN + b",9999999999,3", "ContextTokens", "got '9999999999'"),
    "underscore": (WHEN + b",1_000,3", "ContextTokens", "got '1_000'"),
    "other digits": (WHEN + ",\u0663,3".encode(), "ContextTokens", "got '\\u0663'"),
    "escape code": (WHEN + b",\x1b[2J,3", "ContextTokens", "got '\\x1b[2J'"),
    "NUL": (WHEN + b",\x00,3", "ContextTokens", "got '\\x00'"),
    "no such day": (b"2023-02-30 00:00:00,1,1", "TIMESTAMP", "expected a time such as"),
    "seconds": (b"1700000000.5,1,1", "TIMESTAMP", "got '1700000000.5'"),
    "blank line": (b"\n" + SECOND, "", "expected 3 fields; got 0"),
}


@pytest.mark.parametrize(("row", "key", "message"), ROWS.values(), ids=ROWS)
def test_a_bad_row_is_told_with_its_line(row, key, message):
    (problem,) = found(azure, AZURE + row)

    assert (problem.line, problem.key) == (4, key)
    assert message in problem.message
    assert "\x1b" not in str(problem)
    assert "\x1b" not in problem.source


def record(**changes):
    whole = {"timestamp": 9999, "input_length": 5, "output_length": 1}
    return json.dumps(whole | changes).encode()


RECORDS = {
    "truncated": (NEXT[:20], "", "not a JSON object"),
    "blank line": (b"\n" + NEXT, "", "not a JSON object"),
    "list": (b"[1, 2]", "", "got list"),
    "NaN": (b'{"timestamp": NaN}', "", "NaN is not a number"),
    "twice": (b'{"timestamp": 1, "timestamp": 2}', "", "a key appears twice"),
    "deep": (b'{"a":' + b"[" * 100_000, "", "not a JSON object"),
    "many digits": (b'{"timestamp": ' + b"9" * 5000 + b"}", "", "not a JSON object"),
    "infinite": (
        b'{"timestamp": 1e999, "input_length": 5, "output_length": 1}',
        "timestamp",
        "got inf",
    ),
    "beyond float": (record(timestamp=10**400), "timestamp", "expected milliseconds"),
    "negative time": (record(timestamp=-1), "timestamp", "got -1"),
    "true time": (record(timestamp=False), "timestamp", "got False"),
    "zero": (record(output_length=0), "output_length", "got 0"),
    "true": (record(output_length=True), "output_length", "got True"),
    "float": (record(input_length=5.0), "input_length", "got 5.0"),
    "text": (record(input_length="5"), "input_length", "got '5'"),
    "missing": (
        b'{"timestamp": 9999, "input_length": 5}',
        "output_length",
        "got nothing",
    ),
}


@pytest.mark.parametrize(("line", "key", "message"), RECORDS.values(), ids=RECORDS)
def test_a_bad_record_is_told_with_its_line(line, key, message):
    (problem,) = found(mooncake, MOONCAKE + line)

    assert (problem.line, problem.key) == (3, key)
    assert message in problem.message
