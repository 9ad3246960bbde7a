"""The gallery: a small film of every trained run, their learning curves, and the page that shows them.

    python bench/gallery.py [--runs runs/results/ppo]

Reads what bench/results.py left behind; writes docs/results/gallery.md and docs/images/gallery*.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageSequence
from published import PAF

from shoal.runs.config import read_settings
from shoal.runs.metrics import read_metrics
from shoal.runs.plots.curves import pivot
from shoal.runs.plots.figure import PALETTE, write_figure

DOCS = Path(__file__).parents[1] / "docs"
STEPS = 200
"""Steps of an episode that are shown."""
MOST_BYTES = 200_000
"""Of one film; twenty of them make a page that loads."""
COLUMNS = 3
INTRODUCTION = """\
# Gallery

Each film is the best of a cohort playing greedily, its first {steps} steps at most. The score is the mean of
all learners over 100 greedy episodes each; steps are per learner. `python bench/results.py ENV` trains a
cohort and writes its row of [results](index.md), `make gallery` draws this page from the runs.

"""


class Size(NamedTuple):
    """How a film is made smaller."""

    width: int
    colours: int
    every: int  # keeps one frame in so many


SIZES = (
    Size(240, 64, 2),
    Size(240, 32, 3),
    Size(200, 32, 4),
    Size(160, 32, 4),
    Size(160, 16, 5),
    Size(140, 16, 6),
    Size(120, 16, 8),
)
"""From the finest to the coarsest."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs/results/ppo"))
    runs = sorted(path.parent for path in parser.parse_args().runs.glob("*/evaluation.json"))
    if not runs:
        sys.exit("no evaluated runs there; python bench/results.py ENV makes one")
    for run in runs:
        film = picture_of(run)
        shrink(play(run), film)
        print(f"{film} {film.stat().st_size / 1000:.0f} kB", flush=True)
    draw_curves(runs, DOCS / "images" / "gallery.png")
    (DOCS / "results" / "gallery.md").write_text(page(runs), encoding="utf-8")


def picture_of(run: Path) -> Path:
    return DOCS / "images" / f"gallery_{run.name}.gif"


def play(run: Path) -> list[Image.Image]:
    """The frames of one greedy episode of the best learner."""
    with TemporaryDirectory() as folder:
        film = Path(folder) / "film.gif"
        command = [sys.executable, "-m", "shoal.cli", "play", str(run), "--gif", str(film)]
        subprocess.run([*command, "--steps", str(STEPS)], check=True, stdout=subprocess.DEVNULL)
        with Image.open(film) as frames:
            return [frame.convert("RGB") for frame in ImageSequence.Iterator(frames)]


def shrink(frames: list[Image.Image], path: Path) -> None:
    """Writes the finest film that is small enough, or the coarsest."""
    for size in SIZES:
        first, *others = resized(frames, size)
        milliseconds = max(20, 30 * size.every)
        first.save(path, save_all=True, append_images=others, duration=milliseconds, loop=0, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            return


def resized(frames: list[Image.Image], size: Size) -> Iterator[Image.Image]:
    """All in the colours of the first, so that what stands still costs no bytes."""
    width = min(size.width, frames[0].width)
    height = round(frames[0].height * width / frames[0].width)
    smaller = [frame.resize((width, height), Image.Resampling.BOX) for frame in frames[:: size.every]]
    palette = smaller[len(smaller) // 2].quantize(size.colours)
    return (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in smaller)


def draw_curves(runs: list[Path], path: Path) -> None:
    """Training returns of every learner of every run, their mean, and the score to reach."""
    num_rows = -(-len(runs) // COLUMNS)

    def draw(figure) -> None:
        panels = figure.subplots(num_rows, COLUMNS, squeeze=False).ravel()
        for axes in panels[len(runs) :]:
            axes.axis("off")
        for axes, run in zip(panels, runs, strict=False):
            curve = pivot(read_metrics(run), "return_mean")
            axes.plot(curve.x, curve.values, color=PALETTE[4], linewidth=0.7)
            known = ~np.isnan(curve.values).all(1)  # an episode has ended by then
            means = np.nanmean(curve.values[known], axis=1)
            axes.plot(curve.mean_x[known], means, color=PALETTE[0], linewidth=1.8)
            name = read_settings(run / "config.yaml")["env"]
            if name in PAF:
                axes.axhline(PAF[name], color=PALETTE[1], linestyle="--", linewidth=1.0)
            axes.set_title(name)
            axes.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))

    write_figure(path, draw, (4.0 * COLUMNS, 2.4 * num_rows))


def page(runs: list[Path]) -> str:
    cells = [cell(run) for run in runs]
    cells += [""] * (-len(cells) % COLUMNS)
    rows = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
    table = [["   "] * COLUMNS, ["---"] * COLUMNS, *rows]
    lines = [f"| {' | '.join(row)} |" for row in table]
    curves = (
        "Training returns, of policies that still explore: each learner, their mean, and where it is known "
        "the score of ppo_and_friends (dashed).\n\n![learning curves](../images/gallery.png)\n"
    )
    return INTRODUCTION.format(steps=STEPS) + "\n".join(lines) + "\n\n" + curves


def cell(run: Path) -> str:
    """The film, and below it what it shows."""
    summary = json.loads((run / "summary.json").read_text())
    rows = json.loads((run / "evaluation.json").read_text())
    score = np.mean([row["return_mean"] for row in rows])
    settings = read_settings(run / "config.yaml")
    name, planned = settings["env"], settings["steps"]
    so_far = f"{summary['steps']:,} steps" + (f" of {planned:,}" if summary["steps"] < planned else "")
    return (
        f"![{name}](../images/{picture_of(run).name})<br>**{name}** {score:.1f}<br>"
        f"{so_far}<br>`shoal train {name}`"
    )


if __name__ == "__main__":
    main()
