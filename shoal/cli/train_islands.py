"""`shoal train --islands`: train a run on islands, with a line for each report."""

import sys
import time
import warnings

import jax

from shoal.cli import show
from shoal.cli.flags import Output
from shoal.cli.status import STATUS
from shoal.errors import ShoalError
from shoal.islands.launch import train_islands
from shoal.islands.options import Islands
from shoal.islands.record import Progress
from shoal.runs.catalogue import write_note
from shoal.runs.files import make_folder
from shoal.runs.milestones import Milestones
from shoal.runs.naming import find_folder
from shoal.runs.progress import describe_scores, format_large, with_noun
from shoal.training.config import TrainConfig

LINE_SECONDS = 10.0
"""Seconds between two lines; on a terminal there is one, which changes."""
TERMINAL_SECONDS = 0.2
"""Seconds between two changes of it."""
ONE_PROGRAM = ("eval_every", "stop_at", "film_every")
"""Milestones that need all learners in one program."""


def run_islands(config: TrainConfig, output: Output, milestones: Milestones, islands: Islands) -> int:
    """Train on islands, then print the result."""
    for name in ONE_PROGRAM:
        if getattr(milestones, name):
            flag = name.replace("_", "-")
            raise ShoalError(f"--{flag} needs all learners in one program; leave out --{flag} or --islands")
    if output.processes > 1 or output.rank is not None or output.profile or output.track:
        raise ShoalError("--processes, --profile and --track do not go with --islands; leave one of them out")
    jax.config.update("jax_platforms", "cpu")  # a meeting is small; accelerators are for the islands
    folder = output.folder or find_folder(config)
    line = Line()
    print(
        f"{config.env}, {with_noun(config.learners, 'learner')} on {islands.islands} islands ",
        end="",
        file=sys.stderr,
    )
    print(f"({islands.engine}) -> {folder}", file=sys.stderr)
    STATUS.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        every = milestones.save_every
        folder, summary = train_islands(
            config, islands, folder, output.clobber, every, line.show, output.mesh
        )
    line.end()
    if output.note is not None:
        write_note(make_folder(folder), output.note)
    if not summary:
        print(f"{folder} is already trained, or was stopped before its first meeting; --clobber starts over")
        return 0
    show.islands_ending(folder, summary)
    return 130 if summary["interrupted"] else 0


class Line:
    """A line that says how far a run is."""

    def __init__(self) -> None:
        self.terminal, self.last, self.width = sys.stderr.isatty(), 0.0, 0

    def show(self, progress: Progress) -> None:
        """Say how far it is, where that is due."""
        now = time.monotonic()
        if now - self.last < (TERMINAL_SECONDS if self.terminal else LINE_SECONDS) and not progress.absent:
            return
        if not self.terminal and not progress.due and now - self.last < LINE_SECONDS:
            return
        self.last, text = now, describe(progress)
        if self.terminal:
            print(f"\r{text.ljust(self.width)}", end="", file=sys.stderr, flush=True)
            self.width = len(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line as it is."""
        if self.terminal and self.width:
            print(file=sys.stderr)


def describe(progress: Progress) -> str:
    """How far a run on islands is, in a line.

    >>> import numpy as np
    >>> describe(Progress(512, 1024, np.array([3.0]), 2, {1: "late"}, 1234.0, True))
    'step 512 of 1,024  return 3.00  1.23k steps/s  1 of 2 islands (1 late)'
    """
    there = progress.islands - len(progress.absent)
    absent = ", ".join(f"{island} {why.partition(':')[0]}" for island, why in sorted(progress.absent.items()))
    return "  ".join(
        [
            f"step {progress.step:,} of {progress.total:,}",
            describe_scores(progress.returns),
            f"{format_large(progress.steps_per_second)} steps/s",
            f"{there} of {progress.islands} islands" + (f" ({absent})" if absent else ""),
        ]
    )
