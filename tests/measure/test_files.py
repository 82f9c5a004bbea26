"""A folder of results is written whole or not at all, and read back as it was."""

import errno
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.measure import files, folder
from moesim.measure.encode import as_csv, as_json
from moesim.measure.files import (
    RUN,
    TABLES,
    read_run,
    save_comparison,
    save_run,
    write_comparison,
    write_run,
)
from results import SMALL, make_comparison, make_result

DATA = [
    "expert_load.npz",
    "experts.parquet",
    "gaps.parquet",
    "gpus.parquet",
    "links.parquet",
    "manifest.json",
    "passes.parquet",
    "requests.parquet",
    "result.json",
    "scenario.yaml",
    "summary.csv",
    "summary.json",
    "traffic.npz",
]
NAME = "20261129-104455-73e09945"
"""The date in the manifest, and what SHA-256 of the scenario begins with."""


class Figures:
    """Figures of one file, in place of real ones."""

    def __init__(self, _):
        pass

    def save_all(self, place):
        place.mkdir()
        (place / "one.png").write_bytes(b"picture")
        return [place / "one.png"]


def failing(error):
    """Return figures that fail after half of them is written."""

    class Failing(Figures):
        def save_all(self, place):
            super().save_all(place)
            raise error

    return Failing


def made(**changes):
    return replace(make_result(size=SMALL, figures=Figures), **changes)


def listing(place):
    """Return every path under a folder, hidden ones too."""
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def contents(place):
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }


def test_a_run_has_these_files(tmp_path):
    write_run(made(), tmp_path / "run")

    assert listing(tmp_path / "run") == sorted([*DATA, "plots", "plots/one.png"])


def test_a_run_without_figures_has_no_plots(tmp_path):
    write_run(made(figures=None), tmp_path / "run")

    assert listing(tmp_path / "run") == DATA


def test_a_run_without_gaps_has_no_file_of_gaps(tmp_path):
    result = made()
    none = result.gaps.iloc[:0].reset_index(drop=True)
    write_run(replace(result, tables=replace(result.tables, gaps=none)), tmp_path / "r")

    assert "gaps.parquet" not in listing(tmp_path / "r")
    pd.testing.assert_frame_equal(read_run(tmp_path / "r").gaps, none)


def test_a_run_read_back_is_the_run(tmp_path):
    """Every table, array, record and text survives."""
    result = made()
    back = read_run(write_run(result, tmp_path / "run"))

    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(back, name), getattr(result, name))
    assert np.array_equal(back.traffic, result.traffic)
    assert np.array_equal(back.rank_load, result.rank_load)
    assert back.scenario_text == result.scenario_text
    assert back.where == tmp_path / "run"
    assert back.name == "made up"
    assert back.summaries == [{**result.summaries[0], "request_rate": "inf"}]


def test_a_run_read_back_and_written_again_is_the_same_bytes(tmp_path):
    first = write_run(made(), tmp_path / "first")
    second = write_run(read_run(first, Figures), tmp_path / "second")

    assert contents(first) == contents(second)


def test_the_load_of_experts_is_saved_as_an_array(tmp_path):
    """``load[r, l, e]`` are the tokens of the table."""
    result = made()
    with np.load(write_run(result, tmp_path / "run") / "expert_load.npz") as saved:
        load = saved["load"]
    row = result.experts.iloc[11].astype(int)

    assert load.shape == (1, SMALL.layers, SMALL.experts)
    assert load[0, row["layer"], row["expert"]] == row["tokens"]
    assert load.sum() == result.experts["tokens"].sum()


def test_the_result_file_has_means_intervals_and_size(tmp_path):
    records = [{"p99_ttft_ms": 1.0}, {"p99_ttft_ms": 3.0}]
    result = made(summaries=records)
    saved = json.loads(files.run_files(result)["result.json"])

    assert saved["p99_ttft_ms"] == 2.0
    assert saved["ci95"]["p99_ttft_ms"] == list(result.ci95["p99_ttft_ms"])
    assert (saved["replications"], saved["schema_version"]) == (2, 2)


def test_the_result_file_has_numbers_where_readers_divide():
    """A latency without a number is left out of it, not written as null."""
    result = made(summaries=[{"p99_tpot_ms": None, "slo": None, "completed": 0}])
    saved = json.loads(files.run_files(result)["result.json"])

    assert "p99_tpot_ms" not in saved
    assert saved["slo"] is None


def test_records_are_numbered():
    result = made(summaries=[{"completed": 1}, {"completed": 2}])
    saved = json.loads(files.run_files(result)["summary.json"])

    assert [record["run_number"] for record in saved] == [0, 1]
    assert files.run_files(result)["summary.csv"] == b"completed,run_number\n1,0\n2,1\n"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_every_digit(value):
    assert json.loads(as_json({"x": np.float64(value)}))["x"] == value


def test_json_has_sorted_keys_and_no_nan():
    text = as_json({"b": nan, "a": [np.int64(1), True], "c": Path("x")})

    assert text == b'{\n  "a": [\n    1,\n    true\n  ],\n  "b": null,\n  "c": "x"\n}\n'


def test_a_cell_never_becomes_a_formula():
    """Spreadsheets run what begins with an equals sign."""
    assert as_csv([{"label": "=cmd()", "x": -1.5}]) == b"label,x\n'=cmd(),-1.5\n"


def test_facts_of_the_day_are_in_the_manifest_alone(tmp_path):
    """Everything else is the same whenever the run is made."""
    later = {"scenario": "made up", "date": "2027-01-01T00:00:00", "host": "elsewhere"}
    one = contents(write_run(made(), tmp_path / "one"))
    two = contents(write_run(made(manifest=later), tmp_path / "two"))
    first, second = one.pop("manifest.json"), two.pop("manifest.json")

    assert one == two
    assert first != second
    assert json.loads(second)["host"] == "elsewhere"


def test_the_same_run_is_the_same_bytes_in_another_process(tmp_path):
    """Neither hash seeds nor the clock reach a file, figures included."""
    code = (
        "import sys; from pathlib import Path; from results import SMALL, make_result;"
        "from moesim.measure.files import write_run;"
        "write_run(make_result(size=SMALL), Path(sys.argv[1]))"
    )
    tests = Path(__file__).parents[1]
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed)],
            cwd=tests,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )

    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(list((tmp_path / "1" / "plots").iterdir())) == 4


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), KeyboardInterrupt(), SystemExit(1)]
)
def test_a_writer_that_fails_leaves_nothing(tmp_path, error):
    """Neither the folder, nor a draft of it, nor the folders made for it."""
    with pytest.raises(type(error)):
        write_run(made(figures=failing(error)), tmp_path / "new" / "deep" / "run")

    assert listing(tmp_path) == []


def test_a_writer_that_fails_leaves_the_earlier_run(tmp_path):
    write_run(made(), tmp_path / "run")
    before = contents(tmp_path)

    with pytest.raises(KeyboardInterrupt):
        write_run(made(figures=failing(KeyboardInterrupt())), tmp_path / "run")

    assert contents(tmp_path) == before


def test_folders_that_were_there_stay_after_a_failure(tmp_path):
    (tmp_path / "results").mkdir()

    with pytest.raises(RuntimeError):
        write_run(
            made(figures=failing(RuntimeError())), tmp_path / "results" / "a" / "b"
        )

    assert listing(tmp_path) == ["results"]


@given(after=st.integers(0, 12))
@settings(max_examples=13)
def test_a_full_disk_leaves_nothing_wherever_it_strikes(tmp_path_factory, after):
    """The file that no longer fits takes all others with it."""
    place = tmp_path_factory.mktemp("full")
    written = []
    write = Path.write_bytes

    def until_full(path, data):
        written.append(path)
        if len(written) > after:
            write(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    write_table = files.write_parquet

    def table_until_full(blocks, path):
        rows = write_table(blocks, path)
        until_full(path, path.read_bytes())
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", until_full)
        patch.setattr(files, "write_parquet", table_until_full)
        with pytest.raises(InputError) as caught:
            write_run(made(figures=None), place / "run")

    assert listing(place) == []
    assert str(caught.value) == (
        f"{place / 'run'}: error: cannot be written: No space left on device; "
        "nothing was written"
    )


def test_the_name_appears_only_once_everything_is_on_disk(tmp_path, monkeypatch):
    """While files are synced, no folder of that name exists."""
    seen = []
    fsync = os.fsync

    def watched(handle):
        seen.append((tmp_path / "run").exists())
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    write_run(made(), tmp_path / "run")

    assert len(seen) >= len(DATA) + 1
    assert not any(seen)


def test_an_earlier_run_is_replaced_as_a_whole(tmp_path):
    """Files of the earlier run do not mix with those of the later."""
    write_run(made(), tmp_path / "run")
    write_run(made(figures=None), tmp_path / "run")

    assert listing(tmp_path / "run") == DATA
    assert listing(tmp_path) == sorted(["run", *(f"run/{name}" for name in DATA)])


def test_an_earlier_run_comes_back_if_it_cannot_be_replaced(tmp_path, monkeypatch):
    write_run(made(), tmp_path / "run")
    before = contents(tmp_path)
    rename = Path.rename

    def refuse_draft(path, target):
        if path.suffix == ".tmp":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_draft)
    with pytest.raises(InputError, match="cannot be written"):
        write_run(made(figures=None), tmp_path / "run")

    assert contents(tmp_path) == before


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "run").mkdir()

    assert read_run(write_run(made(), tmp_path / "run")).name == "made up"


@pytest.mark.parametrize("manifest", [None, "{}", '{"kind": "other"}', "[1]", "{"])
def test_a_folder_of_something_else_is_refused(tmp_path, manifest):
    (tmp_path / "thesis.tex").write_text("years of work")
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    before = contents(tmp_path)

    with pytest.raises(InputError, match="not empty and not an earlier result"):
        write_run(made(), tmp_path)

    assert contents(tmp_path) == before


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")

    for target in (tmp_path / "out", tmp_path / "out" / "run"):
        with pytest.raises(InputError, match=r"out: error: is a file"):
            write_run(made(), target)

    assert contents(tmp_path) == {"out": b"mine"}


def test_a_target_can_be_checked_before_anything_is_simulated(tmp_path):
    (tmp_path / "out").write_text("mine")
    folder.check_target(tmp_path / "new")

    with pytest.raises(InputError, match="is a file"):
        folder.check_target(tmp_path / "out")


def test_a_read_only_place_is_known_beforehand(tmp_path, monkeypatch):
    """Nobody should simulate for an hour to hear that it cannot be saved."""
    monkeypatch.setattr(os, "access", lambda place, _: place != tmp_path)

    with pytest.raises(InputError, match=f"cannot be written: {tmp_path} is read-only"):
        folder.check_target(tmp_path / "new" / "run")


@pytest.mark.parametrize("name", ["x" * 300, "deep/" + "x" * 300])
def test_a_name_that_no_disk_takes_is_an_input_error(tmp_path, name):
    with pytest.raises(InputError, match="File name too long"):
        write_run(made(), tmp_path / name)

    assert listing(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs Linux's /proc")
def test_a_place_that_takes_no_folder_is_an_input_error():
    with pytest.raises(InputError, match="/proc/moesim/run: error: cannot be written"):
        write_run(made(), Path("/proc/moesim/run"))


def test_a_saved_run_is_named_by_date_and_scenario(tmp_path):
    result = save_run(made(), tmp_path)

    assert result.where == tmp_path / "made-up" / NAME
    assert read_run(result.where).where == result.where


def test_latest_leads_to_the_last_saved_run(tmp_path):
    first, second = save_run(made(), tmp_path), save_run(made(), tmp_path)
    latest = tmp_path / "made-up" / "latest"

    assert second.where.name == f"{NAME}-2"
    assert os.readlink(latest) == second.where.name
    assert {read_run(path).where for path in (latest, latest.parent)} == {second.where}
    assert read_run(first.where).where == first.where


def test_latest_is_a_text_where_links_cannot_be(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    saved = save_run(made(), tmp_path)
    scenario = tmp_path / "made-up"

    assert sorted(path.name for path in scenario.iterdir()) == [NAME, "latest.txt"]
    assert (scenario / "latest.txt").read_text() == f"{NAME}\n"
    for path in (scenario, scenario / "latest"):
        assert read_run(path).where == saved.where


def test_a_link_replaces_the_text(tmp_path, monkeypatch):
    """Two pointers would sooner or later disagree."""
    save_run(made(), tmp_path)
    (tmp_path / "made-up" / "latest").rename(tmp_path / "made-up" / "latest.txt")

    save_run(made(), tmp_path)

    assert not (tmp_path / "made-up" / "latest.txt").exists()


def test_a_failed_save_leaves_latest_where_it_was(tmp_path):
    first = save_run(made(), tmp_path)

    with pytest.raises(RuntimeError):
        save_run(made(figures=failing(RuntimeError())), tmp_path)

    assert read_run(tmp_path / "made-up").where == first.where


def test_a_scenarios_name_cannot_leave_the_results(tmp_path):
    manifest = {"scenario": "../../etc", "date": "2026-11-29T10:44:55"}
    result = save_run(made(manifest=manifest), tmp_path / "results")

    assert result.where.parents[1] == tmp_path / "results"


def test_a_place_without_a_run_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(InputError, match="no such folder"):
        read_run(tmp_path / "nothing")
    with pytest.raises(InputError, match="a file; expected the folder"):
        read_run(tmp_path / "file")
    with pytest.raises(InputError, match="found no manifest"):
        read_run(tmp_path)


def test_missing_and_changed_files_are_all_named(tmp_path):
    run = write_run(made(), tmp_path / "run")
    (run / "gpus.parquet").unlink()
    (run / "links.parquet").write_bytes(b"other")

    with pytest.raises(InputError) as caught:
        read_run(run)

    first, second = caught.value.problems
    assert (first.where, second.where) == (
        str(run / "gpus.parquet"),
        str(run / "links.parquet"),
    )
    assert "No such file" in first.message
    assert "not as the run wrote it" in second.message


def test_a_run_of_another_schema_is_refused(tmp_path):
    run = write_run(made(), tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    old = {**manifest, "schema_version": 1, "versions": {"moesim": "0.7"}}
    (run / "manifest.json").write_text(json.dumps(old))

    said = "written by moesim 0.7 with schema version 1; this one reads 2; run its "
    with pytest.raises(InputError, match=said + "scenario.yaml again"):
        read_run(run)

    (run / "manifest.json").write_text(json.dumps(old | {"versions": None}))
    with pytest.raises(InputError, match="written by moesim with schema version 1"):
        read_run(run)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Return the files of a sound run, to be damaged."""
    return contents(
        write_run(made(figures=None), tmp_path_factory.mktemp("sound") / "run")
    )


@given(
    name=st.sampled_from([name for name in DATA if name != "manifest.json"]),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=3),
)
@settings(max_examples=60)
def test_damage_is_an_input_error_even_with_a_matching_hash(
    sound, tmp_path_factory, name, cut, flips
):
    """Cut short or with flipped bits: a run is read, or refused in words."""
    run = tmp_path_factory.mktemp("damaged")
    damaged = bytearray(sound[name][: round(cut * len(sound[name]))])
    for place, mask in flips if damaged else []:
        damaged[round(place * (len(damaged) - 1))] ^= mask
    files.fill(run, {**sound, name: bytes(damaged)})
    (run / "manifest.json").unlink()
    files.seal(run, RUN, {})

    with suppress(InputError):
        read_run(run)


def test_arrays_must_fit_the_tables(tmp_path):
    wrong = made(traffic=np.zeros((1, 2, 3, 3)))
    run = write_run(wrong, tmp_path / "run")

    with pytest.raises(InputError, match=r"traffic has shape \(1, 2, 3, 3\)"):
        read_run(run)


def test_pickles_are_never_read(tmp_path):
    """An array of objects could run code."""
    run = write_run(made(), tmp_path / "run")
    np.savez(run / "traffic.npz", bytes=np.array([{}], dtype=object))
    (run / "manifest.json").unlink()
    files.seal(run, RUN, {})

    with pytest.raises(InputError, match="is damaged"):
        read_run(run)


def test_a_comparison_has_these_files(tmp_path):
    comparison = make_comparison(SMALL, figures=Figures)
    saved = save_comparison(comparison, tmp_path)

    assert saved.where == tmp_path / "made-up" / "compare-20261129-104455"
    assert listing(saved.where) == [
        "compare.csv",
        "compare.json",
        "manifest.json",
        "plots",
        "plots/one.png",
        "scenario.yaml",
    ]


def test_a_comparison_is_saved_as_its_rows(tmp_path):
    comparison = make_comparison(SMALL, figures=None)
    place = write_comparison(comparison, tmp_path / "compare")
    table = pd.read_csv(place / "compare.csv")
    data = json.loads((place / "compare.json").read_text())

    assert data["rows"] == list(comparison.rows)
    pd.testing.assert_frame_equal(table, comparison.table)


def test_a_comparison_that_fails_leaves_nothing(tmp_path):
    comparison = make_comparison(SMALL, figures=failing(RuntimeError()))

    with pytest.raises(RuntimeError):
        save_comparison(comparison, tmp_path)

    assert listing(tmp_path) == []


def test_a_comparison_is_no_run(tmp_path):
    place = write_comparison(make_comparison(SMALL, figures=None), tmp_path / "c")

    with pytest.raises(
        InputError, match="expected a saved run; found moesim comparison"
    ):
        read_run(place)
