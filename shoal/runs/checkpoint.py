"""Checkpoints: a pytree in safetensors with a JSON file beside it, whole or absent; some are kept.

    checkpoints/step_000000512.safetensors    the leaves, named by their path in the tree
    checkpoints/step_000000512.json           step, bytes, crc32, meta; written last, so it commits

A checkpoint without its JSON file, or with another size or checksum than that file says, is corrupt: the one
before it is used, with a warning. Nothing is pickled.
"""

import json
import math
import re
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from shoal.errors import ShoalError
from shoal.runs.files import TEMPORARY, disk_errors, replacing
from shoal.types import Tree

KEEP = 3
"""How many of the newest checkpoints are kept, besides the best and those that say so."""

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

KEY_KINDS = ("threefry2x32", "rbg", "unsafe_rbg")

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
DROPPED = re.compile(r"^exchange/per_learner/(\d+/)*(params|statistics)/")
"""Leaves that version 0.1 saved and that are no longer read: what a neighbour's policy does not need."""
ADDED = re.compile(r"^exchange/per_learner/(.*/)?rounds$")
"""Counters that version 0.1 did not save: they begin at 0."""

_ALL_DAMAGED = "every checkpoint in {} is damaged; bring back a copy, or start over with --clobber"
_MISFIT = "run it with the settings it was saved with, or start over with --clobber"


class CorruptCheckpoint(ShoalError):
    """The files of a checkpoint are damaged or incomplete."""


def save(folder: Path, step: int, tree: Tree, meta: dict) -> Path:
    """Saves a tree and its record, then removes old checkpoints.

    `meta` is anything JSON can hold, and arrays, which become lists; its `score`, a number where
    larger is better, decides which checkpoint is the best, those that were `evaluated` before the
    others. One that is `kept` stays for good. If the disk fails, earlier checkpoints stay.
    """
    contents = safetensors.numpy.save(_arrays(tree))
    meta = json.loads(json.dumps(meta, default=lambda value: np.asarray(value).tolist()))
    record = {"step": step, "bytes": len(contents), "crc32": zlib.crc32(contents), "meta": meta}
    text = json.dumps(record | {"record_crc32": _record_crc32(record)}, indent=2)
    data = path_of(folder, step)
    with replacing(data, data.with_suffix(".json")) as (temporary_data, temporary_record):
        temporary_data.write_bytes(contents)
        temporary_record.write_text(text, encoding="utf-8")
    prune(folder)
    return data


def load(path: Path, like: Tree) -> tuple[Tree, dict]:
    """One checkpoint, by the path of either of its files: (tree, meta).

    The tree has the structure of `like`, whose leaves are arrays or ShapeDtypeStructs; parts of the
    saved tree that `like` does not name at its top are left out. The leaves are NumPy arrays, and
    typed PRNG keys where `like` has them.
    """
    data = Path(path).with_suffix(".safetensors")
    record = _read_record(data)
    with disk_errors("read", data):
        contents = data.read_bytes()
    if len(contents) != record["bytes"] or zlib.crc32(contents) != record["crc32"]:
        raise CorruptCheckpoint(f"{data} is damaged: its size or checksum is not the one recorded")
    return _restore(dict(safetensors.deserialize(contents)), like, data), record["meta"]


def path_of(folder: Path, step: int) -> Path:
    """The data of the checkpoint at a step."""
    return Path(folder) / f"step_{step:09d}.safetensors"


def saved_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints that are complete, oldest first."""
    return [record["step"] for record in _committed(_saved(folder)).values()]


def lasting(folder: Path) -> dict[int, Path]:
    """The newest checkpoint, the best and those that are `kept`, by their steps, oldest first."""
    committed = _committed(_saved(folder))
    chosen = {*list(committed)[-1:], *_ranked(committed)[-1:], *_for_good(committed)}
    return {record["step"]: data for data, record in committed.items() if data in chosen}


def load_latest(folder: Path, like: Tree) -> tuple[Tree, dict] | None:
    """The newest intact checkpoint, or None where none was saved."""
    return _load_first(folder, reversed(_saved(folder)), like)


def newest_meta(folder: Path) -> dict | None:
    """The record of the newest checkpoint whose record is intact, without reading its arrays."""
    saved = _saved(folder)
    records = _committed(saved)
    if saved and not records:
        raise ShoalError(_ALL_DAMAGED.format(folder))
    return list(records.values())[-1]["meta"] if records else None


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, from the names of the files alone; 0 where there is none."""
    saved = _saved(folder)
    return int(saved[-1].stem.removeprefix("step_")) if saved else 0


def load_best(folder: Path, like: Tree) -> tuple[Tree, dict] | None:
    """The intact checkpoint with the highest score, or None where none has a score."""
    saved = _saved(folder)
    committed = _committed(saved)
    for data in saved:
        if data not in committed:
            warnings.warn(f"{data} is damaged or incomplete; it is not considered", RuntimeWarning)
    if saved and not committed:
        raise ShoalError(_ALL_DAMAGED.format(folder))
    return _load_first(folder, reversed(_ranked(committed)), like)


def prune(folder: Path) -> None:
    """Removes all but the newest KEEP checkpoints, the best and the `kept` ones, and files left by crashes.

    Damaged checkpoints do not count; those older than the newest KEEP are removed.
    """
    saved = _saved(folder)
    committed = _committed(saved)
    if not committed:
        return
    newest = list(committed)[-KEEP:]
    kept = {*newest, *_ranked(committed)[-1:], *_for_good(committed)}
    with disk_errors("remove old checkpoints in", Path(folder)):
        for data in saved[: saved.index(newest[0])]:
            if data not in kept:
                data.with_suffix(".json").unlink(missing_ok=True)
                data.unlink(missing_ok=True)
        for leftover in Path(folder).glob(f"{TEMPORARY}*"):
            leftover.unlink(missing_ok=True)


def _saved(folder: Path) -> list[Path]:
    """The safetensors paths of every checkpoint with at least one file, oldest first."""
    with disk_errors("read", Path(folder)):
        names = [path.name for path in Path(folder).iterdir()] if Path(folder).exists() else []
    matches = (re.fullmatch(r"step_(\d{9,})\.(safetensors|json)", name) for name in names)
    steps = {int(match[1]) for match in matches if match}
    return [path_of(folder, step) for step in sorted(steps)]


def _committed(saved: Iterable[Path]) -> dict[Path, dict]:
    """The records of the checkpoints with both files, of the right size."""
    records = {}
    for data in saved:
        try:
            record = _read_record(data)
            if data.stat().st_size == record["bytes"]:
                records[data] = record
        except (CorruptCheckpoint, OSError):
            continue
    return records


def _for_good(records: dict[Path, dict]) -> list[Path]:
    """The checkpoints that are `kept`."""
    return [data for data, record in records.items() if record["meta"].get("kept")]


def _ranked(records: dict[Path, dict]) -> list[Path]:
    """The checkpoints with a finite score, worst first, those that were evaluated after the others.

    Among equals the newer one is later.
    """

    def score(data: Path) -> tuple[bool, float] | None:
        meta = records[data]["meta"]
        value = meta.get("score")
        known = isinstance(value, int | float) and math.isfinite(value)
        return (bool(meta.get("evaluated")), value) if known else None

    scored = [(value, data) for data in records if (value := score(data)) is not None]
    return [data for _, data in sorted(scored, key=lambda pair: pair[0])]


def _load_first(folder: Path, candidates: Iterable[Path], like: Tree) -> tuple[Tree, dict] | None:
    tried = 0
    for data in candidates:
        tried += 1
        try:
            return load(data, like)
        except CorruptCheckpoint as error:
            warnings.warn(f"{error}; using the checkpoint before it", RuntimeWarning)
    if tried:
        raise ShoalError(_ALL_DAMAGED.format(folder))
    return None


def _read_record(data: Path) -> dict:
    """The JSON file beside a checkpoint, checked."""
    path = data.with_suffix(".json")
    for file in (path, data):
        if not file.exists():
            raise CorruptCheckpoint(f"{data} is incomplete: {file} is missing")
    with disk_errors("read", path):
        contents = path.read_bytes()
    try:
        record = json.loads(contents)
        checksum = record.pop("record_crc32")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise CorruptCheckpoint(f"{path} is damaged: it is not the JSON that was written") from None
    if checksum != _record_crc32(record):
        raise CorruptCheckpoint(f"{path} is damaged: its checksum is not the one recorded")
    return record


def _record_crc32(record: dict) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _named_leaves(tree: Tree) -> dict[str, Tree]:
    """Leaves by path, such as `params/layers/0/weight`. Python numbers become arrays."""
    named = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "leaf"
        if name in named:
            raise ValueError(f"two leaves are called {name}")
        if isinstance(leaf, bool | int | float):
            leaf = np.asarray(leaf)
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
            raise TypeError(f"the leaf {name} is a {type(leaf).__name__}, not an array")
        named[name] = leaf
    return named


def _is_key(leaf: Tree) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _arrays(tree: Tree) -> dict[str, np.ndarray]:
    """The leaves on the host, keys as their raw bits."""
    arrays = {}
    for name, leaf in _named_leaves(tree).items():
        array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf, order="C")
        if array.dtype.name not in DTYPES.values():
            raise ShoalError(
                f"cannot save the leaf {name}: checkpoints do not hold arrays of type {array.dtype.name}"
            )
        arrays[name] = array
    return arrays


def current_name(name: str) -> str:
    """The present name of a stored leaf.

    >>> current_name("cohort/memory/past/replay/count")
    'cohort/private/buffer/ring/count'
    """
    for old, new in RENAMED:
        name = re.sub(old, new, name)
    return name


def _restore(stored: dict[str, dict], like: Tree, data: Path) -> Tree:
    stored = {current_name(name): leaf for name, leaf in stored.items()}
    wanted = _named_leaves(like)
    parts = {name.split("/")[0] for name in wanted}
    surplus = {name for name in stored if name.split("/")[0] in parts} - wanted.keys()
    added = {name for name in wanted.keys() - stored.keys() if ADDED.match(name)}
    for difference, names in (
        ("lacks", wanted.keys() - stored.keys() - added),
        ("has", {name for name in surplus if not DROPPED.match(name)}),
    ):
        if names:
            listed = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
            raise ShoalError(f"{data} does not fit this run: it {difference} {listed}; {_MISFIT}")
    leaves = [
        np.zeros(leaf.shape, leaf.dtype) if name in added else _restore_leaf(name, stored[name], leaf, data)
        for name, leaf in wanted.items()
    ]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves)


def _restore_leaf(name: str, stored: dict, like: Tree, data: Path) -> Tree:
    bits = jax.eval_shape(jax.random.key_data, like) if _is_key(like) else like
    dtype, shape = DTYPES.get(stored["dtype"], stored["dtype"]), tuple(stored["shape"])
    if shape != bits.shape or dtype != bits.dtype.name:
        found, needed = f"{dtype}{list(shape)}", f"{bits.dtype.name}{list(bits.shape)}"
        raise ShoalError(f"{data} does not fit this run: {name} is {found}, not {needed}; {_MISFIT}")
    array = np.frombuffer(stored["data"], dtype=bits.dtype).reshape(shape).copy()
    return jax.random.wrap_key_data(jnp.asarray(array), impl=_key_kind(like)) if _is_key(like) else array


def _key_kind(like: Tree) -> str:
    """The name of the random generator, from the dtype: a ShapeDtypeStruct has nothing else."""
    kinds = {jax.eval_shape(lambda kind=kind: jax.random.key(0, impl=kind)).dtype: kind for kind in KEY_KINDS}
    return kinds[like.dtype]
