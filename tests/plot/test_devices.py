"""The maps of GPUs show their loads and what they send, on stated scales."""

from dataclasses import replace

import numpy as np

from results import SMALL, frame, make_result


def with_arrays(**arrays):
    return replace(make_result(size=SMALL), **arrays)


def image(axes):
    return axes.images[0].get_array()


def test_load_is_relative_to_the_layers_mean():
    load = np.array([[[10, 30], [5, 5]], [[10, 30], [5, 5]]])
    axes = with_arrays(rank_load=load).plot.rank_load().axes[0]

    assert image(axes).tolist() == [[0.5, 1.5], [1.0, 1.0]]


def test_the_side_panel_has_each_layers_busiest_gpu():
    load = np.array([[[10, 30], [0, 0], [5, 5]]])
    side = with_arrays(rank_load=load).plot.rank_load().axes[1]

    assert [bar.get_width() for bar in side.patches] == [1.5, 0.0, 1.0]


def test_the_title_names_the_worst_and_a_usual_layer():
    load = np.array([[[10, 30], [5, 5], [0, 0], [9, 11]]])
    title = with_arrays(rank_load=load).plot.rank_load().get_suptitle()

    assert title == "GPU 1 carries 1.5× the mean load of layer 0; usual is 1.1×"


def test_an_even_load_is_not_drawn_as_a_hot_one():
    """The darkest colour stands for twice the mean at least."""
    axes = with_arrays(rank_load=np.full((1, 2, 4), 7)).plot.rank_load().axes[0]

    assert axes.images[0].norm.vmax == 2.0


def test_both_phases_share_one_scale():
    sent = np.array([[[[0, 4e9], [2e9, 0]], [[0, 2e9], [8e9, 0]]]])
    first, second, *_ = (
        with_arrays(traffic=sent, tables=nodes(0, 0)).plot.traffic().axes
    )

    assert np.allclose(image(first).filled(0), [[0, 4], [2, 0]])
    assert np.allclose(image(second).filled(0), [[0, 2], [8, 0]])
    assert first.images[0].norm.vmax == second.images[0].norm.vmax == 8
    assert (first.get_title(), second.get_title()) == ("dispatch", "combine")


def nodes(*node):
    gpus = frame("gpus", {"gpu": np.arange(len(node)), "node": np.array(node)})
    return replace(make_result(size=SMALL).tables, gpus=gpus)


def test_traffic_between_nodes_is_the_message_when_there_are_several():
    sent = np.array([[[[0, 3e6], [1e6, 0]], np.zeros((2, 2))]])
    figure = with_arrays(traffic=sent, tables=nodes(0, 1)).plot.traffic()

    assert figure.get_suptitle() == "4 MB moved, 100 % of it between nodes"
    assert figure.axes[0].lines[0].get_ydata()[0] == 0.5


def test_the_busiest_pair_is_the_message_on_one_node():
    sent = np.array([[[[0, 3e6], [1e6, 0]], np.zeros((2, 2))]])
    title = with_arrays(traffic=sent, tables=nodes(0, 0)).plot.traffic().get_suptitle()

    assert title == "4 MB moved; most from GPU 0 to GPU 1: 3 MB in dispatch"


def test_traffic_is_the_mean_over_replications():
    sent = np.zeros((2, 2, 2, 2))
    sent[0, 0, 0, 1], sent[1, 0, 0, 1] = 2e9, 4e9
    figure = with_arrays(traffic=sent, tables=nodes(0, 0)).plot.traffic()

    assert image(figure.axes[0])[0, 1] == 3.0


def test_a_run_that_moved_nothing_says_so(nothing):
    load, moved = nothing.plot.rank_load().axes[0], nothing.plot.traffic().axes[0]

    assert load.texts[0].get_text() == "No token reached an expert."
    assert moved.texts[0].get_text() == "No byte went from one GPU to another."
