"""Steps down a gradient, and networks that follow others slowly."""

import jax
import optax
from jax import Array

from shoal.types import Tree


def optimiser(kind: str, rate: Array | float, across: tuple[str, ...] = ()) -> optax.GradientTransformation:
    """Adam (`adam`) or plain steps (`sgd`), their size data; gradients are averaged `across` learners."""
    scale = optax.scale_by_adam() if kind == "adam" else optax.identity()
    steps = optax.flatten(optax.chain(scale, optax.scale_by_learning_rate(rate)))
    if not across:
        return steps
    pooled = lambda grads, state, params=None: steps.update(jax.lax.pmean(grads, across), state, params)
    return optax.GradientTransformation(steps.init, pooled)


def nudge(tau: Array | float, target: Tree, network: Tree) -> Tree:
    """(1 - tau) target + tau network."""
    return jax.tree.map(lambda t, x: (1 - tau) * t + tau * x, target, network)
