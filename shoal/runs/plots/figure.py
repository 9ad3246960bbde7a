"""Figures: their style, and how they are written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.runs.files import replacing

# Wong's palette, which people with any of the common colour blindnesses can tell apart
# (Nature Methods 8, 441, 2011), without its yellow, which is too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

LINK = "#5B6770"
"""The colour of lines between learners."""

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.edgecolor": "#777777",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.09,
}


def write_figure(path: Path, plot_on: Callable[[Any], None], size: tuple[float, float] = (6.4, 4.0)) -> Path:
    """Writes a figure, without pyplot, which keeps every figure and needs a screen."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        plot_on(figure)
        with replacing(path) as (temporary,):
            figure.savefig(temporary, dpi=150)
    return path


def count_axis(axis) -> None:
    """Format the ticks of an axis as 50k or 2M."""
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(sep=""))


def steps_label(num_learners: int) -> str:
    """The label of the axis of steps."""
    return "environment steps per learner" if num_learners > 1 else "environment steps"
