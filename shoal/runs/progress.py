"""A run's progress on the terminal, and short forms of numbers."""

import time

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from shoal.distributed.mesh import num_processes
from shoal.distributed.processes import rank
from shoal.runs.session import Session
from shoal.training.loop import Report

LINE_SECONDS = 10.0
"""Seconds between progress lines where there is no terminal for a bar."""


class ProgressBar:
    """A bar on a terminal, a line every few seconds elsewhere; a context manager with `update(report)`."""

    def __init__(self, session: Session):
        self.console = Console(stderr=True, highlight=False, quiet=rank() > 0)
        config, spec = session.trainer.parts.config, session.trainer.parts.recipe.spec
        self.total = config.steps_after(config.num_iterations)
        mesh = session.trainer.parts.mesh
        learners, data = mesh.devices.shape
        devices = with_noun(mesh.devices.size, f"{mesh.devices.flat[0].platform} device")
        devices += f" ({learners}x{data})" * (data > 1)
        devices += f" of {num_processes()} processes" * (num_processes() > 1)
        self.console.print(
            f"[bold]{spec.name}[/] on {spec.backend}, {with_noun(config.learners, 'learner')} x "
            f"{with_noun(config.algo.num_envs, 'environment')}, {devices} -> {session.folder}",
            soft_wrap=True,
        )
        if session.resumed_step is not None:
            how = (
                "exactly where it stopped"
                if spec.exact_resume
                else "with new episodes (its state cannot be saved)"
            )
            self.console.print(f"resuming from step {session.resumed_step:,}, {how}; --clobber starts over")
        if plan := session.watch.milestones.describe():
            self.console.print(plan, soft_wrap=True)
        self.evaluated = ""
        self.bar = Progress(
            BarColumn(),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal or rank() > 0,
        )
        start = session.resumed_step or 0
        self.task = self.bar.add_task("", total=self.total, completed=start, text="compiling")
        self.last_line = time.monotonic()

    def __enter__(self) -> "ProgressBar":
        self.bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self.bar.stop()

    def update(self, report: Report) -> None:
        """Show a report."""
        if report.evaluated:
            mean = np.mean(report.metrics["eval/return_mean"])
            self.evaluated = f"  eval {format_return(mean)}"
        score = describe_scores(report.metrics["return_mean"])
        if self.evaluated:  # in place of the lowest and the highest: the line is full
            score = score.partition(" (")[0] + self.evaluated
        speed = f"{format_large(report.steps_per_second_compiled)} steps/s"
        steps = f"{format_large(report.step)}/{format_large(self.total)}"
        self.bar.update(self.task, completed=report.step, text=f"{steps}  {score}  {speed}")
        if not self.console.is_terminal and time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(f"step {report.step:,} of {self.total:,}  {score}  {speed}")


def on_terminal() -> bool:
    """Whether stderr is a terminal or a notebook, which can show a bar."""
    return Console(stderr=True).is_terminal


def describe_scores(returns: np.ndarray) -> str:
    """The mean of the learners' mean returns, with the lowest and the highest."""
    known = returns[np.isfinite(returns.astype(float))]
    if not len(known):
        return "no episode finished yet"
    if len(returns) == 1:
        return f"return {format_return(known[0])}"
    mean, low, high = map(format_return, (known.mean(), known.min(), known.max()))
    return f"return {mean} ({low} to {high})"


def format_return(number: float) -> str:
    """A return with one digit after the point, or two where it is small.

    >>> format_return(0.956), format_return(-148.04)
    ('0.96', '-148.0')
    """
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def with_noun(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it needs it."""
    return f"{number} {noun}{'s' * (number > 1)}"


def format_large(number: float) -> str:
    """A large number with three digits and a unit, such as 1.23M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
