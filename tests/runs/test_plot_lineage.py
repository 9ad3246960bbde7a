"""The picture of a lineage: relatives side by side, and who has descendants at the end."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from shoal.runs.lineage import Lineage, ancestors
from shoal.runs.plots.figure import write_figure
from shoal.runs.plots.lineage import plot_lineage, side_by_side, survivors


@pytest.fixture(scope="module")
def copies() -> Lineage:
    """Of 20 learners, 5 drawn at random become copies at each of 30 selections."""
    random = np.random.default_rng(0)
    parent = np.tile(np.arange(20), (31, 1))
    for event in parent[1:]:
        event[random.choice(20, 5, replace=False)] = random.integers(0, 20, 5)
    rates = np.exp(random.normal(size=parent.shape) * 3)
    return Lineage(100 * np.arange(31), parent, np.zeros(parent.shape), {"learning_rate": rates})


def test_no_two_lines_of_the_picture_cross(copies):
    places = side_by_side(copies)
    assert (np.sort(places, axis=1) == np.arange(20)).all()
    for event in range(1, 31):
        from_top = np.argsort(places[event])
        assert (np.diff(places[event - 1, copies.parent[event, from_top]]) >= 0).all()


def test_survivors_are_the_ancestors_of_those_at_the_end(copies):
    lines = np.stack([ancestors(copies, learner) for learner in range(20)])
    expected = [[learner in at for learner in range(20)] for at in lines.T]
    assert survivors(copies).tolist() == expected
    assert 1 <= survivors(copies)[0].sum() < 20


def test_the_ancestors_of_the_best_are_in_their_colour(copies, tmp_path):
    draw = partial(plot_lineage, lineage=copies, best=3, end=3100, title="a population")
    with Image.open(write_figure(tmp_path / "lineage.png", draw, (8, 5))) as picture:
        found = np.asarray(picture.convert("RGB"))
    assert (found == (213, 94, 0)).all(axis=2).sum() > 1000
