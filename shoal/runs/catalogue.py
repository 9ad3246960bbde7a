"""The runs below a folder: where they are, how far, how good, and the settings in which they differ."""

import difflib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from shoal.errors import ShoalError
from shoal.learners.registry import name_of
from shoal.runs.checkpoint import newest_step
from shoal.runs.files import is_locked, write_text
from shoal.runs.metrics import read_last_report
from shoal.runs.naming import ROOT, from_preset, full_name
from shoal.runs.summary import read_summary
from shoal.runs.trust import look_at_config
from shoal.training.config import TrainConfig

FILES = ("config.yaml", "metrics.csv", "summary.json")
"""The files that make a folder a run's, and that change while it trains."""
NOTE = "note.txt"
"""The file with a few words on a run."""
State: TypeAlias = Literal["running", "done", "stopped", "lost", "damaged"]
"""Training now; trained to the end; interrupted; ended without saying so, as by a crash; not to be read."""


class RunRow(NamedTuple):
    """A run in a list of runs."""

    folder: Path
    state: State
    changed: float  # when its files last changed, in seconds since 1970
    env: str = ""
    algo: str = ""
    step: int = 0  # per learner
    steps: int = 0  # of the whole run
    return_mean: float | None = None  # of all learners, over the last 100 episodes
    best_return: float | None = None  # of the best one of them
    best_evaluation: float | None = None  # of the best learner in the best evaluation
    settings: dict[str, Any] | None = None  # that differ from the preset
    in_name: bool = False  # whether the folder's name says environment, algorithm and these settings
    error: str = ""  # why it is damaged
    programs: int = 0  # of a sweep, so many runs
    note: str = ""  # what its command said of it


def list_runs(folders: Iterable[Path]) -> list[RunRow]:
    """The runs below these folders, the one that changed last first."""
    found = [describe(run) for folder in folders for run in run_folders(folder)]
    return sorted(found, key=lambda row: row.changed, reverse=True)


def run_folders(root: Path) -> list[Path]:
    """The folders of runs below a folder, or itself where it is one; runs are not searched for others."""
    found = []
    for path, folders, files in os.walk(root):
        if not {*FILES}.isdisjoint(files):
            found.append(Path(path))
            folders.clear()
    return found


def describe(folder: Path, config: TrainConfig | None = None) -> RunRow:
    """One run, from its settings and from its summary, or its last report where that is newer."""
    changed = last_change(folder)
    try:
        config = config or look_at_config(folder / "config.yaml")
        summary = read_summary(folder)
        step, returns = read_last_report(folder, config.learners)
        step = max(step, newest_step(folder / "checkpoints"))
        ended = summary.get("steps", -1) >= step
        if ended:
            step, returns = summary["steps"], np.array(summary["return_mean"], float)
        base, settings = from_preset(config)
        known = returns[np.isfinite(returns)]
        return RunRow(
            folder=folder,
            state="running" if is_locked(folder) else _ending(summary, step) if ended or not step else "lost",
            changed=changed,
            env=config.env,
            algo=name_of(config.algo),
            step=step,
            steps=config.steps_after(config.num_iterations),
            return_mean=float(known.mean()) if known.size else None,
            best_return=float(known.max()) if known.size else None,
            best_evaluation=summary.get("best_evaluation", {}).get("best_return"),
            settings=({"preset": base} if base else {}) | settings,
            in_name=folder.name == full_name(config),
            note=read_note(folder),
        )
    except Exception as error:  # whatever the files of a damaged run raise
        return RunRow(folder, "damaged", changed, error=" ".join(str(error).split()) or type(error).__name__)


def write_note(folder: Path, note: str) -> None:
    """Keep a few words on a run in its folder; "" removes them."""
    write_text(folder / NOTE, " ".join(note.split()))


def read_note(folder: Path) -> str:
    """What was said of a run; "" where nothing was."""
    path = folder / NOTE
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _ending(summary: dict[str, Any], step: int) -> State:
    return "stopped" if summary.get("interrupted") or not step else "done"


def last_change(folder: Path) -> float:
    """When a run's files last changed, in seconds since 1970."""
    changed = 0.0
    for name in FILES:
        with suppress(OSError):  # it is not there, or not any more
            changed = max(changed, (folder / name).stat().st_mtime)
    return changed


def newest_run() -> Path:
    """The run below runs/ that changed last."""
    if not (found := run_folders(ROOT)):
        raise ShoalError(f"there is no run below {ROOT}; begin with shoal train CartPole-v1")
    return max(found, key=last_change)


def find_run(name: Path | str) -> Path:
    """The folder of a run, from its path or from its name below runs/."""
    places = (Path(name), ROOT / name)
    for folder in (*filter(last_change, places), *filter(Path.is_dir, places)):
        return folder
    paths = run_folders(ROOT)
    names = [str(path.relative_to(ROOT)) for path in paths]
    near = [other for other in names if str(name).lower() in other.lower()]
    near += difflib.get_close_matches(str(name), [*names, *map(str, paths)], n=1)
    hint = f"did you mean {near[0]}?" if near else "shoal runs lists those there are"
    raise ShoalError(f"there is no run {str(name)!r}; {hint}")
