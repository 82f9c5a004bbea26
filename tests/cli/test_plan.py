"""``moesim plan``: what it prints is what it computed, and bad input is told plainly."""

import json
import sys
from pathlib import Path

import pytest

from moesim.cli.main import main
from moesim.cli.plan_explain import explain
from moesim.cli.plan_screen import plan_screen
from moesim.cost.memory import kv_capacity_blocks
from moesim.cost.plan import Terms, make_plan
from moesim.scenario.build import build
from moesim.scenario.load import load
from moesim.spec.catalogue import load_model, model_names
from moesim.spec.hardware import load_gpu
from moesim.spec.placement import contiguous
from moesim.spec.serving import ServingSpec
from moesim.spec.system import Precision, System
from moesim.spec.topology import Topology

ROOT = Path(__file__).parents[2]
EP32 = str(ROOT / "scenarios" / "deepseek_v3_ep32.yaml")
MIXTRAL = ("--model", "mixtral-8x7b", "--gpu", "a100-40", "--gpus-per-node", "4")


@pytest.fixture
def plan(monkeypatch, tmp_path, capsys):
    """Run the command in an empty folder; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["moesim", "plan", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return caught.value.code or 0, out, err

    return call


@pytest.fixture
def planned(plan):
    """Run the command with ``--json``; return the record."""

    def call(*arguments):
        code, out, err = plan(*arguments, "--json")
        assert err == ""
        record = json.loads(out)
        assert code == (0 if record["fits"] else 1)
        return record

    return call


def row(screen, label):
    (line,) = [line for line in screen.splitlines() if line.startswith(label)]
    return line


def test_mixtral_on_four_small_gpus(plan):
    """The figures of the screen, GiB and GB beside each other."""
    code, out, err = plan(*MIXTRAL)

    assert (code, err) == (0, "")
    assert "4x a100-40 (1 node)" in out
    assert row(out, "routed experts, 2 a layer").split()[5:7] == ["21.00", "22.55"]
    assert row(out, "usable, 90% of the GPU").split()[5:7] == ["36.00", "38.65"]
    assert "131072 bytes, 128 KiB" in out
    assert "would say 524288, 4 times too much" in out
    assert "6.41 ms over PCIe" in out
    assert "58.7 ms from NVMe" in out
    assert "Fits: " in out
    assert max(map(len, out.splitlines())) <= 90


def test_a_plan_of_a_scenario_is_its_run_s_pool(planned):
    """To the block."""
    parts = build(load(EP32), 0)
    record = planned(EP32)

    assert record["kv"]["blocks_per_rank"] == parts.serving.kv_blocks
    assert record["kv"]["blocks_per_rank"] == kv_capacity_blocks(
        parts.system, parts.serving
    )
    assert record["redundant_experts"] == 32


def test_a_plan_keeps_within_what_may_be_in_use(planned, plan):
    """As the pool of a run does, and says so."""
    changes = {"memory.capacity": 0.8}
    record = planned(EP32, "--set", "memory.capacity=0.8")

    parts = build(load(EP32).with_(changes), 0)
    assert record["kv"]["blocks_per_rank"] == parts.serving.kv_blocks
    assert record == planned(EP32, "--utilization", "0.8")
    assert "usable, 80% of the GPU" in plan(EP32, "--set", "memory.capacity=0.8")[1]


def test_options_change_a_scenario(planned):
    """Each of them, and any other key by --set."""
    before = planned(EP32)
    after = planned(
        EP32,
        *("--nodes", "18", "--context", "5k", "--kv-precision", "fp8"),
        *("--micro-batch", "128", "--in-flight", "1", "--case", "expected"),
        *("--reserve", "2 GiB", "--utilization", "0.95"),
        *("--set", "serving.block_size=64", "--dispatch", "low_latency"),
    )

    assert after["num_gpus"] == 144
    assert after["context"] == 5000
    assert after["kv"]["bytes_per_token"] * 2 == before["kv"]["bytes_per_token"]
    assert after["bytes"]["reserve"] == 2 * 2**30
    assert after["usable_bytes"] == 0.95 * 80 * 2**30
    assert after["case"] == "expected"
    assert after["kv"]["tokens_per_rank"] == 64 * after["kv"]["blocks_per_rank"]
    assert after["bytes"]["dispatch_and_combine_buffers"] == 4 * 288 * 128 * 14352
    assert after["precision"] == {"weights": "fp8", "experts": "fp8", "kv": "fp8"}


@pytest.mark.parametrize(
    ("options", "formats"),
    [
        (("--precision", "fp16"), ("fp16", "fp16", "fp16")),
        (("--precision", "fp8"), ("fp8", "fp8", "bf16")),
        (("--precision", "int8"), ("int8", "int8", "bf16")),
        (("--precision", "int4"), ("int4", "int4", "bf16")),
        (("--experts-precision", "int4"), ("bf16", "int4", "bf16")),
        (
            ("--precision", "mixed", "--experts-precision", "fp4"),
            ("bf16", "fp4", "bf16"),
        ),
        (
            ("--precision", "fp8", "--experts-precision", "int4"),
            ("fp8", "int4", "bf16"),
        ),
    ],
)
def test_precisions(planned, options, formats):
    """One word for all, or the experts apart from the rest."""
    wide, record = planned(*MIXTRAL), planned(*MIXTRAL, *options)

    assert tuple(record["precision"].values()) == (formats[1], formats[2], formats[0])
    size = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5, "fp4": 0.5}
    for part, element in (("attention", formats[0]), ("routed_experts", formats[1])):
        assert record["bytes"][part] == wide["bytes"][part] * size[element] / 2
    assert record["bytes"]["routers"] == wide["bytes"]["routers"]


def test_a_model_from_its_configuration(planned, tmp_path):
    """A Hugging Face config.json beside the user."""
    config = {
        "model_type": "mixtral",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "vocab_size": 100,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))

    record = planned("--model", "./config.json")
    assert record["bytes"]["routed_experts"] == 2 * 3 * 64 * 128 * 2
    assert record["kv"]["bytes_per_token"] == 2 * 2 * 2 * 16 * 2


def test_what_does_not_fit_says_where_it_would(plan, planned):
    """Exit code 1, by how much, and the smallest cluster."""
    code, out, _ = plan("--model", "deepseek-v3", "--gpu", "h100")
    record = planned("--model", "deepseek-v3", "--gpu", "h100")

    assert code == 1
    assert "Does not fit: 113 GiB too little on each GPU." in out
    text = " ".join(out.split())
    assert "cluster that does: 32x h100 (4 nodes of 8), 96 sequences of 4096" in text
    assert "With tensor_parallel 2: 24x h100 (3 nodes of 8) with 8 redundant" in text
    sizes = [(c["num_gpus"], c["tensor_parallel"]) for c in record["smallest"]]
    assert sizes == [(32, 1), (24, 2)]
    again = planned("--model", "deepseek-v3", "--nodes", "4")
    assert again["fits"]
    assert again["smallest"] == []
    assert not planned(
        "--model", "deepseek-v3", "--nodes", "3", "--redundant-experts", "8"
    )["fits"]


def test_what_fits_nowhere_says_so(plan):
    code, out, _ = plan(*MIXTRAL, "--reserve", "36 GiB")

    assert code == 1
    assert "No number of a100-40 GPUs is" in out


def test_room_that_is_too_small_for_one_sequence_is_told(plan):
    code, out, _ = plan(*MIXTRAL, "--context", "100k", "--redundant-experts", "0")

    assert code == 1
    assert "left hold no sequence of 100000" in " ".join(out.split())


def test_a_scenario_s_log_need_not_be_there(plan, tmp_path):
    """Memory depends on neither routing nor arrivals."""
    (tmp_path / "a.yaml").write_text(
        "model: mixtral-8x7b\nrouting: {name: log, path: nowhere.npz}\n"
        "workload: {input_len: {type: log}}\n"
    )

    code, _, err = plan("a.yaml")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a scenario file or --model is needed"),
        (("--model", "mixtral-8x7"), "did you mean 'mixtral-8x7b'"),
        (("--model", "mixtral-8x7b", "--gpu", "h10"), "did you mean 'h100'"),
        ((*MIXTRAL, "--precision", "fp7"), "--precision: error: 'fp7' is not one of"),
        ((*MIXTRAL, "--precision", "mixed"), "mixed needs --experts-precision"),
        ((*MIXTRAL, "--kv-precision", "mixed"), "--kv-precision: error: 'mixed'"),
        ((*MIXTRAL, "--context", "8Ki"), "--context: error: '8Ki': unknown unit"),
        ((*MIXTRAL, "--context", "0"), "1 to 10000000 tokens are expected"),
        ((*MIXTRAL, "--reserve", "2"), "--reserve: error: '2' has no unit"),
        ((*MIXTRAL, "--case", "wost"), "did you mean 'worst'"),
        ((*MIXTRAL, "--redundant-experts", "1"), "cannot be divided evenly"),
        ((*MIXTRAL, "--nodes", "0"), "cluster.nodes"),
        ((*MIXTRAL, "--utilization", "2"), "gpu_memory_utilization"),
        ((*MIXTRAL, "--tensor-parallel", "3"), "3 does not divide the 4 GPUs"),
        ((*MIXTRAL, "--dispatch", "fast"), "kernels.dispatch"),
        ((*MIXTRAL, "--set", "cluster.nods=2"), "did you mean"),
        (("nowhere.yaml",), "nowhere.yaml"),
    ],
)
def test_bad_input_is_told_without_a_traceback(plan, arguments, said):
    code, out, err = plan(*arguments)

    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_mistake_in_the_file_is_shown_with_its_line(plan, tmp_path):
    text = "model: mixtral-8x7b\nrouting: uniform\nworkload: {input_len: 5}\n"
    (tmp_path / "a.yaml").write_text(text + "cluster: {gpu: h10}\n")
    code, _, err = plan("a.yaml")
    assert code == 2
    assert "a.yaml:4:" in err

    (tmp_path / "b.yaml").write_text("- just\n- a list\n")
    code, _, err = plan("b.yaml")
    assert code == 2
    assert "a scenario is a mapping" in err


def evaluated(numbers):
    """Return what the arithmetic of an explanation comes to."""
    return eval(numbers.replace(" x ", " * "), {"__builtins__": {"min": min}})  # noqa: S307


def _fused(model):
    """Return systems with a fused shared expert, for models that have one."""
    if model.shared_width:
        formats = Precision("bf16", "fp8", "fp8", "fp8")
        yield {"shared_experts": "fused", "precision": formats}
        yield {
            "shared_experts": "waterfill",
            "dispatch": "low_latency",
            "tensor_parallel": 2,
        }


def plans():
    for name in model_names():
        model = load_model(name)
        for number, options in enumerate(
            (
                {},
                {"dispatch": "low_latency", "tensor_parallel": 2},
                {
                    "precision": Precision("int4", "fp8", "fp8", "fp8"),
                    "tensor_parallel": 8,
                },
                *_fused(model),
            )
        ):
            topology = Topology(load_gpu("h200"), 4, 8)
            spare = -model.experts % 32
            placement = contiguous(model.moe_layer_count, model.experts, 32, spare)
            system = System(model, topology, placement, **options)
            serving = ServingSpec(max_in_flight=number + 1)
            yield make_plan(
                system, serving, Terms(case=("worst" if number else "expected"))
            )


@pytest.mark.parametrize("plan", list(plans()), ids=lambda plan: plan.system.model.name)
def test_the_arithmetic_shown_is_the_arithmetic_done(plan):
    """Typed into a calculator, every line gives the figure of the plan."""
    lines = [line for line in explain(plan) if ":" not in line.numbers]

    assert len(lines) == len(explain(plan)) - 1 >= 11
    for line in lines:
        assert evaluated(line.numbers) == pytest.approx(line.value, rel=1e-12), line


def test_explanations_are_shown_on_request(plan, planned):
    _, plain, _ = plan(EP32)
    _, out, _ = plan(EP32, "--explain")

    assert out.startswith(plain)
    assert "= 9 x 58 x (3 x 7168 x 2048 + 0) x 1" in out
    assert "= 61 x (512 + 64) x 2" in out
    assert len(planned(EP32, "--explain")["explained"]) == 13
    assert "explained" not in planned(EP32)


def test_all_parts_add_up_to_what_is_usable(planned):
    for options in ((), ("--case", "worst", "--reserve", "1 GiB")):
        record = planned(*MIXTRAL, *options)
        used = sum(record["bytes"].values()) + record["kv"]["left_bytes"]
        assert used == pytest.approx(record["usable_bytes"], abs=1)
        case = record["cases"][record["case"]]
        assert case["kv_left_bytes"] == record["kv"]["left_bytes"]


def test_kinds_of_attention_are_named():
    """Multi-head, grouped, latent, and windows."""
    said = {}
    for name in ("olmoe-1b-7b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"):
        model = load_model(name)
        placement = contiguous(model.moe_layer_count, model.experts, 8)
        system = System(model, Topology(load_gpu("b300"), 1, 8), placement)
        said[name] = plan_screen(make_plan(system, ServingSpec(), Terms()))

    assert "multi-head attention: 16 heads of 128" in said["olmoe-1b-7b"]
    assert "which is right here" in said["olmoe-1b-7b"]
    assert "grouped queries: 8 heads of 128" in said["mixtral-8x7b"]
    assert "latent attention: 512 + 64 elements" in said["deepseek-v3"]
    assert "1 in 2 layers keep 128 tokens only" in said["gpt-oss-20b"]
