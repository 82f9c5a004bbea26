"""Files as serving engines write them, made without torch, gguf or safetensors.

Each writer returns the path it wrote. Ids are ``[T, L, k]``, counts ``[S, L, E]``.
"""

import base64
import io
import json
import struct
import zipfile

import numpy as np

TORCH = {
    "f8": "DoubleStorage",
    "f4": "FloatStorage",
    "f2": "HalfStorage",
    "bf16": "BFloat16Storage",
    "i8": "LongStorage",
    "i4": "IntStorage",
    "i2": "ShortStorage",
    "i1": "CharStorage",
    "u1": "ByteStorage",
    "b1": "BoolStorage",
}
MAGIC = 0x1950A86A20F9469CFC6C


class Tensor:
    """A tensor to be written: raw numbers, a storage kind, a window on it."""

    def __init__(
        self, array, kind=None, dtype=None, shape=None, strides=None, offset=0
    ):
        array = np.asarray(array)
        self.array = array
        self.kind = kind or TORCH[array.dtype.str[1:]]
        self.dtype = dtype
        self.shape = array.shape if shape is None else shape
        plain = [s // array.itemsize for s in np.ascontiguousarray(array).strides]
        self.strides = plain if strides is None else strides
        self.offset = offset

    def raw(self, order="<"):
        array = np.ascontiguousarray(self.array)
        return array.astype(array.dtype.newbyteorder(order)).tobytes()

    @property
    def numel(self):
        return self.array.nbytes if self.kind == "UntypedStorage" else self.array.size


class Pickle:
    """Writes protocol 2 as torch.save does, memo and all; collects the storages."""

    def __init__(self):
        self.out = io.BytesIO()
        self.storages = []
        self.memos = 0

    def program(self, value):
        self.out.write(b"\x80\x02")
        self.put(value)
        self.out.write(b".")
        return self.out.getvalue()

    def memo(self):
        self.out.write(b"q" + bytes([self.memos]) if self.memos < 256 else b"")
        self.memos += 1

    def name(self, module, name):
        self.out.write(f"c{module}\n{name}\n".encode())
        self.memo()

    def put(self, value):
        writer = {
            dict: self.put_dict,
            list: self.put_list,
            tuple: self.put_tuple,
            str: self.put_text,
            Tensor: self.put_tensor,
            float: lambda v: self.out.write(b"G" + struct.pack(">d", v)),
            bool: lambda v: self.out.write(b"\x88" if v else b"\x89"),
            type(None): lambda _: self.out.write(b"N"),
            int: self.put_int,
        }[type(value)]
        writer(value)

    def put_int(self, value):
        if 0 <= value < 256:
            self.out.write(b"K" + bytes([value]))
        elif -(2**31) <= value < 2**31:
            self.out.write(b"J" + struct.pack("<i", value))
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out.write(b"\x8a" + bytes([len(raw)]) + raw)

    def put_text(self, value):
        raw = value.encode()
        self.out.write(b"X" + struct.pack("<I", len(raw)) + raw)
        self.memo()

    def put_dict(self, value):
        self.out.write(b"}")
        self.memo()
        if value:
            self.out.write(b"(")
            for key, item in value.items():
                self.put(key)
                self.put(item)
            self.out.write(b"u")

    def put_list(self, value):
        self.out.write(b"]")
        self.memo()
        if value:
            self.out.write(b"(")
            for item in value:
                self.put(item)
            self.out.write(b"e")

    def put_tuple(self, value):
        self.out.write(b"(")
        for item in value:
            self.put(item)
        self.out.write(b"t")
        self.memo()

    def put_tensor(self, tensor):
        key = str(len(self.storages))
        self.storages.append(tensor)
        version = "v3" if tensor.dtype else "v2"
        self.name("torch._utils", f"_rebuild_tensor_{version}")
        self.out.write(b"((")
        self.put("storage")
        module = "torch.storage" if tensor.kind == "UntypedStorage" else "torch"
        self.name(module, tensor.kind)
        self.put(key)
        self.put("cuda:0")
        self.put(int(tensor.numel))
        self.out.write(b"tQ")
        self.put(int(tensor.offset))
        self.put(tuple(int(n) for n in tensor.shape))
        self.put(tuple(int(n) for n in tensor.strides))
        self.put(False)
        self.name("collections", "OrderedDict")
        self.out.write(b")R")
        if tensor.dtype:
            self.name("torch", tensor.dtype)
        self.out.write(b"tR")


def torch_zip(path, content, order="<", method=zipfile.ZIP_STORED, program=None):
    pickle = Pickle()
    data = pickle.program(content)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", data if program is None else program)
        archive.writestr("archive/byteorder", "little" if order == "<" else "big")
        for key, tensor in enumerate(pickle.storages):
            archive.writestr(f"archive/data/{key}", tensor.raw(order))
        archive.writestr("archive/version", "3\n")
    return path


def torch_legacy(path, content, order="<"):
    pickle = Pickle()
    data = pickle.program(content)
    system = {"protocol_version": 1001, "little_endian": order == "<", "type_sizes": {}}
    parts = [Pickle().program(part) for part in (MAGIC, 1001, system)]
    keys = [str(key) for key in range(len(pickle.storages))]
    body = b"".join([*parts, data, Pickle().program(keys)])
    for tensor in pickle.storages:
        body += struct.pack(order + "q", tensor.numel) + tensor.raw(order)
    path.write_bytes(body)
    return path


def safetensors(path, tensors, table=None):
    names = {"int64": "I64", "int32": "I32", "uint8": "U8", "float32": "F32"}
    found, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        found[name] = {
            "dtype": names[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(found if table is None else table).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def gguf(path, tensors, order="<", pairs=(), version=3):
    def text(value):
        return struct.pack(order + "Q", len(value)) + value.encode()

    out = b"GGUF" + struct.pack(order + "I", version)
    values = {"general.type": "imatrix", **dict(pairs)}
    out += struct.pack(order + "QQ", len(tensors), len(values))
    for key, value in values.items():
        out += text(key)
        if isinstance(value, str):
            out += struct.pack(order + "I", 8) + text(value)
        elif isinstance(value, list):
            out += struct.pack(order + "IIQ", 9, 8, len(value)) + b"".join(
                map(text, value)
            )
        else:
            out += struct.pack(order + "II", 4, value)
    offset, data = 0, b""
    for name, values in tensors.items():
        array = np.asarray(values, order + "f4")
        sizes = array.shape[::-1]
        out += text(name) + struct.pack(order + "I", len(sizes))
        out += struct.pack(order + f"{len(sizes)}Q", *sizes)
        out += struct.pack(order + "IQ", 0, offset)
        raw = array.tobytes()
        raw += b"\0" * (-len(raw) % 32)
        data, offset = data + raw, offset + len(raw)
    path.write_bytes(out + b"\0" * (-len(out) % 32) + data)
    return path


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_base64(array):
    return base64.b64encode(npy_bytes(array)).decode()


def int32_base64(array):
    return base64.b64encode(np.ascontiguousarray(array, "<i4").tobytes()).decode()


def jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def imatrix(path, counts, layers, **options):
    """Counts ``[L, E]`` thrice a layer, as imatrix.cpp writes them."""
    tensors = {}
    for row, layer in zip(counts, layers, strict=True):
        for part in ("gate", "up", "down"):
            stem = f"blk.{layer}.ffn_{part}_exps.weight"
            tensors[f"{stem}.counts"] = row[:, None]
            tensors[f"{stem}.in_sum2"] = np.ones((len(row), 4))
    tensors["blk.0.attn_q.weight.counts"] = np.ones((1, 1))
    keys = {"imatrix.chunk_count": 7, "imatrix.datasets": ["a.txt", "b.txt"]}
    return gguf(path, tensors, pairs=keys.items(), **options)


def megatron(path, ids, layers, steps=2, rank=0, mtp=None):
    records = []
    for step, part in enumerate(np.array_split(ids, steps)):
        for at, layer in enumerate(layers):
            record = {
                "step": step,
                "stage": "pre_dispatch",
                "block": "decoder",
                "layer": layer,
                "rank": rank,
                "num_tokens": len(part),
                "topk": part.shape[2],
                "top_indices": part[:, at].tolist(),
            }
            if layer == mtp:
                record |= {"block": "mtp", "mtp_idx": 0}
            records.append(record)
    return jsonl(path, records)


def vllm_patch(path, ids, layers, lengths, requests=None, dummy=0):
    """Layer after layer within a step of one request, after a profiling pass."""
    records = [{"type": "meta", "top_k": int(ids.shape[2]), "layers_logged": layers}]

    def route(request, token, layer, row):
        records.append(
            {
                "type": "route",
                "req_id": request,
                "token_idx": token,
                "layer": layer,
                "topk_ids": row.tolist(),
                "topk_weights": [0.5] * len(row),
            }
        )

    for at, layer in enumerate(layers):
        for token in range(dummy):
            route("profile", token, layer, ids[0, at])
    start = 0
    for number, length in enumerate(lengths):
        request = f"r{number}" if requests is None else requests[number]
        for at, layer in enumerate(layers):
            for token in range(length):
                route(request, token, layer, ids[start + token, at])
        start += length
    return jsonl(path, records)


def recorder_passes(ids, phy2log, passes, rank, per_token, width=8):
    """SGLang's records: physical ids in `width` columns, dense layers -1."""
    slots = np.array(
        [[np.flatnonzero(row == e)[0] for e in range(row.max() + 1)] for row in phy2log]
    )
    records = []
    dense = len(phy2log) - ids.shape[1]
    for number, part in enumerate(np.array_split(ids, passes)):
        physical = slots[np.arange(dense, len(phy2log))[:, None], part]
        counts = np.zeros(phy2log.shape, np.int32)
        for layer in range(ids.shape[1]):
            np.add.at(counts[dense + layer], physical[:, layer].ravel(), 1)
        record = {
            "forward_pass_id": 5 + number,
            "rank": rank,
            "gatherer_key": "primary",
            "global_physical_count": Tensor(counts),
        }
        if per_token:
            topk = np.full((len(phy2log), len(part), width), -1, np.int32)
            topk[dense:, :, : ids.shape[2]] = physical.transpose(1, 0, 2)
            record |= {
                "input_ids": list(range(len(part))),
                "positions": list(range(len(part))),
                "extend_seq_lens": [len(part)],
                "forward_mode": 1,
                "topk_ids_of_layer": Tensor(topk),
                "misc_objects": [],
            }
        records.append(record)
    return {
        "records": records,
        "last_physical_to_logical_map": Tensor(np.asarray(phy2log, np.int64)),
    }


def trtllm_yaml(path, phy2log, layers):
    lines = [f"num_slots: {phy2log.shape[1]}", "initial_global_assignments:"]
    lines += [f"  {n}: {row.tolist()}" for n, row in zip(layers, phy2log, strict=True)]
    path.write_text("\n".join([*lines, "layer_updates_per_iter: 2", ""]))
    return path
