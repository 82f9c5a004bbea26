"""Broken and hostile logs: each is refused with a reason, at its place, and none runs.

Numbers are those of the list of bad input that the project keeps to.
"""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moesim.errors import InputError
from moesim.routing.logs import Hints, Limits, read_log, write_log
from routing.logs import samples
from routing.logs import writers as w

IDS = samples.IDS
HINTS = Hints(layers=samples.L, top_k=samples.K)
ROUTE = {"type": "route", "req_id": "a", "token_idx": 0, "layer": 0, "topk_ids": [1, 2]}


def text(name, content):
    def write(d):
        path = d / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def csv(*lines, header="layer,expert,count"):
    return text("a.csv", "\n".join([header, *lines, ""]))


def routes(*records):
    return lambda d: w.jsonl(d / "a.jsonl", [ROUTE | r for r in records])


def array(values, **more):
    def write(d):
        np.savez(d / "a.npz", expert_ids=values, **more)
        return d / "a.npz"

    return write


def vector(values):
    def write(d):
        np.save(d / "a.npy", values)
        return d / "a.npy"

    return write


def header(shape, dtype="|u1"):
    def write(d):
        line = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n"
        size = len(line).to_bytes(2, "little")
        (d / "a.npy").write_bytes(
            b"\x93NUMPY\x01\x00" + size + line.encode() + b"\0" * 48
        )
        return d / "a.npy"

    return write


def zipped(*members, method=zipfile.ZIP_DEFLATED):
    def write(d):
        with zipfile.ZipFile(d / "a.npz", "w", method) as archive:
            for name, data in members:
                archive.writestr(name, data)
        return d / "a.npz"

    return write


def tensors(table, data=b"\0" * 64):
    def write(d):
        raw = table if isinstance(table, bytes) else json.dumps(table).encode()
        (d / "a.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)
        return d / "a.safetensors"

    return write


def entry(start, end, dtype="I64", shape=None):
    shape = [(end - start) // 8] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def table(**columns):
    def write(d):
        pq.write_table(pa.table(columns), d / "a.parquet")
        return d / "a.parquet"

    return write


def cut(make, size):
    def write(d):
        path = make(d).path
        path.write_bytes(path.read_bytes()[:size])
        return path

    return write


def renamed(make, name):
    return lambda d: make(d).path.rename(d / name)


def yaml(content):
    return text("a.yaml", content)


def pickled(value):
    return lambda d: w.torch_zip(d / "a.pt", {}, program=pickle.dumps(value, 2))


def fifo(d):
    os.mkfifo(d / "pipe.csv")
    return d / "pipe.csv"


def flipped_page(d):
    path = write_log(read_log(samples.npz(d).path), d / "a.parquet")
    whole = bytearray(path.read_bytes())
    whole[40] ^= 1
    path.write_bytes(whole)
    return path


def bomb(d):
    np.savez_compressed(d / "a.npz", expert_ids=np.zeros((10**7, 1, 1), np.uint8))
    return d / "a.npz"


def parquet_bomb(d):
    zeros = np.zeros(5_000_000, np.int64)
    content = pa.table({"layer": zeros, "expert": zeros})
    options = {"compression": "zstd", "use_dictionary": False}
    pq.write_table(content, d / "a.parquet", **options)
    return d / "a.parquet"


class Attack:
    raised = False

    def __reduce__(self):
        return Attack.strike, ()

    @staticmethod
    def strike():
        Attack.raised = True


class System:
    def __reduce__(self):
        return os.system, ("touch /tmp/should-never-exist",)


TWICE = IDS.copy()
TWICE[5, 1] = [3, 3]
NEGATIVE = IDS.copy()
NEGATIVE[5, 1, 0] = -1
OBJECTS = io.BytesIO()
np.save(OBJECTS, np.array([Attack()], object), allow_pickle=True)
DEEP = "[" * 100_000
ALIASES = "num_slots: 2\ninitial_global_assignments:\n  3: &a [0, 1]\n  4: *a\n"
PLACE = "num_slots: 2\ninitial_global_assignments:\n  3: [0, 1]\n"

CASES = [
    ("8 negative count", csv("0,1,-4"), "whole number of 0 or more; got '-4'"),
    (
        "8 count beyond 2**63",
        csv("0,1,99999999999999999999"),
        "expected a whole number",
    ),
    ("9 true for an id", routes({"topk_ids": [True, 2]}), "topk_ids holds True"),
    (
        "10 endless integer",
        text("a.json", f'{{"weight": [[{"9" * 5000}]]}}'),
        "no JSON",
    ),
    ("11 yaml alias", yaml(ALIASES), "anchors and aliases"),
    ("13 recursive anchor", yaml("num_slots: &a [*a]"), "anchors and aliases"),
    ("14 yaml depth", yaml("num_slots: " + "[" * 2000), "nested deeper than 50"),
    ("14 json depth", text("a.json", DEEP), "nested far deeper"),
    ("15 yaml tag", yaml("num_slots: !!python/object/apply:os.system [x]"), "the tag"),
    ("16 empty", text("a.csv", ""), "is empty"),
    ("16 list at the top", yaml("- num_slots: 1"), "holds no mapping"),
    ("16 two documents", yaml(PLACE + "---\na: 1\n"), "two documents"),
    ("4 duplicate key", yaml(PLACE + "num_slots: 2\n"), "stands twice"),
    ("5 unknown key", yaml(PLACE + "bandwith: 2\n"), "unknown key 'bandwith'"),
    ("17 utf-16", text("a.csv", "layer,expert\n0,1\n".encode("utf-16")), "UTF-16"),
    ("17 latin-1", text("a.jsonl", b'{"type": "r\xe9"}\n'), "not UTF-8"),
    ("17 nul", text("a.csv", "layer,expert\n0,\x001\n"), "no text"),
    ("17 lone cr", text("a.csv", "layer,expert\n0,1\r0,2\n"), "expected"),
    ("19 pipe", fifo, "no regular file"),
    ("19 folder of nothing", lambda d: (d / "x").mkdir() or d / "x", "without files"),
    ("19 missing", lambda d: d / "missing.npz", "cannot be read"),
    ("19 nul in the name", lambda d: d / "a\x00.npz", "cannot be read"),
    ("20 json nan", text("a.json", '{"weight": [[NaN, 1]]}'), "NaN is no JSON"),
    ("20 json 1e999", text("a.json", '{"weight": [[1e999, 1]]}'), "holds inf"),
    ("20 json duplicate", text("a.json", '{"weight": [], "weight": []}'), "twice"),
    ("20 ragged", text("a.json", '{"weight": [[1, 2], [3]]}'), "lists of 1 and of 2"),
    (
        "21 blank line",
        text("a.jsonl", json.dumps(ROUTE) + "\n\n" + json.dumps(ROUTE)),
        "blank",
    ),
    (
        "21 cut last line",
        text("a.jsonl", json.dumps(ROUTE) + '\n{"type": "rou'),
        "cut off",
    ),
    ("21 mixed schema", routes({}, {"type": "other"}), "type route is expected"),
    (
        "22 object array",
        zipped(("expert_ids.npy", OBJECTS.getvalue())),
        "nothing is unpickled",
    ),
    ("22 raw pickle", text("a.npz", pickle.dumps(Attack(), 4)), "bare pickle"),
    ("22 raw pickle as pt", text("a.pt", pickle.dumps(1, 2)), "bare pickle"),
    ("22 pickle in a pt", pickled(Attack()), "nothing was run"),
    ("22 os.system in a pt", pickled(System()), "asks for posix.system, and nothing"),
    ("23 1e12 elements", header("(1000000000000, 2, 3)"), "claims shape"),
    ("24 negative shape", header("(-8, 2, -3)"), "claims shape"),
    ("24 overflowing shape", header(f"({2**63}, {2**63}, 3)"), "claims shape"),
    ("24 truncated", cut(samples.npy, 300), "claims shape"),
    ("25 zip bomb", bomb, "at most 400 times"),
    ("26 duplicate member", zipped(("a.npy", b""), ("a.npy", b"")), "Duplicate|twice"),
    (
        "26 path in a member",
        zipped(("../../x.npy", w.npy_bytes(IDS))),
        "leaves the archive",
    ),
    (
        "26 lzma",
        zipped(("expert_ids.npy", b"0"), method=zipfile.ZIP_LZMA),
        "in a way that",
    ),
    ("27 float ids", array(IDS + 0.7), "whole numbers are expected"),
    ("27 complex", array(IDS + 1j), "plain numbers"),
    ("27 text", array(IDS.astype("U2")), "plain numbers"),
    ("27 id beyond two bytes", array(IDS + 65536), "ids from 0 to 65535"),
    (
        "28 header 2**60",
        text("a.safetensors", (2**60).to_bytes(8, "little") + b"{}"),
        "its table claims",
    ),
    (
        "28 header beyond the file",
        tensors(b"{" + b" " * 99, b"")
        and text("a.safetensors", (10**6).to_bytes(8, "little") + b"{}"),
        "claims 1000000 bytes",
    ),
    ("28 overlap", tensors({"0_1": entry(0, 64), "0_2": entry(0, 64)}), "overlap"),
    ("28 hole", tensors({"0_1": entry(0, 32), "0_2": entry(40, 64)}), "hole"),
    ("28 shape mismatch", tensors({"0_1": entry(0, 64, shape=[9])}), "does not fit"),
    (
        "28 overflow",
        tensors({"0_1": entry(0, 64, shape=[2**40, 2**40])}),
        "does not fit",
    ),
    ("28 truncated", tensors({"0_1": entry(0, 128)}), "does not fit"),
    ("28 duplicate", tensors(b'{"0_1":{},"0_1":{}}'), "twice"),
    ("28 bf16", tensors({"0_1": entry(0, 64, "BF16", [32])}), "is BF16"),
    ("28 trailing bytes", tensors({"0_1": entry(0, 56)}), "end at byte"),
    ("29 truncated parquet", cut(samples.parquet_long, -20), "as parquet"),
    ("30 flipped byte in a page", flipped_page, "as parquet"),
    ("31 parquet bomb", parquet_bomb, "inflates"),
    ("32 nulls", table(layer=[0, None], expert=[1, 2]), "empty values"),
    ("32 ragged lists", table(layer_0=[[1, 2], [3]]), "lists of 1 to 2"),
    ("32 floats", table(layer=[0.0], expert=[1.5]), "whole numbers are expected"),
    ("32 text", table(layer=["0"], expert=["1"]), "whole numbers are expected"),
    ("33 NA", csv("0,NA,1"), "got 'NA'"),
    ("33 null", csv("0,null,1"), "got 'null'"),
    ("34 row longer than the header", csv("0,1,2,3"), "expected 3 fields; got 4"),
    ("35 missing", csv("0,,1"), "got ''"),
    ("35 thousands", csv('0,1,"1,000"'), "expected 3 fields"),
    (
        "35 semicolons",
        text("a.csv", "layer;expert;count\n0;1;2\n"),
        "separated by commas",
    ),
    (
        "36 duplicate header",
        csv(header="layer,layer,count"),
        "two columns are the layer",
    ),
    ("36 no header", text("a.csv", "0,1,2\n1,2,3\n"), "unknown column '0'"),
    ("36 header only", csv(), "no rows"),
    ("36 unterminated quote", csv('0,"1,2'), "got '\"1'"),
    (
        "5 unknown column",
        csv("0,1", header="layer,expret"),
        "unknown column 'expret'; did you mean 'expert'",
    ),
    ("37 1e400", csv("0,1,1e400"), "got '1e400'"),
    ("37 inf load", vector(np.array([[np.inf, 1]])), "is inf"),
    ("37 nan load", vector(np.array([[np.nan, 1]])), "is nan"),
    ("39 id -1", array(NEGATIVE), "token 5, layer 1: experts"),
    ("40 id 2**40", routes({"topk_ids": [2**40, 1]}), "topk_ids holds 1099511627776"),
    ("40 id 2**40 in csv", csv("0,1099511627776,1"), "out of range"),
    (
        "41 twice in one token",
        array(TWICE),
        "token 5, layer 1: experts .3, 3.; an expert",
    ),
    (
        "41 k of the trace",
        routes({}, {"token_idx": 1, "topk_ids": [1]}),
        "has 1 experts",
    ),
    ("43 layer missing", routes({}, {"layer": 1}, {"token_idx": 1}), "lacks a layer"),
    (
        "43 layer repeated",
        csv("0,0,1", "0,0,2", "1,0,1", header="token,layer,expert"),
        "lacks a layer",
    ),
    ("44 lengths disagree", array(IDS, seq_lens=[20, 3]), "sums to 23; there are 24"),
    ("44 negative length", array(IDS, seq_lens=[30, -6]), "lengths are 1 to 24"),
    ("46 no tokens", array(IDS[:0]), "no routed tokens"),
    ("46 no counts", vector(np.zeros((2, 3))), "counts no tokens"),
    (
        "48 expert without a slot",
        text("a.json", '{"phy2log": [[0, 2]]}'),
        "expert 1 has no slot",
    ),
    (
        "48 slots disagree",
        yaml(PLACE.replace("slots: 2", "slots: 3")),
        "num_slots is 3",
    ),
    ("53 gzip", text("a.csv", b"\x1f\x8b\x08\x00"), "is gzip"),
    (
        "53 npz called npy",
        renamed(samples.npz, "b.npy"),
        "is called .npy but holds npz",
    ),
    ("53 npy called pt", renamed(samples.npy, "b.pt"), "is called .pt but holds npy"),
    ("55 unicode digits", csv("0,\u0661,1"), "whole number of 0 or more"),
    ("55 underscores", csv("0,1_0,1"), "got '1_0'"),
    (
        "another number of bytes",
        text("a.b64", "AAAAAAAAAAAAAAAA"),
        "no int32|no whole number|needs|is no",
    ),
]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("write", "said"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bad_input_is_refused_with_a_reason(write, said, tmp_path):
    """What was found, where, and what was expected; nothing ran, nothing was guessed."""
    Attack.raised = False
    path = write(tmp_path)
    with pytest.raises(InputError, match=said) as caught:
        read_log(
            path,
            limits=Limits(memory_bytes=1 << 28),
            hints=HINTS if path.suffix == ".b64" else None,
        )
    for problem in caught.value.problems:
        assert problem.where
        assert str(problem).isascii()
        assert str(problem).isprintable()
        assert len(str(problem)) < 700

    assert not Attack.raised
    assert len(caught.value.problems) <= 20


def test_a_row_is_named_by_its_line(tmp_path):
    """Line 3 of a CSV, line 2 of JSON lines."""
    with pytest.raises(InputError) as caught:
        read_log(csv("0,1,2", "0,x,2", "0,2,y")(tmp_path))
    assert [p.line for p in caught.value.problems] == [3, 4]
    with pytest.raises(InputError) as caught:
        read_log(routes({}, {"token_idx": -1})(tmp_path))
    assert caught.value.problems[0].line == 2


def test_the_names_of_files_and_columns_cannot_steer_a_terminal(tmp_path):
    """Escapes and marks are spelt out."""
    path = tmp_path / "\x1b[31m\u202e.csv"
    path.write_text("layer,\x1b[31m\n")
    with pytest.raises(InputError) as caught:
        read_log(path)

    assert str(caught.value).isprintable()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """Its log and its hash would not belong together."""
    path = samples.npz(tmp_path).path
    from moesim.routing.logs import read

    def slow(source):
        path.write_bytes(path.read_bytes() + b"\0")
        return "0"

    monkeypatch.setattr(read, "digest", slow)
    with pytest.raises(InputError, match="changed while it was read"):
        read_log(path)


LIMITED = [
    (samples.npz, Limits(file_bytes=100), "at most 100 are read"),
    (samples.npz, Limits(seconds=-1), "time limit"),
    (samples.vllm_nested, Limits(memory_bytes=2000), "document of|longer than"),
    (samples.vllm_base64, Limits(line_bytes=100), "longer than 100|document"),
    (samples.sglang_stat, Limits(memory_bytes=500), "memory"),
    (samples.eplb_load, Limits(memory_bytes=50), "bytes of memory"),
    (samples.trtllm_placement, Limits(depth=2), "nested deeper than 2"),
    (samples.imatrix, Limits(memory_bytes=100), "bytes of memory"),
]


@pytest.mark.parametrize(("make", "limits", "said"), LIMITED)
def test_limits_are_kept(make, limits, said, tmp_path):
    """Size, time, memory, line and depth: beyond them a log is refused."""
    sample = make(tmp_path)
    with pytest.raises(InputError, match=said):
        read_log(sample.path, limits=limits, hints=sample.hints)
