"""The formula behind every figure of a plan, with its numbers: pure text.

The numbers are arithmetic that can be typed into a calculator (``x`` multiplies), and
give exactly the bytes of the plan.
"""

from dataclasses import dataclass

from moesim.cost.buffers import (
    LOW_LATENCY_TOKENS,
    SCALE_BYTES,
    SCALED,
    WIDE,
    activation_bytes,
    exchange_bytes,
    expert_workspace_bytes,
    received,
    workspace_pairs,
)
from moesim.cost.memory import blocks_for, logits_bytes
from moesim.cost.plan import Plan
from moesim.spec.model import AttentionSpec
from moesim.spec.system import BYTES

ATTENTION = {
    "gqa": "layers x (2 x hidden x (heads + kv_heads) x head_dim + biases + norms) x bytes",
    "mla": (
        "layers x (down-projections + heads x up-projections and output + norms) x bytes"
    ),
}
CACHE = {
    "gqa": "2 x layers x kv_heads x head_dim x bytes",
    "mla": "layers x (kv_rank + rope_dim) x bytes, one latent for keys and values",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One figure: what it is, by which formula, from which numbers.

    Parameters
    ----------
    value : float
        What the numbers come to: bytes, tokens or sequences, as `unit` says.
    """

    label: str
    formula: str
    numbers: str
    value: float
    unit: str = "B"


def explain(plan: Plan) -> list[Line]:
    """Return the formula of every figure, in the order of the screen."""
    return [
        *_weights(plan),
        *_moving(plan),
        *_cache(plan),
    ]


def _weights(plan: Plan) -> list[Line]:
    system, model, parts = plan.system, plan.system.model, plan.weights
    hidden, split = model.hidden, system.tensor_parallel
    size = _number(BYTES[system.precision.weights])
    attention = _attention(hidden, model.attention, split)
    dense, shared = -(-model.dense_width // split), -(-model.shared_width // split)
    shared_size = size
    if system.fuses:
        shared, shared_size = (
            model.shared_width,
            _number(BYTES[system.precision.experts]),
        )
    layers, moe_layers = model.dense_layer_count, model.moe_layer_count
    networks = (
        ("dense layers", dense, layers, size, parts.dense),
        ("shared experts", shared, moe_layers, shared_size, parts.shared),
    )
    return [
        Line(
            "attention",
            ATTENTION[model.attention.kind],
            f"{model.layers} x ({attention} + 2 x {hidden}) x {size}",
            parts.attention,
        ),
        *(
            Line(
                label,
                "3 x hidden x width x layers x bytes",
                f"3 x {hidden} x {width} x {count} x {element}",
                value,
            )
            for label, width, count, element, value in networks
        ),
        *_wide(plan),
        _experts(plan),
    ]


def _wide(plan: Plan) -> list[Line]:
    """Return what stays in 16 bits whatever the weights are in."""
    model, split = plan.system.model, plan.system.tensor_parallel
    matrices = 1 if model.tied_embeddings else 2
    return [
        Line(
            "routers",
            "MoE layers x hidden x experts x 2, in 16 bits",
            f"{model.moe_layer_count} x {model.hidden} x {model.experts} x 2",
            plan.weights.router,
        ),
        Line(
            "embeddings and head",
            "matrices x vocabulary x hidden x 2, in 16 bits",
            f"{matrices} x {-(-model.vocab // split)} x {model.hidden} x 2",
            plan.weights.vocabulary,
        ),
    ]


def _experts(plan: Plan) -> Line:
    system, model = plan.system, plan.system.model
    bias = 2 * model.expert_width + model.hidden if model.expert_bias else 0
    slots = system.placement.slots_per_gpu
    size = _number(BYTES[system.precision.experts])
    one = f"3 x {model.hidden} x {model.expert_width} + {bias}"
    if system.residency is not None:
        return Line(
            "routed experts",
            "experts kept x (3 x hidden x width + biases) x bytes",
            f"{system.resident_copies} x ({one}) x {size}",
            plan.budget.experts_bytes,
        )
    return Line(
        "routed experts",
        "slots x MoE layers x (3 x hidden x width + biases) x bytes",
        f"{slots} x {model.moe_layer_count} x ({one}) x {size}",
        plan.budget.experts_bytes,
    )


def _attention(hidden: int, spec: AttentionSpec, split: int) -> str:
    """Return the parameters of one layer's attention on one GPU, as arithmetic."""
    heads = -(-spec.heads // split)
    if spec.kind == "gqa":
        kv, width = -(-spec.kv_heads // split), spec.head_dim
        bias = (heads + 2 * kv) * width + hidden if spec.bias else 0
        return f"2 x {hidden} x ({heads} + {kv}) x {width} + {bias}"
    query = f"({spec.nope_dim} + {spec.rope_dim})"
    down = f"{hidden} x ({spec.q_rank} + {spec.kv_rank} + {spec.rope_dim})"
    norms = f"{spec.q_rank} + {spec.kv_rank}"
    up = f"{spec.q_rank or hidden} x {query}"
    up += f" + {spec.kv_rank} x ({spec.nope_dim} + {spec.head_dim})"
    return f"{down} + {norms} + {heads} x ({up} + {spec.head_dim} x {hidden})"


def _moving(plan: Plan) -> list[Line]:
    system, serving, case = plan.system, plan.serving, plan.terms.case
    model, tokens = system.model, serving.max_num_batched_tokens
    pairs, shared = workspace_pairs(system, tokens, case)
    each = [(pairs, model.expert_width)] + [(shared, model.shared_width)] * system.fuses
    experts = [(n, expert_workspace_bytes(model, 1, width)) for n, width in each]
    terms = " + ".join(f"{_number(n)} x {_number(size)}" for n, size in experts)
    once = activation_bytes(system, tokens, case)
    logits = logits_bytes(system, serving)
    beside = _number(once - sum(n * size for n, size in experts))
    return [
        Line(
            f"tokens and pairs of a GPU, {case}",
            "what it receives of all ranks' tokens in one MoE layer",
            f"{system.ranks} ranks x {tokens} tokens: {_load(plan)}",
            pairs + shared,
            "pairs",
        ),
        _exchange(plan),
        Line(
            "activations",
            "in flight x (pairs x 2 x (max(width, hidden) + max(2 width, hidden))"
            " + rest of a layer) + logits in 32 bits",
            f"{serving.max_in_flight} x ({terms} + {beside}) + {_number(logits)}",
            plan.budget.workspace_bytes,
        ),
    ]


def _load(plan: Plan) -> str:
    load = received(plan.system, plan.serving.max_num_batched_tokens, plan.terms.case)
    return f"{load.tokens:.0f} tokens, {load.pairs + load.shared:.0f} pairs"


def _exchange(plan: Plan) -> Line:
    system, serving, model = plan.system, plan.serving, plan.system.model
    tokens, flights = serving.max_num_batched_tokens, serving.max_in_flight
    size = plan.budget.buffer_bytes
    if system.dispatch == "low_latency":
        slots = system.jobs_per_gpu * system.topology.gpus
        at_once = min(tokens, LOW_LATENCY_TOKENS)
        return Line(
            "dispatch and combine buffers",
            "4 x slots of all GPUs x tokens of a rank x (2 x hidden + 16)",
            f"4 x {slots} x {at_once} x (2 x {model.hidden} + 16)",
            size,
        )
    if not exchange_bytes(system, tokens, plan.terms.case):
        return Line("dispatch and combine buffers", "one GPU alone", "0", size)
    formats = system.precision.dispatch, system.precision.combine
    rows = received(system, tokens, plan.terms.case).tokens
    widths = " + ".join(_row(element) for element in formats)
    return Line(
        "dispatch and combine buffers",
        "in flight x tokens received x hidden x (bytes of dispatch + of combine,"
        " scales included)",
        f"{flights} x {_number(rows)} x {model.hidden} x ({widths})",
        size,
    )


def _row(element: str) -> str:
    size = BYTES[element]
    scales = f" + {SCALE_BYTES} / {SCALED}" if size < WIDE else ""
    return f"{_number(size)}{scales}"


def _cache(plan: Plan) -> list[Line]:
    system, model, terms = plan.system, plan.system.model, plan.terms
    spec, split = model.attention, system.tensor_parallel
    size = _number(BYTES[system.precision.kv])
    block = plan.serving.block_size
    need = blocks_for(terms.context, block)
    heads = -(-spec.kv_heads // split)
    true = {
        "gqa": f"2 x {model.layers} x {heads} x {spec.head_dim} x {size}",
        "mla": f"{model.layers} x ({spec.kv_rank} + {spec.rope_dim}) x {size}",
    }
    free, a_token = plan.budget.free_bytes, plan.kv_bytes_per_token
    room = f"{_number(free)} // ({block} x {_number(a_token)}) x {block}"
    sequences = f"{plan.room.blocks} // {need}"
    if spec.window_every:
        sequences = f"min({sequences}, {plan.serving.max_num_seqs})"
    formula = "KV left // (block x bytes of a token) x block"
    if spec.window_every:
        formula = "blocks x block; windowed layers keep no more than their windows"
    if spec.window_every or not plan.room.blocks:
        room = f"{plan.room.blocks} x {block}"
    return [
        Line("KV cache of a token", CACHE[spec.kind], true[spec.kind], a_token),
        Line(
            "KV cache of a token, as often quoted",
            "2 x layers x hidden x bytes, right for multi-head attention only",
            f"2 x {model.layers} x {model.hidden} x {size}",
            plan.quoted_kv_bytes,
        ),
        Line("tokens of a rank", formula, room, plan.room.tokens, "tokens"),
        Line(
            "sequences of a rank",
            "blocks // blocks of a sequence; no more than windows are set aside for",
            sequences,
            plan.room.sequences,
            "sequences",
        ),
    ]


def _number(value: float) -> str:
    """Return a number with all its digits.

    >>> _number(2.0), _number(0.5)
    ('2', '0.5')
    """
    return str(int(value)) if value == int(value) else repr(float(value))
