"""Commands inside this process: what they print, and what they hand to the simulator."""

import json
from pathlib import Path

import pytest

from moesim import __version__, simulate
from moesim.errors import SimulationError
from moesim.policy.cache import CACHES
from moesim.policy.dispatch import DISPATCHES
from moesim.policy.place.catalogue import NAMES
from moesim.policy.rebalance import REBALANCES

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "scenarios" / "quickstart.yaml")
BAD = "model: mixtral-8x7\nrouting: unifrom\nworkload: {input_len: 5}\n"


@pytest.fixture
def asked(monkeypatch):
    """Let the simulator note what it is asked for, and give up."""
    seen = []

    def give_up(scenario, *arguments, **options):
        seen.append((scenario, arguments, options))
        raise SimulationError("enough")

    monkeypatch.setattr(simulate, "run", give_up)
    monkeypatch.setattr(simulate, "compare", give_up)
    return seen


def test_version(moesim):
    assert moesim("--version") == (0, f"moesim {__version__}\n", "")


def test_options_reach_the_scenario(moesim, asked):
    """Those that users of serving benchmarks type, and any other by its key."""
    code, _, _ = moesim(
        "run",
        QUICKSTART,
        *("--request-rate", "inf", "--num-prompts", "7", "--max-concurrency", "3"),
        *("--seed", "5", "-n", "2", "--label", "mine", "--policy", "oldest"),
        *("--set", "slo.ttft=1s", "--set", "serving.max_in_flight=4"),
    )
    ((scenario, _, options),) = asked

    assert code == 3
    assert scenario.workload.arrivals["request_rate"] == float("inf")
    assert scenario.workload.num_prompts == 7
    assert scenario.workload.max_concurrency == 3
    assert (scenario.seed, scenario.replications, scenario.name) == (5, 2, "mine")
    assert (scenario.slo.ttft, scenario.serving.max_in_flight) == (1.0, 4)
    assert options["policy"] == "oldest"


def test_policies_are_compared_in_the_order_given(moesim, asked):
    moesim("compare", QUICKSTART, "--policies", "oldest, fifo", "--baseline", "fifo")
    ((_, arguments, options),) = asked

    assert list(arguments[0]) == ["oldest", "fifo"]
    assert options["baseline"] == "fifo"


def test_a_folder_that_is_not_ours_is_refused_before_anything_runs(
    moesim, asked, tmp_path
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    code, _, err = moesim("run", QUICKSTART, "--out", "mine")

    assert (code, asked) == (2, [])
    assert "mine" in err


def test_validate_counts_over_all_files(moesim, tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    code, out, err = moesim("validate", QUICKSTART, "bad.yaml")

    assert code == 2
    assert out == f"{QUICKSTART}: ok\n2 files, 2 errors\n"
    assert err.splitlines()[-1] == "2 errors in bad.yaml"


def test_validate_for_machines(moesim, tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    code, out, err = moesim("validate", "bad.yaml", "--format", "json")
    first, second = json.loads(out)["bad.yaml"]

    assert (code, err) == (2, "")
    assert (first["key"], first["line"], first["column"]) == ("model", 1, 8)
    assert (second["key"], second["line"]) == ("routing.name", 2)


def test_list_answers_what_is_asked(moesim, tmp_path):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text("# Why?\nmodel: x\n")
    code, out, _ = moesim("list", "--policies", "--scenarios")

    assert code == 0
    assert "cross_layer" in out
    assert "mine  Why?" in out
    assert "models" not in out


def test_list_names_all_kinds_when_none_is_asked(moesim):
    _, out, _ = moesim("list")

    kinds = "models gpus policies routing placements replicas rebalances caches"
    for heading in (*kinds.split(), "scenarios"):
        assert f"{heading}:\n" in out
    assert "  (none)" in out


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("placements", NAMES),
        ("replicas", DISPATCHES),
        ("rebalances", REBALANCES),
        ("caches", CACHES),
    ],
)
def test_list_names_all_of_a_kind_with_a_line_each(moesim, kind, names):
    _, out, _ = moesim("list", f"--{kind}")

    lines = [line.split(maxsplit=1) for line in out.splitlines()[1:]]
    assert [name for name, _ in lines] == list(names)
    assert all(said[0].isupper() or said.startswith("vLLM") for _, said in lines)
    assert not any("Return" in said for _, said in lines)


def test_list_says_what_a_placement_or_loop_takes(moesim):
    _, out, _ = moesim("list", "--placements", "--rebalances")

    assert "(path, tokens)" in out
    assert "planning)" in out
    assert "planning_s" not in out


def test_variants_reach_the_comparison(moesim, asked):
    """Each by its name, with all that it changes."""
    given = "two: serving.max_in_flight=2; placement.redundant_experts=8"

    moesim("compare", QUICKSTART, "--policies", "fifo", "--variant", given)

    ((_, _, options),) = asked
    assert options["variants"] == {
        "two": {"serving.max_in_flight": 2, "placement.redundant_experts": 8}
    }


@pytest.mark.parametrize("text", ["two", "two:", ": a=1", "two: a"])
def test_a_variant_without_name_or_change_is_told(moesim, text):
    """With an example of a right one."""
    code, _, err = moesim("compare", QUICKSTART, "--variant", text)

    assert code == 2
    assert "is expected, such as" in err
