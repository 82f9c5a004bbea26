"""One small log of every format, each with what a reader must make of it."""

import json
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from moesim.routing.logs import Hints
from routing.logs import writers as w

T, L, K, E = 24, 3, 2, 8
LENGTHS = [10, 1, 13]
LAYERS = [3, 4, 6]
"""Decoder layers that have experts, where a format names them."""


def ids_of(seed=0, tokens=T, layers=L, k=K, experts=E):
    """Distinct experts of each token; every expert occurs, the last one first."""
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((tokens, layers, experts)), axis=2)[:, :, :k]
    ids[0, :, 0], ids[0, :, 1] = experts - 1, 0
    return ids


def counts_of(ids, experts=E):
    return np.stack(
        [
            np.bincount(ids[:, at].ravel(), minlength=experts)
            for at in range(ids.shape[1])
        ]
    )


IDS = ids_of()
COUNTS = counts_of(IDS)
PHY2LOG = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 0, 5],
        [7, 6, 5, 4, 3, 2, 1, 0, 1, 1],
        [0, 1, 2, 3, 4, 5, 6, 7, 7, 2],
    ]
)
REPLICAS = np.stack([np.bincount(row, minlength=E) for row in PHY2LOG])


@dataclass
class Sample:
    """A file, how it is asked for, and what comes out."""

    path: object
    format: str
    hints: Hints = field(default_factory=Hints)
    ids: object = None
    counts: object = None
    layers: list = field(default_factory=lambda: [0, 1, 2])
    lengths: object = None
    phy2log: object = None


def dense(ids, fill=0):
    """All seven decoder layers, of which `LAYERS` have experts."""
    whole = np.full((len(ids), 7, ids.shape[2]), fill, ids.dtype)
    whole[:, LAYERS] = ids
    return whole


def dense_map():
    return np.stack(
        [
            PHY2LOG[LAYERS.index(n)] if n in LAYERS else np.r_[0:8, 0, 1]
            for n in range(7)
        ]
    )


def split(ids):
    return np.split(ids, np.cumsum(LENGTHS)[:-1])


def sglang_stat(d):
    steps = np.stack([counts_of(part) for part in split(IDS)])
    whole = np.zeros((5, 7, E), np.int32)
    whole[:3, LAYERS] = steps
    content = {
        "rank": 0,
        "logical_count": w.Tensor(whole),
        "average_utilization_rate_over_window": 0.5,
    }
    return Sample(
        w.torch_zip(d / "stat.pt", content),
        "sglang-recorder",
        counts=steps,
        layers=LAYERS,
    )


def sglang_stat_legacy(d):
    content = {
        "rank": 0,
        "logical_count": w.Tensor(COUNTS[None].astype(np.int32)),
        "average_utilization_rate_over_window": None,
    }
    return Sample(
        w.torch_legacy(d / "old.pt", content), "sglang-recorder", counts=COUNTS[None]
    )


def per_pass(ids, rank=0, per_token=False):
    tail = dense_map()[[0, 1, 2, 3, 4, 6]]
    placed = np.concatenate([tail[:3], PHY2LOG])
    return w.recorder_passes(ids, placed, 2, rank, per_token)


def sglang_per_pass(d):
    path = w.torch_zip(d / "pass.pt", per_pass(IDS))
    steps = np.stack([counts_of(part) for part in np.array_split(IDS, 2)])
    return Sample(path, "sglang-recorder", counts=steps, layers=[3, 4, 5])


def sglang_ranks(d):
    folder = d / "ranks"
    folder.mkdir()
    others = ids_of(5)
    for rank, ids in enumerate((IDS, others)):
        w.torch_zip(
            folder / f"expert_distribution_recorder_1.5_{rank}.pt", per_pass(ids, rank)
        )
    steps = np.stack(
        [
            counts_of(a) + counts_of(b)
            for a, b in zip(
                np.array_split(IDS, 2), np.array_split(others, 2), strict=True
            )
        ]
    )
    return Sample(folder, "sglang-recorder", counts=steps, layers=[3, 4, 5])


def sglang_per_token(d):
    path = w.torch_zip(d / "token.pt", per_pass(IDS, per_token=True))
    return Sample(path, "sglang-recorder", ids=IDS, layers=[3, 4, 5], lengths=[12, 12])


def sglang_csv(d):
    folder = d / "csv"
    folder.mkdir()
    for rank in range(2):
        lines = [
            f"{n},{e},{COUNTS[at, e] * (rank + 1)}"
            for at, n in enumerate(LAYERS)
            for e in range(E)
        ]
        name = f"expert_distribution_rank{rank}_timestamp1.25.csv"
        (folder / name).write_text("\n".join(["layer_id,expert_id,count", *lines, ""]))
    return Sample(folder, "sglang-csv", counts=COUNTS[None] * 3, layers=LAYERS)


def sglang_routed(d):
    records = [
        {
            "text": "x",
            "meta_info": {
                "prompt_tokens": 1,
                "completion_tokens": len(part),
                "routed_experts": w.int32_base64(dense(part)),
            },
        }
        for part in split(IDS)
    ]
    path = d / "sglang.json"
    path.write_text(json.dumps(records))
    return Sample(
        path,
        "sglang-routed-experts",
        Hints(top_k=K),
        ids=IDS,
        layers=LAYERS,
        lengths=LENGTHS,
    )


def sglang_openai(d):
    records = [
        {
            "choices": [{"index": 0}],
            "usage": {"prompt_tokens": 1, "completion_tokens": len(p)},
            "sglext": {"routed_experts": w.int32_base64(dense(p))},
        }
        for p in split(IDS)
    ]
    return Sample(
        w.jsonl(d / "openai.jsonl", records),
        "sglang-routed-experts",
        Hints(layers=7),
        ids=IDS,
        layers=LAYERS,
        lengths=LENGTHS,
    )


def sglang_base64(d):
    path = d / "routes.b64"
    path.write_text(w.int32_base64(dense(IDS)) + "\n")
    return Sample(
        path,
        "sglang-routed-experts",
        Hints(layers=7, top_k=K),
        ids=IDS,
        layers=LAYERS,
        lengths=[T],
    )


def vllm_base64(d):
    records = [
        {
            "id": "a",
            "choices": [
                {"index": 0, "routed_experts": w.npy_base64(dense(p).astype(np.uint8))}
            ],
        }
        for p in split(IDS)
    ]
    return Sample(
        w.jsonl(d / "vllm.jsonl", records),
        "vllm-routed-experts",
        ids=IDS,
        layers=LAYERS,
        lengths=LENGTHS,
    )


def vllm_bare(d):
    path = d / "vllm.b64"
    path.write_text(w.npy_base64(IDS.astype(np.uint16)))
    return Sample(path, "vllm-routed-experts", ids=IDS, lengths=[T])


def vllm_nested(d):
    records = []
    for part in split(IDS):
        prompt = np.concatenate([np.full((2, L, K), -1), part[:1]])
        records.append(
            {
                "prompt_routed_experts": prompt.tolist(),
                "choices": [{"routed_experts": part[1:].tolist()}],
            }
        )
    path = d / "nested.json"
    path.write_text(json.dumps(records, indent=1))
    return Sample(path, "vllm-routed-experts", ids=IDS, lengths=LENGTHS)


def vllm_patch(d):
    path = w.vllm_patch(d / "moe_routes.jsonl", IDS, LAYERS, LENGTHS)
    return Sample(path, "vllm-patch", ids=IDS, layers=LAYERS, lengths=LENGTHS)


def trtllm_counts(d):
    folder = d / "stats"
    folder.mkdir()
    parts = np.array_split(IDS, 2)
    (folder / "meta_info.json").write_text(
        json.dumps({"num_experts": E, "num_experts_per_token": K})
    )
    for rank in range(2):
        tensors = {
            f"{100 + i}_{n}": counts_of(p)[at] * (rank + 1)
            for i, p in enumerate(parts)
            for at, n in enumerate(LAYERS)
        }
        w.safetensors(folder / f"rank{rank}.safetensors", tensors)
    return Sample(
        folder,
        "trtllm-statistics",
        counts=np.stack([counts_of(p) * 3 for p in parts]),
        layers=LAYERS,
    )


def trtllm_one(d):
    tensors = {f"7_{n}": COUNTS[at] for at, n in enumerate(LAYERS)}
    return Sample(
        w.safetensors(d / "rank0.safetensors", tensors),
        "trtllm-statistics",
        counts=COUNTS[None],
        layers=LAYERS,
    )


def trtllm_raw(d):
    parts = np.array_split(IDS.astype(np.int32), 2)
    tensors = {
        f"{9 + i}_{n}": p[:, at]
        for i, p in enumerate(parts)
        for at, n in enumerate(LAYERS)
    }
    return Sample(
        w.safetensors(d / "rank0_raw.safetensors", tensors),
        "trtllm-statistics",
        ids=IDS,
        layers=LAYERS,
        lengths=[1] * T,
    )


def trtllm_placement(d):
    path = w.trtllm_yaml(d / "place.yaml", PHY2LOG, LAYERS)
    return Sample(
        path, "trtllm-placement", counts=REPLICAS[None], layers=LAYERS, phy2log=PHY2LOG
    )


def eplb_placement(d):
    path = w.jsonl(d / "eplb.jsonl", [{"phy2log": PHY2LOG.tolist()}])
    return Sample(path, "eplb-placement", counts=REPLICAS[None], phy2log=PHY2LOG)


def sglang_map(d):
    path = d / "location.json"
    path.write_text(json.dumps({"physical_to_logical_map": PHY2LOG.tolist()}))
    return Sample(path, "eplb-placement", counts=REPLICAS[None], phy2log=PHY2LOG)


def megatron(d):
    return Sample(
        w.megatron(d / "trace.jsonl", IDS, LAYERS),
        "megatron-trace",
        ids=IDS,
        layers=LAYERS,
    )


def hf_logits(d):
    rng = np.random.default_rng(1)
    logits = rng.random((L, T, E)).astype(np.float32)
    np.put_along_axis(
        logits, IDS.transpose(1, 0, 2), np.array([3.0, 2.0], np.float32), axis=2
    )
    np.savez(d / "logits.npz", *logits)
    return Sample(d / "logits.npz", "hf-router-logits", Hints(top_k=K), ids=IDS)


def eplb_load(d):
    np.save(d / "load.npy", COUNTS.astype(np.float32))
    return Sample(d / "load.npy", "eplb-load", counts=COUNTS[None])


def eplb_json(d):
    path = d / "load.json"
    path.write_text(json.dumps({"weight": COUNTS.tolist()}))
    return Sample(path, "eplb-load", counts=COUNTS[None])


def eplb_npz(d):
    np.savez(d / "counts.npz", logical_count=COUNTS[None], layers=np.array(LAYERS))
    return Sample(d / "counts.npz", "eplb-load", counts=COUNTS[None], layers=LAYERS)


def imatrix(d):
    path = w.imatrix(d / "imatrix.gguf", COUNTS, LAYERS)
    return Sample(path, "llamacpp-imatrix", counts=COUNTS[None], layers=LAYERS)


def imatrix_big(d):
    path = w.imatrix(d / "big.gguf", COUNTS, LAYERS, order=">")
    return Sample(path, "llamacpp-imatrix", counts=COUNTS[None], layers=LAYERS)


def npz(d):
    np.savez_compressed(
        d / "log.npz", expert_ids=IDS.astype(np.uint8), seq_lens=LENGTHS
    )
    return Sample(d / "log.npz", "arrays", ids=IDS, lengths=LENGTHS)


def npy(d):
    np.save(d / "log.npy", IDS.astype(">i8"))
    return Sample(d / "log.npy", "arrays", ids=IDS)


def csv_counts(d):
    lines = [
        f"{n},{e},{COUNTS[at, e]}" for at, n in enumerate(LAYERS) for e in range(E)
    ]
    (d / "counts.csv").write_bytes(
        "\r\n".join(["layer,expert,count", *lines, ""]).encode()
    )
    return Sample(d / "counts.csv", "csv", counts=COUNTS[None], layers=LAYERS)


def csv_choices(d):
    lines = [f"{n},{e}" for at, n in enumerate(LAYERS) for e in IDS[:, at].ravel()]
    (d / "trace.csv").write_text("\n".join(["layer,expert", *lines]))
    return Sample(d / "trace.csv", "csv", counts=COUNTS[None], layers=LAYERS)


def csv_long(d):
    lines = [
        f"{t},{n},{e}"
        for t in range(T)
        for at, n in enumerate(LAYERS)
        for e in IDS[t, at]
    ]
    (d / "long.csv").write_text("\n".join(["token,layer,expert", *lines, ""]))
    return Sample(d / "long.csv", "csv", ids=IDS, layers=LAYERS, lengths=[T])


def csv_wide(d):
    lines = []
    for number, part in enumerate(split(IDS)):
        for at, n in enumerate(LAYERS):
            lines += [
                f"{number + 7},{t},{n},{row[at, 0]},{row[at, 1]}"
                for t, row in enumerate(part)
            ]
    (d / "wide.csv").write_text(
        "\n".join(["sequence,token,layer,expert_0,expert_1", *lines, ""])
    )
    return Sample(d / "wide.csv", "csv", ids=IDS, layers=LAYERS, lengths=LENGTHS)


def parquet_long(d):
    rows = [
        (t, n, e)
        for t in range(T)
        for at, n in enumerate(LAYERS)
        for e in IDS[t, at].tolist()
    ]
    token, layer, expert = map(list, zip(*rows, strict=True))
    pq.write_table(
        pa.table({"token": token, "layer": layer, "expert": expert}), d / "long.parquet"
    )
    return Sample(d / "long.parquet", "parquet", ids=IDS, layers=LAYERS, lengths=[T])


def parquet_lists(d):
    columns = {f"layer_{n}": IDS[:, at].tolist() for at, n in enumerate(LAYERS)}
    pq.write_table(pa.table(columns), d / "lists.parquet")
    return Sample(d / "lists.parquet", "parquet", ids=IDS, layers=LAYERS)


MAKERS = [
    sglang_stat,
    sglang_stat_legacy,
    sglang_per_pass,
    sglang_ranks,
    sglang_per_token,
    sglang_csv,
    sglang_routed,
    sglang_openai,
    sglang_base64,
    vllm_base64,
    vllm_bare,
    vllm_nested,
    vllm_patch,
    trtllm_counts,
    trtllm_one,
    trtllm_raw,
    trtllm_placement,
    eplb_placement,
    sglang_map,
    megatron,
    hf_logits,
    eplb_load,
    eplb_json,
    eplb_npz,
    imatrix,
    imatrix_big,
    npz,
    npy,
    csv_counts,
    csv_choices,
    csv_long,
    csv_wide,
    parquet_long,
    parquet_lists,
]
