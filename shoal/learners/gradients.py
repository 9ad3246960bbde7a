"""Optimisers, gradients averaged over learners or computed in parts, target networks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array

from shoal.distributed.mesh import psum
from shoal.ops import trees
from shoal.types import Tree


def optimiser(kind: str, rate: Array | float, axes: tuple[str, ...] = ()) -> optax.GradientTransformation:
    """Adam (`adam`) or gradient descent (`sgd`), with gradients averaged over `axes`; the rate is data."""
    scale = optax.scale_by_adam() if kind == "adam" else optax.identity()
    steps = optax.flatten(optax.chain(scale, optax.scale_by_learning_rate(rate)))
    pooled = lambda grads, state, params=None: steps.update(pmean(grads, axes), state, params)
    return optax.GradientTransformation(steps.init, pooled)


def pmean(tree: Tree, axes: tuple[str, ...]) -> Tree:
    """The mean over the mapped `axes` of learners that share every gradient; the tree itself without axes.

    A learner with a number that is not finite does not count.
    """
    if not axes:
        return tree
    sound = jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]).all()
    counted = jax.tree.map(lambda x: jnp.where(sound, x, 0.0), tree)
    total, num = psum((counted, jnp.float32(sound)), axes)
    return jax.tree.map(lambda x: x / jnp.maximum(num, 1.0), total)


def accumulate_gradients(
    gradient: Callable[[Tree, Tree], Tree], params: Tree, batch: Tree, num_parts: int
) -> Tree:
    """gradient(params, batch) of a loss that is a sum over the batch, in parts, to save memory."""
    if num_parts == 1:
        return gradient(params, batch)
    parts = trees.split_axis(batch, num_parts)
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, params, batch))
    add = lambda total, part: (jax.tree.map(jnp.add, total, gradient(params, part)), None)
    return jax.lax.scan(add, zero, parts)[0]


def polyak_update(tau: Array | float, target: Tree, network: Tree) -> Tree:
    """(1 - tau) target + tau network."""
    return jax.tree.map(lambda t, x: (1 - tau) * t + tau * x, target, network)
