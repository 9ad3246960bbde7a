"""Plots: the numbers behind the lines by hand, and figures that are really drawn."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.errors import ShoalError
from shoal.runs.metrics import MetricsWriter
from shoal.runs.plots.curves import mean_and_deviation, pivot, speed
from shoal.runs.plots.run import plot


def make_run(folder: Path, learners: int, reports: int = 10, **more: object) -> Path:
    random = np.random.default_rng(0)
    with MetricsWriter(folder, None) as writer:
        for step in range(1, reports + 1):
            returns = step + random.normal(size=learners)
            writer.write(step * 1000, step * 0.5, {"return_mean": returns, "loss/value": 1 / step} | more)
    return folder


def names(paths: list[Path], root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in paths]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert round(picture.info["dpi"][0]) == 150
        return np.asarray(picture.convert("RGB"))


def test_pivot_by_hand():
    table = {
        "step": np.array([1, 1, 2, 3, 3]),
        "learner": np.array([0, 1, 1, 1, 0]),
        "x": np.array([10.0, 11, 21, 31, 30]),
    }
    curve = pivot(table, "x")
    assert curve.steps.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(curve.values, [[10, 11], [np.nan, 21], [30, 31]])


def test_mean_and_deviation_by_hand():
    values = np.array([[1.0, 3], [np.nan, 5], [np.nan, np.nan], [np.inf, 4]])
    mean, deviation = mean_and_deviation(values)
    np.testing.assert_array_equal(mean, [2, 5, np.nan, 4])
    np.testing.assert_array_equal(deviation, [1, 0, np.nan, 0])


@pytest.mark.parametrize("learners", [1, 3, 40])
def test_the_figures_of_one_run(tmp_path, learners):
    written = plot([make_run(tmp_path / "run", learners)])
    assert names(written, tmp_path) == [f"run/plots/{name}.png" for name in ("returns", "losses", "speed")]
    for path in written:
        picture = pixels(path)
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10
        assert (picture[0] == 255).all()


def test_several_runs_are_compared(tmp_path):
    runs = [make_run(tmp_path / name, learners) for name, learners in (("a", 1), ("b", 4))]
    written = plot(runs)
    assert names(written, tmp_path)[-1] == "comparison.png"
    assert len(written) == 7
    assert names(plot(runs, tmp_path / "out"), tmp_path / "out") == [
        *(f"{run}/{name}.png" for run in "ab" for name in ("returns", "losses", "speed")),
        "comparison.png",
    ]


def test_the_comparison_shows_each_run_in_its_own_colour(tmp_path):
    runs = [make_run(tmp_path / name, 1) for name in "ab"]
    found = pixels(plot(runs)[-1])
    for color in ((0, 114, 178), (213, 94, 0)):
        assert (found == color).all(axis=2).sum() > 100


def test_runs_of_one_name_do_not_overwrite_each_other(tmp_path):
    runs = [make_run(tmp_path / parent / "run", 1) for parent in ("x", "y")]
    written = plot(runs, tmp_path / "out")
    assert len(set(written)) == len(written) == 7


def test_the_same_run_twice_is_one_run(tmp_path):
    run = make_run(tmp_path / "run", 1)
    assert len(plot([run, run])) == 3


def test_one_report_no_losses_and_no_episode(tmp_path):
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(1000, 1.0, {"return_mean": np.nan})
    assert names(plot([tmp_path]), tmp_path) == ["plots/returns.png"]


def test_a_metric_that_was_never_a_number_gets_no_panel(tmp_path):
    with MetricsWriter(tmp_path, None) as writer:
        writer.write(1000, 1.0, {"return_mean": 1.0, "loss/curiosity": np.nan})
    assert names(plot([tmp_path]), tmp_path) == ["plots/returns.png"]


def test_speed_counts_all_learners_and_skips_a_clock_that_starts_again():
    table = {
        "step": np.repeat([100, 200, 300, 500], 2),
        "learner": np.tile([0, 1], 4),
        "seconds": np.repeat([10.0, 20, 1, 5], 2),
    }
    rates = speed(table)
    assert rates.steps.tolist() == [200, 500]
    assert rates.values.tolist() == [[20.0], [100.0]]


def test_empty_panels_are_not_drawn(tmp_path):
    losses = {f"loss/{name}": 1.0 for name in "abc"}
    picture = pixels(plot([make_run(tmp_path / "run", 1, **losses)])[1])
    height, width = picture.shape[:2]
    assert (picture[height // 2 : int(height * 0.9), width // 3 + 20 :] == 255).all()


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "is not there"),
        ("step,learner,seconds,return_mean\n", "no records yet"),
        ("step,learner,seconds,loss\n1,0,0.0,1\n", "no column return_mean"),
    ],
)
def test_a_run_with_nothing_to_show_is_refused(tmp_path, contents, message):
    if contents is not None:
        (tmp_path / "metrics.csv").write_text(contents)
    with pytest.raises(ShoalError, match=message):
        plot([tmp_path])


def test_no_run_and_a_folder_that_cannot_be_made(tmp_path):
    with pytest.raises(ShoalError, match="at least one run"):
        plot([])
    (tmp_path / "file").write_text("")
    with pytest.raises(ShoalError, match="move the file that is in the way"):
        plot([make_run(tmp_path / "run", 1)], tmp_path / "file")
