"""The curiosity model (Pathak et al. 2017): it predicts the features of the next observation.

phi(o)               features of an observation
inverse(phi, phi')   predicts the action between two observations, so that phi keeps what actions change
forward(phi, a)      predicts the features of the next observation

The gradients of both errors reach all features, also the predicted ones (equation 7 of the paper, without
stopped gradients).
"""

from math import prod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.nets.encoders import Encoder, make_encoder
from shoal.nets.layers import MLP
from shoal.ops.distributions import distribution_for
from shoal.types import ActionSpace, Box, Discrete, EnvSpec, MultiDiscrete, Tree


class Model(eqx.Module):
    """Features of observations, the inverse model and the forward model."""

    encoder: Encoder
    features: MLP
    inverse: MLP
    forward: MLP

    def encode(self, obs: Tree) -> Array:
        """phi(o), (..., size)."""
        return self.features(self.encoder(obs))


class Transitions(NamedTuple):
    """Samples of the model."""

    obs: Tree  # (B, ...)
    action: Tree  # (B, ...)
    next_obs: Tree  # (B, ...) at an episode's end its true final observation
    weight: Array  # (B,) 1 where valid


def make_model(key: Array, spec: EnvSpec, size: int, images: str) -> Model:
    """Three networks of one hidden layer each, after a convolutional encoder of images."""
    key_encoder, key_features, key_inverse, key_forward = jax.random.split(key, 4)
    init = jax.nn.initializers.he_uniform()
    encoder = make_encoder(key_encoder, spec.observation, images, init)
    layers = lambda key, num_in, num_out: MLP(key, (num_in, size, num_out), "relu", init, init)
    return Model(
        encoder=encoder,
        features=layers(key_features, encoder.num_out, size),
        inverse=layers(key_inverse, 2 * size, num_action_numbers(spec.action)),
        forward=layers(key_forward, size + num_action_numbers(spec.action), size),
    )


def curiosity_loss(
    beta: float, space: ActionSpace, model: Model, batch: Transitions
) -> tuple[Array, dict[str, Array]]:
    """(1 - beta) forward + beta inverse, summed over the batch."""
    before, after = model.encode(batch.obs), model.encode(batch.next_obs)
    forward = forward_error(model, before, action_numbers(space, batch.action), after)
    inverse = inverse_error(model, space, before, after, batch.action)
    total = lambda error: jnp.sum(error * batch.weight)
    metrics = {"curiosity/forward": total(forward), "curiosity/inverse": total(inverse)}
    return (1 - beta) * total(forward) + beta * total(inverse), metrics


def forward_error(model: Model, before: Array, action: Array, after: Array) -> Array:
    """|forward(phi, a) - phi'|^2 / 2, summed over the last axis."""
    return jnp.sum((model.forward(jnp.concatenate([before, action], -1)) - after) ** 2, -1) / 2


def inverse_error(model: Model, space: ActionSpace, before: Array, after: Array, action: Tree) -> Array:
    """-log p(a | phi, phi'), summed over an action's parts; of continuous ones the mean squared error."""
    guess = model.inverse(jnp.concatenate([before, after], -1))
    if isinstance(space, Box):
        return jnp.mean((guess - action_numbers(space, action)) ** 2, -1)
    return -distribution_for(space).log_prob(guess, action)


def action_numbers(space: ActionSpace, action: Tree) -> Array:
    """An action as a vector: choices are one-hot, switches 0 or 1, continuous numbers scaled.

    >>> action_numbers(MultiDiscrete((2, 3)), jnp.array([1, 0])).tolist()
    [0.0, 1.0, 1.0, 0.0, 0.0]
    """
    match space:
        case Discrete(num):
            return jax.nn.one_hot(action, num)
        case MultiDiscrete(nums):
            return jnp.concatenate([jax.nn.one_hot(action[..., i], num) for i, num in enumerate(nums)], -1)
        case Box():
            return scale_action(space, action)
        case _:
            return action.astype(jnp.float32)


def scale_action(box: Box, action: Array) -> Array:
    """Continuous actions clipped to their bounds; scaled to [-1, 1] where both bounds are finite.

    >>> box = Box((2,), np.array([0.0, -np.inf]), np.array([4.0, np.inf]))
    >>> scale_action(box, jnp.array([5.0, 5.0])).tolist()
    [1.0, 5.0]
    """
    flat = action.reshape(*action.shape[: action.ndim - len(box.shape)], prod(box.shape))
    low, high = (np.broadcast_to(bound, box.shape).ravel() for bound in (box.low, box.high))
    bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
    bottom, top = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    bounds = (low, high, (top + bottom) / 2, (top - bottom) / 2)
    low, high, middle, reach = (jnp.broadcast_to(jnp.float32(x), flat.shape) for x in bounds)
    return (jnp.clip(flat, low, high) - middle) / reach


def num_action_numbers(space: ActionSpace) -> int:
    """The length of an action as a vector."""
    return prod(space.shape) if isinstance(space, Box) else distribution_for(space).num_outputs
