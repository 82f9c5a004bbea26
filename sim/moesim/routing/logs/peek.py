"""A first look at a file: what container it is, and what its parts are called.

Formats are told apart by this alone; nothing here is believed when a log is read.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from moesim.errors import InputError
from moesim.routing.logs import npy, safetensors
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.source import Source, open_binary, refusal
from moesim.routing.logs.text import json_records
from moesim.routing.logs.zips import open_member, open_zip

HEAD_BYTES = 1 << 16
MOST_HEADERS = 4096
MAGICS = {
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"\x93NUMPY": "npy",
    b"GGUF": "gguf",
    b"PAR1": "parquet",
    b"\x80\x02": "pickle",
}
FOREIGN = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x80\x03": "a bare pickle",
    b"\x80\x04": "a bare pickle",
    b"\x80\x05": "a bare pickle",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
SUFFIXES = {
    ".npz": {"npz"},
    ".npy": {"npy"},
    ".pt": {"torch"},
    ".pth": {"torch"},
    ".safetensors": {"safetensors"},
    ".gguf": {"gguf"},
    ".parquet": {"parquet"},
    ".csv": {"csv"},
    ".json": {"json"},
    ".jsonl": {"json"},
    ".yaml": {"yaml", "json"},
    ".yml": {"yaml", "json"},
}
"""Containers that a name promises; another content is refused."""
SIDECARS = re.compile(r"meta_info\.json|rank_?\d+_numtokens\.json")
"""Files of a TensorRT-LLM folder that are no log themselves."""
BASE64 = re.compile(rb"[A-Za-z0-9+/]+={0,2}\s*")
YAML_KEY = re.compile(rb"(^|[{,\s])(num_slots|initial_global_assignments)\s*:")


@dataclass(frozen=True)
class Peek:
    """What the first look found.

    Parameters
    ----------
    container : str
        npz, npy, torch, safetensors, gguf, parquet, json, csv, yaml, base64 or text.
    arrays : dict
        npz, npy: header of each array, by name (``""`` in an ``.npy``).
    names : tuple of str
        zip, safetensors, gguf: what the parts are called; csv: the columns.
    record : object
        json: the first value; base64: the first bytes, decoded.
    """

    container: str
    arrays: dict[str, npy.Header] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    record: Any = None

    def record_has(self, *keys: str) -> bool:
        """Whether the first JSON value is an object with all these keys."""
        return isinstance(self.record, dict) and all(key in self.record for key in keys)


def look(source: Source) -> Peek:
    """Return the first look at a file, or at the first of a folder.

    Raises
    ------
    InputError
        Compressed or pickled, damaged beyond its first bytes, or another content than
        the name promises.
    """
    found = [path for path in source.files if not SIDECARS.fullmatch(path.name)]
    path = (found or list(source.files))[0]
    peek = _look(path, source.meter)
    promised = SUFFIXES.get(path.suffix.lower(), {peek.container})
    if peek.container not in promised:
        expected = " or ".join(sorted(promised))
        message = f"is called {path.suffix} but holds {peek.container}; rename it, or"
        raise refusal(f"{message} is the file damaged? ({expected} is expected)", path)
    return peek


def _look(path: Path, meter: Meter) -> Peek:
    with open_binary(path) as file:
        head = file.read(HEAD_BYTES)
    for magic, name in FOREIGN.items():
        if head.startswith(magic):
            hint = (
                "convert it where it was written" if "pickle" in name else "unpack it"
            )
            raise refusal(f"is {name}, which is not read; {hint} first", path)
    container = next((n for m, n in MAGICS.items() if head.startswith(m)), "")
    if container == "zip":
        return _look_into_zip(path, meter)
    if container == "npy":
        with open_binary(path) as file:
            header = npy.read_header(file, path.stat().st_size, "the file")
        return Peek("npy", arrays={"": header})
    if container:
        return Peek("torch" if container == "pickle" else container)
    if head[8:9] == b"{" and b"\x00" in head[:8]:
        with open_binary(path) as file:
            names = tuple(safetensors.read_table(file, meter))
        return Peek("safetensors", names=names)
    return _look_at_text(path, head, meter)


def _look_into_zip(path: Path, meter: Meter) -> Peek:
    with open_zip(path, meter) as archive:
        names = tuple(archive.namelist())
        if any(name.endswith("/data.pkl") for name in names):
            return Peek("torch", names=names)
        arrays, odd = _headers(archive, names, meter)
    if not arrays:
        what = odd[0].problems[0].message if odd else "is a zip without arrays"
        raise refusal(what, path)
    return Peek("npz", arrays, names)


def _headers(
    archive: ZipFile, names: tuple[str, ...], meter: Meter
) -> tuple[dict[str, npy.Header], list[InputError]]:
    """Return the headers of all arrays of numbers, and what is wrong with others."""
    arrays: dict[str, npy.Header] = {}
    odd: list[InputError] = []
    for name in names[:MOST_HEADERS]:
        if not name.endswith(".npy"):
            continue
        size = archive.getinfo(name).file_size
        try:
            with open_member(archive, name, meter) as file:
                header = npy.read_header(file, size, ascii(name)[1:-1])
        except InputError as error:
            odd.append(error)
        else:
            arrays[name[:-4]] = header
    return arrays, odd


def _look_at_text(path: Path, head: bytes, meter: Meter) -> Peek:
    body = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if b"\x00" in head:
        raise refusal("is in no container that is known, and no text", path)
    if BASE64.fullmatch(body) and len(body) > 8:
        return Peek("base64", record=_decoded(body))
    if body[:1] in (b"{", b"[") and not YAML_KEY.search(body):
        return Peek("json", record=next(json_records(path, meter)).value)
    if YAML_KEY.search(body):
        return Peek("yaml")
    first = body.splitlines()[0] if body else b""
    if b"," in first or path.suffix.lower() == ".csv":
        columns = first.decode("utf-8", "replace").split(",")
        return Peek("csv", names=tuple(name.strip().strip('"') for name in columns))
    return Peek("text")


def _decoded(body: bytes) -> bytes:
    whole = body[: len(body.rstrip()) // 4 * 4]
    try:
        return base64.b64decode(whole[:64], validate=True)
    except (binascii.Error, ValueError):
        return b""
