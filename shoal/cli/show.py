"""What a person sees in the terminal."""

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal.errors import ShoalError
from shoal.runs.progress import describe_scores, short
from shoal.runs.session import Finished, Session
from shoal.training.evaluate import Evaluation
from shoal.training.profile import Profile


def nothing_to_do(finished: Finished) -> None:
    """The run had already reached its end."""
    print(f"{finished.folder} is already trained to step {finished.step:,}")
    print("a larger --steps goes on, --clobber starts over")
    _next(finished.folder)


def ending(finished: Finished, session: Session) -> None:
    """How the run went, where its files are, what to type next."""
    summary, folder = finished.summary, finished.folder
    verb = "stopped" if finished.interrupted else "done"
    scored = bool(np.any(np.isfinite(summary["return_mean"])))
    print(
        f"{verb} after {summary['steps']:,} steps per learner in {summary['seconds']:.1f} s: "
        f"{describe_scores(np.asarray(summary['return_mean']))}{' over the last 100 episodes' * scored}, "
        f"{short(summary['steps_per_second_compiled'])} steps/s "
        f"({short(summary['steps_per_second'])} with compiling)"
    )
    if session.profile:
        profiled(session.profile)
    if finished.interrupted:
        print("saved; the same command goes on from here")
    print(f"files in {folder}")
    _next(folder)


def profiled(profile: Profile) -> None:
    """Where the time of an iteration went."""
    seconds = profile.table()
    total = sum(seconds.values())
    table = Table("seconds per iteration", "", "", box=None)
    for part, spent in seconds.items():
        table.add_row(part, f"{spent:.6f}", f"{100 * spent / total:.0f} %")
    table.add_row("all", f"{total:.6f}", "")
    Console().print(table)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What environments print, PyBullet's C++ for one, goes to stderr: stdout is kept for the answer."""
    sys.stdout.flush()
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)  # C has a buffer of its own
        os.dup2(answers, 1)
        os.close(answers)


def evaluations(rows: Sequence[Evaluation]) -> None:
    """A table of evaluations."""
    table = Table("learner", "episodes", "return", "std", "min", "max", "length", "world", box=None)
    for row in rows:
        numbers = (row.return_mean, row.return_std, row.return_min, row.return_max, row.length_mean)
        table.add_row(str(row.learner), str(row.episodes), *(f"{x:.2f}" for x in numbers), row.world)
    console = Console()
    console.print(table)
    if rows[0].agents:
        console.print(_by_agent(rows))
    if any(row.world == "seen" for row in rows):
        console.print("own: its own world; seen: all learners' worlds; unseen: a new world every episode")


def _by_agent(rows: Sequence[Evaluation]) -> Table:
    """The returns of agents and teams, and how often each team wins, a line for each."""
    table = Table("", *(str(row.learner) for row in rows), box=None)
    for name in rows[0].agents or {}:
        title = name.removeprefix("return_").replace("_", " ")
        table.add_row(title, *(f"{(row.agents or {})[name]:.2f}" for row in rows))
    return table


def window(frames: Sequence[np.ndarray], fps: int) -> None:
    """Show pictures in a window, until it is closed or they end."""
    try:
        import pygame
    except ImportError as error:
        raise ShoalError("a window needs pygame: pip install pygame-ce") from error
    height, width = frames[0].shape[:2]
    try:
        screen = pygame.display.set_mode((width, height))
    except pygame.error as error:
        raise ShoalError(f"cannot open a window here ({error}); use --gif or --mp4") from error
    clock = pygame.time.Clock()
    for frame in frames:
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            break
        screen.blit(pygame.surfarray.make_surface(frame.swapaxes(0, 1)), (0, 0))
        pygame.display.flip()
        clock.tick(fps)
    pygame.quit()


def _next(folder: Path) -> None:
    """Commands for what comes next, a line each."""
    name = _command()
    print("next:")
    for arguments in (f"eval {folder}", f"play {folder} --gif out.gif", f"plot {folder}"):
        print(f"  {name} {arguments}")


def _command() -> str:
    """What starts this command here: its name where the shell finds it, or else its shortest path."""
    if shutil.which("shoal") or sys.argv[0].endswith(".py"):  # a process of several has another name
        return "shoal"
    path = Path(sys.argv[0])
    return min(str(path), os.path.relpath(path), key=len)
