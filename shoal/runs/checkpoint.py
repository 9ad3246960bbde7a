"""Checkpoints: a pytree saved in files, and restored; `checkpoint_files` says what is in them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.runs.checkpoint_files import best, latest
from shoal.runs.checkpoint_files import lasting as lasting
from shoal.runs.checkpoint_files import newest_meta as newest_meta
from shoal.runs.checkpoint_files import newest_step as newest_step
from shoal.runs.checkpoint_files import resume_step as resume_step
from shoal.runs.checkpoint_files import saved_steps as saved_steps
from shoal.runs.checkpoint_removal import forget_after as forget_after
from shoal.runs.checkpoint_removal import forget_half_first as forget_half_first
from shoal.runs.checkpoint_removal import prune as prune
from shoal.runs.files import replacing
from shoal.runs.leaves import arrays_of as arrays_of
from shoal.runs.leaves import named_leaves as named_leaves
from shoal.runs.leaves import restore, take_replay, write_leaves
from shoal.runs.records import checksum_of, replay_of
from shoal.runs.records import path_of as path_of
from shoal.runs.stored_leaves import read
from shoal.types import Tree


def save(
    folder: Path, step: int, tree: Tree, meta: dict, replay: bool = True, keep_old: bool = False
) -> Path:
    """Saves a tree and its record, then removes old checkpoints unless they are to be kept.

    `meta` is anything JSON can hold, and arrays, which become lists; its `score`, a number where
    larger is better, decides which checkpoint is the best, those that were `evaluated` before the
    others. One that is `kept` stays for good. If the disk fails, earlier checkpoints stay. Without
    `replay` the transitions of replay buffers are left out.
    """
    data = write(folder, step, arrays_of(tree), meta, replay)
    if not keep_old:
        prune(folder)
    return data


def write(
    folder: Path,
    step: int,
    arrays: dict[str, np.ndarray],
    meta: dict,
    replay: bool = True,
    flush: bool = False,
) -> Path:
    """Writes a tree's arrays and their record; with `flush` they are on the disk afterwards."""
    data, arrays = path_of(folder, step), dict(arrays)
    transitions = take_replay(arrays)
    meta = json.loads(json.dumps(meta, default=lambda value: np.asarray(value).tolist()))
    record: dict[str, Any] = {"step": step, "meta": meta} | ({"replay": None} if transitions else {})
    files = {data: arrays} | ({replay_of(data): transitions} if transitions and replay else {})
    with replacing(*files, data.with_suffix(".json"), flush=flush) as (*temporaries, temporary_record):
        written = [write_leaves(*pair) for pair in zip(temporaries, files.values(), strict=True)]
        record |= written[0]
        if len(written) > 1:
            record["replay"] = written[1]
        text = json.dumps(record | {"record_crc32": checksum_of(record)}, indent=2)
        temporary_record.write_text(text, encoding="utf-8")
    return data


def load(path: Path, like: Tree, replay: bool = False) -> tuple[Tree, dict]:
    """One checkpoint, by the path of its data or its record: (tree, meta).

    The tree has the structure of `like`, whose leaves are arrays or ShapeDtypeStructs; parts of the
    saved tree that `like` does not name at its top are left out. The leaves are NumPy arrays, and
    typed PRNG keys where `like` has them. Without `replay` replay buffers hold zeros.
    """
    stored, meta = read(path, replay)
    return restore(stored, like, Path(path).with_suffix(".safetensors")), meta


def load_latest(folder: Path, like: Tree, resumes: bool = False) -> tuple[Tree, dict] | None:
    """The newest intact checkpoint, or the newest that a run resumes from; None where none was saved."""
    return latest(folder, partial(load, like=like, replay=resumes), resumes)


def load_best(folder: Path, like: Tree) -> tuple[Tree, dict] | None:
    """The intact checkpoint with the highest score, or None where none has a score."""
    return best(folder, partial(load, like=like))
