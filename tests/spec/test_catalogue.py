"""The packaged models."""

import pytest

from moesim.errors import InputError
from moesim.spec.catalogue import load_model, model_from_table, model_names

REQUIRED = [
    "deepseek-v2-lite",
    "deepseek-v3",
    "gpt-oss-120b",
    "kimi-k2",
    "llama-4-maverick",
    "mixtral-8x22b",
    "mixtral-8x7b",
    "olmoe-1b-7b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "rush-12x32",
    "seed-8x32",
]
TOYS = ("rush-12x32", "seed-8x32")
TABLE = {
    "layers": 4,
    "moe_layers": {"first": 1, "every": 2},
    "hidden": 8,
    "vocab": 9,
    "attention": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_dim": 2},
    "experts": 4,
    "top_k": 2,
    "expert_width": 3,
    "dense_width": 5,
}


def test_the_models_of_the_studies_are_there():
    """Names that scenarios rely on."""
    assert set(REQUIRED) <= set(model_names())


def test_names_are_sorted():
    """So that listings do not depend on the file system."""
    assert list(model_names()) == sorted(model_names())


@pytest.mark.parametrize("name", model_names())
def test_every_preset_loads_and_says_where_it_is_from(name):
    """A shape without contradictions, under its own name, with a source."""
    model = load_model(name)

    assert model.name == name
    assert model.misfits() == []
    assert model.source


@pytest.mark.parametrize("name", [name for name in model_names() if name not in TOYS])
def test_every_real_model_has_published_parameters(name):
    """To check ours against."""
    model = load_model(name)

    assert model.published_total > model.published_active > 1e9


def test_the_toy_of_the_studies_has_8_layers_of_32_experts():
    """Oracle F10: experts as large as Mixtral's, two per token."""
    toy = load_model("seed-8x32")
    shape = (toy.moe_layer_count, toy.experts, toy.top_k, toy.hidden, toy.expert_width)

    assert shape == (8, 32, 2, 4096, 14336)
    assert toy.attention.heads == toy.attention.kv_heads


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("mixtral-8x7", "mixtral-8x7b"),
        ("Mixtral-8x7B", "mixtral-8x7b"),
        ("deepseekv3", "deepseek-v3"),
        ("kimi", "kimi-k2"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(wrong, right):
    """And with the list of all."""
    with pytest.raises(InputError, match=f"did you mean '{right}'") as refused:
        load_model(wrong)

    assert "olmoe-1b-7b" in str(refused.value)


@pytest.mark.parametrize("name", ["", "\x1b[31m", "x" * 10_000])
def test_a_hostile_name_is_refused_without_repeating_it(name):
    """Escaped and cut."""
    with pytest.raises(InputError) as refused:
        load_model(name)

    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_a_preset_s_moe_layers_are_a_first_and_a_step():
    """Up to the last layer; published parameters are counts."""
    model = model_from_table(TABLE | {"published_total": "1.5K"}, "m")

    assert model.moe_layers == (1, 3)
    assert model.published_total == 1500.0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hiden": 8}, "hiden: unknown key"),
        ({"attention": {"kind": "gqa", "head": 1}}, "head: unknown key"),
        ({"attention": {"kind": "gqa"}}, "heads"),
        ({"moe_layers": {"first": 1}}, "every is missing"),
        ({"moe_layers": {"first": 1, "every": 0}}, "must not be zero"),
        ({"moe_layers": [1, 3]}, "m: "),
        ({"published_total": "47G"}, "47G"),
        ({"groups": 0}, "zero"),
        ({"top_k": 5}, "cannot visit 5"),
    ],
)
def test_a_wrong_preset_is_refused(change, complaint):
    """Strict about keys, like every file."""
    with pytest.raises(InputError, match=complaint):
        model_from_table(TABLE | change, "m")


@pytest.mark.parametrize("key", ["hidden", "attention", "moe_layers", "layers"])
def test_a_preset_without_a_needed_key_is_refused(key):
    """It is named."""
    table = {each: value for each, value in TABLE.items() if each != key}

    with pytest.raises(InputError, match=key):
        model_from_table(table, "m")
