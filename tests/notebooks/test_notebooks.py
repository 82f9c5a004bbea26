"""Every notebook runs from top to bottom, and is stored without output."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


@every_notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_runs(path):
    """No cell raises; the last one shows a figure."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": FOLDER}})

    client.execute()

    shown = [output.get("data", {}) for output in notebook.cells[-1].outputs]
    assert any("image/png" in data for data in shown)


@every_notebook
def test_it_is_stored_without_output(path):
    cells = nbformat.read(path, as_version=4).cells

    assert not any(cell.get("outputs") for cell in cells)
