"""The output of the commands in the terminal."""

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from shoal.envs.checks.findings import Finding
from shoal.errors import ShoalError
from shoal.runs.progress import describe_scores, format_large, format_return
from shoal.runs.session import Finished, Session, describe_stop
from shoal.runs.tracking.trackers import places
from shoal.training.evaluate import Evaluation
from shoal.training.profile import Profile


def already_trained(finished: Finished) -> None:
    """The run is complete: what to do next."""
    if goal := finished.reached:
        print(f"{finished.folder} already reached a mean return of {format_return(goal['return'])}", end="")
        print(f" at step {goal['step']:,}")
        print("a larger --stop-at or --steps, or no --stop-at, continues it; --clobber starts over")
    else:
        print(f"{finished.folder} is already trained to step {finished.step:,}")
        print("a larger --steps continues it; --clobber starts over")
    recorded(finished.folder)
    _next(finished.folder)


def ending(finished: Finished, session: Session) -> None:
    """The result of a run, its folder, and the next commands."""
    summary, folder = finished.summary, finished.folder
    verb = "stopped" if finished.interrupted else "done"
    scored = bool(np.any(np.isfinite(summary["return_mean"])))
    print(f"{verb} after {summary['steps']:,} steps per learner in {summary['seconds']:.1f} s")
    print(f"{describe_scores(np.asarray(summary['return_mean']))}{' over the last 100 episodes' * scored}")
    if lost := len(summary["lost_learners"]):
        print(f"{lost} of {summary['learners']} learners diverged and do not count")
    evaluated(summary)
    if goal := finished.reached:
        print(f"stopped by --stop-at: the mean return reached {format_return(goal['return'])}")
    compiled, overall = summary["steps_per_second_compiled"], summary["steps_per_second"]
    print(f"{format_large(compiled)} steps/s of all learners ({format_large(overall)} with compiling)")
    if session.profile:
        profile_table(session.profile)
    if finished.interrupted:
        print("saved; the same command resumes here")
    print(f"files in {folder}")
    recorded(folder)
    _next(folder)


def islands_ending(folder: Path, summary: Mapping[str, Any]) -> None:
    """The result of a run on islands, its folder, and the next commands."""
    verb, met = "stopped" if summary["interrupted"] else "done", summary["islands"]
    print(f"{verb} after {summary['steps']:,} steps per learner in {summary['seconds']:.1f} s")
    print(describe_scores(np.asarray(summary["return_mean"], float)))
    print(
        f"{met['meetings']:,} meetings, {met['absences']:,} absences, {met['restarts']:,} restarts, "
        f"{met['left_out']:,} messages left out, {format_large(met['bytes'])} bytes carried"
    )
    if summary["interrupted"]:
        print("saved; the same command resumes here")
    print(f"files in {folder}; who was absent is in islands.csv")
    _next(folder)


def recorded(folder: Path) -> None:
    """Where trackers have the run."""
    for tracker, place in places(folder).items():
        print(f"{tracker}: {place}")


def evaluated(summary: Mapping[str, Any]) -> None:
    """The last evaluation of a run, and what the best learner ever had in one."""
    if "evaluation" not in summary:
        return
    last, best = summary["evaluation"], summary["best_evaluation"]
    print(f"{describe_scores(np.asarray(last['return_mean']))} in the last evaluation")
    which = f", by learner {best['best_learner']}" * (len(best["return_mean"]) > 1)
    print(f"best {format_return(best['best_return'])} in the evaluation at step {best['step']:,}{which}")


def given_up(finished: Finished) -> None:
    """What a run keeps that was stopped inside a long call."""
    print(f"{describe_stop(finished)}; the same command {'resumes' if finished.step else 'starts again'}")


def profile_table(profile: Profile) -> None:
    """The seconds of an iteration by stage."""
    seconds = profile.table()
    total = sum(seconds.values())
    table = Table("seconds per iteration", "", "", box=None)
    for part, spent in seconds.items():
        table.add_row(part, f"{spent:.6f}", f"{100 * spent / total:.0f} %")
    table.add_row("all", f"{total:.6f}", "")
    Console().print(table)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what environments print, also from C++, to stderr, so stdout has only the result."""
    sys.stdout.flush()
    own_stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)  # the buffer of C
        os.dup2(own_stdout, 1)
        os.close(own_stdout)


def evaluations(results: Sequence[Evaluation]) -> None:
    """A table of evaluations."""
    numeric = ("episodes", "return", "std", "min", "max", "length")
    table = Table("learner", *(Column(name, justify="right") for name in numeric), "world", box=None)
    for one in results:
        numbers = (one.return_mean, one.return_std, one.return_min, one.return_max, one.length_mean)
        table.add_row(str(one.learner), str(one.episodes), *(f"{x:.2f}" for x in numbers), one.world)
    console = Console()
    console.print(table)
    if results[0].agents:
        console.print(_by_agent(results))
    if any(one.world == "seen" for one in results):
        console.print("own: its own world; seen: all learners' worlds; unseen: a new world per episode")


def finding(found: Finding) -> Finding:
    """Print a line of a check's report; returns the finding."""
    colour = {"ok": "green", "warning": "yellow", "problem": "bold red"}[found.level]
    line = Table.grid(
        Column(width=8, style=colour), Column(width=12), Column(overflow="fold"), padding=(0, 1)
    )
    line.add_row(found.level, found.topic, Text(found.text))
    Console().print(line)
    print(found.traceback, end="", file=sys.stderr)
    return found


def verdict(env: str, found: Sequence[Finding]) -> None:
    """Print how many problems and warnings there are."""
    counts = [(sum(one.level == level for one in found), level) for level in ("problem", "warning")]
    several = ", ".join(f"{count or 'no'} {level}{'s' * (count != 1)}" for count, level in counts)
    print(f"{env}: {several}")


def _by_agent(results: Sequence[Evaluation]) -> Table:
    """The returns of agents and teams, and how often each team wins."""
    table = Table("learner", *(Column(str(one.learner), justify="right") for one in results), box=None)
    for name in results[0].agents or {}:
        title = name.removeprefix("return_").replace("_", " ")
        table.add_row(title, *(f"{(one.agents or {})[name]:.2f}" for one in results))
    return table


def display() -> Any:
    """pygame, where it can show a window; without a screen it would draw where nobody sees it."""
    try:
        import pygame
    except ImportError as error:
        raise ShoalError("a window needs pygame: pip install pygame-ce") from error
    try:
        pygame.display.init()
    except pygame.error as error:
        raise ShoalError(f"cannot open a window here ({error}); use --gif or --mp4") from error
    if pygame.display.get_driver() in ("offscreen", "dummy"):
        raise ShoalError("cannot open a window: there is no display here; use --gif or --mp4")
    return pygame


def window(frames: Sequence[np.ndarray], fps: int) -> None:
    """Show pictures in a window until they end or it is closed."""
    pygame = display()
    height, width = frames[0].shape[:2]
    screen = pygame.display.set_mode((width, height))
    clock = pygame.time.Clock()
    for frame in frames:
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            break
        screen.blit(pygame.surfarray.make_surface(frame.swapaxes(0, 1)), (0, 0))
        pygame.display.flip()
        clock.tick(fps)
    pygame.quit()


def _next(folder: Path) -> None:
    """The next commands, one per line."""
    name = _command()
    print("next:")
    for arguments in (f"eval {folder}", f"play {folder} --gif out.gif", f"plot {folder}"):
        print(f"  {name} {arguments}")


def _command() -> str:
    """How to start this command here: its name where the shell finds it, else its shortest path."""
    if shutil.which("shoal") or sys.argv[0].endswith(".py"):  # a process of several has another name
        return "shoal"
    path = Path(sys.argv[0])
    return min(str(path), os.path.relpath(path), key=len)
