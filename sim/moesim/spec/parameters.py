"""Parameters of a model, counted from its shape, part by part.

Left out because they are under 0.01 % of any model here: norms inside the attention,
attention sinks, gates of shared experts. Left out because serving does not need them:
multi-token-prediction layers and vision towers.
"""

from dataclasses import dataclass

from moesim.spec.model import AttentionSpec, Counting, ModelSpec


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of the whole model by part.

    Parameters
    ----------
    embedding, lm_head : int
        Input and output vocabulary matrices; a tied matrix counts once, as the LM head.
    attention : int
        Projections and norms of all layers.
    dense, shared, router : int
        Feed-forward networks of dense layers, shared experts, routers.
    routed, routed_active : int
        All routed experts, and those `top_k` of them that one token visits.
    """

    embedding: int
    lm_head: int
    attention: int
    dense: int
    shared: int
    router: int
    routed: int
    routed_active: int

    @property
    def total(self) -> int:
        """Every parameter that has to be stored."""
        return self._resident + self.routed

    @property
    def _resident(self) -> int:
        blocks = self.attention + self.dense + self.shared + self.router
        return self.embedding + self.lm_head + blocks

    def active(self, counting: Counting = "all") -> int:
        """Return the parameters that one token uses, under a convention of counting.

        Publishers differ: Mistral and Qwen count everything ("all"), OpenAI and
        DeepSeek leave out the input embedding, Zhipu both vocabulary matrices.
        """
        left_out = {
            "all": 0,
            "no_embedding": self.embedding,
            "no_vocabulary": self.embedding + self.lm_head,
        }
        return self._resident + self.routed_active - left_out[counting]


def count_parameters(model: ModelSpec) -> ParameterCount:
    """Return the parameters of `model` by part.

    Feed-forward networks are SwiGLU: three matrices of hidden times inner width. A
    router is one matrix of hidden times experts.
    """
    hidden, moe = model.hidden, model.moe_layer_count
    vocabulary = model.vocab * hidden
    expert = model.expert_parameters
    norms = 2 * hidden * model.layers
    return ParameterCount(
        embedding=0 if model.tied_embeddings else vocabulary,
        lm_head=vocabulary + hidden,
        attention=model.layers * attention_parameters(hidden, model.attention) + norms,
        dense=3 * hidden * model.dense_width * model.dense_layer_count,
        shared=3 * hidden * model.shared_width * moe,
        router=hidden * model.experts * moe,
        routed=expert * model.experts * moe,
        routed_active=expert * model.top_k * moe,
    )


def attention_parameters(
    hidden: int, attention: AttentionSpec, tensor_parallel: int = 1
) -> int:
    """Return the attention parameters of one layer on one of `tensor_parallel` GPUs.

    Heads are split; what all heads share is on every GPU: MLA's projections down to the
    compressed width, and key-value heads once there are fewer of them than GPUs.

    Source: the projections of DeepSeek-V2 (arXiv 2405.04434, appendix C) and of
    grouped-query attention (arXiv 2305.13245), split as vLLM splits them.

    >>> deepseek = AttentionSpec("mla", 128, 128, 128, 1536, 512, 64, 128)
    >>> attention_parameters(7168, deepseek)
    187107328
    """
    heads = -(-attention.heads // tensor_parallel)
    if attention.kind == "mla":
        return _latent(hidden, attention, heads)
    kv_heads = -(-attention.kv_heads // tensor_parallel)
    width = attention.head_dim
    biases = (heads + 2 * kv_heads) * width + hidden
    weights = 2 * hidden * (heads + kv_heads) * width
    return weights + (biases if attention.bias else 0)


def _latent(hidden: int, attention: AttentionSpec, heads: int) -> int:
    """Return multi-head latent attention's parameters: down, norm, up, output."""
    query = attention.nope_dim + attention.rope_dim
    key_value = attention.nope_dim + attention.head_dim
    rank, kv_rank = attention.q_rank, attention.kv_rank
    queries = rank * (hidden + 1 + heads * query) if rank else hidden * heads * query
    compressed = hidden * (kv_rank + attention.rope_dim) + kv_rank
    return (
        queries
        + compressed
        + kv_rank * heads * key_value
        + heads * attention.head_dim * hidden
    )
