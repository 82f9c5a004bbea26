"""Files of placements and loads: every kind says the same, and bad ones say why not."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.policy.place.files import read_loads, read_placement
from moesim.spec.placement import round_robin

SLOTS = [[0, 1, 2, 0], [2, 1, 0, 2]]


def write(folder, kind, rows, name="phy2log"):
    path = folder / f"file{kind}"
    if kind == ".npz":
        np.savez(path, **{name: np.array(rows, np.int32)})
    elif kind == ".npy":
        np.save(path, np.array(rows, np.uint16))
    elif kind == ".csv":
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    else:
        path.write_text(json.dumps({name: rows}) + "\n")
    return path


@pytest.mark.parametrize("kind", [".npz", ".npy", ".json", ".jsonl", ".csv"])
def test_every_kind_of_file_holds_the_same(tmp_path, kind):
    path = write(tmp_path, kind, SLOTS)

    assert read_placement(path, 2, 3, 2).phy2log.tolist() == SLOTS
    loads = write(tmp_path, kind, [[5, 0, 7], [1, 2, 3]], "loads")
    assert read_loads(loads, 2, 3).tolist() == [[5, 0, 7], [1, 2, 3]]


@pytest.mark.parametrize("kind", [".npz", ".json"])
def test_the_names_of_others_are_known(tmp_path, kind):
    """SGLang's map, and its counts in windows, which are added up."""
    path = write(tmp_path, kind, SLOTS, "physical_to_logical_map")
    assert read_placement(path, 2, 3, 2).phy2log.tolist() == SLOTS

    windows = [[[1, 0, 2], [0, 1, 0]], [[1, 1, 1], [4, 4, 4]]]
    path = write(tmp_path, kind, windows, "logical_count")
    assert read_loads(path, 2, 3).tolist() == [[2, 1, 3], [4, 5, 4]]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.json", '{"phy2log": [[0, 1, 2, 3]]}', "1 layers, the model has 2"),
        ("a.json", '{"phy2log": [[0, 1, 1, 0], [2, 1, 0, 2]]}', "holds expert 2"),
        ("a.json", '{"phy2log": [[0, 1, 2], [2, 1, 0]]}', "divided evenly among 2"),
        ("a.json", '{"phy2log": [[0, 1, 2, 9], [2, 1, 0, 0]]}', "experts are 0 to 2"),
        ("a.json", '{"phy2log": [[0, 1, 2, -1], [2, 1, 0, 0]]}', "expert -1"),
        ("a.json", '{"phy2log": [[0, 1], [2]]}', "different lengths"),
        ("a.json", '{"phy2log": [[0.5, 1], [2, 0]]}', "whole numbers"),
        ("a.json", '{"phy2log": [[true, false]]}', "whole numbers"),
        ("a.json", '{"phy2log": 3}', "2 axes"),
        ("a.json", '{"phy2log": []}', "whole numbers"),
        ("a.json", '{"phy2log": [["x"]]}', "whole numbers"),
        ("a.json", '{"phy2log": null}', "whole numbers"),
        ("a.json", '{"phy2log": [[99999999999999999999]]}', "holds object"),
        ("a.json", '{"phy2log": [[18446744073709551615]]}', "too large"),
        ("a.json", '{"map": [[0]]}', "no key phy2log or physical_to_logical_map"),
        ("a.json", "[[0]]", "not an object"),
        ("a.csv", "0,1,2,0\n2,1,,2\n", "got '2,1,,2'"),
        ("a.csv", "", "whole numbers with commas"),
        ("a.csv", "0,1\n2\n", "different lengths"),
        ("a.npz", "PK", "cannot be read"),
        ("a.npy", "\x93NUMPY", "cannot be read as .npy"),
        ("a.pt", "x", r"none of the kinds that are read: .npz, .npy"),
    ],
)
def test_what_is_no_placement_is_refused(tmp_path, name, content, complaint):
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))

    with pytest.raises(InputError, match=complaint):
        read_placement(path, 2, 3, 2)


def test_what_is_no_load_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"\[1, 2\]; the model needs \[2 MoE layers"):
        read_loads(write(tmp_path, ".json", [[1, 2]], "loads"), 2, 3)
    with pytest.raises(InputError, match=r"below 0 at \[1, 0\]"):
        read_loads(write(tmp_path, ".json", [[1, 2], [-3, 4]], "loads"), 2, 2)


def test_what_is_no_file_is_refused(tmp_path):
    for name in ("none.npy", "none.npz", "none.csv", "none.json"):
        with pytest.raises(InputError, match="none"):
            read_placement(tmp_path / name, 2, 3, 2)


def test_an_array_must_be_as_long_as_it_says(tmp_path):
    """A header that claims more is refused before anything is allocated."""
    path = write(tmp_path, ".npy", SLOTS)
    path.write_bytes(path.read_bytes().replace(b"(2, 4)", b"(2,4444444)", 1))

    with pytest.raises(InputError, match=r"cannot be read as \.npy"):
        read_placement(path, 2, 3, 2)


def test_nothing_is_unpickled(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([[object()]]), allow_pickle=True)

    with pytest.raises(InputError):
        read_placement(path, 2, 3, 2)


@settings(max_examples=150)
@given(st.sampled_from([".npy", ".npz", ".json", ".csv"]), st.data())
def test_damaged_files_are_read_or_refused(tmp_path_factory, kind, data):
    """Any change of a few bytes gives a placement that can serve, or an `InputError`."""
    path = write(tmp_path_factory.mktemp("x"), kind, SLOTS)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
            st.integers(0, 255)
        )
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] or content)

    try:
        placement = read_placement(path, 2, 3, 2)
    except InputError:
        return
    placement.check(2, 3)


@pytest.mark.skipif("MOESIM_DATA" not in os.environ, reason="needs MOESIM_DATA")
def test_published_placements_are_read():
    """Placements made by EPLB from real load: 8 GPUs, up to 16 redundant experts."""
    sizes = {
        "Moonlight": (26, 64),
        "Qwen3-235B-A22B": (94, 128),
        "Qwen3-30B-A3B": (48, 128),
    }
    paths = sorted((Path(os.environ["MOESIM_DATA"]) / "placement").glob("*.jsonl"))
    assert len(paths) > 5
    for path in paths:
        layers, experts = next(v for k, v in sizes.items() if path.name.startswith(k))
        placement = read_placement(path, layers, experts, 8)
        assert f"-{placement.phy2log.shape[1]}-1-1-8-" in path.name


def test_what_is_written_is_read(tmp_path):
    placement = round_robin(3, 8, 4, 4)
    np.savez(tmp_path / "p.npz", phy2log=placement.phy2log)

    assert read_placement(tmp_path / "p.npz", 3, 8, 4) == placement
