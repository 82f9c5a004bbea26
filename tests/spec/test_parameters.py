"""Parameters counted from the shape against what publishers state."""

from dataclasses import replace

import pytest

from moesim.spec.catalogue import load_model, model_names
from moesim.spec.model import AttentionSpec
from moesim.spec.parameters import attention_parameters, count_parameters

COMPUTED_TOTALS_B = {
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 140.6,
    "deepseek-v2": 235.7,
    "deepseek-v2-lite": 15.7,
    "deepseek-v3": 671,
    "deepseek-r1": 671,
    "kimi-k2": 1026,
    "qwen1.5-moe-a2.7b": 14.3,
    "qwen2-57b-a14b": 57.4,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.1,
    "olmoe-1b-7b": 6.9,
    "dbrx": 131.6,
    "phi-3.5-moe": 41.9,
    "glm-4.5": 352.8,
    "glm-4.5-air": 106.9,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "llama-4-scout": 107.8,
    "llama-4-maverick": 400.7,
    "minimax-m2.5": 228.7,
}
"""Billions of parameters of the same shapes, computed independently of this package."""

COARSE = {
    ("deepseek-moe-16b", "active"): (0.0102, "2.8B has two digits"),
    ("deepseek-v2-lite", "active"): (0.0214, "2.4B has two digits, cut"),
    ("glm-4.5-air", "active"): (0.0152, "12B has two digits"),
    ("kimi-k2", "total"): (-0.0131, "1.04T counts the dense layer as a MoE layer"),
    ("llama-4-maverick", "active"): (0.0109, "17B has two digits"),
    ("llama-4-scout", "active"): (0.0102, "17B has two digits"),
    ("llama-4-scout", "total"): (-0.0113, "109B has the vision tower, not modelled"),
    ("minimax-m2.5", "active"): (-0.0199, "10B is rounded to the billion"),
    ("olmoe-1b-7b", "active"): (-0.0139, "1.3B has two digits"),
    ("qwen2-57b-a14b", "active"): (0.0178, "14B has two digits"),
    ("qwen3-30b-a3b", "active"): (0.0161, "3.3B has two digits, cut"),
    ("qwen3-coder-480b-a35b", "active"): (0.0136, "35B has two digits"),
}
"""Where ours and the published figure differ by over 1 %: by how much, and why."""

TOYS = ("rush-12x32", "seed-8x32")
PUBLISHED = [name for name in model_names() if name not in TOYS]


def deviations(name):
    model = load_model(name)
    count = count_parameters(model)
    active = count.active(model.published_counting)
    return {
        "total": count.total / model.published_total - 1,
        "active": active / model.published_active - 1,
    }


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("which", ["total", "active"])
def test_parameters_agree_with_the_publisher(name, which):
    """Within 1 % under the convention the preset names, or as the table above says."""
    deviation = deviations(name)[which]
    if (name, which) in COARSE:
        assert deviation == pytest.approx(COARSE[name, which][0], abs=6e-5)
    else:
        assert abs(deviation) <= 0.01


@pytest.mark.parametrize(("name", "which"), COARSE)
def test_a_deviation_is_listed_only_where_there_is_one(name, which):
    """An entry that is no longer needed has to go."""
    assert abs(deviations(name)[which]) > 0.01


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("deepseek-moe-16b", 2.8),
        ("glm-4.5-air", 12),
        ("llama-4-maverick", 17),
        ("llama-4-scout", 17),
        ("minimax-m2.5", 10),
        ("olmoe-1b-7b", 1.3),
        ("qwen2-57b-a14b", 14),
        ("qwen3-coder-480b-a35b", 35),
    ],
)
def test_where_the_publisher_rounded_ours_rounds_to_the_same(name, printed):
    """A deviation over 1 % is what two digits leave open, not an error."""
    model = load_model(name)
    active = count_parameters(model).active(model.published_counting) / 1e9
    decimals = 1 if isinstance(printed, float) else 0

    assert round(active, decimals) == printed


@pytest.mark.parametrize("name", COMPUTED_TOTALS_B)
def test_totals_agree_with_an_independent_count(name):
    """Within 0.5 % of a count made elsewhere from the same config.json."""
    total = count_parameters(load_model(name)).total

    assert total / 1e9 == pytest.approx(COMPUTED_TOTALS_B[name], rel=0.005)


def test_a_dense_layer_counted_as_moe_explains_kimi_s_total():
    """With 61 MoE layers instead of 60 the total is the published 1.04T."""
    kimi = load_model("kimi-k2")
    total = count_parameters(replace(kimi, moe_layers=tuple(range(61)))).total

    assert total == pytest.approx(kimi.published_total, rel=0.005)


def test_parts_add_up_to_a_total_counted_by_hand():
    """Every part of a model small enough to count on paper."""
    model = replace(
        load_model("mixtral-8x7b"),
        layers=3,
        moe_layers=(1, 2),
        hidden=10,
        vocab=100,
        attention=AttentionSpec("gqa", heads=4, kv_heads=2, head_dim=3),
        experts=8,
        expert_width=5,
        shared_width=7,
        dense_width=11,
    )
    count = count_parameters(model)

    assert count.embedding == 1000
    assert count.lm_head == 1000 + 10
    assert count.attention == 3 * (10 * 12 + 2 * 10 * 6 + 12 * 10 + 2 * 10)
    assert count.dense == 1 * 3 * 10 * 11
    assert count.shared == 2 * 3 * 10 * 7
    assert count.router == 2 * 10 * 8
    assert count.routed == 2 * 8 * 3 * 10 * 5
    assert count.routed_active == 2 * 2 * 3 * 10 * 5
    assert count.total == 1000 + 1010 + 1140 + 330 + 420 + 160 + 2400


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"])
def test_conventions_differ_by_the_vocabulary_matrices(name):
    """Each convention leaves out one more matrix."""
    model = load_model(name)
    count = count_parameters(model)
    steps = [count.active(c) for c in ("all", "no_embedding", "no_vocabulary")]

    assert steps[0] - steps[1] == model.vocab * model.hidden
    assert steps[1] - steps[2] == model.vocab * model.hidden + model.hidden


def test_a_tied_matrix_is_stored_once_and_always_active_as_the_head():
    """Looking a row up is free, multiplying with the matrix is not."""
    model = load_model("mixtral-8x7b")
    tied = count_parameters(replace(model, tied_embeddings=True))
    apart = count_parameters(model)

    assert apart.total - tied.total == model.vocab * model.hidden
    assert tied.active("no_embedding") == apart.active("no_embedding")


def test_a_token_that_visits_every_expert_uses_every_parameter():
    """With k = E active and total coincide."""
    model = load_model("mixtral-8x7b")
    count = count_parameters(replace(model, top_k=model.experts))

    assert count.active("all") == count.total


def test_biases_of_attention_are_one_vector_per_projection():
    """Query, key, value and output."""
    plain = AttentionSpec("gqa", heads=4, kv_heads=2, head_dim=3)
    extra = attention_parameters(10, replace(plain, bias=True)) - (
        attention_parameters(10, plain)
    )

    assert extra == 12 + 6 + 6 + 10


def test_grouped_attention_is_split_until_heads_run_out():
    """Beyond one key-value head a GPU, keys and values are repeated."""
    spec = AttentionSpec("gqa", heads=32, kv_heads=4, head_dim=128)

    assert attention_parameters(4096, spec, 4) * 4 == attention_parameters(4096, spec)
    assert attention_parameters(4096, spec, 8) == 4096 * 128 * 2 * (4 + 1)


def test_latent_attention_repeats_what_all_heads_share():
    """Down-projections are whole on every tensor-parallel GPU."""
    spec = load_model("deepseek-v3").attention
    shared = 7168 * (1536 + 576) + 1536 + 512
    whole = attention_parameters(7168, spec)

    assert attention_parameters(7168, spec, 8) == (whole - shared) // 8 + shared


def test_uncompressed_queries_are_one_matrix():
    """DeepSeek-V2-Lite has no query rank: 16 heads of 128 + 64."""
    spec = load_model("deepseek-v2-lite").attention
    rest = 2048 * 576 + 512 + 512 * 16 * 256 + 16 * 128 * 2048

    assert attention_parameters(2048, spec) == 2048 * 16 * 192 + rest
