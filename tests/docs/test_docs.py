"""What the pages show is true: their scenarios load, their defaults are the defaults."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest

from moesim.routing.catalogue import SOURCES
from moesim.scenario.change import known_keys
from moesim.scenario.load import load_text
from moesim.scenario.named import GIVEN
from moesim.scenario.read import read_tree
from moesim.study.shape import CACHES, COMPARISON, MEASURE, PARTS
from moesim.workload.arrivals import ARRIVALS
from moesim.workload.lengths import LENGTHS, TraceLength

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


def rows_of(heading):
    """Return the table of the reference whose first column has this heading."""
    page = (ROOT / "docs" / "scenario.md").read_text()
    table = page.split(f"| {heading} |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))


def parameters(maker):
    """Return what a scenario may set of a routing source or law, and the defaults."""
    found = {f.name: f.default for f in fields(maker) if f.init}
    if not hasattr(maker, "pass_counts"):
        found.pop("draw", None)
    if maker is TraceLength:
        found = {"trace": MISSING}
    if "trace" in found:
        found |= {"path": MISSING, "format": "auto"}
        del found["trace"]
    return {k: v for k, v in found.items() if k not in GIVEN}


@pytest.mark.parametrize(
    ("heading", "registry"),
    [
        ("`routing`", SOURCES),
        ("`workload.arrivals`", ARRIVALS),
        ("`input_len`, `output_len`", LENGTHS),
    ],
)
def test_the_reference_names_every_parameter(heading, registry):
    """Each with its default, those that do nothing left out."""
    rows = rows_of(heading)

    assert set(rows) == set(registry)
    for name, maker in registry.items():
        wanted = parameters(maker)
        assert set(re.findall(r"`(\w+)`", rows[name])) == set(wanted), name
        for key, default in wanted.items():
            if default not in (MISSING, None, "", ()):
                assert f"`{key}` ({default})" in rows[name], name


def test_the_reference_leads_to_every_key():
    """It names each itself, or links to the page that does."""
    page = (ROOT / "docs" / "scenario.md").read_text()
    links = re.findall(r"\]\((\w+\.md)\)", page)
    pages = [page, *((ROOT / "docs" / name).read_text() for name in links)]

    for key in known_keys():
        last = key.rpartition(".")[2]
        assert any(re.search(rf"\b{last}\b", text) for text in pages), key


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


def test_every_key_of_a_study_is_on_its_page():
    page = (ROOT / "docs" / "studies.md").read_text()
    known = {"question", "caches", *PARTS, *COMPARISON, *MEASURE, *CACHES}

    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == known
