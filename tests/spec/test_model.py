"""Shapes of models: what is derived from them, and what contradicts itself."""

from dataclasses import replace

import pytest

from moesim.spec.catalogue import load_model


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("mixtral-8x7b", (0,) * 32, 0),
        ("deepseek-v3", (3,) + (0,) * 57, 0),
        ("llama-4-maverick", (1,) * 24, 0),
    ],
)
def test_dense_layers_are_counted_before_each_moe_layer(name, before, after):
    """DeepSeek starts with dense layers, Llama 4 interleaves them."""
    model = load_model(name)

    assert (model.dense_before, model.dense_after) == (before, after)


def test_dense_layers_after_the_last_moe_layer_are_counted_apart():
    """They run before the LM head, in the tail of a pass."""
    model = replace(load_model("mixtral-8x7b"), moe_layers=(2, 5), dense_width=1)

    assert (model.dense_before, model.dense_after) == ((2, 2), 26)


@pytest.mark.parametrize("moe_layers", [(0,), (3, 4, 9), (31,), tuple(range(32))])
def test_every_layer_is_moe_or_dense_and_counted_once(moe_layers):
    """Conservation of layers."""
    model = replace(load_model("mixtral-8x7b"), moe_layers=moe_layers)
    dense = sum(model.dense_before) + model.dense_after

    assert dense == model.dense_layer_count
    assert dense + model.moe_layer_count == model.layers


def test_gpt_oss_alternates_windows_and_full_attention():
    """Its config.json lists: sliding, full, sliding, full, ..."""
    assert load_model("gpt-oss-120b").full_attention == (False, True) * 18


def test_llama_4_looks_beyond_its_chunk_in_every_fourth_layer():
    """Layers 3, 7, 11, ... have no rotary position and see everything."""
    assert (
        load_model("llama-4-scout").full_attention
        == (False,) * 3 + (True,) + ((False,) * 3 + (True,)) * 11
    )


def test_without_windows_every_layer_looks_at_everything():
    """No window is the usual case."""
    assert all(load_model("deepseek-v3").full_attention)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mixtral-8x7b", 352_321_536 // 2),
        ("deepseek-v3", 88_080_384 // 2),
        ("gpt-oss-20b", 3 * 2880 * 2880 + 3 * 2880),
    ],
)
def test_an_expert_has_three_projections(name, parameters):
    """Oracle C02: 352,321,536 and 88,080,384 bytes in bf16; gpt-oss adds biases."""
    assert load_model(name).expert_parameters == parameters


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"moe_layers": ()}, "no layer has routed experts"),
        ({"moe_layers": (3, 3)}, "ascend"),
        ({"moe_layers": (5, 4)}, "ascend"),
        ({"moe_layers": (61,)}, "within 0 to 60"),
        ({"moe_layers": (-1, 4)}, "ascend"),
        ({"dense_width": 0}, "3 dense layers need"),
        ({"groups": 7}, "do not divide into 7 groups"),
        ({"top_groups": 9}, "9 of 8 groups"),
        ({"top_k": 257}, "cannot visit 257"),
        ({"top_k": 33, "top_groups": 1}, "32 are in its reach"),
    ],
)
def test_a_shape_that_contradicts_itself_says_why(change, complaint):
    """Each rule is broken on its own."""
    misfits = replace(load_model("deepseek-v3"), **change).misfits()

    assert any(complaint in misfit for misfit in misfits)


def test_heads_must_share_key_value_heads_evenly():
    """Five heads cannot share two caches."""
    model = load_model("mixtral-8x7b")
    odd = replace(model, attention=replace(model.attention, kv_heads=5))

    assert odd.misfits() == ["32 heads cannot share 5 caches"]
