"""What is installed is whole: every module, every preset, the type marker, the command."""

import subprocess
import sys
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import moesim

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sim" / "moesim"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(path).namelist())


def test_the_wheel_has_every_file_of_the_package(wheel):
    """Modules, presets and the marker of typed packages; and nothing else."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file()]
    ours = {
        f"moesim/{path.relative_to(PACKAGE).as_posix()}"
        for path in files
        if "__pycache__" not in path.parts
    }

    assert {name for name in wheel if name.startswith("moesim/")} == ours
    assert "moesim/py.typed" in wheel
    assert any(name.endswith("deepseek-v3.yaml") for name in wheel)


def test_the_public_names_are_these():
    """The front door: no more, no fewer, and all of them open."""
    expected = {
        "InputError",
        "Scenario",
        "SimulationError",
        "__version__",
        "compare",
        "load",
        "load_text",
        "open_run",
        "run",
    }

    assert set(moesim.__all__) == expected
    assert all(getattr(moesim, name) is not None for name in expected)
    with pytest.raises(AttributeError, match="nothing"):
        _ = moesim.nothing


def test_the_command_is_installed():
    (command,) = entry_points(group="console_scripts", name="moesim")

    assert command.value == "moesim.cli.main:main"
    assert version("moesim") == moesim.__version__


def test_nothing_in_the_product_names_where_it_was_made():
    """No path of a machine, no folder beside the checkout, in what is shipped."""
    suffixes = {".py", ".yaml", ".md", ".toml", ".ipynb"}
    parts = ("sim", "scenarios", "notebooks", "docs", "tests")
    files = [
        p for part in parts for p in (ROOT / part).rglob("*") if p.suffix in suffixes
    ]
    words = ["/" + "work/", "../" + "shared", "/" + "root/"]

    for path in [*files, ROOT / "README.md", ROOT / "pyproject.toml"]:
        text = path.read_text()
        assert not [word for word in words if word in text], path
