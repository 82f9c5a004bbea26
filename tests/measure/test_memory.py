"""Levels over time, shares of KV memory, and what an out-of-memory error says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesim.measure.kv_times import KvTimes
from moesim.measure.memory import MemoryLog, Oom, Reserved, table_of
from moesim.measure.series import FEWEST_BINS, FIRST_WIDTH, MOST_BINS, Series
from moesim.measure.tables import COLUMNS

changes = st.lists(
    st.tuples(
        st.integers(0, 40 * FIRST_WIDTH)
        | st.integers(0, 3000).map(lambda bins: bins * FIRST_WIDTH),
        st.lists(st.integers(0, 9), min_size=6, max_size=6),
    ),
    min_size=1,
    max_size=40,
)


@given(changes)
def test_bins_keep_the_largest_level_that_held_in_them(steps):
    """Against every level of every bin, looked at one by one."""
    series, now, levels = Series(2), 0, [(0, np.zeros((3, 2), int))]
    for gap, values in steps:
        now += gap
        level = np.array(values).reshape(3, 2)
        series.set(now, level)
        levels.append((now, level))

    start, rows = series.points()
    ends = [at for at, _ in levels[1:]] + [now]
    for begin, row in zip(start.tolist(), rows, strict=True):
        last = begin + series.width - 1
        held = [
            level
            for (at, level), end in zip(levels, ends, strict=True)
            if at <= last and (end > begin or at == end >= begin)
        ]
        for gpu in range(2):
            assert row[0, gpu] == max(level[0, gpu] for level in held)
            sums = [int(level[1:, gpu].sum()) for level in held]
            assert row[1:, gpu].sum() == max(sums)
            pairs = [level[1:, gpu].tolist() for level in held]
            assert row[1:, gpu].tolist() in pairs


def test_a_long_run_keeps_no_more_points_than_a_short_one():
    series, peak = Series(4), 0
    rng = np.random.default_rng(0)
    for step in range(20_000):
        level = rng.integers(0, 1000, (3, 4))
        series.set(step * 10**9, level)
        peak = np.maximum(peak, level[1:].sum(axis=0))
    start, rows = series.points()

    assert len(start) <= MOST_BINS
    assert len(start) > MOST_BINS // 4
    assert rows[:, 1:].sum(axis=1).max(axis=0).tolist() == peak.tolist()
    assert np.array_equal(np.diff(start), np.full(len(start) - 1, series.width))
    assert Series(4096).bins == FEWEST_BINS


def test_shares_are_means_over_time():
    """Two ranks of 10 tokens: 4 and 2 held of which 3 and 0 used, for a third of it."""
    times = KvTimes(2, 10)
    times.set(0, np.array([4, 2]), np.array([3, 0]), np.array([True, False]))
    times.set(10, np.array([0, 0]), np.array([0, 0]), np.array([False, False]))
    times.finish(30)
    facts = times.facts()

    assert facts["kv_used_frac_mean"] == pytest.approx(3 / 20 / 3)
    assert facts["kv_internal_frag_mean"] == pytest.approx(3 / 20 / 3)
    assert facts["kv_external_frag_mean"] == pytest.approx(6 / 20 / 3)
    assert facts["kv_used_frac_at_peak"] == 3 / 20
    assert facts["kv_internal_frag_at_peak"] == 3 / 20
    assert facts["kv_external_frag_at_peak"] == 6 / 20


def test_the_peak_is_when_most_is_given_out_and_most_of_that_is_computed():
    """Not when it is given out, before anything is computed; of equals the first."""
    times = KvTimes(1, 10)
    levels = ((1, 8, 0), (2, 8, 7), (3, 8, 7), (4, 8, 1), (5, 7, 7))
    for now, held, used in levels:
        times.set(now, np.array([held]), np.array([used]), np.array([now == 2]))

    assert times.facts()["kv_used_frac_at_peak"] == 0.7
    assert times.facts()["kv_internal_frag_at_peak"] == pytest.approx(0.1)
    assert times.facts()["kv_external_frag_at_peak"] == 0.2


def test_a_run_without_time_has_no_means():
    facts = KvTimes(1, 10).facts()

    assert facts["kv_used_frac_mean"] is None
    assert facts["kv_used_frac_at_peak"] == 0


GIB = 2**30
KNOWN = Reserved(80 * GIB, 72 * GIB, 12 * GIB, 40 * GIB, 1 * GIB)


def test_an_error_names_the_place_and_does_the_sum():
    parts = (12 * GIB, 40 * GIB, 0, 29 * GIB)
    oom = Oom(1_500_000_000_000, 6, 3, 41, 17, parts, 80 * GIB)

    assert str(oom) == (
        "out of memory at 1.500000 s on GPU 6 (rank 3) in MoE layer 41 of micro-batch "
        "17: 12 GiB weights + 40 GiB KV pool + 29 GiB activations = 81 GiB of 80 GiB"
    )


def test_a_log_that_nobody_watches_knows_its_peak():
    log = MemoryLog(KNOWN, 2)
    log.peak[:] = 3 * GIB, 11 * GIB

    assert log.facts() == {"mem_peak_frac": 0.8}
    assert log.columns()["mem_peak_bytes"].tolist() == [56 * GIB, 64 * GIB]
    assert np.isnan(log.columns()["mem_peak_s"]).all()
    assert not len(table_of(log, 0, 10))
    assert not len(table_of(None, 0, 10))


def test_the_table_has_a_row_for_each_gpu_and_bin():
    log = MemoryLog(KNOWN, 2)
    log.series = Series(2)
    log.series.set(0, np.array([[5, 10], [1, 2], [3, 4]]))
    log.series.set(2 * FIRST_WIDTH, np.zeros((3, 2), np.int64))
    table = table_of(log, 3, 10)

    assert list(table.columns) == list(COLUMNS["memory"])
    assert table["gpu"].tolist() == [0, 0, 0, 1, 1, 1]
    assert table["at_s"].tolist()[:3] == [x * FIRST_WIDTH / 1e12 for x in range(3)]
    assert table["kv_used_bytes"].tolist() == [x * GIB for x in (20, 20, 0, 40, 40, 0)]
    assert table["buffers_bytes"].tolist() == [GIB + x for x in (1, 1, 0, 2, 2, 0)]
    assert table["activations_bytes"].tolist() == [3, 3, 0, 4, 4, 0]
    assert (table["limit_bytes"] == 72 * GIB).all()
    assert (table["replication"] == 3).all()
