"""Figures: their style, and how they are written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.runs.files import replacing

# Wong's palette, which people with any of the common colour blindnesses can tell apart
# (Nature Methods 8, 441, 2011), without its yellow, which is too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

LINK = "#5B6770"
"""The colour of lines between learners."""
PALE = "#C3C9CE"
"""The colour of what stays behind."""

STYLE = {
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "figure.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.edgecolor": "#777777",
    "axes.labelcolor": "#222222",
    "xtick.color": "#777777",
    "ytick.color": "#777777",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "legend.title_fontsize": 10,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.09,
    "pdf.fonttype": 42,  # publishers refuse the Type 3 fonts of the default
    "svg.hashsalt": "shoal",
}

UNDATED: dict[str, dict[str, None]] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
"""The formats of figures, and what keeps the time out of a file: the same figure is the same bytes."""


def is_figure(path: Path) -> bool:
    """Whether a path names one figure rather than a folder; raises where its format is unknown."""
    if path.suffix.lower() in UNDATED:
        return True
    if path.suffix[1:].isalpha() and len(path.suffix) <= 5 and not path.is_dir():
        raise ShoalError(
            f"cannot write {path}: a figure ends in {', '.join(UNDATED)}; a folder has no such end"
        )
    return False


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
            figure.savefig(temporary, dpi=150, metadata=UNDATED[path.suffix.lower()])
    return path


def panel_grid(number: int) -> tuple[int, int]:
    """Rows and columns for so many panels: three in a row, four in two rows.

    >>> [panel_grid(number) for number in (1, 2, 4, 7)]
    [(1, 1), (1, 2), (2, 2), (3, 3)]
    """
    columns = 2 if number == 4 else min(3, number)
    return -(-number // columns), columns


def subplots(figure, number: int) -> list[Any]:
    """The axes of so many panels over one horizontal axis, with tick labels below the lowest ones alone."""
    rows, columns = panel_grid(number)
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True).ravel())
    for axes in panels[number:]:
        axes.set_visible(False)
    for axes in panels[number - columns : number]:
        axes.tick_params(labelbottom=True)
    return panels[:number]


def outlined(width: float) -> list[Any]:
    """A white edge for lines of this width, so that they stand out from what is below them."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=width + 1.6, foreground="white")]


def short_numbers(*axes_axis) -> None:
    """Tick labels such as 0.5, 20k and 1M on these axes (`axes.xaxis`, `axes.yaxis`)."""
    for axis in axes_axis:
        axis.set_major_formatter(
            lambda number, _, axis=axis: short(number, max(map(abs, axis.get_view_interval())))
        )


def short(number: float, largest: float) -> str:
    """A number in few letters, beside others up to `largest`: without thousands where that is below 10,000.

    >>> short(0.0, 1), short(-0.25, 1), short(5e-5, 1e-4)
    ('0', '−0.25', '5e−5')
    >>> short(2_000, 8_000), short(2_000, 10_000), short(120_000, 2e6), short(1.5e6, 2e6)
    ('2000', '2k', '120k', '1.5M')
    """
    sizes = ((1e9, "G"), (1e6, "M"), (1e3, "k")) if largest >= 10_000 else ()
    size, unit = next(((size, unit) for size, unit in sizes if abs(number) >= size), (1, ""))
    return f"{number / size:g}{unit}".replace("e-0", "e-").replace("-", "\N{MINUS SIGN}")
