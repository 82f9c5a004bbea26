"""Whatever the bytes: a valid log or `InputError`, nothing else, in bounded memory."""

import io
import os
import resource
import shutil
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.routing.logs import FORMATS, Hints, Limits, read_log
from routing.logs import samples

EXAMPLES = int(os.environ.get("MOESIM_FUZZ_EXAMPLES", "20"))
LIMITS = Limits(memory_bytes=1 << 26, file_bytes=1 << 28, seconds=10)
ROOM = 1 << 30
"""Bytes of addresses that a reading may add: far less than what a lie in a header asks."""


@pytest.fixture(autouse=True, scope="module")
def memory_limit():
    """Bound the address space while this module runs."""
    import pyarrow.parquet  # noqa: F401

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)


@cache
def folder():
    return Path(mkdtemp(prefix="logs"))


@cache
def sample_of(make):
    place = folder() / make.__name__
    place.mkdir()
    return make(place)


@cache
def content_of(make):
    path = sample_of(make).path
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture(autouse=True, scope="module")
def tidy():
    yield
    shutil.rmtree(folder(), ignore_errors=True)


def check(log):
    """A log that came out is a log: every id in range, once in its token."""
    assert len(log.layers) >= 1
    assert (log.tokens is None) != (log.counts is None)
    if log.tokens is not None:
        ids = np.sort(log.ids.astype(int), axis=2)
        assert ids.shape[1] == len(log.layers)
        assert ids.min() >= 0
        assert ids.max() < log.experts
        assert (ids[:, :, 1:] != ids[:, :, :-1]).all()
        assert log.lengths is None or (
            log.lengths.sum() == len(ids) and log.lengths.min() > 0
        )
    else:
        assert log.counts.shape[1:] == (len(log.layers), log.experts)
        assert log.counts.min() >= 0
        assert np.isfinite(log.counts).all()
        assert log.counts.any()


def outcome(path, format=None, hints=None):
    with suppress(InputError):
        check(read_log(path, format, LIMITS, hints))


def damaged_inside(data, whole, other):
    """Damage one member of a zip, so that checksums still fit."""
    if whole[:2] != b"PK":
        return damaged(data, whole, other)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = data.draw(st.sampled_from(sorted(members)))
    members[name] = damaged(data, members[name], other)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return file.getvalue()


def damaged(data, whole, other):
    """Flip, overwrite, cut, double or splice: up to three times."""
    whole = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        if not whole:
            break
        at = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["flip", "bytes", "cut", "double", "splice"]))
        if kind == "flip":
            whole[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "bytes":
            size = data.draw(st.integers(0, 8))
            whole[at : at + size] = data.draw(st.binary(max_size=8))
        elif kind == "cut":
            del whole[at:]
        elif kind == "double":
            end = data.draw(st.integers(at, min(len(whole), at + 200)))
            whole[at:at] = whole[at:end]
        else:
            begin = data.draw(st.integers(0, len(other)))
            whole[at:at] = other[begin : begin + 64]
    return bytes(whole)


@pytest.mark.parametrize("make", samples.MAKERS, ids=lambda m: m.__name__)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_a_damaged_log_is_a_log_or_is_refused(make, data):
    """Every reader, on its own files with bytes flipped, lost, doubled, mixed up."""
    sample, content = sample_of(make), content_of(make)
    name = data.draw(st.sampled_from(sorted(content)))
    other = content_of(data.draw(st.sampled_from(samples.MAKERS)))
    how = data.draw(st.sampled_from([damaged, damaged_inside]))
    changed = how(data, content[name], next(iter(other.values())))
    path = sample.path / name if sample.path.is_dir() else sample.path
    path.write_bytes(changed)
    try:
        outcome(sample.path, sample.format, sample.hints)
        outcome(sample.path, None, sample.hints)
    finally:
        path.write_bytes(content[name])


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(min_size=1, max_size=300))
def test_any_bytes_are_refused_or_a_log(name, content):
    """Random bytes, by every reader."""
    path = folder() / "random"
    path.write_bytes(content)
    outcome(path, name, Hints(layers=2, top_k=2))
    outcome(path)
