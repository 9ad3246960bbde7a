"""Checkpoints: a pytree saved in files, and restored; `checkpoint_files` says what is in them."""

import json
import re
import zlib
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from shoal.errors import ShoalError
from shoal.runs.checkpoint_files import DTYPES, best, checksum_of, latest, path_of, prune, read
from shoal.runs.checkpoint_files import KEEP as KEEP
from shoal.runs.checkpoint_files import current_name as current_name
from shoal.runs.checkpoint_files import lasting as lasting
from shoal.runs.checkpoint_files import newest_meta as newest_meta
from shoal.runs.checkpoint_files import newest_step as newest_step
from shoal.runs.checkpoint_files import saved_steps as saved_steps
from shoal.runs.files import replacing
from shoal.types import Tree

KEY_KINDS = ("threefry2x32", "rbg", "unsafe_rbg")

DROPPED = re.compile(r"^exchange/per_learner/(\d+/)*(params|statistics)/")
"""Leaves that version 0.1 saved and that are no longer read: what a neighbour's policy does not need."""
ADDED = re.compile(r"^exchange/per_learner/(.*/)?rounds$")
"""Counters that version 0.1 did not save: they begin at 0."""

_MISFIT = "run it with the settings it was saved with, or start over with --clobber"


def save(folder: Path, step: int, tree: Tree, meta: dict) -> Path:
    """Saves a tree and its record, then removes old checkpoints.

    `meta` is anything JSON can hold, and arrays, which become lists; its `score`, a number where
    larger is better, decides which checkpoint is the best, those that were `evaluated` before the
    others. One that is `kept` stays for good. If the disk fails, earlier checkpoints stay.
    """
    contents = safetensors.numpy.save(_arrays(tree))
    meta = json.loads(json.dumps(meta, default=lambda value: np.asarray(value).tolist()))
    record = {"step": step, "bytes": len(contents), "crc32": zlib.crc32(contents), "meta": meta}
    text = json.dumps(record | {"record_crc32": checksum_of(record)}, indent=2)
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
    stored, meta = read(path)
    return _restore(stored, like, Path(path).with_suffix(".safetensors")), meta


def load_latest(folder: Path, like: Tree) -> tuple[Tree, dict] | None:
    """The newest intact checkpoint, or None where none was saved."""
    return latest(folder, partial(load, like=like))


def load_best(folder: Path, like: Tree) -> tuple[Tree, dict] | None:
    """The intact checkpoint with the highest score, or None where none has a score."""
    return best(folder, partial(load, like=like))


def named_leaves(tree: Tree) -> dict[str, Tree]:
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
    for name, leaf in named_leaves(tree).items():
        array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf, order="C")
        if array.dtype.name not in DTYPES.values():
            raise ShoalError(
                f"cannot save the leaf {name}: checkpoints do not hold arrays of type {array.dtype.name}"
            )
        arrays[name] = array
    return arrays


def _restore(stored: dict[str, dict], like: Tree, data: Path) -> Tree:
    wanted = named_leaves(like)
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
