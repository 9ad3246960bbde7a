"""Steps down a gradient, and networks that follow others slowly."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array

from shoal.ops import trees
from shoal.types import Tree


def optimiser(kind: str, rate: Array | float, axes: tuple[str, ...] = ()) -> optax.GradientTransformation:
    """Adam (`adam`) or plain steps (`sgd`), their size data; gradients are averaged `axes` learners."""
    scale = optax.scale_by_adam() if kind == "adam" else optax.identity()
    steps = optax.flatten(optax.chain(scale, optax.scale_by_learning_rate(rate)))
    pooled = lambda grads, state, params=None: steps.update(pmean(grads, axes), state, params)
    return optax.GradientTransformation(steps.init, pooled)


def pmean(tree: Tree, axes: tuple[str, ...]) -> Tree:
    """The mean over learners that share every step, mapped over the axes `axes`; without any, the tree."""
    return jax.lax.pmean(tree, axes) if axes else tree


def accumulate_gradients(
    gradient: Callable[[Tree, Tree], Tree], params: Tree, batch: Tree, num_pieces: int
) -> Tree:
    """gradient(params, batch) of a loss that is a sum over the batch, piece by piece, to save memory."""
    if num_pieces == 1:
        return gradient(params, batch)
    pieces = trees.split_axis(batch, num_pieces)
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, params, batch))
    add = lambda total, piece: (jax.tree.map(jnp.add, total, gradient(params, piece)), None)
    return jax.lax.scan(add, zero, pieces)[0]


def polyak_update(tau: Array | float, target: Tree, network: Tree) -> Tree:
    """(1 - tau) target + tau network."""
    return jax.tree.map(lambda t, x: (1 - tau) * t + tau * x, target, network)
