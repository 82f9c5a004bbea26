"""Tables made from columns, a block at a time, are the tables made at once."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import moesim
from moesim.measure import slices, tables, tabulate
from moesim.measure.encode import from_parquet, write_parquet
from moesim.measure.metrics import summarise
from moesim.measure.tables import COLUMNS, Tables

QUICKSTART = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
CHANGES = {
    "num_prompts": 40,
    "replications": 2,
    "workload.input_len": {"type": "uniform", "min": 1, "max": 60},
    "workload.output_len": {"type": "uniform", "min": 1, "max": 4},
    "serving.block_size": 4,
    "serving.kv_blocks": 14,
}


@pytest.fixture(scope="module")
def made():
    scenario = moesim.load(QUICKSTART).with_(CHANGES)
    return moesim.run(scenario).tables


@pytest.fixture
def small_blocks(monkeypatch):
    for module in (tables, tabulate):
        monkeypatch.setattr(module, "BLOCK", 7)


def whole(made):
    """Return the same tables as plain frames."""
    return Tables(**{name: getattr(made, name) for name in COLUMNS})


def test_some_requests_are_rejected_and_some_put_back(made):
    """Else the other tests would see too little."""
    assert set(made.requests["status"]) == {"finished", "rejected"}
    assert len(made.gaps)


@pytest.mark.parametrize("name", COLUMNS)
def test_tables_have_their_columns_and_types(made, name):
    frame = getattr(made, name)
    found = {column: str(kind) for column, kind in frame.dtypes.items()}

    assert found == dict(COLUMNS[name])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", COLUMNS)
def test_blocks_are_the_rows_in_order(made, name):
    blocks = list(made.blocks(name))
    again = pd.concat(blocks, ignore_index=True)

    assert len(blocks) > 5 or name not in tabulate.LONG
    pd.testing.assert_frame_equal(again, getattr(made, name))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_that_of_the_frame(made, name):
    for column in COLUMNS[name]:
        values = made.column(name, column)
        expected = np.asarray(getattr(made, name)[column])

        assert values.dtype == expected.dtype
        assert pd.Series(values).equals(pd.Series(expected)), column


def test_the_summary_does_not_depend_on_how_tables_are_made(made):
    """From columns of one run as from the frames of that run."""
    facts = {"num_gpus": 8, "span_s": 3.0, "warmup_s": 0.05, "slo_ms": {"ttft": 9.0}}
    one = tabulate.RecordedTables({0: made.runs[0]}, made.kv_blocks, {"ttft": 9.0})

    assert summarise(one, facts) == summarise(whole(one), facts)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", COLUMNS)
def test_a_table_written_in_blocks_is_read_whole(made, name, tmp_path):
    rows = write_parquet(made.blocks(name), tmp_path / "t.parquet")

    assert rows == len(getattr(made, name))
    back = from_parquet((tmp_path / "t.parquet").read_bytes())
    pd.testing.assert_frame_equal(back, getattr(made, name))


def test_a_table_of_nothing_has_its_columns(tmp_path):
    write_parquet(Tables.empty().blocks("gaps"), tmp_path / "t.parquet")
    back = from_parquet((tmp_path / "t.parquet").read_bytes())

    assert list(back.columns) == list(COLUMNS["gaps"])


def test_every_column_of_requests_can_be_made():
    assert {"replication", *slices.REQUESTS} == set(COLUMNS["requests"])
