"""Reading a Hugging Face config.json: real ones, and hostile ones."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.spec.architectures import FAMILIES, REFUSED
from moesim.spec.catalogue import load_model
from moesim.spec.files import CONFIG_BYTES, read_json
from moesim.spec.huggingface import model_from_config, read_config

MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "vocab_size": 32000,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "topk_group": 4,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "sliding_window": 128,
    "vocab_size": 201088,
}
QWEN = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 2,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [3],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
}

REAL = {
    "MiniMaxAI--MiniMax-M2.5": "minimax-m2.5",
    "Qwen--Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen--Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": "qwen3-coder-480b-a35b",
    "databricks--dbrx": "dbrx",
    "deepseek-ai--DeepSeek-R1": "deepseek-r1",
    "deepseek-ai--DeepSeek-V3": "deepseek-v3",
    "inference-sim--DeepSeek-V2-Lite": "deepseek-v2-lite",
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "llama-4-scout",
    "mistralai--Mixtral-8x22B-v0.1": "mixtral-8x22b",
    "mistralai--Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "moe-lrc--DeepSeek-V2-Lite": "deepseek-v2-lite",
    "moe-lrc--DeepSeekMoE-16B": "deepseek-moe-16b",
    "moe-lrc--OLMoE-1B-7B": "olmoe-1b-7b",
    "moe-lrc--Phi-3.5-MoE": "phi-3.5-moe",
    "moe-lrc--Qwen1.5-MoE-A2.7B": "qwen1.5-moe-a2.7b",
    "moe-lrc--Qwen2-57B-A14B": "qwen2-57b-a14b",
    "moonshotai--Kimi-K2-Instruct": "kimi-k2",
    "openai--gpt-oss-120b": "gpt-oss-120b",
    "openai--gpt-oss-20b": "gpt-oss-20b",
    "transcribed--DeepSeek-V2": "deepseek-v2",
    "transcribed--GLM-4.5-355B-A32B": "glm-4.5",
    "transcribed--GLM-4.5-Air-106B-A12B": "glm-4.5-air",
}
UNSUPPORTED = {
    "Qwen--Qwen3.5-397B-A17B": "linear attention",
    "deepseek-ai--DeepSeek-V3.2": "learned choice of tokens",
    "transcribed--MiniMax-Text-01": "linear attention",
    "zai-org--GLM-5": "learned choice of tokens",
}


@pytest.fixture
def configs():
    folder = os.environ.get("MOESIM_DATA")
    if not folder:
        pytest.skip("MOESIM_DATA is not set")
    return Path(folder) / "configs"


@pytest.fixture
def write(tmp_path):
    def to_file(content):
        path = tmp_path / "a.json"
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(data)
        return path

    return to_file


def shape(model):
    """Return a model without what a config.json does not say."""
    return replace(
        model,
        name="",
        published_total=None,
        published_active=None,
        published_counting="all",
    )


def complaints(config):
    with pytest.raises(InputError) as refused:
        model_from_config(config, "model", "there.json")
    return {problem.key: problem.message for problem in refused.value.problems}


@pytest.mark.parametrize(("file", "preset"), REAL.items())
def test_a_preset_is_what_the_publisher_s_file_says(configs, file, preset):
    """All but name, source and published figures; GLM's transcript lacks its bias."""
    config = read_json(configs / f"{file}_config.json")
    if preset.startswith("glm"):
        config["attention_bias"] = True

    assert shape(model_from_config(config, "")) == shape(load_model(preset))


@pytest.mark.parametrize(("file", "reason"), UNSUPPORTED.items())
def test_attention_that_no_cost_describes_is_refused(configs, file, reason):
    """With the reason, rather than simulated as something else."""
    with pytest.raises(InputError, match=reason):
        read_config(configs / f"{file}_config.json")


def test_every_real_file_is_accounted_for(configs):
    """A new file has to be added to one of the tables above."""
    files = {path.name.removesuffix("_config.json") for path in configs.glob("*.json")}

    assert files == REAL.keys() | UNSUPPORTED.keys()


def test_a_path_works_wherever_a_preset_does(write):
    """`load_model` takes either."""
    model = load_model(str(write(json.dumps(MIXTRAL))))

    assert shape(model) == shape(load_model("mixtral-8x7b"))
    assert model.name == "a"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("my model/config.json", "my-model"),
        ("Mixtral-8x7B.json", "Mixtral-8x7B"),
        ("\u001b[31mred.json", "-31mred"),
    ],
)
def test_a_model_is_named_after_its_file(tmp_path, path, name):
    """Or after its folder when the file is called config.json; safe to print."""
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(MIXTRAL))

    assert read_config(file).name == name


def test_deepseek_has_latent_attention_and_groups():
    """Leading dense layers, shared experts, limited groups."""
    assert shape(model_from_config(DEEPSEEK, "")) == shape(load_model("deepseek-v3"))


@pytest.mark.parametrize(
    "change", [{"n_group": None}, {"topk_method": "greedy"}, {"n_group": 1}]
)
def test_routing_without_groups_is_unlimited(change):
    """Null and greedy mean the same as one group."""
    model = model_from_config(DEEPSEEK | {"topk_group": 1} | change, "")

    assert (model.groups, model.top_groups) == (1, 1)


def test_queries_may_be_uncompressed():
    """A null rank means one matrix, as in DeepSeek-V2-Lite."""
    model = model_from_config(DEEPSEEK | {"q_lora_rank": None}, "")

    assert model.attention.q_rank == 0


def test_shared_experts_are_one_wide_expert():
    """Two of 2048 do the work of one of 4096."""
    assert (
        model_from_config(DEEPSEEK | {"n_shared_experts": 2}, "").shared_width == 4096
    )
    assert (
        model_from_config(DEEPSEEK | {"n_shared_experts": None}, "").shared_width == 0
    )


def test_moe_layers_come_every_so_often():
    """Qwen: every second layer, but for those listed as dense."""
    model = model_from_config(QWEN, "")

    assert model.moe_layers == (1, 5, 7)
    assert model.dense_width == 6144


def test_moe_layers_may_be_spaced_from_the_first_on():
    """DeepSeek: layers from the third on whose number is even."""
    model = model_from_config(
        DEEPSEEK | {"num_hidden_layers": 9, "moe_layer_freq": 2}, ""
    )

    assert model.moe_layers == (4, 6, 8)


@pytest.mark.parametrize(
    ("change", "bias"),
    [
        ({}, False),
        ({"attention_bias": True}, True),
        ({"model_type": "qwen2_moe"}, True),
        ({"model_type": "qwen2_moe", "qkv_bias": False}, False),
    ],
)
def test_only_qwen2_has_biases_without_saying_so(change, bias):
    """The library's defaults differ by family."""
    assert model_from_config(QWEN | change, "").attention.bias is bias


@pytest.mark.parametrize(
    ("step", "moe_layers"), [(1, (0, 1, 2, 3, 4, 5)), (2, (1, 3, 5)), (3, (2, 5))]
)
def test_llama_4_interleaves_and_nests_its_language_model(step, moe_layers):
    """The last of every `step` layers has experts, and one shared expert."""
    text = GPT_OSS | {
        "model_type": "llama4_text",
        "num_hidden_layers": 6,
        "interleave_moe_layer_step": step,
        "intermediate_size_mlp": 16384,
        "sliding_window": None,
    }
    model = model_from_config({"model_type": "llama4", "text_config": text}, "")

    assert model.moe_layers == moe_layers
    assert model.dense_width == (0 if step == 1 else 16384)
    assert model.shared_width == model.expert_width == 2880
    assert (model.attention.window, model.attention.window_every) == (8192, 4)


def test_dbrx_nests_attention_and_experts():
    """Its keys are its own."""
    config = {
        "model_type": "dbrx",
        "attn_config": {"kv_n_heads": 8},
        "d_model": 6144,
        "ffn_config": {
            "ffn_hidden_size": 10752,
            "moe_num_experts": 16,
            "moe_top_k": 4,
        },
        "n_heads": 48,
        "n_layers": 40,
        "vocab_size": 100352,
    }

    assert shape(model_from_config(config, "")) == shape(load_model("dbrx"))


def test_layer_types_say_how_often_a_layer_looks_at_everything():
    """One in three here; without the list, every second."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 8
    listed = model_from_config(GPT_OSS | {"layer_types": kinds}, "")
    unlisted = model_from_config(GPT_OSS, "")

    assert listed.attention.window_every == 3
    assert unlisted.attention.window_every == 2


@pytest.mark.parametrize(
    "kinds",
    [
        ["full_attention", "sliding_attention"] * 12,
        ["sliding_attention", "full_attention"] * 11,
        ["sliding_attention"] * 24,
        ["linear_attention"] * 24,
        "full_attention",
    ],
)
def test_irregular_windows_are_refused(kinds):
    """The spec can say only: the last of every n layers."""
    assert "layer_types" in complaints(GPT_OSS | {"layer_types": kinds})


@pytest.mark.parametrize(
    ("window", "context", "fits"), [(4096, 32768, False), (32768, 32768, True)]
)
def test_a_window_in_every_layer_is_refused_unless_it_spans_the_context(
    window, context, fits
):
    """Phi-3.5 has a window as long as its context, which does nothing."""
    config = MIXTRAL | {"sliding_window": window, "max_position_embeddings": context}
    if fits:
        assert model_from_config(config, "").attention.window == 0
    else:
        assert "alternating" in complaints(config)["sliding_window"]


def test_a_window_that_is_switched_off_does_not_matter():
    """Qwen ships one with `use_sliding_window: false`."""
    model = model_from_config(
        QWEN | {"sliding_window": 7, "use_sliding_window": False}, ""
    )

    assert model.attention.window == 0


@pytest.mark.parametrize("config", [MIXTRAL, DEEPSEEK, GPT_OSS, QWEN])
def test_all_missing_keys_are_reported_at_once(config):
    """With nothing but the type, every key that has no default is named."""
    optional = {
        "model_type",
        "attention_bias",
        "decoder_sparse_step",
        "head_dim",
        "mlp_only_layers",
        "sliding_window",
        "intermediate_size",
    }
    found = complaints({"model_type": config["model_type"]})

    assert set(config) - optional <= set(found)
    assert all("missing" in message for message in found.values())


def test_a_mistake_is_reported_once_however_often_it_is_read():
    """The width is needed for heads too."""
    with pytest.raises(InputError) as refused:
        model_from_config(MIXTRAL | {"hidden_size": "wide"}, "m")

    assert [problem.key for problem in refused.value.problems] == ["hidden_size"]


def test_a_missing_key_names_the_one_that_was_meant():
    """A typo is answered."""
    config = dict(MIXTRAL)
    config["num_local_expert"] = config.pop("num_local_experts")

    assert "'num_local_expert'" in complaints(config)["num_local_experts"]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (True, "whole number"),
        ("8", "whole number"),
        (8.0, "whole number"),
        (None, "whole number"),
        ([8], "whole number"),
        (0, "within"),
        (-8, "within"),
        (2**40, "within"),
    ],
)
def test_a_count_is_a_whole_number_in_range(value, complaint):
    """Truth values, texts and nulls are no counts."""
    found = complaints(MIXTRAL | {"num_local_experts": value})

    assert complaint in found["num_local_experts"]


def test_a_flag_is_true_or_false():
    """One is not true."""
    found = complaints(MIXTRAL | {"tie_word_embeddings": 1})

    assert "true or false" in found["tie_word_embeddings"]


def test_a_list_of_layers_holds_whole_numbers():
    """Not truth values either."""
    assert "mlp_only_layers" in complaints(QWEN | {"mlp_only_layers": [True]})


def test_a_shape_that_contradicts_itself_is_refused():
    """More experts for a token than there are."""
    with pytest.raises(InputError, match="cannot visit 9 experts"):
        model_from_config(MIXTRAL | {"num_experts_per_tok": 9}, "m")


def test_an_unknown_architecture_is_answered_with_the_nearest():
    """And with all that are supported."""
    message = complaints({"model_type": "mixtrall"})["model_type"]

    assert "did you mean 'mixtral'?" in message
    assert "deepseek_v3" in message


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_architecture_says_why(kind):
    """Each has its reason, and none is supported."""
    assert REFUSED[kind] in complaints({"model_type": kind})["model_type"]
    assert kind not in FAMILIES


@pytest.mark.parametrize(
    "config", [{}, {"model_type": 3}, {"architectures": []}, {"architectures": [{}]}]
)
def test_without_an_architecture_nothing_is_guessed(config):
    """A model type or an architecture is needed."""
    assert "supported" in complaints(config)["model_type"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[]", "holds a list"),
        ("3", "holds a int"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"b": {"a": 1, "a": 2}}', "'a' stands twice"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "digits"),
        (b"\xff\xfe{}", "not UTF-8"),
        ('{"model_type": "\\ud800"}', "not supported"),
        (" " * (CONFIG_BYTES + 1), "longer than"),
    ],
    ids=range(13),
)
def test_hostile_content_is_refused(write, content, complaint):
    """One InputError with the file's name, whatever the parser would have done."""
    with pytest.raises(InputError, match=complaint) as refused:
        read_config(write(content))

    assert "a.json" in str(refused.value)


def test_a_syntax_error_has_its_line_and_column(write):
    """As editors jump to."""
    with pytest.raises(InputError) as refused:
        read_config(write('{\n  "a": 1,\n  oops\n}'))
    problem = refused.value.problems[0]

    assert (problem.line, problem.column) == (3, 3)


def test_a_byte_order_mark_is_accepted(write):
    """Windows editors write one."""
    text = "\ufeff" + json.dumps(MIXTRAL)

    assert read_config(write(text)).top_k == 2


def test_only_regular_files_are_read(tmp_path):
    """No folder, no FIFO (which would hang), no device, nothing missing."""
    fifo = tmp_path / "fifo.json"
    os.mkfifo(fifo)

    for path in (tmp_path, fifo, Path("/dev/zero"), tmp_path / "none.json"):
        with pytest.raises(InputError):
            read_config(path)


@pytest.mark.parametrize("path", ["a/\0.json", "a/\ud800.json", "a/" + "x" * 5000])
def test_a_path_that_cannot_exist_is_an_input_error(path):
    """Whatever the operating system thinks of it."""
    with pytest.raises(InputError):
        load_model(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([MIXTRAL, DEEPSEEK, GPT_OSS, QWEN]), st.data())
def test_any_change_is_read_or_refused_with_an_input_error(config, data):
    """Replace or drop keys of a good file: never another exception."""
    changed = dict(config)
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        if data.draw(st.booleans()):
            changed[key] = data.draw(values)
        else:
            changed.pop(key, None)
    try:
        model = model_from_config(changed, "m")
    except InputError:
        return

    assert model.misfits() == []


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400))
def test_any_bytes_are_read_or_refused_with_an_input_error(tmp_path_factory, noise, at):
    """Random bytes, alone or spliced into a good file."""
    good = json.dumps(MIXTRAL).encode()
    path = tmp_path_factory.getbasetemp() / "noise.json"
    for content in (noise, good[:at] + noise + good[at:]):
        path.write_bytes(content)
        try:
            model = read_config(path)
        except InputError:
            continue

        assert model.misfits() == []
