"""Networks with a single head: one vector per observation, and Q(s, a)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from shoal.nets.encoders import Encoder, make_encoder
from shoal.nets.layers import INITIALIZERS, MLP
from shoal.types import EnvSpec, Tree


class VectorNetwork(eqx.Module):
    """One vector per observation: an actor's outputs, or the values of all discrete actions."""

    encoder: Encoder
    head: MLP

    def __call__(self, obs: Tree) -> Array:
        return self.head(self.encoder(obs))


class ActionValue(eqx.Module):
    """Q(s, a)."""

    encoder: Encoder
    head: MLP

    def __call__(self, obs: Tree, action: Array) -> Array:
        return self.head(jnp.concatenate([self.encoder(obs), action], -1))[..., 0]


def make_vector_network(key: Array, spec: EnvSpec, num_outputs: int, **layers: Any) -> VectorNetwork:
    """A network with `num_outputs` outputs; `layers` as for `make_parts`."""
    return VectorNetwork(*make_parts(key, spec, 0, num_outputs, **layers))


def make_action_value(key: Array, spec: EnvSpec, num_actions: int, **layers: Any) -> ActionValue:
    """Q(s, a) for actions of `num_actions` numbers; `layers` as for `make_parts`."""
    return ActionValue(*make_parts(key, spec, num_actions, 1, **layers))


def make_parts(
    key: Array,
    spec: EnvSpec,
    num_extra: int,
    num_outputs: int,
    *,
    hidden: tuple[int, ...] = (256, 256),
    activation: str = "relu",
    images: str = "nature",
    init: str = "fan_in",
) -> tuple[Encoder, MLP]:
    """An encoder, and a head of its numbers and `num_extra` others."""
    key_encoder, key_head = jax.random.split(key)
    body = INITIALIZERS[init]
    encoder = make_encoder(key_encoder, spec.observation, images, body)
    sizes = (encoder.num_out + num_extra, *hidden, num_outputs)
    return encoder, MLP(key_head, sizes, activation, body, body)
