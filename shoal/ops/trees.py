"""Pytrees with a leading axis, such as that of learners: stack, take, choose, lay out by device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import register_dataclass

from shoal.types import Tree


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree with a leading axis out of many without."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def take(tree: Tree, index: int | Array) -> Tree:
    """Entry `index` of every leaf along its leading axis; several entries for an array `index`.

    >>> import jax.numpy as jnp
    >>> take({"w": jnp.arange(6).reshape(3, 2)}, 1)["w"].tolist()
    [2, 3]
    """
    return jax.tree.map(lambda leaf: leaf[index], tree)


def where(condition: Array, yes: Tree, no: Tree) -> Tree:
    """One tree or the other, by a scalar condition."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def merge_axes(tree: Tree) -> Tree:
    """(L, E, ...) -> (L * E, ...) in every leaf."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), tree)


def split_axis(tree: Tree, num: int) -> Tree:
    """(num * E, ...) -> (num, E, ...) in every leaf."""
    return jax.tree.map(lambda x: x.reshape(num, x.shape[0] // num, *x.shape[1:]), tree)


def size(tree: Tree) -> int:
    """How many numbers a tree holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def num_rows(tree: Tree) -> int:
    """The length of the leading axis."""
    return jax.tree.leaves(tree)[0].shape[0]


def as_matrix(tree: Tree) -> tuple[Array, Callable[[Array], Tree]]:
    """A tree with a leading axis as a matrix (L, D), and the inverse function.

    >>> import jax.numpy as jnp
    >>> matrix, back = as_matrix({"w": jnp.ones((3, 2, 2)), "b": jnp.zeros((3, 1))})
    >>> matrix.shape, back(matrix)["w"].shape
    ((3, 5), (3, 2, 2))
    """
    leaves, structure = jax.tree.flatten(tree)
    rows = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
    cuts = list(accumulate(row.shape[1] for row in rows))[:-1]

    def back(matrix: Array) -> Tree:
        parts = zip(jnp.split(matrix, cuts, 1), leaves, strict=True)
        shaped = [part.reshape(-1, *leaf.shape[1:]).astype(leaf.dtype) for part, leaf in parts]
        return jax.tree.unflatten(structure, shaped)

    return jnp.concatenate(rows, 1), back


def align(flags: Array, x: Array) -> Array:
    """Flags of the leading axes of x, reshaped to the rank of x."""
    return flags.reshape(flags.shape + (1,) * (x.ndim - flags.ndim))


def where_rows(condition: Array, yes: Tree, no: Tree) -> Tree:
    """Entries of one tree or the other, by a condition for each entry of their leading axes."""
    return jax.tree.map(lambda a, b: jnp.where(align(condition, a), a, b), yes, no)


def finite_rows(tree: Tree) -> Array:
    """Which entries of the leading axis have finite numbers alone, in all leaves.

    >>> import jax.numpy as jnp
    >>> finite_rows({"w": jnp.array([[1.0, 2.0], [1.0, jnp.nan]]), "n": jnp.array([3, 4])}).tolist()
    [True, False]
    """
    finite = [jnp.isfinite(x).reshape(len(x), -1).all(1) for x in jax.tree.leaves(tree)]
    return jnp.stack(finite).all(0)


def vmap_in_groups(size: int, function: Callable, in_axes: tuple) -> Callable:
    """`jax.vmap(function, in_axes)`, computed for `size` entries at a time.

    Where there is only one group, its mapped axis has the name `group`.
    """

    def mapped(*args):
        move = lambda axis, part: jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), part)
        rows = jax.tree.map(move, in_axes, args)
        if jax.tree.leaves(rows)[0].shape[0] == size:
            return jax.vmap(function, in_axes, axis_name="group")(*args)
        return jax.lax.map(lambda row: function(*row), rows, batch_size=size)

    return mapped


@partial(register_dataclass, data_fields=["rows"], meta_fields=["slots"])
@dataclass(frozen=True)
class ByDevice:
    """Entries laid out by device: all devices have parts of the same length; shorter parts are padded."""

    rows: Tree
    """(M, ...) per leaf; the padding is ignored."""
    slots: tuple[int, ...]
    """The index of each entry, in the order that entries have on one device."""


def pack(tree: Tree) -> Tree:
    """The tree with every `ByDevice` laid out for one device, as checkpoints store it.

    >>> import numpy as np
    >>> pack({"a": ByDevice(np.array([5, 0, 6, 7]), (0, 2, 3))})["a"].tolist()
    [5, 6, 7]
    """
    packed = lambda part: take(part.rows, np.array(part.slots, int)) if _is_by_device(part) else part
    return jax.tree.map(packed, tree, is_leaf=_is_by_device)


def unpack(packed: Tree, like: Tree) -> Tree:
    """The inverse of `pack`, laid out as in `like`, whose entries are the padding.

    >>> import numpy as np
    >>> unpack({"a": np.array([5, 6, 7])}, {"a": ByDevice(np.zeros(4, int), (0, 1, 3))})["a"].rows.tolist()
    [5, 6, 0, 7]
    """

    def laid_out(part: Tree, rows: Tree) -> Tree:
        if not _is_by_device(part):
            return rows
        return replace(part, rows=jax.tree.map(partial(_put, part.slots), part.rows, rows))

    return jax.tree.map(laid_out, like, packed, is_leaf=_is_by_device)


def _put(slots: tuple[int, ...], like: Array, rows: Array) -> Array:
    index = np.array(slots, int)
    if isinstance(rows, Array):
        return jnp.asarray(like).at[index].set(rows)
    filled = np.array(like)
    filled[index] = rows
    return filled


def _is_by_device(tree: Tree) -> bool:
    return isinstance(tree, ByDevice)
