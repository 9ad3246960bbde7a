"""The leaves of a tree as named arrays, which files hold, and back into a tree of known shape."""

import json
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import ShoalError
from shoal.runs.stored_leaves import DTYPES
from shoal.types import Tree

KEY_KINDS = ("threefry2x32", "rbg", "unsafe_rbg")

DROPPED = re.compile(r"^exchange/per_learner/(\d+/)*(params|statistics)/")
"""Leaves that version 0.1 saved and that are no longer read: what a neighbour's policy does not need."""
ADDED = re.compile(r"^exchange/per_learner/(.*/)?rounds$")
"""Counters that version 0.1 did not save: they begin at 0."""
REPLAY = re.compile(r"^cohort/private/(.*/)?ring/data/")
"""The transitions of replay buffers, (L, capacity, ...): only the filled part is saved; the rest is zeros."""

_MISFIT = "run it with the settings it was saved with, or start over with --clobber"


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


def arrays_of(tree: Tree) -> dict[str, np.ndarray]:
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


def take_replay(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The transitions of replay buffers, taken out of a tree's arrays: as many as the fullest learner has."""
    found = {}
    for name in [name for name in arrays if REPLAY.match(name)]:
        filled = int(np.max(arrays[f"{name.partition('/ring/data/')[0]}/ring/count"]))
        found[name] = np.ascontiguousarray(arrays.pop(name)[:, :filled])
    return found


def write_leaves(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Writes arrays as a safetensors file, one after the other without copies; its size and checksum."""
    header, end = {}, 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        kind = next(short for short, dtype in DTYPES.items() if dtype == array.dtype.name)
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    size, crc32 = 0, 0
    with path.open("wb") as file:
        for part in (struct.pack("<Q", len(text)), text, *(array.reshape(-1) for array in arrays.values())):
            contents = part if isinstance(part, bytes) else part.view(np.uint8)
            size, crc32 = size + len(contents), zlib.crc32(contents, crc32)
            file.write(contents)
    return {"bytes": size, "crc32": crc32}


def restore(stored: Mapping[str, dict], like: Tree, data: Path) -> Tree:
    """The tree with the structure of `like`, from what files hold; zeros for transitions that are in none."""
    wanted = named_leaves(like)
    parts = {name.split("/")[0] for name in wanted}
    surplus = {name for name in stored if name.split("/")[0] in parts} - wanted.keys()
    added = {name for name in wanted.keys() - stored.keys() if ADDED.match(name) or REPLAY.match(name)}
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
    begins = REPLAY.match(name) and shape[1:2] <= bits.shape[1:2]  # a buffer that is not full
    needed = (*bits.shape[:1], *shape[1:2], *bits.shape[2:]) if begins else bits.shape
    if shape != needed or dtype != bits.dtype.name:
        found, needed = f"{dtype}{list(shape)}", f"{bits.dtype.name}{list(bits.shape)}"
        raise ShoalError(f"{data} does not fit this run: {name} is {found}, not {needed}; {_MISFIT}")
    array = np.frombuffer(stored["data"], dtype=bits.dtype).reshape(shape)
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array.copy()), impl=_key_kind(like))
    if shape == bits.shape:
        return array.copy()
    whole = np.zeros(bits.shape, bits.dtype)
    whole[:, : shape[1]] = array
    return whole


def _key_kind(like: Tree) -> str:
    """The name of the random generator, from the dtype: a ShapeDtypeStruct has nothing else."""
    kinds = {jax.eval_shape(lambda kind=kind: jax.random.key(0, impl=kind)).dtype: kind for kind in KEY_KINDS}
    return kinds[like.dtype]
