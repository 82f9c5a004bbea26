"""What single formats have of their own: torch's storages, ranks, warm-up, dense layers."""

import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.routing.logs import Hints, Limits, longrows, read_log
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.store import Spool
from moesim.routing.logs.tokens import repeated
from moesim.routing.logs.torchfile import open_torch
from routing.logs import samples
from routing.logs import writers as w

IDS, COUNTS = samples.IDS, samples.COUNTS
METER = Meter(Limits())


def tensor_of(path):
    with open_torch(path, METER) as file:
        return file.array(file.content["x"], "x")


NUMBERS = np.array([[0, 1, 2], [3, 100, 7]])


@pytest.mark.parametrize("write", [w.torch_zip, w.torch_legacy])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1"])
def test_every_storage_is_read_in_both_orders(write, order, kind, tmp_path):
    """Zip and legacy layout, little and big endian."""
    path = write(tmp_path / "a.pt", {"x": w.Tensor(NUMBERS.astype(kind))}, order)

    assert np.array_equal(tensor_of(path), NUMBERS)


@pytest.mark.parametrize("write", [w.torch_zip, w.torch_legacy])
def test_bools_and_bfloats_are_read(write, tmp_path):
    """As 0 and 1, and as singles."""
    flags = w.Tensor(np.array([True, False]))
    assert tensor_of(write(tmp_path / "a.pt", {"x": flags})).tolist() == [1, 0]
    halves = np.array([1.5, -2.0, 3.0e38], np.float32)
    upper = (halves.view(np.uint32) >> 16).astype(np.uint16)
    stored = w.Tensor(upper, kind="BFloat16Storage")
    again = tensor_of(write(tmp_path / "b.pt", {"x": stored}))
    assert again.tolist() == pytest.approx(halves.tolist(), rel=1e-2)


@pytest.mark.parametrize(
    ("dtype", "raw", "values"),
    [
        ("uint16", np.array([1, 65535], np.uint16), [1, 65535]),
        ("int64", np.array([-1, 5]), [-1, 5]),
        ("float8_e5m2", np.array([0x3C, 0xC0], np.uint8), [1.0, -2.0]),
        ("float8_e4m3fn", np.array([0x38, 0x7E, 0x01], np.uint8), [1.0, 448.0, 2**-9]),
    ],
)
def test_untyped_storages_take_their_type_from_the_tensor(dtype, raw, values, tmp_path):
    """The newer storages, with the narrow floats."""
    tensor = w.Tensor(raw, kind="UntypedStorage", dtype=dtype)

    assert tensor_of(w.torch_zip(tmp_path / "a.pt", {"x": tensor})).tolist() == values


def test_views_are_read_as_they_were_seen(tmp_path):
    """Offset and strides: a transposed window on a larger storage."""
    base = np.arange(24, dtype=np.int64)
    view = w.Tensor(base, shape=(3, 2), strides=(1, 6), offset=2)
    path = w.torch_zip(tmp_path / "a.pt", {"x": view})

    assert tensor_of(path).tolist() == [[2, 8], [3, 9], [4, 10]]


@pytest.mark.parametrize(
    "window",
    [
        {"shape": (3, 9), "strides": (1, 6)},
        {"shape": (25,), "strides": (1,)},
        {"shape": (2,), "strides": (1,), "offset": 23},
        {"shape": (2**40,), "strides": (0,)},
        {"shape": (2,), "strides": (-1,)},
    ],
)
def test_a_window_stays_inside_its_storage(window, tmp_path):
    """Neither beyond its end, nor larger than memory, nor backwards."""
    tensor = w.Tensor(np.arange(24), **window)
    with pytest.raises(InputError):
        tensor_of(w.torch_zip(tmp_path / "a.pt", {"x": tensor}))


PROGRAMS = [
    b"\x80\x02cposix\nsystem\n(X\x02\x00\x00\x00lstR.",
    b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
    b"\x80\x02c__builtin__\ngetattr\n)R.",
    b"\x80\x04\x8c\x05posix\x8c\x06system\x93)R.",
    b"\x80\x02ctorch\nload\n)R.",
    b"\x80\x02ctorch.storage\n_load_from_bytes\n)R.",
    b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    b"\x80\x02(cposix\nsystem\nX\x02\x00\x00\x00lsi.",
    b"\x80\x02}}b.",
    b"\x80\x02\x82\x01.",
    b"\x80\x02Pfoo\n.",
    b"\x80\x02.",
    b"\x80\x02(.",
    b"\x80\x02h\x05.",
    b"\x80\x02]" + b"q\x00h\x00a" * 50,
    b"",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_can_only_build_arrays(program, tmp_path):
    """It asks for more, or is damaged: refused before anything happens."""
    path = w.torch_zip(tmp_path / "a.pt", {}, program=program)
    with pytest.raises(InputError):
        read_log(path)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_any_program_is_refused(tmp_path_factory, program):
    """Random opcodes build no log."""
    path = tmp_path_factory.getbasetemp() / "program.pt"
    w.torch_zip(path, {}, program=b"\x80\x02" + program)
    with pytest.raises(InputError):
        read_log(path)


def test_ranks_that_saw_the_same_tokens_count_once(tmp_path):
    """Tensor-parallel attention shows every rank every token."""
    for per_token in (False, True):
        folder = tmp_path / f"ranks{per_token}"
        folder.mkdir()
        for rank in range(2):
            w.torch_zip(folder / f"r_{rank}.pt", samples.per_pass(IDS, rank, per_token))
        log = read_log(folder)

        assert np.array_equal(log.totals, COUNTS)
        assert any("one is used" in note for note in log.notes)


def test_ranks_are_joined_in_order(tmp_path):
    """Rank 10 comes after rank 2, each with its own tokens."""
    parts = [samples.ids_of(seed) for seed in (1, 2, 3)]
    for rank, ids in zip((0, 2, 10), parts, strict=True):
        w.megatron(tmp_path / f"rank{rank}.jsonl", ids, samples.LAYERS)
    log = read_log(tmp_path)

    assert np.array_equal(log.ids, np.concatenate(parts))
    assert log.origin.files == 3


def test_micro_batches_of_one_step_stay_apart(tmp_path):
    """A layer that comes again begins the next."""
    first = w.megatron(tmp_path / "a.jsonl", IDS, samples.LAYERS, steps=1)
    path = tmp_path / "b.jsonl"
    path.write_text(first.read_text() * 2)

    assert np.array_equal(read_log(path).ids, np.concatenate([IDS, IDS]))


def test_rows_of_one_token_may_lie_far_apart(tmp_path, monkeypatch):
    """Its choices come in different blocks, in the order of the file."""
    monkeypatch.setattr(longrows, "BLOCK_ROWS", 5)
    rows = [(t, n, e) for e in range(2) for n in range(3) for t in range(samples.T)]
    lines = [f"{t},{n},{IDS[t, n, e]}" for t, n, e in rows]
    (tmp_path / "a.csv").write_text("\n".join(["token,layer,expert", *lines]))

    assert np.array_equal(read_log(tmp_path / "a.csv").ids, IDS)


def test_ranks_that_are_summed_say_so(tmp_path):
    """Who reads the log knows that it is of all ranks."""
    log = read_log(samples.sglang_ranks(tmp_path).path)

    assert "summed 2 files, one of each rank" in log.notes


def test_megatron_mtp_layers_have_names_of_their_own(tmp_path):
    """The block that predicts several tokens is no decoder layer."""
    log = read_log(w.megatron(tmp_path / "a.jsonl", IDS, samples.LAYERS, mtp=6))

    assert log.layers == ("3", "4", "mtp0.6")


def test_a_full_buffer_is_rotated_and_says_so(tmp_path):
    """Nobody knows where it begins; no step is dropped."""
    whole = np.broadcast_to(COUNTS, (4, 3, samples.E)).astype(np.int32)
    content = {"rank": 0, "logical_count": w.Tensor(whole)}
    log = read_log(w.torch_zip(tmp_path / "a.pt", content))

    assert log.steps == 4
    assert any("may begin anywhere" in note for note in log.notes)


def test_physical_ids_outside_the_placement_are_refused(tmp_path):
    """Before they index it."""
    content = samples.per_pass(IDS, per_token=True)
    topk = content["records"][0]["topk_ids_of_layer"].array
    topk[4, 3, 0] = 10
    with pytest.raises(InputError, match=r"physical expert 10; 0 to 9 are placed"):
        read_log(w.torch_zip(tmp_path / "a.pt", content))


def test_raw_files_win_over_counts_beside_them(tmp_path):
    """A folder with both has every token once."""
    samples.trtllm_one(tmp_path)
    samples.trtllm_raw(tmp_path)
    log = read_log(tmp_path)

    assert np.array_equal(log.ids, IDS)


def test_a_profiling_pass_is_dropped_and_said(tmp_path):
    """A thousand tokens alike in every layer are no traffic; a hundred may be."""
    path = w.vllm_patch(
        tmp_path / "a.jsonl", IDS, [0, 1, 2], samples.LENGTHS, dummy=1100
    )
    log = read_log(path)
    assert any("dropped the first 1101 tokens" in note for note in log.notes)
    assert np.array_equal(log.ids, IDS[1:])
    assert log.lengths.tolist() == [9, 1, 13]
    assert read_log(path, hints=Hints(warmup=0)).steps == 1100 + samples.T
    assert np.array_equal(read_log(path, hints=Hints(warmup=1100)).ids, IDS)

    short = w.vllm_patch(
        tmp_path / "b.jsonl", IDS, [0, 1, 2], samples.LENGTHS, dummy=100
    )
    log = read_log(short)
    assert log.steps == 100 + samples.T
    assert any("warmup=101" in note for note in log.notes)


def test_token_numbers_that_begin_again_are_new_sequences(tmp_path):
    """Loggers without request ids name every request alike."""
    path = w.vllm_patch(
        tmp_path / "a.jsonl", IDS, [0, 1, 2], samples.LENGTHS, requests=["x"] * 3
    )
    log = read_log(path)

    assert np.array_equal(log.ids, IDS)
    assert log.lengths.tolist() == samples.LENGTHS


def test_steps_can_be_dropped_on_request(tmp_path):
    """Where there are no tokens, warm-up counts steps."""
    sample = samples.sglang_stat(tmp_path)
    log = read_log(sample.path, hints=Hints(warmup=1))

    assert np.array_equal(log.counts, sample.counts[1:])


def test_the_attention_mask_takes_padding_out(tmp_path):
    """And tells where sequences end."""
    logits = np.random.default_rng(0).random((3, 8, samples.E)).astype(np.float32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    np.savez(tmp_path / "a.npz", *logits, attention_mask=mask, top_k=np.array(2))
    log = read_log(tmp_path / "a.npz")
    wanted = np.argsort(-logits, axis=2)[:, :, :2].transpose(1, 0, 2)[mask.ravel() == 1]

    assert np.array_equal(log.ids, wanted)
    assert log.lengths.tolist() == [3, 2]


def test_fortran_order_and_wide_ids(tmp_path):
    """The array is the same; ids beyond 255 widen the type, once they come."""
    ids = samples.ids_of(3, tokens=40, experts=300)
    np.savez(tmp_path / "a.npz", expert_ids=np.asfortranarray(ids))
    log = read_log(tmp_path / "a.npz")

    assert np.array_equal(log.ids, ids)
    assert log.ids.dtype == np.uint16


def test_fractions_of_loads_stay(tmp_path):
    """EPLB's weights may be means; whole ones become integers."""
    np.save(tmp_path / "a.npy", COUNTS / 4)
    log = read_log(tmp_path / "a.npy")

    assert np.array_equal(log.counts[0], COUNTS / 4)


def test_gguf_of_version_two(tmp_path):
    """The older version has the same layout."""
    path = w.imatrix(tmp_path / "a.gguf", COUNTS, samples.LAYERS, version=2)
    assert np.array_equal(read_log(path).counts[0], COUNTS)
    path.write_bytes(b"GGUF" + struct.pack("<I", 9) + path.read_bytes()[8:])
    with pytest.raises(InputError, match="version 9"):
        read_log(path)


@given(st.integers(0, 9), st.integers(1, 3), st.integers(1, 20), st.integers(0, 99))
def test_repeated_experts_are_found_like_by_counting(tokens, layers, choices, seed):
    """Whatever k: a token has a repetition if its set is smaller."""
    block = np.random.default_rng(seed).integers(0, 30, (tokens, layers, choices))
    wanted = [[len(set(row)) < choices for row in token] for token in block.tolist()]

    assert repeated(block).tolist() == wanted


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 70_000), min_size=2, max_size=9), max_size=9),
    st.integers(0, 60),
)
def test_spooled_rows_come_back_whatever_the_cap(blocks, cap):
    """In memory or on disk, narrow or wide, in any pieces."""
    spool = Spool((), cap)
    for block in blocks:
        spool.append(np.array(block))
    rows = spool.finish()
    whole = [value for block in blocks for value in block]

    assert rows.array().tolist() == whole
    assert np.concatenate([*rows.blocks(3), []]).tolist() == whole
    assert rows.after(min(1, len(whole))).array().tolist() == whole[1:]


FORMS = [
    samples.npz,
    samples.csv_wide,
    samples.vllm_patch,
    samples.parquet_long,
    samples.megatron,
]


@pytest.mark.parametrize("make", FORMS, ids=lambda m: m.__name__)
def test_a_small_memory_changes_nothing(make, tmp_path):
    """Tokens that do not fit lie on disk, and are the same."""
    sample = make(tmp_path)
    log = read_log(sample.path, limits=Limits(memory_bytes=20_000), hints=sample.hints)

    assert np.array_equal(log.ids, sample.ids)


MEASURE = """
import resource, sys
from moesim.routing.logs import Limits, read_log
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
log = read_log(sys.argv[1], limits=Limits(memory_bytes=int(sys.argv[2])))
rows = sum(len(block) for block in log.blocks())
print(rows, (peak() - before) * 1024, int(log.tokens.on_disk))
"""


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_a_log_ten_times_the_memory_limit_is_read(form, tmp_path):
    """Its tokens go by in pieces: the process grows by a few blocks only."""
    ids = np.tile(samples.ids_of(4, 1000, 8, 4, 64), (2048, 1, 1)).astype(np.uint8)
    if form == "npz":
        path = tmp_path / "a.npz"
        np.savez(path, expert_ids=ids)
    else:
        path, ids = tmp_path / "a.csv", ids[:40_000]
        token = np.repeat(np.arange(len(ids)), 8)
        layer = np.tile(np.arange(8), len(ids))
        rows = np.column_stack([token, layer, ids.reshape(-1, 4)])
        names = "token,layer,expert_0,expert_1,expert_2,expert_3"
        np.savetxt(path, rows, "%d", ",", header=names, comments="")
    limit = path.stat().st_size // 10
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    tokens, grown, on_disk = map(int, done.stdout.split())

    assert tokens == len(ids)
    assert grown < 40 * 2**20
    assert on_disk or form == "csv"
