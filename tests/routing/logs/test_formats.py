"""Every format comes back as it was written, and none is taken for another."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from moesim.errors import InputError
from moesim.routing.logs import FORMATS, Hints, Limits, read_log, write_log
from moesim.routing.logs.peek import look
from moesim.routing.logs.source import open_source
from moesim.routing.replay import Log
from moesim.routing.source import TokenKeys
from routing.logs import samples

every_sample = pytest.mark.parametrize("make", samples.MAKERS, ids=lambda m: m.__name__)


def same(log, sample):
    assert log.layers == tuple(map(str, sample.layers))
    if sample.ids is not None:
        assert np.array_equal(log.ids, sample.ids)
        assert log.ids.dtype == np.uint8
        assert log.experts == samples.E
    else:
        assert np.array_equal(log.counts, sample.counts)
        assert log.ids is None
    if sample.phy2log is None:
        assert log.phy2log is None
    else:
        assert np.array_equal(log.phy2log, sample.phy2log)
    lengths = None if log.lengths is None else log.lengths.tolist()
    assert lengths == sample.lengths


@every_sample
def test_a_log_comes_back_as_it_was_written(make, tmp_path):
    """Ids or counts, layers and sequences: whatever the engine."""
    sample = make(tmp_path)
    log = read_log(sample.path, hints=sample.hints)

    assert log.origin.format == sample.format
    same(log, sample)


@every_sample
def test_no_format_is_taken_for_another(make, tmp_path):
    """Of all formats exactly one knows the file by its content."""
    sample = make(tmp_path)
    peek = look(open_source(Path(sample.path), Limits(), sample.hints))

    assert [f.name for f in FORMATS.values() if f.recognise(peek)] == [sample.format]


@every_sample
@pytest.mark.parametrize("name", FORMATS)
def test_a_wrong_format_is_refused(make, name, tmp_path):
    """Whoever asks for another format gets a log that is right, or a reason."""
    sample = make(tmp_path)
    with suppress(InputError):
        log = read_log(sample.path, name, hints=sample.hints)
        assert log.origin.format == name
        assert name != sample.format or same(log, sample) is None


@every_sample
def test_the_canonical_form_keeps_everything(make, tmp_path):
    """Written, read, written: the same log, and the same bytes."""
    sample = make(tmp_path)
    log = read_log(sample.path, hints=sample.hints)
    first = write_log(log, tmp_path / "canonical.npz")
    again = read_log(first)

    same(again, sample)
    assert again.experts == log.experts
    assert set(log.notes) <= set(again.notes)
    assert write_log(log, tmp_path / "b.npz").read_bytes() == first.read_bytes()


@every_sample
def test_parquet_keeps_everything_it_can(make, tmp_path):
    """Tokens and whole counts; a placement is refused."""
    sample = make(tmp_path)
    log = read_log(sample.path, hints=sample.hints)
    target = tmp_path / "canonical.parquet"
    if sample.phy2log is not None:
        with pytest.raises(InputError, match="only whole counts of tokens"):
            write_log(log, target)
        assert not target.exists()
        return

    same(read_log(write_log(log, target)), sample)


def test_a_converted_log_is_replayed(tmp_path):
    """The canonical file is the one that scenarios replay."""
    sample = samples.vllm_patch(tmp_path)
    path = write_log(read_log(sample.path), tmp_path / "log.npz")
    replay = Log(samples.L, samples.E, samples.K, path=str(path))
    start = np.zeros(samples.LENGTHS[0], int)

    assert replay.sequence_lengths.tolist() == samples.LENGTHS
    assert (
        replay.route(TokenKeys(start, start, np.arange(10))) == samples.IDS[:10]
    ).all()


def test_totals_are_the_same_from_tokens_and_counts(tmp_path):
    """Layer by layer and expert by expert."""
    for make in (samples.npz, samples.megatron, samples.csv_counts, samples.imatrix):
        sample = make(tmp_path)
        assert np.array_equal(read_log(sample.path).totals, samples.COUNTS)


def test_an_existing_file_is_kept_unless_forced(tmp_path):
    """And a name that asks for no known form is refused."""
    log = read_log(samples.npy(tmp_path).path)
    target = write_log(log, tmp_path / "a.npz")
    with pytest.raises(InputError, match="exists"):
        write_log(log, target)
    write_log(log, target, force=True)
    with pytest.raises(InputError, match=r"must end in \.npz or \.parquet"):
        write_log(log, tmp_path / "a.txt")

    assert not list(tmp_path.glob("*.tmp"))
    assert not list(tmp_path.glob(".*.tmp"))


def test_hints_must_fit(tmp_path):
    """Another model's sizes are refused, not forced on the file."""
    path = samples.npz(tmp_path).path
    for hints, said in (
        (Hints(experts=7), "ids from 0 to 6"),
        (Hints(layers=4), "has 3 layers; the hint says 4"),
        (Hints(top_k=3), "the hint says 3"),
        (Hints(warmup=24), "leaves none"),
        (Hints(top_k=-1), "negative"),
        (Hints(array="seq_lens"), "has 1 axes"),
    ):
        with pytest.raises(InputError, match=said):
            read_log(path, hints=hints)

    assert read_log(path, hints=Hints(experts=12)).experts == 12
