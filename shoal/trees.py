"""Pytrees along the learner axis: stack, take, compare."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from shoal.types import Tree


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree with a leading axis out of many without."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def take(tree: Tree, index: int | Array) -> Tree:
    """Row `index` of every leaf (rows, if `index` is an array).

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
