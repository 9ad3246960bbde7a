"""The records beside checkpoints: read, checked, and in brief what decides about a checkpoint's future."""

import json
import math
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ShoalError


class CorruptCheckpoint(ShoalError):
    """The files of a checkpoint are damaged or incomplete."""


class Brief(NamedTuple):
    """What decides about a checkpoint's future, from its record."""

    step: int
    size: int  # of its data, in bytes
    score: tuple[bool, float] | None  # whether it was evaluated, and how good it is; None without a score
    kept: bool  # for good
    replay: bool | None  # whether it was saved with its replays; None where its learners have none


def path_of(folder: Path, step: int) -> Path:
    """The data of the checkpoint at a step."""
    return Path(folder) / f"step_{step:09d}.safetensors"


def replay_of(data: Path) -> Path:
    """The file of a checkpoint's replay buffers, by that of its data."""
    return data.with_name(f"{data.stem}_replay.safetensors")


def read_record(data: Path) -> dict:
    """The JSON file beside a checkpoint, checked."""
    path = data.with_suffix(".json")
    for file in (path, data):
        if not file.exists():
            raise CorruptCheckpoint(f"{data} is incomplete: {file} is missing")
    try:
        record = json.loads(path.read_bytes())
        checksum = record.pop("record_crc32")
    except OSError as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CorruptCheckpoint(f"{path} is damaged: it is not the JSON that was written") from None
    if checksum != checksum_of(record):
        raise CorruptCheckpoint(f"{path} is damaged: its checksum is not the one recorded")
    if not _is_record(record, data):
        raise CorruptCheckpoint(f"{path} is damaged: it is no record of {data.name}")
    return record


def _is_record(record: dict[str, Any], data: Path) -> bool:
    """Whether a record has what others read of it, and is that of its data."""
    is_number = lambda x: x is None or (isinstance(x, int | float) and not isinstance(x, bool))
    are_sums = lambda x: isinstance(x, dict) and {"bytes", "crc32"} <= x.keys()
    meta, replay = record.get("meta"), record.get("replay")
    if not isinstance(meta, dict) or not are_sums(record) or not (replay is None or are_sums(replay)):
        return False
    clock, watch, scores = meta.get("clock", {}), meta.get("watch", {}), meta.get("scores", [])
    return (
        path_of(data.parent, record["step"] if isinstance(record.get("step"), int) else -1) == data
        and isinstance(meta.get("iteration", 0), int)
        and isinstance(clock, dict)
        and all(map(is_number, clock.values()))
        and isinstance(scores, list)
        and all(map(is_number, scores))
        and isinstance(watch, dict)
        and all(one is None or isinstance(one, dict) for one in watch.values())
    )


def read_brief(data: Path, *stamp: int) -> Brief:
    """A checkpoint in brief; the stamp of its record changes with it."""
    record = read_record(data)
    meta = record["meta"]
    value, replay = meta.get("score"), record.get("replay", False)
    known = isinstance(value, int | float) and math.isfinite(value)
    return Brief(
        step=record["step"],
        size=record["bytes"],
        score=(bool(meta.get("evaluated")), float(value)) if known else None,
        kept=bool(meta.get("kept")),
        replay=None if replay is False else replay is not None,
    )


remembered_brief = lru_cache(maxsize=100_000)(read_brief)
"""Records grow with the learners: of a run that keeps many each is read once, not at every save."""


def checksum_of(record: dict) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())
