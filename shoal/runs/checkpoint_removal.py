"""Old checkpoints are removed, and what a crash left of one."""

import warnings
from pathlib import Path

from shoal.runs.checkpoint_files import (
    for_good,
    intact,
    is_half_first,
    ranked,
    resumes_from,
    with_files,
)
from shoal.runs.files import TEMPORARY, disk_errors, sync
from shoal.runs.records import replay_of

KEEP = 3
"""How many of the newest checkpoints are kept, besides the best and those that say so."""
KEEP_REPLAYS = 2
"""How many of the newest replays are kept."""


def prune(folder: Path) -> None:
    """Removes all but the newest KEEP checkpoints, the best and the `kept` ones, and files left by crashes.

    Damaged checkpoints do not count; those older than the newest KEEP are removed. Of the replays the
    newest KEEP_REPLAYS stay, with their checkpoints.
    """
    saved = with_files(folder)
    briefs = intact(saved)
    if not briefs:
        return
    newest = list(briefs)[-KEEP:]
    resuming = [data for data, brief in briefs.items() if resumes_from(data, brief)][-KEEP_REPLAYS:]
    kept = {*newest, *resuming, *ranked(briefs)[-1:], *for_good(briefs)}
    replays = {*map(replay_of, resuming)}
    surplus = [data for data in saved[: saved.index(newest[0])] if data not in kept]
    spent = [path for path in Path(folder).glob("step_*_replay.safetensors") if path not in replays]
    with disk_errors("remove old checkpoints in", Path(folder)):
        if surplus or spent:
            _flush(newest[0], *resuming[:1])  # the oldest that stay, which are mostly on the disk by now
        for data in surplus:
            _remove(data)
        for path in (*spent, *Path(folder).glob(f"{TEMPORARY}*")):
            path.unlink(missing_ok=True)


def forget_after(folder: Path, step: int) -> None:
    """Removes the checkpoints after a step that no run resumes from: a run that resumes makes its own."""
    later = {data: x for data, x in intact(with_files(folder)).items() if x.step > step}
    with disk_errors("remove checkpoints in", Path(folder)):
        for data, brief in later.items():
            if not resumes_from(data, brief):
                _remove(data)


def forget_half_first(folder: Path) -> None:
    """Removes a first and only checkpoint that a crash left half written, with a warning."""
    if is_half_first(saved := with_files(folder)):
        warnings.warn(
            f"{saved[0]} is incomplete, as after a crash in the middle of the first save, and there is no "
            "other: the run starts over",
            RuntimeWarning,
        )
        with disk_errors("remove checkpoints in", Path(folder)):
            _remove(saved[0])


def _remove(data: Path) -> None:
    """Remove a checkpoint, its record first."""
    for path in (data.with_suffix(".json"), data, replay_of(data)):
        path.unlink(missing_ok=True)


def _flush(*checkpoints: Path) -> None:
    """Wait until the files of checkpoints are on the disk."""
    for data in checkpoints:
        for path in filter(Path.exists, (data, replay_of(data), data.with_suffix(".json"))):
            sync(path)
        sync(data.parent)
