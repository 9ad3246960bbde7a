"""The learners of islands on disk: a folder for each island, a row for each learner, found again by number.

    islands/000-007/step_000004096.safetensors    learners 0 to 7 and their environments; a checkpoint's files

Learners may be on another island when they come back: each goes on from the newest row that has its number.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.distributed.processes import fetch
from shoal.runs import saving
from shoal.runs.checkpoint import load, save
from shoal.runs.records import CorruptCheckpoint, read_record
from shoal.training.iteration import TrainState
from shoal.training.program import Trainer
from shoal.types import Tree

OF_ALL = ("exchange", "key", "keys", "iteration")
"""Parts of a checkpoint that islands do not keep: the meeting does, or they follow from the settings."""


class Rows(NamedTuple):
    """A checkpoint of an island."""

    path: Path
    iteration: int
    members: list[int]


def save_rows(
    trainer: Trainer, state: TrainState, folder: Path, members: tuple[int, ...], replay: bool
) -> None:
    """Write a checkpoint of an island; without `replay` of all but that."""
    parts = saving.saved_parts(trainer, state)
    saved = _own(saving.to_saved_order(trainer, fetch(parts)))
    iteration = int(state.iteration)
    step = trainer.parts.config.steps_after(iteration)
    save(folder_of(folder, members), step, saved, {"iteration": iteration, "members": members}, replay)


def find_rows(
    trainer: Trainer, fresh: TrainState, folder: Path, members: tuple[int, ...], iteration: int
) -> tuple[TrainState, np.ndarray]:
    """The state with every learner that has a row, and the iteration it was saved at; -1 without one.

    Of several rows the last one up to an iteration counts, which is that of the run.
    """
    parts = saving.saved_parts(trainer, fresh)
    whole = saving.to_saved_order(trainer, fetch(parts))
    found, own = np.full(len(members), -1), jax.tree.map(_writable, _own(whole))
    known = lambda rows: (rows.iteration <= iteration, -abs(rows.iteration - iteration))
    for rows in sorted(saved_rows(folder), key=known, reverse=True):
        wanted = [i for i, member in enumerate(members) if found[i] < 0 and member in rows.members]
        if not wanted:
            continue
        like = jax.tree.map(partial(_with_length, len(rows.members)), own)
        try:
            stored, _ = load(rows.path, like, replay=True)
        except CorruptCheckpoint:
            continue
        index = np.array([rows.members.index(members[i]) for i in wanted])
        own = jax.tree.map(partial(_put, np.array(wanted), index), own, stored)
        found[wanted] = rows.iteration
    return saving.from_saved_order(trainer, fresh, parts | own), found


def saved_rows(folder: Path, name: str = "*-*") -> Iterator[Rows]:
    """The checkpoints of all islands, or of one, that have all that a learner goes on from."""
    for own in sorted(Path(folder).glob(name)):
        for data in sorted(own.glob("step_*.safetensors")):
            if data.stem.endswith("_replay"):
                continue
            try:
                record = read_record(data)
            except CorruptCheckpoint:
                continue
            if "replay" not in record or record["replay"] is not None:
                yield Rows(data, record["meta"]["iteration"], record["meta"]["members"])


def folder_of(folder: Path, members: tuple[int, ...]) -> Path:
    """Where an island with these learners keeps its own.

    >>> folder_of(Path("runs/a/islands"), (8, 9, 10)).name
    '008-010'
    """
    return Path(folder) / f"{members[0]:03d}-{members[-1]:03d}"


def _own(parts: dict[str, Tree]) -> dict[str, Tree]:
    return {name: part for name, part in parts.items() if name not in OF_ALL}


def _is_key(x: Tree) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _writable(x: Tree) -> Tree:
    return x if _is_key(x) else np.array(x)


def _with_length(length: int, x: Tree) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((length, *x.shape[1:]), x.dtype)


def _put(rows: np.ndarray, index: np.ndarray, x: Tree, stored: Tree) -> Tree:
    if _is_key(x):
        return x.at[rows].set(stored[index])
    x[rows] = stored[index]
    return x
