"""PPO's optimiser: Adam on a gradient of bounded norm; the critic may have an Adam of its own."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from shoal.errors import ShoalError
from shoal.learners.ppo_config import Hypers, PPOConfig
from shoal.types import Tree

CRITIC = "critic"
"""The field of a network that is the critic's own."""


class Apart(NamedTuple):
    """The state of two Adams: of the critic's own layers, and of all others."""

    policy: Tree
    critic: Tree


def init_optimiser(config: PPOConfig, hypers: Hypers, params: Tree) -> Tree:
    """The optimiser's state before the first step."""
    if not config.value.apart:
        return adam(hypers).init(ravel_pytree(params)[0])
    policy, critic = (ravel_pytree(part)[0] for part in split(params))
    if not critic.size:
        raise ShoalError(
            f"value.epochs and value.learning_rate need a network with a part called {CRITIC}, which "
            "changes the value alone; this network has none"
        )
    init = optax.scale_by_adam(eps=1e-5).init
    return Apart(init(policy), init(critic))


def adam(hypers: Hypers) -> optax.GradientTransformation:
    """Adam on a gradient of bounded norm; the step size and the bound are data."""
    return optax.chain(
        optax.clip_by_global_norm(hypers.max_grad_norm),
        optax.scale_by_adam(eps=1e-5),
        optax.scale_by_learning_rate(hypers.learning_rate),
    )


def step_apart(hypers: Hypers, params: Tree, state: Apart, grads: Tree) -> tuple[Tree, Apart]:
    """The same with two Adams, each with its own step size; the bound is on the norm of all gradients."""
    grads = bounded(hypers, grads)
    moved, states = [], []
    rates = (hypers.learning_rate, critic_rate(hypers))
    for part, grad, own, rate in zip(split(params), split(grads), state, rates, strict=True):
        new, own = _step(part, grad, own, rate)
        moved.append(new)
        states.append(own)
    return eqx.combine(*moved), Apart(*states)


def step_critic(hypers: Hypers, critic: Tree, state: Apart, grads: Tree) -> tuple[Tree, Apart]:
    """A step of the critic's own layers alone; the policy's Adam does not count it."""
    critic, own = _step(critic, bounded(hypers, grads), state.critic, critic_rate(hypers))
    return critic, state._replace(critic=own)


def split(params: Tree) -> tuple[Tree, Tree]:
    """A network without its critic's own layers, and these; None in place of the others.

    >>> split({"actor": 1, "critic": 2, "encoder": 3})
    ({'actor': 1, 'critic': None, 'encoder': 3}, {'actor': None, 'critic': 2, 'encoder': None})
    """
    of_critic = lambda path, _: jax.tree_util.keystr(path[:1], simple=True) == CRITIC
    own, others = eqx.partition(params, jax.tree_util.tree_map_with_path(of_critic, params))
    return others, own


def critic_rate(hypers: Hypers) -> Array:
    """The critic's step size."""
    rate = hypers.critic_learning_rate
    return hypers.learning_rate if isinstance(rate, tuple) else rate


def bounded(hypers: Hypers, grads: Tree) -> Tree:
    """Gradients with a norm of at most `max_grad_norm`."""
    return optax.clip_by_global_norm(hypers.max_grad_norm).update(grads, optax.EmptyState())[0]


def _step(params: Tree, grads: Tree, state: Tree, rate: Array) -> tuple[Tree, Tree]:
    """Adam on one long vector: fewer, longer operations."""
    vector, unravel = ravel_pytree(params)
    direction, state = optax.scale_by_adam(eps=1e-5).update(ravel_pytree(grads)[0], state)
    return unravel(vector - rate * jnp.asarray(direction)), state
