"""Architectures of mixture-of-experts models: where each keeps its shape.

One `Family` per model type of the transformers library says under which keys of a
``config.json`` its shape stands, following that library's configuration classes and
their defaults. Two readings to know: chunked attention (Llama 4) is taken as a sliding
window of the chunk's length, which reads up to twice as much; and vision towers and
multi-token-prediction layers are left out. What the cost model cannot represent is
refused with the reason, never approximated silently.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from moesim.spec.fields import MISSING, Fields
from moesim.spec.model import AttentionSpec

MOST_LAYERS = 1000
"""More layers than any model has; a bound against hostile files."""


@dataclass(frozen=True, slots=True)
class Family:
    """Where one architecture keeps its shape: functions to read, names of keys.

    Parameters
    ----------
    experts, expert_width, top_k, layers, hidden : str
        Keys of the counts and widths that every family has.
    moe_layers, attention : callable
        Read which layers have routed experts, and what attention the model has.
    shared : callable
        Reads the width of all shared experts together.
    dense_width : str
        Key of the width of a dense layer; empty when all layers have experts.
    groups : bool
        The file must say whether routing is limited to some groups of experts.
    expert_bias : bool
        Projections of experts carry a bias vector.
    """

    moe_layers: Callable[[Fields, int], tuple[int, ...]]
    attention: Callable[[Fields], AttentionSpec]
    shared: Callable[[Fields], int] = lambda _: 0
    experts: str = "num_experts"
    expert_width: str = "moe_intermediate_size"
    dense_width: str = ""
    top_k: str = "num_experts_per_tok"
    layers: str = "num_hidden_layers"
    hidden: str = "hidden_size"
    groups: bool = False
    expert_bias: bool = False


def _all_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    return tuple(range(layers))


def _after_the_first(fields: Fields, layers: int) -> tuple[int, ...]:
    first = fields.count("first_k_dense_replace", least=0, most=MOST_LAYERS)
    every = fields.count("moe_layer_freq", default=1)
    return tuple(layer for layer in range(first, layers) if layer % every == 0)


def _sparse_steps(fields: Fields, layers: int) -> tuple[int, ...]:
    every = fields.count("decoder_sparse_step", default=1)
    dense = set(fields.whole_list("mlp_only_layers"))
    return tuple(
        layer for layer in range(every - 1, layers, every) if layer not in dense
    )


def _interleaved(fields: Fields, layers: int) -> tuple[int, ...]:
    every = fields.count("interleave_moe_layer_step")
    return tuple(range(every - 1, layers, every))


def _grouped(fields: Fields, heads: str = "num_attention_heads") -> AttentionSpec:
    """Return grouped-query attention without window; a head is a share of the width."""
    _refuse_window(fields)
    count = fields.count(heads)
    width = fields.get("head_dim")
    if width is MISSING or width is None:
        head_dim = max(1, fields.count("hidden_size") // count)
    else:
        head_dim = fields.count("head_dim")
    bias = fields.flag("attention_bias", default=False)
    return AttentionSpec(
        "gqa", count, fields.count("num_key_value_heads"), head_dim, bias=bias
    )


def _refuse_window(fields: Fields) -> None:
    """Note a window shorter than the context when every layer has it."""
    window = fields.get("sliding_window")
    unused = fields.get("use_sliding_window") is False
    if window is MISSING or window is None or unused:
        return
    longest = fields.count("max_position_embeddings", most=2**40)
    if fields.count("sliding_window", most=2**40) < longest:
        fields.complain(
            "sliding_window", "windows in all layers are not modelled, only alternating"
        )


def _biased(fields: Fields) -> AttentionSpec:
    """Qwen2 has biases unless it says otherwise."""
    plain = _grouped(fields)
    bias = fields.flag("qkv_bias", default=True)
    return AttentionSpec("gqa", plain.heads, plain.kv_heads, plain.head_dim, bias=bias)


def _dbrx(fields: Fields) -> AttentionSpec:
    heads = fields.count("n_heads")
    kv_heads = fields.count("attn_config.kv_n_heads")
    return AttentionSpec(
        "gqa", heads, kv_heads, max(1, fields.count("d_model") // heads)
    )


def _latent(fields: Fields) -> AttentionSpec:
    """Return DeepSeek's multi-head latent attention."""
    heads = fields.count("num_attention_heads")
    return AttentionSpec(
        kind="mla",
        heads=heads,
        kv_heads=heads,
        head_dim=fields.count("v_head_dim"),
        q_rank=fields.count_or_null("q_lora_rank"),
        kv_rank=fields.count("kv_lora_rank"),
        rope_dim=fields.count("qk_rope_head_dim"),
        nope_dim=fields.count("qk_nope_head_dim"),
        bias=fields.flag("attention_bias", default=False),
    )


def _alternating(fields: Fields) -> AttentionSpec:
    """Return windowed attention of which every second layer looks at everything."""
    count = fields.count("num_attention_heads")
    every = _alternation(fields)
    return AttentionSpec(
        kind="gqa",
        heads=count,
        kv_heads=fields.count("num_key_value_heads"),
        head_dim=fields.count("head_dim"),
        window=fields.count("sliding_window"),
        window_every=every,
        bias=fields.flag("attention_bias", default=False),
    )


def _alternation(fields: Fields) -> int:
    """Return the distance of full layers; the library's default is 2."""
    kinds = fields.get("layer_types")
    if kinds is MISSING or kinds is None:
        return 2
    layers = fields.count("num_hidden_layers", most=MOST_LAYERS)
    listed = kinds if isinstance(kinds, list) else []
    every = 1 + listed.index("full_attention") if "full_attention" in listed else 2
    expected = [
        "sliding_attention" if (layer + 1) % every else "full_attention"
        for layer in range(layers)
    ]
    if kinds != expected:
        fields.complain("layer_types", "one full layer in n, regularly, is expected")
    return every


def _chunked(fields: Fields) -> AttentionSpec:
    """Return Llama 4's attention: one layer in four looks beyond its chunk."""
    plain = _grouped(fields)
    chunk = fields.count("attention_chunk_size", default=8192)
    every = fields.count("no_rope_layer_interval", default=4)
    return replace(plain, window=chunk, window_every=every)


def _several(fields: Fields) -> int:
    """Return the joint width of DeepSeek's shared experts; each is a routed one's."""
    if fields.get("n_shared_experts") is None:
        return 0
    width = fields.count("moe_intermediate_size")
    return width * fields.count("n_shared_experts", least=0)


def _qwen_shared(fields: Fields) -> int:
    return fields.count("shared_expert_intermediate_size", default=0, least=0)


def _llama_shared(fields: Fields) -> int:
    """Llama 4 has one shared expert, as wide as a routed one."""
    return fields.count("intermediate_size")


_DEEPSEEK = Family(
    _after_the_first,
    _latent,
    _several,
    experts="n_routed_experts",
    dense_width="intermediate_size",
    groups=True,
)
_MIXTRAL = Family(
    _all_layers,
    _grouped,
    experts="num_local_experts",
    expert_width="intermediate_size",
)
_QWEN = Family(_sparse_steps, _grouped, _qwen_shared, dense_width="intermediate_size")

FAMILIES: Mapping[str, Family] = {
    "mixtral": _MIXTRAL,
    "phimoe": _MIXTRAL,
    "minimax_m2": _MIXTRAL,
    "olmoe": replace(_MIXTRAL, experts="num_experts"),
    "gpt_oss": replace(_MIXTRAL, attention=_alternating, expert_bias=True),
    "qwen2_moe": replace(_QWEN, attention=_biased),
    "qwen3_moe": _QWEN,
    "deepseek": replace(_DEEPSEEK, attention=_grouped, groups=False),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "glm4_moe": replace(_DEEPSEEK, attention=_grouped, groups=False),
    "llama4": Family(
        _interleaved,
        _chunked,
        _llama_shared,
        experts="num_local_experts",
        expert_width="intermediate_size",
        dense_width="intermediate_size_mlp",
    ),
    "dbrx": Family(
        _all_layers,
        _dbrx,
        experts="ffn_config.moe_num_experts",
        expert_width="ffn_config.ffn_hidden_size",
        top_k="ffn_config.moe_top_k",
        layers="n_layers",
        hidden="d_model",
    ),
}
"""What is supported, by the ``model_type`` of a ``config.json``."""

ARCHITECTURES: Mapping[str, str] = {
    "MixtralForCausalLM": "mixtral",
    "PhiMoEForCausalLM": "phimoe",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "OlmoeForCausalLM": "olmoe",
    "GptOssForCausalLM": "gpt_oss",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekForCausalLM": "deepseek",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Llama4ForConditionalGeneration": "llama4",
    "DbrxForCausalLM": "dbrx",
    "MiniMaxText01ForCausalLM": "minimax_text_01",
}
"""The model type of each architecture's class, for files that lack the type."""

_LINEAR = "most of its layers have linear attention, which no cost here describes"
_SPARSE = "its attention reads a learned choice of tokens, which no cost here describes"
_ONE_FOR_ALL = "it has no routed experts"

REFUSED: Mapping[str, str] = {
    "deepseek_v32": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    "qwen3_next": _LINEAR,
    "qwen3_5_moe": _LINEAR,
    "minimax_text_01": _LINEAR,
    "minimax": _LINEAR,
    "jamba": _LINEAR,
    "llama": _ONE_FOR_ALL,
    "mistral": _ONE_FOR_ALL,
    "qwen2": _ONE_FOR_ALL,
    "qwen3": _ONE_FOR_ALL,
}
"""Model types known not to fit, each with the reason."""
