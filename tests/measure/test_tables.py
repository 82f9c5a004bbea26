"""Tables have their columns, or say which they lack."""

from dataclasses import fields

import pandas as pd
import pytest

from moesim.errors import InputError
from moesim.measure.tables import COLUMNS, Tables, empty


def gaps(replication, *milliseconds):
    rows = {"replication": replication, "request_id": 0, "gap_ms": milliseconds}
    return pd.DataFrame(rows)


def tables(**changed):
    return Tables(**{name: empty(name) for name in COLUMNS} | changed)


def test_empty_tables_have_every_column_typed():
    made = Tables.empty()

    assert [field.name for field in fields(made)] == list(COLUMNS)
    for name, columns in COLUMNS.items():
        frame = getattr(made, name)
        assert list(frame.columns) == list(columns)
        assert not len(frame)
    assert made.requests["slo_ok"].dtype == bool
    assert made.gaps["gap_ms"].dtype == float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="gap_ms"), "lacks gap_ms"),
        (lambda frame: frame.assign(extra=1), "has the unknown extra"),
        (lambda frame: frame[frame.columns[::-1]], "in another order"),
        (lambda frame: frame.rename(columns={"gap_ms": "gap"}), "lacks gap_ms and has"),
    ],
)
def test_wrong_columns_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        tables(gaps=change(empty("gaps")))


def test_every_wrong_table_is_told_at_once():
    with pytest.raises(InputError) as caught:
        tables(gaps=empty("links"), links=empty("gaps"))

    assert [problem.key for problem in caught.value.problems] == ["gaps", "links"]


def test_joining_and_picking_are_inverse():
    parts = [tables(gaps=gaps(0, 1.0, 2.0)), tables(), tables(gaps=gaps(2, 3.0))]
    joined = Tables.joined(parts)

    assert joined.gaps["gap_ms"].tolist() == [1.0, 2.0, 3.0]
    assert joined.gaps.index.tolist() == [0, 1, 2]
    for number, part in enumerate(parts):
        picked = joined.only(number).gaps
        assert picked["gap_ms"].tolist() == part.gaps["gap_ms"].tolist()


def test_joining_nothing_but_empty_tables_keeps_their_columns():
    assert list(Tables.joined([Tables.empty()] * 2).links.columns) == list(
        COLUMNS["links"]
    )
