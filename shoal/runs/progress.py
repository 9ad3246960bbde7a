"""A run's progress on the terminal, and short forms of numbers."""

import threading
import time

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from shoal.distributed.mesh import num_processes
from shoal.distributed.processes import rank
from shoal.runs.session import Session
from shoal.training.loop import Report

LINE_SECONDS = 10.0
"""Seconds between progress lines where there is no terminal for a bar."""
TICK_SECONDS = 0.5
"""Seconds between two looks at the clock."""
LONG_SECONDS = 2.0
"""What takes longer than this shows its own seconds."""
KNOWN_SECONDS = 5.0
"""Seconds of training after which a run's speed is known."""
DAY, HOUR = 86_400, 3_600
UNITS = ((DAY, "d"), (HOUR, "h"), (60, "min"), (1, "s"))


class ProgressBar:
    """A bar on a terminal, a line every few seconds elsewhere; a context manager with `update(report)`.

    A thread keeps both up to date, also while the run compiles or is inside a long iteration.
    """

    def __init__(self, session: Session):
        self.console = Console(stderr=True, highlight=False, quiet=rank() > 0)
        parts, self.waiting = session.trainer.parts, session.waiting
        self.total = parts.config.steps_after(parts.config.num_iterations)
        self.start, self.iteration_size = session.resumed_step or 0, parts.config.steps_after(1)
        self.report: Report | None = None
        self.evaluated = ""
        self.spent = 0.0  # seconds of training in this session, without compiling
        self.earlier = session.clock
        self._print_head(session)
        self.bar = Progress(
            BarColumn(20),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
            console=self.console,
            disable=not self.console.is_terminal or rank() > 0,
        )
        self.task = self.bar.add_task("", total=self.total, completed=self.start, text=self._text())
        self.last_line, self.warned, self.ended = time.monotonic(), False, threading.Event()
        self.ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "ProgressBar":
        self.bar.start()
        self.ticker.start()
        return self

    def __exit__(self, *exception) -> None:
        self.ended.set()
        self.ticker.join()
        self.bar.stop()

    def update(self, report: Report) -> None:
        """Show a report."""
        before, now = self.earlier, report.clock
        self.spent = now.seconds - before.seconds - (now.compile_seconds - before.compile_seconds)
        self.report = report
        if report.evaluated:
            self.evaluated = f"  eval {format_return(np.mean(report.metrics['eval/return_mean']))}"
        if self.spent > KNOWN_SECONDS and not self.warned:
            self.warned = True
            self._warn_of_days()
        self._show()

    def _print_head(self, session: Session) -> None:
        config, spec = session.trainer.parts.config, session.trainer.parts.recipe.spec
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

    def _tick(self) -> None:
        while not self.ended.wait(TICK_SECONDS):
            self._show()

    def _show(self) -> None:
        """Bring the bar up to date, or print a line when one is due."""
        if self.console.is_terminal:
            self.bar.update(self.task, completed=self._step(), text=self._text())
        elif time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(self._text(), soft_wrap=True)

    def _text(self) -> str:
        """How far the run is, the time left, and how long something takes that is slow."""
        seconds, activity = time.monotonic() - self.waiting.since, self.waiting.activity
        stopping = ["stopping"] if self.waiting.stopping else []
        if self.report is None:
            first = "first iteration" if activity == "training" else activity
            return "  ".join([f"{first} {format_seconds(seconds)}", *stopping])
        step = self._step()
        parts = [
            self._describe_step(step, "~" if step != self.report.step else ""),
            self._describe_scores(),
            f"{format_large(self.report.steps_per_second_compiled)} steps/s",
        ]
        if self.spent > LONG_SECONDS:
            parts.append(f"{format_seconds((self.total - step) / self._speed())} left")
        if seconds > LONG_SECONDS:
            what = "iteration" if activity == "training" else activity
            parts.append(f"{what} {format_seconds(seconds)}")
        return "  ".join([*parts, *stopping])

    def _describe_scores(self) -> str:
        score = describe_scores(self.report.metrics["return_mean"]) if self.report else ""
        # The last evaluation is in place of the lowest and the highest: the line is full.
        return score.partition(" (")[0] + self.evaluated if self.evaluated else score

    def _describe_step(self, step: int, about: str) -> str:
        if self.console.is_terminal:
            return f"{about}{format_large(step)}/{format_large(self.total)}"
        return f"step {about}{step:,} of {self.total:,}"

    def _step(self) -> int:
        """The step reached; inside a long iteration an estimate."""
        if self.report is None:
            return self.start
        seconds = time.monotonic() - self.waiting.since
        if self.waiting.activity != "training" or seconds < LONG_SECONDS:
            return self.report.step
        return self.report.step + min(int(seconds * self._speed()), self.iteration_size - 1)

    def _speed(self) -> float:
        """Steps of a learner per second, in this session."""
        assert self.report is not None, "a speed is known after a report"
        return (self.report.step - self.start) / max(self.spent, 1e-9)

    def _warn_of_days(self) -> None:
        """Say that the run takes more than a day, and how many steps take an hour."""
        assert self.report is not None, "a speed is known after a report"
        speed = self._speed()
        seconds = (self.total - self.report.step) / speed
        if seconds > DAY:
            steps = max(int(float(f"{speed * HOUR:.2g}")), self.iteration_size)
            self.console.print(
                f"at {format_large(speed)} steps/s this run takes {format_seconds(seconds)}; "
                f"--steps {self.start + steps} takes {format_seconds(steps / speed)}",
                soft_wrap=True,
            )


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


def format_seconds(seconds: float) -> str:
    """A time in its two largest units.

    >>> [format_seconds(x) for x in (0.2, 7.6, 95, 2880, 5000, 100_000, 1_400_000)]
    ['0 s', '8 s', '1 min 35 s', '48 min', '1 h 23 min', '1 d 3 h', '16 d 4 h']
    """
    remaining, parts = round(seconds), []
    first = next((i for i, (size, _) in enumerate(UNITS) if remaining >= size), len(UNITS) - 1)
    for size, unit in UNITS[first : first + 2]:
        count, remaining = divmod(remaining, size)
        parts += [f"{count} {unit}"] if count or not parts else []
    return " ".join(parts)


def with_noun(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it needs it."""
    return f"{number} {noun}{'s' * (number > 1)}"


def format_large(number: float) -> str:
    """A large number with three digits and a unit, such as 1.23M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"
