"""Figures look the same whoever draws them, and leave no trace in matplotlib."""

import subprocess
import sys

import matplotlib as mpl
import pytest
from matplotlib.font_manager import fontManager

from moesim.plot.style import SETTINGS, notice, png, save, styled
from results import SMALL, make_result

SHIPPED = ["expert_heatmap", "expert_wait", "latency_cdf", "pass_breakdown"]


@styled
def anything():
    return notice("A title", "a reason")


def test_the_readers_settings_do_not_change_our_pictures():
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        theirs = png(anything())

    assert theirs == png(anything())


def test_our_settings_do_not_change_the_readers():
    before = dict(mpl.rcParams)

    png(anything())

    assert dict(mpl.rcParams) == before


def test_every_setting_of_ours_is_one_of_matplotlib():
    assert set(SETTINGS) <= set(mpl.rcParamsDefault)


@pytest.mark.parametrize("family", ["DejaVu Sans", "DejaVu Sans Mono"])
def test_the_font_comes_with_matplotlib(family):
    """A font of the system would make other bytes on another machine."""
    path = fontManager.findfont(family, fallback_to_default=False)

    assert path.startswith(mpl.get_data_path())


def test_a_picture_carries_neither_software_nor_date():
    data = png(anything())

    assert b"tEXt" not in data
    assert b"tIME" not in data


def test_a_figure_shows_itself_in_a_notebook():
    """Without pyplot nobody else would draw it there."""
    assert anything()._repr_png_() == png(anything())


def test_drawing_never_loads_pyplot():
    """Its global state is the reader's."""
    code = (
        "import sys; from results import SMALL, make_result;"
        "make_result(size=SMALL).plot.cdf('ttft')._repr_png_();"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=__file__.rpartition("/plot/")[0], check=False
    )

    assert done.returncode == 0


def test_a_long_title_is_wrapped():
    @styled
    def drawn():
        return notice("word " * 30, "a reason")

    assert drawn().get_suptitle().count("\n") == 1


def test_figures_are_saved_under_their_names(tmp_path):
    paths = save({"one": anything, "two": anything}, tmp_path / "new" / "plots")

    assert [path.name for path in paths] == ["one.png", "two.png"]
    assert all(path.read_bytes() == png(anything()) for path in paths)


def test_a_run_ships_four_figures(tmp_path):
    make_result(size=SMALL).plot.save_all(tmp_path)

    assert sorted(path.stem for path in tmp_path.iterdir()) == SHIPPED


def test_a_run_without_events_ships_the_same_figures(nothing, tmp_path):
    nothing.plot.save_all(tmp_path)

    assert sorted(path.stem for path in tmp_path.iterdir()) == SHIPPED


def test_a_comparison_ships_its_figures(comparison, tmp_path):
    comparison.plot.save_all(tmp_path)

    assert sorted(path.stem for path in tmp_path.iterdir()) == [
        "cdf_e2el",
        "cdf_ttft",
        "differences",
        "pass_breakdown",
    ]


@pytest.mark.parametrize(
    "name",
    ["cdf", "expert_heatmap", "expert_wait", "breakdown", "rank_load", "traffic"],
)
def test_nothing_runs_over_the_edge(result, name):
    """All that is drawn lies within the figure, as it will be saved."""
    figure = getattr(result.plot, name)()
    png(figure)
    drawn = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()

    assert min(drawn.x0, drawn.y0) >= 0
    assert drawn.x1 <= width
    assert drawn.y1 <= height
