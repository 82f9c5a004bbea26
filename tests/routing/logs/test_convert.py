"""``moesim convert``: what it prints, writes and refuses."""

import os

import numpy as np
import pytest
from typer.testing import CliRunner

from moesim.cli.commands import app
from moesim.routing.logs import read_log
from routing.logs import samples


def convert(*arguments):
    done = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def test_a_log_is_converted(tmp_path):
    """One line says what it was; notes go beside it."""
    sample = samples.sglang_routed(tmp_path)
    target = tmp_path / "log.npz"
    code, out, err = convert(sample.path, "--out", target, "--hint", "top_k=2")

    assert code == 0
    assert (
        out
        == f"sglang-routed-experts: 24 tokens, 3 layers, 8 experts, top 2: {target}\n"
    )
    assert "note: dropped 4 dense layers (all 0)" in err
    assert np.array_equal(read_log(target).ids, samples.IDS)


def test_counts_are_converted_by_format_name(tmp_path):
    """A folder of ranks, and the format by name."""
    sample = samples.trtllm_counts(tmp_path)
    target = tmp_path / "log.parquet"
    code, out, _ = convert(
        sample.path, "--format", "trtllm-statistics", "--out", target
    )

    assert code == 0
    assert "2 steps, 3 layers, 8 experts" in out


REFUSED = [
    (["--hint", "topk=2"], "did you mean 'top_k'?"),
    (["--hint", "top_k=x"], "a whole number is expected; got 'x'"),
    (["--hint", "top_k=2", "--hint", "top_k=2"], "once"),
    (["--format", "sglang-cvs"], "did you mean 'sglang-csv'?"),
    (["--hint", "top_k=3"], "the hint says 3"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_cannot_be_is_refused(options, said, tmp_path):
    """Exit code 2, a reason, and no file."""
    target = tmp_path / "out.npz"
    code, out, err = convert(samples.npz(tmp_path).path, "--out", target, *options)

    assert (code, out) == (2, "")
    assert said in err
    assert not target.exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("out.txt", "must end in .npz or .parquet"),
        ("none/out.npz", "there is no folder"),
        ("there.npz", "or --force"),
    ],
)
def test_a_bad_target_is_told_before_the_log_is_read(tmp_path, name, said):
    """The log is not even there: the first complaint is about the target."""
    (tmp_path / "there.npz").write_bytes(b"")
    code, out, err = convert(tmp_path / "nothing", "--out", tmp_path / name)

    assert (code, out) == (2, "")
    assert said in err


def test_a_file_is_not_replaced_unless_forced(tmp_path):
    """Nor is the log itself."""
    path = samples.npz(tmp_path).path
    before = path.read_bytes()
    code, _, err = convert(path, "--out", path)

    assert code == 2
    assert "exists" in err
    assert path.read_bytes() == before
    assert convert(path, "--out", path, "--force")[0] == 0


@pytest.mark.skipif("MOESIM_DATA" not in os.environ, reason="needs MOESIM_DATA")
def test_real_files_are_known(tmp_path):
    """Tokens of DeepSeek-V2-Lite, counts of OLMoE, placements made from real load."""
    from pathlib import Path

    from moesim.routing.logs import Hints

    data = Path(os.environ["MOESIM_DATA"])
    log = read_log(data / "routing" / "deepseek-v2-lite_intent.npz")
    assert log.tokens.shape == (8222, 26, 6)
    assert log.lengths.sum() == 8222
    counts = read_log(
        data / "routing" / "olmoe-1b-7b_counts_crosslayer.npz",
        hints=Hints(array="counts_c4"),
    )
    assert counts.layers == ("0", "7", "15")
    assert (counts.totals.sum(axis=1) == 208_896 * 8).all()
    for path in sorted((data / "placement").glob("*.jsonl")):
        placed = read_log(path)
        assert placed.origin.format == "eplb-placement"
        assert placed.counts.sum() == placed.phy2log.size
