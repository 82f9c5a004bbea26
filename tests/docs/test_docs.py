"""What the pages show is true: their scenarios load, their defaults are the defaults."""

import re
from pathlib import Path

import numpy as np
import pytest

from moesim.scenario.load import load_text
from moesim.scenario.read import read_tree

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def leaves(data, at=()):
    if not isinstance(data, dict):
        return {at}
    return {at} | {leaf for k, v in data.items() for leaf in leaves(v, (*at, k))}


@pytest.mark.parametrize(
    ("page", "text"),
    [(page.name, text) for page in PAGES for text in blocks(page, "yaml")],
)
def test_every_scenario_shown_loads(page, text):
    assert load_text(text).model


def test_the_reference_shows_every_key_with_its_default():
    """The page's scenario, its comments aside, is the one with only what is needed."""
    (text,) = blocks(ROOT / "docs" / "scenario.md", "yaml")
    minimal = (
        "name: my_scenario\nmodel: mixtral-8x7b\nrouting: uniform\n"
        "workload: {input_len: 512}\n"
    )

    shown, default = load_text(text), load_text(minimal)
    assert shown == default
    written = read_tree(text, "").data
    missing = {at for at in leaves(default.resolved()) if len(at) <= 2} - leaves(
        written
    )
    inside = ("routing", "policy", "precision", "workload", "slo", "placement")
    assert not {at for at in missing if at[0] not in inside}


def test_the_tiny_log_can_be_replayed(tmp_path, monkeypatch):
    """The five lines that write a log write one that a scenario takes."""
    (code,) = blocks(ROOT / "docs" / "scenario.md", "python")
    monkeypatch.chdir(tmp_path)
    exec(code, {})  # noqa: S102 - our own page
    text = (
        "model: mixtral-8x7b\nrouting: {name: log, path: log.npz}\n"
        "workload: {num_prompts: 2, input_len: {type: log}}\n"
        "serving: {mode: prefill_only}\n"
    )

    assert load_text(text, base=tmp_path).workload.num_prompts == 2
    assert np.load("log.npz")["seq_lens"].tolist() == [40, 60]
