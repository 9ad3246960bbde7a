"""Plots: the numbers behind the lines by hand, and figures that are really drawn."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.errors import ShoalError
from shoal.runs.metrics import MetricsWriter
from shoal.runs.plots.curves import Curve, pivot, pooled, smooth, speed
from shoal.runs.plots.figure import PALETTE
from shoal.runs.plots.panels import plot_metric, plot_shares
from shoal.runs.plots.run import PlotOptions, plot


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


TABLE = {
    "step": np.array([1, 1, 2, 3, 3]),
    "learner": np.array([0, 1, 1, 1, 0]),
    "seconds": np.array([5.0, 5, 6, 8, 8]),
    "x": np.array([10.0, 11, 21, 31, 30]),
}


def test_pivot_by_hand():
    curve = pivot(TABLE, "x")
    assert curve.x.tolist() == [[1, 1], [2, 2], [3, 3]]
    np.testing.assert_array_equal(curve.values, [[10, 11], [np.nan, 21], [30, 31]])
    assert pivot(TABLE, "x", "seconds").mean_x.tolist() == [5, 6, 8]


def test_learners_of_several_runs_are_side_by_side_as_far_as_all_have_got():
    shorter = {name: column[:3] for name, column in TABLE.items()}
    curve = pooled([TABLE, shorter], "x")
    assert curve.mean_x.tolist() == [1, 2]
    np.testing.assert_array_equal(curve.values, [[10, 11, 10, 11], [np.nan, 21, np.nan, 21]])
    assert curve.units.tolist() == [0, 1, 2, 3]
    assert pooled([TABLE, shorter], "x", dependent=True).units.tolist() == [0, 0, 1, 1]
    elsewhere = TABLE | {"step": TABLE["step"] + 10}
    with pytest.raises(ShoalError, match="report at different steps"):
        pooled([TABLE, elsewhere], "x")


def test_smoothing_is_the_mean_of_the_last_known_reports():
    steps, nan = np.zeros((4, 2)), np.nan
    curve = smooth(Curve(steps, np.array([[nan, 1.0], [2, nan], [4, 3], [0, 8]]), np.arange(2)), 2)
    np.testing.assert_array_equal(curve.values, [[nan, 1], [2, 1], [3, 3], [2, 5.5]])
    assert smooth(curve, 100).values[-1].tolist() == [7 / 3, 10.5 / 4]
    with pytest.raises(ShoalError, match="at least 1 report, not 0"):
        smooth(curve, 0)


@pytest.mark.parametrize("learners", [1, 3, 70])
def test_the_figures_of_one_run(tmp_path, learners):
    written = plot([make_run(tmp_path / "run", learners)])
    assert names(written, tmp_path) == [f"run/plots/{name}.png" for name in ("returns", "losses", "speed")]
    for path in written:
        picture = pixels(path)
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10
        assert (picture[0] == 255).all()


def test_the_best_of_a_population_is_drawn_beside_its_mean():
    """At each report the highest of those that are known."""
    from matplotlib.figure import Figure

    values = np.array([[1.0, 4.0], [3.0, np.nan], [6.0, 5.0]])
    curve = Curve(np.array([[1, 1], [2, 2], [3, 3]]), values, np.arange(2))
    lines = {}
    for best in (False, True):
        figure = Figure()
        plot_metric(figure, {"": curve}, "return_mean", PlotOptions(), "a population", best)
        lines[best] = {line.get_label(): line.get_ydata().tolist() for line in figure.axes[0].lines}
    assert "the best learner" not in lines[False]
    assert lines[True]["the best learner"] == [4.0, 3.0, 6.0]


def test_the_shares_of_the_loss_are_stacked_up_to_1():
    from matplotlib.figure import Figure

    column = lambda *values: Curve(np.arange(3.0)[:, None], np.array([values]).T, np.arange(1))
    shares = {"loss_share/policy": column(0.2, 0.5, np.nan), "loss_share/value": column(0.8, 0.5, np.nan)}
    figure = Figure()
    plot_shares(figure, shares, PlotOptions(), "a run")
    tops = [area.get_paths()[0].vertices for area in figure.axes[0].collections]
    assert [max(top[top[:, 0] == x][:, 1].max() for top in tops) for x in (0, 1)] == [1, 1]
    assert tops[0][tops[0][:, 0] == 0][:, 1].max() == 0.2
    assert all(top[:, 0].max() == 1 for top in tops)  # a report without shares is left out
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["value", "policy"]


def test_a_run_with_shares_has_their_figure(tmp_path):
    run = make_run(tmp_path / "run", 2, **{"loss_share/policy": 0.25, "loss_share/value": 0.75})
    assert names(plot([run]), tmp_path)[2] == "run/plots/shares.png"


def test_learners_that_are_linked_have_their_colour_and_their_label(tmp_path):
    """Two pairs: two curves, each with its learners; a ring, where all are linked, is one."""
    from matplotlib.figure import Figure

    from shoal.exchanges.topology import ring
    from shoal.runs.plots.graph import parts_of
    from shoal.runs.plots.run import name_learners

    pairs = np.zeros((4, 4))
    pairs[0, 2] = pairs[3, 1] = 1.0
    values = np.array([[1.0, 5.0, 3.0, 7.0]])
    curve = Curve(np.ones((1, 4)), values, np.arange(4))
    curves = {name_learners(part): curve.of(part) for part in parts_of(pairs)}
    figure = Figure()
    plot_metric(figure, curves, "return_mean", PlotOptions(), "pairs", each=True)
    ends = {text.get_text(): text for text in figure.axes[0].texts}
    assert ends.keys() == {"learners 0 2", "learners 1 3"}
    assert [ends[name].xy[1] for name in sorted(ends)] == [2, 6]  # the means of the pairs
    drawn = [(line.get_color(), line.get_ydata().tolist()) for line in figure.axes[0].lines]
    assert [color for color, values in drawn if values in ([1.0], [3.0])] == [PALETTE[0]] * 2
    assert [color for color, values in drawn if values in ([5.0], [7.0])] == [PALETTE[1]] * 2
    assert parts_of(ring(4)) == parts_of(np.zeros((4, 4))) == []


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
        assert (found == color).all(axis=2).sum() > 50


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
    assert rates.x.tolist() == [[200], [500]]
    assert rates.values.tolist() == [[20.0], [100.0]]


def test_empty_panels_are_not_drawn(tmp_path):
    losses = {f"loss/{name}": 1.0 for name in "abcd"}
    picture = pixels(plot([make_run(tmp_path / "run", 1, **losses)])[1])
    height, width = picture.shape[:2]
    assert (picture[height // 2 : int(height * 0.9), width * 2 // 3 + 20 :] == 255).all()


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


@pytest.mark.parametrize(
    ("suffix", "beginning"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PDF", b"%PDF")]
)
def test_one_figure_in_every_format_the_same_every_time(tmp_path, suffix, beginning):
    runs = [make_run(tmp_path / name, 2) for name in "ab"]
    out, again = tmp_path / f"figure{suffix}", tmp_path / f"again{suffix}"
    assert plot(runs, out) == [out]
    assert out.read_bytes().startswith(beginning)
    plot(runs, again)
    assert again.read_bytes() == out.read_bytes()


def test_a_metric_alone_is_one_figure_named_after_it(tmp_path):
    runs, options = [make_run(tmp_path / name, 3) for name in "ab"], PlotOptions(metric="loss/value")
    assert names(plot(runs[:1], options=options), tmp_path) == ["a/plots/loss_value.png"]
    assert names(plot(runs, options=options), tmp_path) == ["comparison_loss_value.png"]
    assert names(plot(runs, tmp_path / "out", options), tmp_path) == ["out/comparison_loss_value.png"]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("los/value", "no column los/value; did you mean loss/value"),
        ("return", "did you mean return_mean"),
        ("xyz", "no column xyz; it has step, learner, seconds, loss/value, return_mean"),
    ],
)
def test_a_metric_that_is_not_there_is_answered_with_the_nearest(tmp_path, metric, message):
    with pytest.raises(ShoalError, match=message):
        plot([make_run(tmp_path, 1)], options=PlotOptions(metric=metric))


@pytest.mark.parametrize("x", ["steps", "seconds", "episodes"])
def test_every_axis_statistic_and_smoothing_is_drawn(tmp_path, x):
    runs = [make_run(tmp_path / name, 5, episodes=7.0) for name in "ab"]
    options = PlotOptions(x=x, statistic="iqm", smooth=3, label=("one", "the other"))
    assert len(np.unique(pixels(plot(runs, tmp_path / "figure.png", options)[0]).reshape(-1, 3), axis=0)) > 10


def test_an_unknown_format_is_refused_and_a_folder_with_a_dot_is_not(tmp_path):
    run = make_run(tmp_path / "run", 1)
    with pytest.raises(ShoalError, match=r"figure.jpg: a figure ends in .png, .pdf, .svg"):
        plot([run], tmp_path / "figure.jpg")
    assert len(plot([run], tmp_path / "plots.2")) == 3


def test_all_figures_in_another_format(tmp_path):
    run = make_run(tmp_path / "run", learners=2)
    written = plot([run], options=PlotOptions(format="svg"))
    assert names(written, run) == ["plots/returns.svg", "plots/losses.svg", "plots/speed.svg"]
    assert all(path.read_text().startswith("<?xml") for path in written)
    with pytest.raises(ShoalError, match="two formats"):
        plot([run], tmp_path / "one.pdf", PlotOptions(format="svg"))


def test_short_labels_are_at_the_ends_of_their_curves(tmp_path):
    from matplotlib.figure import Figure

    from shoal.runs.plots.panels import CurveOptions, plot_metric

    figure = Figure()
    tables = [pivot(TABLE, "x"), pivot(TABLE | {"x": TABLE["x"] + 0.1}, "x")]
    plot_metric(figure, {"a": tables[0], "b": tables[1]}, "x", CurveOptions(), "")
    (axes,) = figure.axes
    assert axes.get_legend() is None
    first, second = axes.texts
    assert [first.get_text(), second.get_text()] == ["a", "b"]
    low, high = axes.get_ylim()
    assert second.get_position()[1] - first.get_position()[1] >= 0.06 * (high - low)
