"""A run's progress on the terminal, and short forms of numbers."""

import threading
import time
from textwrap import shorten

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from shoal.distributed.mesh import num_processes
from shoal.distributed.processes import rank
from shoal.runs.lines import fitted, sparkline
from shoal.runs.naming import describe_preset
from shoal.runs.session import Session
from shoal.training.loop import Report

LINE_SECONDS = 10.0
"""Where there is no terminal, each report is a line, and what takes longer than this has lines of its own."""
BAR = 10
"""The letters of the bar."""
TICK_SECONDS = 0.5
"""Seconds between two looks at the clock."""
LONG_SECONDS = 2.0
"""What takes longer than this shows its own seconds."""
KNOWN_SECONDS = 5.0
"""Seconds of training after which a run's speed is known."""
DAY, HOUR = 86_400, 3_600
ENDLESS = 10_000
"""Letters of a line in a file."""
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
        self.num_envs = parts.config.algo.num_envs
        self.report: Report | None = None
        self.evaluated = ""
        self.returns: list[float] = []  # the mean return at each report of this session
        self.spent = 0.0  # seconds of training in this session, without compiling
        self.reported = 0.0  # when what the report is about began
        self.earlier = session.clock
        self._print_head(session)
        self.bar = Progress(
            BarColumn(BAR),
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
        self.reported, self.report = self.waiting.since, report
        if report.evaluated:
            self.evaluated = f"eval {format_return(np.mean(report.metrics['eval/return_mean']))}"
        self._warn_of_days()
        known = report.metrics["return_mean"][np.isfinite(report.metrics["return_mean"])]
        self.returns += [float(known.mean())] if len(known) else []
        self._show(due=report.due)

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
        if preset := describe_preset(config):
            self.console.print(shorten(preset, 200, placeholder=" ..."), soft_wrap=True)
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
            if self.report is None:
                self._warn_of_days()
            self._show()

    def _show(self, due: bool = False) -> None:
        """Bring the bar up to date, or print a line when one is due."""
        if self.console.is_terminal:
            self.bar.update(self.task, completed=self._step(), text=self._text())
        elif due or time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(self._text(), soft_wrap=True)

    def _text(self) -> str:
        """How far the run is, the time left, and how long something takes that is slow."""
        seconds, activity = time.monotonic() - self.waiting.since, self.waiting.activity
        stopping = ["stopping"] if self.waiting.stopping else []
        if self.report is None:
            first = "first iteration" if activity == "training" else activity
            counted = [f"{self._counted():,} of {self.iteration_size:,} steps"] if self._counted() else []
            counted += [f"~{self._left()} left"] if counted and seconds > LONG_SECONDS else []
            return "  ".join([f"{first} {format_seconds(seconds)}", *counted, *stopping])
        step, speed = self._step(), self.report.steps_per_second_compiled
        about = "~" if step != self.report.step and not self._counted() else ""
        left = self._left() if self.spent > LONG_SECONDS else ""
        what = "iteration" if activity == "training" else activity
        slow = f"{what} {format_seconds(seconds)}" if seconds > LONG_SECONDS else ""
        parts = [
            (self._describe_step(step, about), 0),
            *self._describe_scores(),
            (f"{format_large(speed)} steps/s", 4),
            (f"{left} left" if left else "", 0),
            (slow, 1),
            ("stopping" * self.waiting.stopping, 0),
        ]
        return fitted(parts, self.console.width - BAR - 1 if self.console.is_terminal else ENDLESS)

    def _describe_scores(self) -> list[tuple[str, int]]:
        """The scores, and on a terminal the best learner's and their course; with ranks for `fitted`."""
        assert self.report is not None, "there are scores after a report"
        returns = self.report.metrics["return_mean"]
        whole = describe_scores(returns)
        if not self.console.is_terminal:  # the last evaluation is in place of the lowest and the highest
            return [(whole.partition(" (")[0] if self.evaluated else whole, 0), (self.evaluated, 0)]
        several = len(returns) > 1 and np.isfinite(returns).any()
        best = f"best {format_return(np.nanmax(returns))}" if several else ""
        curve = sparkline(self.returns) if self.console.encoding.startswith("utf") else ""
        return [(whole.partition(" (")[0], 0), (self.evaluated, 2), (best, 2), (curve, 3)]

    def _describe_step(self, step: int, about: str) -> str:
        if self.console.is_terminal:
            return f"{about}{format_large(step)}/{format_large(self.total)}"
        return f"step {about}{step:,} of {self.total:,}"

    def _step(self) -> int:
        """The step reached; inside a long iteration counted where that can be, else an estimate."""
        counted = self._counted()
        if self.report is None:
            return self.start + counted
        seconds = time.monotonic() - self.waiting.since
        if self.waiting.activity != "training" or self._at_report() or seconds < LONG_SECONDS:
            return self.report.step
        return self.report.step + (counted or min(int(seconds * self._speed()), self.iteration_size - 1))

    def _at_report(self) -> bool:
        """Whether nothing has begun since what the report is about."""
        return self.waiting.since == self.reported

    def _counted(self) -> int:
        """A learner's steps since the report: of environments in Python, 0 of others."""
        training = self.waiting.activity == "training" and not self._at_report()
        return self.waiting.time_steps * self.num_envs if training else 0

    def _speed(self) -> float:
        """Steps of a learner per second, in this session; in the first iteration those of its rollout."""
        if self.report is None:
            return max(self._counted(), 1e-9) / max(time.monotonic() - self.waiting.since, 1e-9)
        return (self.report.step - self.start) / max(self.spent, 1e-9)

    def _left(self) -> str:
        """The time left."""
        return format_seconds((self.total - self._step()) / self._speed())

    def _warn_of_days(self) -> None:
        """Say once, when it is known, that the run takes more than a day, and how many steps take an hour."""
        inside = time.monotonic() - self.waiting.since if self._counted() else 0.0
        if self.warned or (self.spent if self.report else inside) < KNOWN_SECONDS:
            return
        self.warned, speed = True, self._speed()
        seconds = (self.total - self._step()) / speed
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
