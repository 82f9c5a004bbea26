"""A log is replayed to the letter; a file that is no log is refused, and says why."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.routing import archive
from moesim.routing.replay import Log
from moesim.routing.source import TokenKeys

LENGTHS = np.array([3, 1, 4], np.int32)
IDS = np.argsort(np.random.default_rng(0).random((8, 2, 16)), axis=2)[:, :, :3]
IDS = IDS.astype(np.uint8)


def log_of(path, layers=2, experts=16, top_k=3):
    return Log(layers, experts, top_k, path=str(path))


def saved(path, ids=IDS, lengths=LENGTHS, save=np.savez):
    save(path, expert_ids=ids, seq_lens=lengths)
    return path


def npy(array=None, header=None, data=b""):
    """Return the bytes of one member: an array's, or of a header that says anything."""
    file = io.BytesIO()
    if header is None:
        np.save(file, array, allow_pickle=True)
    else:
        text = header.encode() + b"\n"
        file.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data)
    return file.getvalue()


def zipped(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


def refused(path, **sizes):
    """Return what is said when a file is refused: it names the file and a reason."""
    with pytest.raises(InputError) as caught:
        log_of(path, **sizes)
    for problem in caught.value.problems:
        assert problem.key == "path"
        assert Path(path).name in problem.message
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "log.npz"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kind", ["u1", "<u2", ">u2", "<i4", ">i8", "u8"])
def test_a_whole_log_comes_back_as_recorded(file, save, kind):
    """Requests 0, 1, 2 at positions 0, 1, ... are the rows, whatever their type."""
    log = log_of(saved(file, IDS.astype(kind), save=save))
    request = np.repeat(np.arange(3), LENGTHS)
    position = np.concatenate([np.arange(length) for length in LENGTHS])
    ids = log.route(TokenKeys(request, request * 0, position))

    assert ids.dtype == np.uint16
    assert (ids == IDS).all()
    assert log.sequence_lengths.tolist() == [3, 1, 4]


def test_more_requests_and_longer_ones_start_the_log_again(file):
    """Request r is sequence r mod n; position p is token p mod its length."""
    log = log_of(saved(file))
    keys = TokenKeys(np.array([3, 4, 5, 302]), np.zeros(4, int), np.array([4, 9, 6, 3]))

    assert (log.route(keys) == IDS[[1, 3, 6, 7]]).all()


def test_rows_in_fortran_order_are_read_as_the_same_array(file):
    """The order of bytes in the file is not the order of tokens."""
    log = log_of(saved(file, np.asfortranarray(IDS)))
    sequence = TokenKeys(np.zeros(3, int), np.zeros(3, int), np.arange(3))

    assert (log.route(sequence) == IDS[:3]).all()


@pytest.mark.skipif("MOESIM_DATA" not in os.environ, reason="needs MOESIM_DATA")
def test_a_real_log_comes_back_as_recorded():
    """All of DeepSeek-V2-Lite on intent prompts: 8222 tokens, 26 layers, top 6 of 64."""
    path = Path(os.environ["MOESIM_DATA"]) / "routing" / "deepseek-v2-lite_intent.npz"
    with np.load(path) as own:
        ids, lengths = own["expert_ids"], own["seq_lens"]
    request = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    log = Log(26, 64, 6, path=str(path))

    assert (log.route(TokenKeys(request, request * 0, position)) == ids).all()


WRONG_SHAPES = [
    ({"layers": 3}, "[8, 2, 3]; the model needs [tokens, 3 layers"),
    ({"top_k": 2}, "the model needs [tokens, 2 layers, 2 experts"),
    ({"experts": 8}, "the model's are 0 to 7"),
]


@pytest.mark.parametrize(("sizes", "said"), WRONG_SHAPES)
def test_a_log_of_another_model_is_refused(file, sizes, said):
    """Layers, top-k and experts are the model's."""
    assert said in refused(saved(file), **sizes)


WRONG_CONTENTS = [
    (IDS.astype(float), LENGTHS, "whole numbers"),
    (IDS.astype(bool), LENGTHS, "whole numbers"),
    (IDS.astype(complex), LENGTHS, "whole numbers"),
    (IDS.astype("U2"), LENGTHS, "whole numbers"),
    (IDS, LENGTHS.astype(float), "whole numbers"),
    (IDS.reshape(8, 6), LENGTHS, "shape [8, 6]"),
    (IDS[:0], LENGTHS[:0], "shape [0, 2, 3]"),
    (IDS, LENGTHS[:2], "seq_lens sums to 4; expert_ids has 8 tokens"),
    (IDS, LENGTHS.reshape(1, 3), "seq_lens"),
    (IDS, np.array([3, 0, 5]), "lengths from 1"),
    (IDS, np.array([9, -1]), "lengths from 1"),
    (IDS, np.array([2**62, 2**62, 2**62, 2**62 + 8]), "lengths from 1"),
    (IDS, np.array([2**64 - 1, 9], np.uint64), "lengths from 1"),
    (IDS.astype(int) - 1, LENGTHS, "token 1, layer 0: expert_ids [-1,"),
    (IDS + np.uint64(2**40), LENGTHS, "token 0, layer 0"),
]


@pytest.mark.parametrize(("ids", "lengths", "said"), WRONG_CONTENTS)
def test_contents_that_are_no_log_are_refused(file, ids, lengths, said):
    """Types, shapes, lengths and ranges, before anything is indexed by them."""
    assert said in refused(saved(file, ids, lengths))


def test_an_id_below_zero_is_refused_with_its_place(file):
    """Token 5, layer 1; it would have wrapped to the last expert."""
    ids = IDS.astype(np.int8)
    ids[5, 1, 2] = -1

    assert "token 5, layer 1: expert_ids" in refused(saved(file, ids))


def test_an_expert_twice_in_one_token_is_refused_with_its_place(file):
    """Token 6, layer 0 names one expert twice, not next to each other."""
    ids = IDS.copy()
    ids[6, 0] = [4, 7, 4]

    assert "token 6, layer 0: expert_ids [4, 7, 4]; an expert stands twice" in refused(
        saved(file, ids)
    )


def test_at_most_twenty_bad_tokens_are_told_of(file):
    """A log of another model has millions."""
    ids = np.full((50, 2, 3), 200, np.uint8)
    with pytest.raises(InputError) as caught:
        log_of(saved(file, ids, np.array([50])))

    assert len(caught.value.problems) == 20


class Attack:
    """Its pickle raises the flag when it is loaded."""

    raised = False

    def __reduce__(self):
        return Attack.strike, ()

    @staticmethod
    def strike():
        Attack.raised = True


def test_nothing_is_unpickled(file):
    """Neither an object array nor a raw pickle runs any code."""
    objects = np.array([Attack()], dtype=object)
    zipped(file, [("expert_ids.npy", npy(objects)), ("seq_lens.npy", npy(LENGTHS))])
    assert "whole numbers" in refused(file)
    file.write_bytes(pickle.dumps(Attack()))
    assert "cannot be read" in refused(file)

    assert not Attack.raised


HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"
WRONG_HEADERS = [
    HEADER.format("|u1", "(1000000000000, 2, 3)"),
    HEADER.format("|u1", f"({2**63}, {2**63}, 3)"),
    HEADER.format("|u1", "(-8, 2, -3)"),
    HEADER.format("|u1", "(-8, 2, 3)"),
    HEADER.format("|u1", "(8, 2)"),
    HEADER.format("|u1", "(8, 2, 3L)"),
    HEADER.format("|O", "(8, 2, 3)"),
    HEADER.format("<i999", "(8, 2, 3)"),
    HEADER.format("|u1", "(8, 2, (3,))"),
    "{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (8, 2, 3)}",
    "{'shape': (8, 2, 3)}",
    "(" * 300,
    "__import__('os')",
    "'''",
    "\x00",
    "",
]


@pytest.mark.parametrize("header", WRONG_HEADERS)
def test_a_header_is_not_believed(file, header):
    """Sizes that the data does not have, negative ones, other types, no header at all."""
    member = npy(header=header, data=IDS.tobytes())
    zipped(file, [("expert_ids.npy", member), ("seq_lens.npy", npy(LENGTHS))])

    assert "expert_ids.npy" in refused(file) or "cannot be read" in refused(file)


def test_a_zip_bomb_is_refused_by_its_directory(file):
    """Ten million zeros in ten thousand bytes: 1000 times, 400 are allowed."""
    saved(file, np.zeros((10**7, 1, 1), np.uint8), save=np.savez_compressed)

    assert "at most 400 times is expected" in refused(file, layers=1, top_k=1)


def test_a_log_larger_than_the_cap_is_refused_by_its_directory(file, monkeypatch):
    """The two arrays count together."""
    monkeypatch.setattr(archive, "LARGEST_BYTES", 300)

    assert "at most 300 are expected" in refused(saved(file))


def test_a_member_stops_where_its_directory_says(file):
    """A directory that claims less than is there makes the array too short."""
    saved(file)
    data = bytearray(file.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = (140).to_bytes(4, "little")
    file.write_bytes(data)

    assert "expert_ids" in refused(file)


@pytest.mark.parametrize(
    "members",
    [
        [],
        ["seq_lens.npy"],
        ["expert_ids.npy"],
        ["../expert_ids.npy", "seq_lens.npy"],
        ["expert_ids", "seq_lens"],
    ],
)
def test_both_arrays_are_expected_by_name(file, members):
    """What is there instead is listed."""
    zipped(file, [(name, npy(IDS)) for name in members])
    said = refused(file)

    assert "is expected in it exactly once" in said
    assert (members[0] if members else "nothing") in said


def test_an_array_stored_twice_is_refused(file):
    """Which of the two is meant, nobody knows."""
    member = ("expert_ids.npy", npy(IDS))
    with pytest.warns(UserWarning, match="Duplicate"):
        zipped(file, [member, member, ("seq_lens.npy", npy(LENGTHS))])

    assert "exactly once" in refused(file)


@pytest.mark.parametrize("path", ["", None, 5, ["log.npz"]])
def test_a_path_is_a_name(path):
    """Anything else is told what it is."""
    with pytest.raises(InputError, match=r"expected the name of an \.npz file"):
        Log(2, 16, 3, path=path)


def test_only_regular_files_are_opened(tmp_path):
    """A folder, a pipe, nothing: each is refused without being waited for."""
    os.mkfifo(tmp_path / "pipe.npz")

    assert "is no file" in refused(tmp_path)
    assert "is no file" in refused(tmp_path / "pipe.npz")
    assert "is no file" in refused(tmp_path / "missing.npz")


@pytest.mark.parametrize("name", ["\x1b[31m.npz", "a\x00b.npz", "\u202e.npz"])
def test_a_name_cannot_write_on_the_terminal(tmp_path, name):
    """Characters that no terminal should see are shown as escapes."""
    with pytest.raises(InputError) as caught:
        log_of(tmp_path / name)

    assert name not in str(caught.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_read_too(file, method):
    """They are zip's own."""
    zipped(file, [("expert_ids.npy", npy(IDS)), ("seq_lens.npy", npy(LENGTHS))], method)

    assert log_of(file).sequence_lengths.tolist() == [3, 1, 4]


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_file_is_a_log_or_is_refused(tmp_path_factory, data):
    """Bytes overwritten, cut off or doubled, in any method: no other error escapes."""
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    method = data.draw(
        st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
    )
    members = [("expert_ids.npy", npy(IDS)), ("seq_lens.npy", npy(LENGTHS))]
    whole = bytearray(zipped(path, members, method).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place : place + 1] = data.draw(st.binary(min_size=0, max_size=3))
    path.write_bytes(whole[: data.draw(st.integers(len(whole) // 2, len(whole)))])
    try:
        log = log_of(path)
    except InputError:
        return

    assert log.sequence_lengths.sum() == len(log.route(some_keys(log)))


def some_keys(log):
    count = int(log.sequence_lengths.sum())
    return TokenKeys(np.arange(count), np.zeros(count, int), np.arange(count))


@settings(max_examples=50)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(tmp_path_factory, content):
    """Random bytes are no log."""
    path = tmp_path_factory.getbasetemp() / "random.npz"
    path.write_bytes(content)

    refused(path)
