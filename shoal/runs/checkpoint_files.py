"""The files of checkpoints: which there are, which is the newest and the best; they are whole or absent.

    checkpoints/step_000000512.safetensors           the leaves, named by their path in the tree
    checkpoints/step_000000512_replay.safetensors    the transitions of replay buffers; only in some
    checkpoints/step_000000512.json                  step, bytes, crc32, meta; written last, so it commits

A checkpoint without its JSON file, or with another size or checksum than that file says, is corrupt: the one
before it is used, with a warning. So nothing waits until the newest files are on the disk: they replace none,
and before older ones are removed, one that stays is. A run whose first and only checkpoint is half written
starts over. Nothing is pickled.

A run whose learners have replays goes on from a checkpoint with these; all others serve all other purposes.
"""

import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from shoal.errors import ShoalError
from shoal.runs.files import disk_errors
from shoal.runs.records import (
    Brief,
    CorruptCheckpoint,
    path_of,
    read_brief,
    read_record,
    remembered_brief,
    replay_of,
)

Loaded = TypeVar("Loaded")

SETTLED_SECONDS = 2.0
"""A file that was changed so long ago has another time of change when it changes again."""
_ALL_DAMAGED = "every checkpoint in {} is damaged; bring back a copy, or start over with --clobber"


def latest(folder: Path, load: Callable[[Path], Loaded], resumes: bool = False) -> Loaded | None:
    """The newest intact checkpoint as `load` reads it, or the newest that a run resumes from.

    None where none was saved.
    """
    saved = with_files(folder)
    without = {data for data, brief in intact(saved).items() if resumes and not resumes_from(data, brief)}
    return _load_first(folder, [data for data in reversed(saved) if data not in without], load)


def best(folder: Path, load: Callable[[Path], Loaded]) -> Loaded | None:
    """The intact checkpoint with the highest score, or None where none has a score."""
    saved = with_files(folder)
    briefs = intact(saved)
    for data in saved:
        if data not in briefs:
            warnings.warn(f"{data} is damaged or incomplete; it is not considered", RuntimeWarning)
    if saved and not briefs:
        raise ShoalError(_ALL_DAMAGED.format(folder))
    return _load_first(folder, reversed(ranked(briefs)), load)


def find(folder: Path, which: int | str, load: Callable[[Path], Loaded], rollout_size: int) -> Loaded:
    """A checkpoint of a run: `latest`, `best`, or the one after the rollout in which a step was made."""
    saved, steps = folder / "checkpoints", saved_steps(folder / "checkpoints")
    if which in ("latest", "best"):
        if (loaded := (best if which == "best" else latest)(saved, load)) is not None:
            return loaded
        if steps:
            raise ShoalError(f"{folder} holds no checkpoint with a score yet; choose latest")
        raise ShoalError(f"{folder} holds no checkpoint yet; train it first")
    asked = read_step(which)
    found = [step for step in steps if asked is not None and step - rollout_size < asked <= step]
    if found:
        return load(path_of(saved, found[0]))
    there = ", ".join(map(str, ["latest", "best", *steps]))
    raise ShoalError(f"no checkpoint {which} in {folder}; choose one of {there}")


def read_step(text: int | str) -> int | None:
    """A step as it is written, also as 50_000 or 5e4; None where it is none.

    >>> read_step("5e4"), read_step("50_000"), read_step("first")
    (50000, 50000, None)
    """
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return None


def lasting(folder: Path) -> dict[int, Path]:
    """The newest checkpoint, the best and those that are `kept`, by their steps, oldest first."""
    briefs = intact(with_files(folder))
    chosen = {*list(briefs)[-1:], *ranked(briefs)[-1:], *for_good(briefs)}
    return {brief.step: data for data, brief in briefs.items() if data in chosen}


def newest_meta(folder: Path, resumes: bool = False) -> dict | None:
    """The record of the newest checkpoint whose record is intact, without reading its arrays.

    With `resumes` of the newest that a run resumes from.
    """
    saved = with_files(folder)
    briefs = intact(saved)
    if saved and not briefs and not is_half_first(saved):
        raise ShoalError(_ALL_DAMAGED.format(folder))
    found = [data for data, brief in briefs.items() if not resumes or resumes_from(data, brief)]
    return read_record(found[-1])["meta"] if found else None


def saved_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints that are complete, oldest first."""
    return [brief.step for brief in intact(with_files(folder)).values()]


def resume_step(folder: Path) -> int:
    """The step from which a run in this folder resumes; 0 where there is none."""
    briefs = intact(with_files(folder)).items()
    return max((brief.step for data, brief in briefs if resumes_from(data, brief)), default=0)


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, from the names of the files alone; 0 where there is none."""
    saved = with_files(folder)
    return int(saved[-1].stem.removeprefix("step_")) if saved else 0


def with_files(folder: Path) -> list[Path]:
    """The safetensors paths of every checkpoint with at least one file, oldest first."""
    with disk_errors("read", Path(folder)):
        names = [path.name for path in Path(folder).iterdir()] if Path(folder).exists() else []
    matches = (re.fullmatch(r"step_(\d{9,})\.(safetensors|json)", name) for name in names)
    steps = {int(match[1]) for match in matches if match}
    return [path_of(folder, step) for step in sorted(steps)]


def intact(saved: Iterable[Path]) -> dict[Path, Brief]:
    """The checkpoints with both files, of the right size."""
    found = {}
    for data in saved:
        try:
            stat = data.with_suffix(".json").stat()
            settled = time.time() - stat.st_mtime > SETTLED_SECONDS
            read = remembered_brief if settled else read_brief
            brief = read(data, stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if data.stat().st_size == brief.size:
                found[data] = brief
        except (CorruptCheckpoint, OSError):
            continue
    return found


def ranked(briefs: Mapping[Path, Brief]) -> list[Path]:
    """The checkpoints with a finite score, worst first, those that were evaluated after the others.

    Among equals the newer one is later.
    """
    scored = [(brief.score, data) for data, brief in briefs.items() if brief.score is not None]
    return [data for _, data in sorted(scored, key=lambda pair: pair[0])]


def for_good(briefs: Mapping[Path, Brief]) -> list[Path]:
    """The checkpoints that are `kept`."""
    return [data for data, brief in briefs.items() if brief.kept]


def resumes_from(data: Path, brief: Brief) -> bool:
    """Whether a checkpoint has all that a run goes on from; those of learners without replays always have."""
    return brief.replay is None or (brief.replay and replay_of(data).exists())


def is_half_first(saved: list[Path]) -> bool:
    """Whether there is one checkpoint alone, without a record or shorter than that says."""
    if len(saved) != 1:
        return False
    record = saved[0].with_suffix(".json")
    try:
        if not record.exists() or not record.read_bytes().strip(b"\0"):
            return True
        recorded = read_record(saved[0])
        return not saved[0].exists() or saved[0].stat().st_size < recorded["bytes"]
    except CorruptCheckpoint:
        return not saved[0].exists() and record.is_file()
    except OSError:
        return False


def _load_first(folder: Path, candidates: Iterable[Path], load: Callable[[Path], Loaded]) -> Loaded | None:
    tried = 0
    for data in candidates:
        tried += 1
        try:
            return load(data)
        except CorruptCheckpoint as error:
            warnings.warn(f"{error}; using the checkpoint before it", RuntimeWarning)
    if tried:
        raise ShoalError(_ALL_DAMAGED.format(folder))
    return None
