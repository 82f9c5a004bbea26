"""Trace files are read exactly, and hostile ones refused with line and reason."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.workload import traces
from moesim.workload.traces import Trace, read_trace

HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
FIRST = b"2023-11-16 18:17:03.9799600,4808,10\n"
SECOND = b"2023-11-16 18:17:04.0319600,3180,8\n"
AZURE = HEAD + FIRST + SECOND
LINE = (
    b'{"timestamp": 27, "input_length": 6758, "output_length": 500, "hash_ids": [0]}\n'
)
NEXT = b'{"timestamp": 3030.5, "input_length": 7, "output_length": 1}\n'
MOONCAKE = LINE + NEXT


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "trace.txt"
        path.write_bytes(data)
        return path

    return write


def problems(path, form="auto"):
    with pytest.raises(InputError) as caught:
        read_trace(path, form)
    assert all(problem.where == str(path) for problem in caught.value.problems)
    return caught.value.problems


def columns(trace):
    return [
        trace.arrival_s.tolist(),
        trace.input_tokens.tolist(),
        trace.output_tokens.tolist(),
    ]


def test_azure_times_are_exact_and_start_at_zero(write):
    """100 ns stamps survive: the gap is 52 ms to the last digit."""
    assert columns(read_trace(write(AZURE))) == [[0.0, 0.052], [4808, 3180], [10, 8]]


def test_mooncake_times_are_milliseconds(write):
    assert columns(read_trace(write(MOONCAKE))) == [[0.0, 3.0035], [6758, 7], [500, 1]]


@pytest.mark.parametrize("data", [AZURE, MOONCAKE], ids=["azure", "mooncake"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.rstrip(b"\n"),
        lambda data: data + b"\n \n\r\n",
    ],
    ids=["byte order mark", "CRLF", "no last newline", "blank lines at the end"],
)
def test_harmless_differences_change_nothing(write, data, change):
    plain = columns(read_trace(write(data)))

    assert columns(read_trace(write(change(data)))) == plain


def test_columns_are_found_by_name(write):
    data = b"GeneratedTokens,x,TIMESTAMP,ContextTokens\n8,?,2023-11-16 18:17:04,3180\n"

    assert columns(read_trace(write(data))) == [[0.0], [3180], [8]]


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("2024-05-10 00:00:01", 1.0),
        ("2024-05-10T00:00:01Z", 1.0),
        ("2024-05-10 00:00:00.000000001", 1e-9),
        ("2024-05-10 01:00:01+01:00", 1.0),
        ("2024-05-09 23:30:01-0030", 1.0),
        ("2024-05-11 00:00:00", 86_400.0),
    ],
)
def test_times_with_fractions_and_zones(write, stamp, seconds):
    data = HEAD + f"2024-05-10 00:00:00,1,1\n{stamp},1,1\n".encode()

    assert read_trace(write(data)).arrival_s.tolist() == [0.0, seconds]


def test_equal_times_keep_the_order_of_the_file(write):
    data = HEAD + b"".join(b"2024-05-10 00:00:00,%d,1\n" % n for n in (3, 1, 2))

    assert columns(read_trace(write(data))) == [[0, 0, 0], [3, 1, 2], [1, 1, 1]]


def test_a_format_can_be_forced(write):
    assert problems(write(MOONCAKE), "azure")[0].line == 1
    assert "not a JSON object" in problems(write(AZURE), "mooncake")[0].message


def test_an_unknown_format_gets_the_nearest_name(write):
    (problem,) = problems(write(AZURE), "mooncak")

    assert problem.key == "format"
    assert "did you mean 'mooncake'?" in problem.message


def test_what_is_neither_format_is_refused(write):
    assert "neither CSV nor JSON" in problems(write(b"hello\n"))[0].message


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b" \r\n"])
def test_an_empty_file_is_refused(write, data):
    assert problems(write(data))[0].message == "the file is empty"


def test_a_header_alone_is_refused(write):
    assert "at least one request" in problems(write(HEAD))[0].message


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"TIMESTAMP,ContextTokens\n", "GeneratedTokens is missing"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens,TIMESTAMP\n", "appears 2 times"),
        (b"", "expected the header TIMESTAMP,ContextTokens,GeneratedTokens"),
    ],
)
def test_a_wrong_header_is_refused(write, head, message):
    found = problems(write(head + FIRST))

    assert message in found[0].message
    assert {problem.line for problem in found} == {1}


def test_a_cut_last_line_is_named_as_such(write):
    assert "is the file cut off?" in problems(write(MOONCAKE[:-30]))[0].message


def test_every_fault_of_a_row_is_told(write):
    found = problems(write(HEAD + b"yesterday,0,-1\n"))

    keys = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
    assert [problem.key for problem in found] == keys


def test_twenty_problems_are_enough(write):
    found = problems(write(HEAD + b"?,1,1\n" * 50))

    assert [problem.line for problem in found] == list(range(2, 22))


@pytest.mark.parametrize("data", [HEAD + SECOND + FIRST, NEXT + LINE])
def test_times_that_go_back_are_refused(write, data):
    (problem,) = problems(write(data))

    assert problem.line == data.count(b"\n")
    assert "time goes back by" in problem.message


def test_every_late_row_is_a_problem(write):
    """Each is measured against the latest row before it."""
    rows = [b"2024-05-10 00:00:0%d,1,1\n" % second for second in (5, 2, 4, 6)]

    assert [p.line for p in problems(write(HEAD + b"".join(rows)))] == [3, 4]


def test_a_trace_of_years_is_a_wrong_unit(write):
    data = HEAD + b"2001-01-01 00:00:00,1,1\n2024-01-01 00:00:00,1,1\n"

    assert "is the unit of its times right?" in problems(write(data))[0].message


def test_bytes_that_are_not_utf8_are_refused(write):
    (problem,) = problems(write(AZURE + b"2024\xff"))

    assert (problem.line, problem.column) == (4, 5)
    assert "not UTF-8: byte 0xff" in problem.message


def test_utf16_is_refused(write):
    assert "not UTF-8" in problems(write(AZURE.decode().encode("utf-16")))[0].message


def test_a_huge_line_is_refused_unread(write):
    """Whether or not it would have been one."""
    (problem,) = problems(write(AZURE + b"9" * (1 << 20) + b",1,1\n"))

    assert problem.line == 4
    assert "longer than 1048576 bytes" in problem.message


def test_a_huge_file_is_refused_unread(write, monkeypatch):
    monkeypatch.setattr(traces, "LARGEST_FILE", len(AZURE) - 1)

    assert "larger than" in problems(write(AZURE))[0].message


def test_a_missing_file_gets_the_nearest_name(write):
    path = write(AZURE).with_name("trase.txt")

    assert "did you mean 'trace.txt'?" in problems(path)[0].message


def test_a_folder_is_refused(tmp_path):
    assert "expected a regular file" in problems(tmp_path)[0].message


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)

    assert "expected a regular file" in problems(path)[0].message


def test_a_name_with_nul_is_refused():
    assert "cannot be read" in problems(Path("a\0b"))[0].message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_refused(write):
    path = write(AZURE)
    path.chmod(0)

    assert "cannot be read" in problems(path)[0].message


@st.composite
def damaged(draw):
    """A valid file with a stretch cut out, doubled, or overwritten."""
    data = draw(st.sampled_from([AZURE, MOONCAKE]))
    start = draw(st.integers(0, len(data)))
    stop = draw(st.integers(start, len(data)))
    middle = draw(st.one_of(st.binary(max_size=8), st.just(data[start:stop] * 2)))
    return data[:start] + middle + data[stop:]


@given(data=st.one_of(st.binary(max_size=200), damaged()))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_trace_or_an_input_error(tmp_path_factory, data):
    """Nothing else is ever raised, and what is returned keeps the contract."""
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_bytes(data)
    try:
        trace = read_trace(path)
    except InputError:
        return

    assert len(trace) >= 1
    assert trace.arrival_s[0] == 0
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert min(trace.input_tokens.min(), trace.output_tokens.min()) >= 1


def test_a_trace_can_be_cut_and_paced():
    trace = Trace(np.array([0.0, 1.0, 4.0]), np.array([5, 6, 7]), np.array([1, 2, 3]))

    assert trace.mean_rate == 0.5
    assert columns(trace.head(2)) == [[0.0, 1.0], [5, 6], [1, 2]]
    assert trace.sped_up(4.0).arrival_s.tolist() == [0.0, 0.25, 1.0]
    assert trace.at_rate(2.0).arrival_s.tolist() == [0.0, 0.25, 1.0]
    assert trace.at_rate(np.inf).arrival_s.tolist() == [0.0, 0.0, 0.0]


def test_one_instant_cannot_be_given_a_rate():
    trace = Trace(np.zeros(2), np.ones(2, int), np.ones(2, int))
    with pytest.raises(InputError, match="at one instant"):
        trace.at_rate(3.0)


DATA = os.environ.get("MOESIM_DATA")
REAL = {
    "AzureLLMInferenceTrace_code.csv": (8819, 2047.85, 27.88, 2.57),
    "AzureLLMInferenceTrace_conv.csv": (19366, 1154.70, 211.13, 5.53),
    "mooncake_conversation_trace.jsonl": (12031, 12035.06, 342.62, 3.40),
}


@pytest.mark.skipif(not DATA, reason="MOESIM_DATA names no folder of real traces")
@pytest.mark.parametrize("name", REAL)
def test_real_traces_are_read_whole(name):
    """Rows and means as their publishers count them."""
    rows, inputs, outputs, rate = REAL[name]
    trace = read_trace(Path(DATA) / "traces" / name)

    assert len(trace) == rows
    assert trace.input_tokens.mean() == pytest.approx(inputs, abs=0.01)
    assert trace.output_tokens.mean() == pytest.approx(outputs, abs=0.01)
    assert trace.mean_rate == pytest.approx(rate, abs=0.005)
