"""Pictures of communication graphs: discs, lines and arrows where they belong, in every size."""

import numpy as np
import pytest
from PIL import Image

from shoal.exchanges.topology import GRAPHS, complete, ring
from shoal.runs.plots.figure import PALETTE
from shoal.runs.plots.graph import plot_graph


def pixels(path):
    with Image.open(path) as picture:
        assert round(picture.info["dpi"][0]) == 150
        return np.asarray(picture.convert("RGB")).astype(int)


def rgb(color):
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def discs(picture):
    return (picture == rgb(PALETTE[0])).all(axis=2)


def ink(picture):
    """What is grey and dark: links, and the letters of the title."""
    return (np.ptp(picture, axis=2) < 40) & (picture.max(axis=2) < 200)


def between(picture):
    """The ink inside the smallest box around all discs."""
    rows, columns = np.nonzero(discs(picture))
    return ink(picture[rows.min() : rows.max(), columns.min() : columns.max()])


@pytest.mark.parametrize(
    "n", [1, 2, 3, 8, 24, 25, *(pytest.param(n, marks=pytest.mark.slow) for n in (64, 100))]
)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_is_drawn(tmp_path, name, n):
    path = tmp_path / "new folder" / "graph.png"
    assert plot_graph(GRAPHS[name](n), path) == path
    picture = pixels(path)
    assert discs(picture).sum() > 500
    assert between(picture).any() == (n > 1)
    for border in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert (border == 255).all()


def test_no_links_no_lines(tmp_path):
    assert not between(pixels(plot_graph(np.zeros((5, 5)), tmp_path / "graph.png"))).any()


def test_learners_without_a_way_to_each_other_have_other_colours(tmp_path):
    pairs = np.kron(np.eye(2), 1 - np.eye(2))
    picture = pixels(plot_graph(pairs, tmp_path / "graph.png"))
    sizes = [(picture == rgb(color)).all(axis=2).sum() for color in PALETTE[:3]]
    assert sizes[0] > 500
    assert abs(sizes[0] - sizes[1]) < 0.05 * sizes[0]
    assert sizes[2] == 0


def test_more_links_more_ink(tmp_path):
    few, many = (pixels(plot_graph(graph, tmp_path / "graph.png")) for graph in (ring(9), complete(9)))
    assert between(many).sum() > 2 * between(few).sum()


def test_the_diagonal_is_not_drawn_and_the_matrix_is_not_touched(tmp_path):
    matrix = ring(6) + 50 * np.eye(6, dtype=np.float32)
    with_diagonal = pixels(plot_graph(matrix, tmp_path / "a.png"))
    np.testing.assert_array_equal(with_diagonal, pixels(plot_graph(ring(6), tmp_path / "b.png")))
    assert (matrix.diagonal() == 50).all()


def test_only_the_proportions_of_the_weights_count(tmp_path):
    once = pixels(plot_graph(ring(6), tmp_path / "a.png"))
    np.testing.assert_array_equal(once, pixels(plot_graph(100 * ring(6), tmp_path / "b.png")))


def thickness(picture):
    """The height of the ink in every column between the two discs of two learners."""
    columns = between(picture).sum(axis=0)
    return columns[len(columns) // 6 : -len(columns) // 6]


def test_a_link_alike_both_ways_has_no_head(tmp_path):
    line = thickness(pixels(plot_graph(ring(2), tmp_path / "graph.png")))
    assert np.ptp(line) == 0
    assert line[0] > 3


@pytest.mark.parametrize("listener", [0, 1])
def test_an_arrow_points_to_the_one_who_listens(tmp_path, listener):
    """Learner 0 stands on the left, so the head is there when it listens to learner 1."""
    matrix = np.zeros((2, 2))
    matrix[listener, 1 - listener] = 1
    columns = between(pixels(plot_graph(matrix, tmp_path / "graph.png"))).sum(axis=0)
    assert columns.max() > 2 * np.median(columns[columns > 0])
    assert (columns.argmax() < len(columns) / 2) == (listener == 0)


def test_unequal_ways_are_two_arrows_of_unequal_width(tmp_path):
    """The two bend apart: in the middle column, a thin line and a thick one."""
    picture = pixels(plot_graph(np.array([[0.0, 1.0], [3.0, 0.0]]), tmp_path / "graph.png"))
    height, width = picture.shape[:2]
    middle = ink(picture)[height // 4 : height * 3 // 4, width // 2]
    steps = np.diff(middle.astype(int))
    widths = np.flatnonzero(steps == -1) - np.flatnonzero(steps == 1)
    assert len(widths) == 2
    assert widths[1] >= 2 * widths[0]


def test_small_weights_are_drawn_like_large_ones(tmp_path):
    below = np.tril(np.ones((4, 4)), -1)
    large = pixels(plot_graph(below, tmp_path / "a.png"))
    np.testing.assert_array_equal(large, pixels(plot_graph(1e-12 * below, tmp_path / "b.png")))
