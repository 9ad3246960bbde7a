"""Encoders: an observation of any kind as one vector."""

from math import prod
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from shoal.nets.convolutions import Impala, NatureCNN, is_image
from shoal.nets.layers import Flatten, Initializer
from shoal.ops.masks import without_mask
from shoal.types import ObservationSpace, Tree

JOINT, SHARED = "joint", ("agent_id",)
"""Parts of an observation: the one that only the critic sees, those that actor and critic both see."""


class Encoder(Protocol):
    """Turns one observation into a vector of `num_out` numbers."""

    num_out: int

    def __call__(self, obs: Tree) -> Array: ...


class ConcatEncoder(eqx.Module):
    """Named observations, each through its own encoder, concatenated in an order.

    With a part `JOINT`: that part is last and for the critic alone, the parts in `SHARED` are before it, and
    all others are first and for the actor alone.
    """

    encoders: dict[str, Encoder]
    order: tuple[str, ...] = eqx.field(static=True)
    num_out: int = eqx.field(static=True)

    def __init__(self, encoders: dict[str, Encoder], order: tuple[str, ...]):
        self.encoders, self.order = encoders, order
        self.num_out = self.width(order)

    def width(self, names: tuple[str, ...]) -> int:
        """How many numbers some of the parts have together."""
        return sum(self.encoders[name].num_out for name in names)

    def __call__(self, obs: dict[str, Array]) -> Array:
        return jnp.concatenate([self.encoders[name](obs[name]) for name in self.order], -1)


def make_encoder(
    key: Array, space: ObservationSpace, images: str, init: Initializer, first: tuple[str, ...] = ()
) -> Encoder:
    """The encoder of a space: vectors unchanged, images by the network `images`, named parts concatenated.

    Parts are in the order of their names, those in `first` before the others. The action mask is left out.
    """
    if isinstance(space, dict):
        boxes = sorted(without_mask(space).items())
        keys = jax.random.split(key, len(boxes))
        encoders = {
            name: make_encoder(k, box, images, init) for k, (name, box) in zip(keys, boxes, strict=True)
        }
        rank = lambda name: (name == JOINT, name in SHARED, name not in first, name)
        return ConcatEncoder(encoders, tuple(sorted(encoders, key=rank)))
    if images == "mlp" or not is_image(space):
        return Flatten(len(space.shape), prod(space.shape))
    return {"nature": NatureCNN, "impala": Impala}[images](key, space.shape, init)


def has_joint(encoder: Encoder) -> bool:
    """Whether a part of the observation is for the critic alone."""
    return isinstance(encoder, ConcatEncoder) and JOINT in encoder.encoders


def actor_and_critic_inputs(encoder: Encoder) -> tuple[slice, slice]:
    """Which of the encoded numbers the actor sees, and which the critic: all, unless a part is joint."""
    if not isinstance(encoder, ConcatEncoder) or not has_joint(encoder):
        return slice(0, encoder.num_out), slice(0, encoder.num_out)
    shared = encoder.width(tuple(name for name in SHARED if name in encoder.encoders))
    joint = encoder.width((JOINT,))
    return slice(0, encoder.num_out - joint), slice(encoder.num_out - joint - shared, encoder.num_out)
