"""The files of checkpoints: which there are, which is the best, what one holds; they are whole or absent.

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
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import safetensors

from shoal.errors import ShoalError
from shoal.runs.files import TEMPORARY, disk_errors, sync
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

KEEP = 3
"""How many of the newest checkpoints are kept, besides the best and those that say so."""
SETTLED_SECONDS = 2.0
"""A file that was changed so long ago has another time of change when it changes again."""
KEEP_REPLAYS = 2
"""How many of the newest replays are kept."""

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
"""The names safetensors gives to the types we store."""

RENAMED = (
    (r"^cohort/memory/", "cohort/private/"),
    (r"^cohort/private/past/(?=num_steps$|replay/|tail/|warm$)", "cohort/private/buffer/"),
    (r"^cohort/private/(buffer/)?replay/", r"cohort/private/\1ring/"),
    (r"^cohort/private/(buffer/)?warm$", r"cohort/private/\1warming_up"),
    (r"^cohort/private/wander$", "cohort/private/correlated_noise"),
    (r"^exchange/rows/", "exchange/per_learner/"),
    (r"^exchange/whole/", "exchange/shared/"),
    (r"/owed(?=/|$)", "/residual"),
)
"""Leaves that version 0.1 named differently, as patterns applied one after the other."""

_ALL_DAMAGED = "every checkpoint in {} is damaged; bring back a copy, or start over with --clobber"


def read(path: Path, replay: bool = False) -> tuple[dict[str, dict], dict]:
    """One checkpoint, by the path of its data or its record: (leaves, meta).

    A leaf has its `dtype` by safetensors' name, its `shape` and its `data` as bytes. Without `replay` the
    transitions of replay buffers are left out.
    """
    data = Path(path).with_suffix(".safetensors")
    record = read_record(data)
    stored = _read_leaves(data, record)
    if replay and record.get("replay"):
        stored |= _read_leaves(replay_of(data), record["replay"])
    return {current_name(name): leaf for name, leaf in stored.items()}, record["meta"]


def latest(folder: Path, load: Callable[[Path], Loaded], resumes: bool = False) -> Loaded | None:
    """The newest intact checkpoint as `load` reads it, or the newest that a run resumes from.

    None where none was saved.
    """
    saved = _saved(folder)
    without = {data for data, brief in _committed(saved).items() if resumes and not _resumes(data, brief)}
    return _load_first(folder, [data for data in reversed(saved) if data not in without], load)


def best(folder: Path, load: Callable[[Path], Loaded]) -> Loaded | None:
    """The intact checkpoint with the highest score, or None where none has a score."""
    saved = _saved(folder)
    committed = _committed(saved)
    for data in saved:
        if data not in committed:
            warnings.warn(f"{data} is damaged or incomplete; it is not considered", RuntimeWarning)
    if saved and not committed:
        raise ShoalError(_ALL_DAMAGED.format(folder))
    return _load_first(folder, reversed(_ranked(committed)), load)


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


def array_of(leaf: dict) -> np.ndarray:
    """A leaf that `read` found, as an array."""
    dtype = DTYPES.get(leaf["dtype"], leaf["dtype"])
    return np.frombuffer(leaf["data"], dtype).reshape(leaf["shape"])


def saved_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints that are complete, oldest first."""
    return [brief.step for brief in _committed(_saved(folder)).values()]


def lasting(folder: Path) -> dict[int, Path]:
    """The newest checkpoint, the best and those that are `kept`, by their steps, oldest first."""
    committed = _committed(_saved(folder))
    chosen = {*list(committed)[-1:], *_ranked(committed)[-1:], *_for_good(committed)}
    return {brief.step: data for data, brief in committed.items() if data in chosen}


def newest_meta(folder: Path, resumes: bool = False) -> dict | None:
    """The record of the newest checkpoint whose record is intact, without reading its arrays.

    With `resumes` of the newest that a run resumes from.
    """
    saved = _saved(folder)
    committed = _committed(saved)
    if saved and not committed and not _is_half_first(saved):
        raise ShoalError(_ALL_DAMAGED.format(folder))
    found = [data for data, brief in committed.items() if not resumes or _resumes(data, brief)]
    return read_record(found[-1])["meta"] if found else None


def forget_after(folder: Path, step: int) -> None:
    """Removes the checkpoints after a step that no run resumes from: a run that resumes makes its own."""
    later = {data: x for data, x in _committed(_saved(folder)).items() if x.step > step}
    with disk_errors("remove checkpoints in", Path(folder)):
        for data, brief in later.items():
            if not _resumes(data, brief):
                _remove(data)


def forget_half_first(folder: Path) -> None:
    """Removes a first and only checkpoint that a crash left half written, with a warning."""
    if _is_half_first(saved := _saved(folder)):
        warnings.warn(
            f"{saved[0]} is incomplete, as after a crash in the middle of the first save, and there is no "
            "other: the run starts over",
            RuntimeWarning,
        )
        with disk_errors("remove checkpoints in", Path(folder)):
            _remove(saved[0])


def _is_half_first(saved: list[Path]) -> bool:
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


def resume_step(folder: Path) -> int:
    """The step from which a run in this folder resumes; 0 where there is none."""
    committed = _committed(_saved(folder)).items()
    return max((brief.step for data, brief in committed if _resumes(data, brief)), default=0)


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, from the names of the files alone; 0 where there is none."""
    saved = _saved(folder)
    return int(saved[-1].stem.removeprefix("step_")) if saved else 0


def prune(folder: Path) -> None:
    """Removes all but the newest KEEP checkpoints, the best and the `kept` ones, and files left by crashes.

    Damaged checkpoints do not count; those older than the newest KEEP are removed. Of the replays the
    newest KEEP_REPLAYS stay, with their checkpoints.
    """
    saved = _saved(folder)
    committed = _committed(saved)
    if not committed:
        return
    newest = list(committed)[-KEEP:]
    resuming = [data for data, brief in committed.items() if _resumes(data, brief)][-KEEP_REPLAYS:]
    kept = {*newest, *resuming, *_ranked(committed)[-1:], *_for_good(committed)}
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


def _saved(folder: Path) -> list[Path]:
    """The safetensors paths of every checkpoint with at least one file, oldest first."""
    with disk_errors("read", Path(folder)):
        names = [path.name for path in Path(folder).iterdir()] if Path(folder).exists() else []
    matches = (re.fullmatch(r"step_(\d{9,})\.(safetensors|json)", name) for name in names)
    steps = {int(match[1]) for match in matches if match}
    return [path_of(folder, step) for step in sorted(steps)]


def _committed(saved: Iterable[Path]) -> dict[Path, Brief]:
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


def _for_good(committed: Mapping[Path, Brief]) -> list[Path]:
    """The checkpoints that are `kept`."""
    return [data for data, brief in committed.items() if brief.kept]


def _ranked(committed: Mapping[Path, Brief]) -> list[Path]:
    """The checkpoints with a finite score, worst first, those that were evaluated after the others.

    Among equals the newer one is later.
    """
    scored = [(brief.score, data) for data, brief in committed.items() if brief.score is not None]
    return [data for _, data in sorted(scored, key=lambda pair: pair[0])]


def _resumes(data: Path, brief: Brief) -> bool:
    """Whether a checkpoint has all that a run goes on from; those of learners without replays always have."""
    return brief.replay is None or (brief.replay and replay_of(data).exists())


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


def _read_leaves(path: Path, recorded: dict) -> dict[str, dict]:
    """The leaves in a file by name, checked against what its record says of it."""
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error.strerror or error}") from None
    if len(contents) != recorded["bytes"] or zlib.crc32(contents) != recorded["crc32"]:
        raise CorruptCheckpoint(f"{path} is damaged: its size or checksum is not the one recorded")
    try:
        return dict(safetensors.deserialize(contents))
    except safetensors.SafetensorError as error:
        raise CorruptCheckpoint(f"{path} is damaged: {error}") from None


def current_name(name: str) -> str:
    """The present name of a stored leaf.

    >>> current_name("cohort/memory/past/replay/count")
    'cohort/private/buffer/ring/count'
    """
    for old, new in RENAMED:
        name = re.sub(old, new, name)
    return name
