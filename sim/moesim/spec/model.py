"""A mixture-of-experts transformer, as far as its cost and memory depend on it."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Counting = Literal["all", "no_embedding", "no_vocabulary"]
"""What counts as active: everything; all but the input embedding, of which a token
reads one row; or neither the embedding nor the LM head."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The attention of one model: widths in elements, counts of heads.

    Parameters
    ----------
    kind : {"gqa", "mla"}
        Grouped-query attention (multi-head when ``kv_heads == heads``) or DeepSeek's
        multi-head latent attention.
    heads, kv_heads, head_dim : int
        Query heads, key-value heads, width of one head (MLA: value width).
    q_rank, kv_rank, rope_dim, nope_dim : int
        MLA only: compressed widths of queries (0: not compressed) and of keys and
        values, and the widths of a head with and without rotary position.
    window : int
        Tokens a sliding-window layer looks back; 0 when there is no window.
    window_every : int
        One layer in `window_every` looks at everything; 0 when no layer is windowed.
    bias : bool
        Projections carry a bias vector.
    """

    kind: Literal["gqa", "mla"]
    heads: int
    kv_heads: int
    head_dim: int
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    window: int = 0
    window_every: int = 0
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model: all that cost and memory depend on. Widths are in elements.

    Parameters
    ----------
    layers : int
        Transformer layers, dense ones included.
    moe_layers : tuple of int
        Which of them have routed experts, ascending. Axis ``L`` everywhere else in the
        package counts these alone.
    groups, top_groups : int
        Group-limited routing (DeepSeek): experts come in `groups` groups and a token
        may use `top_groups` of them; 1 and 1 when unlimited.
    expert_width, shared_width, dense_width : int
        Inner widths of one routed expert, of all shared experts of a layer together,
        and of the feed-forward network of a dense layer; 0: there is none.
    published_total, published_active : float or None
        Parameters as the publisher states them, to check ours against.
    published_counting : {"all", "no_embedding", "no_vocabulary"}
        What the publisher's active parameters include.
    """

    name: str
    layers: int
    moe_layers: tuple[int, ...]
    hidden: int
    vocab: int
    attention: AttentionSpec
    experts: int
    top_k: int
    expert_width: int
    shared_width: int = 0
    dense_width: int = 0
    groups: int = 1
    top_groups: int = 1
    tied_embeddings: bool = False
    expert_bias: bool = False
    published_total: float | None = None
    published_active: float | None = None
    published_counting: Counting = "all"
    source: str = field(default="", compare=False)

    @property
    def moe_layer_count(self) -> int:
        """How many layers have routed experts, ``L``."""
        return len(self.moe_layers)

    @property
    def dense_layer_count(self) -> int:
        """How many layers have one feed-forward network for all tokens."""
        return self.layers - len(self.moe_layers)

    @property
    def dense_before(self) -> tuple[int, ...]:
        """Dense layers between each MoE layer and the MoE layer before it, ``(L,)``."""
        previous = (-1, *self.moe_layers)
        return tuple(
            layer - before - 1
            for before, layer in zip(previous, self.moe_layers, strict=False)
        )

    @property
    def dense_after(self) -> int:
        """Dense layers after the last MoE layer."""
        return self.dense_layer_count - sum(self.dense_before)

    @property
    def full_attention(self) -> tuple[bool, ...]:
        """``(layers,)``: which layers look at everything rather than at a window.

        The last of every `window_every` layers does (gpt-oss: 1, 3, 5, ...).
        """
        every = self.attention.window_every or 1
        return tuple((layer + 1) % every == 0 for layer in range(self.layers))

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert: gate, up and down projection (SwiGLU)."""
        bias = 2 * self.expert_width + self.hidden if self.expert_bias else 0
        return 3 * self.hidden * self.expert_width + bias

    @property
    def shared_parameters(self) -> int:
        """Parameters of the shared experts of one layer: three matrices."""
        return 3 * self.hidden * self.shared_width

    def misfits(self) -> list[str]:
        """Return what in this shape contradicts itself, in sentences."""
        attention, members = self.attention, self.experts // self.groups
        bounded = (-1, *self.moe_layers, self.layers)
        reach = min(self.top_groups, self.groups) * members
        rules = (
            (len(self.moe_layers) > 0, "no layer has routed experts"),
            (
                all(below < above for below, above in pairwise(bounded)),
                f"MoE layers must ascend within 0 to {self.layers - 1}",
            ),
            (
                self.dense_width > 0 or self.dense_layer_count == 0,
                f"{self.dense_layer_count} dense layers need a dense width",
            ),
            (
                members * self.groups == self.experts,
                f"{self.experts} experts do not divide into {self.groups} groups",
            ),
            (
                self.top_groups <= self.groups,
                f"a token cannot use {self.top_groups} of {self.groups} groups",
            ),
            (
                self.top_k <= reach,
                f"a token cannot visit {self.top_k} experts: {reach} are in its reach",
            ),
            (
                attention.heads % attention.kv_heads == 0,
                f"{attention.heads} heads cannot share {attention.kv_heads} caches",
            ),
        )
        return [sentence for holds, sentence in rules if not holds]
