"""Actor-critics: a policy's outputs and a value, on one encoder of observations.

A network is an Equinox module called with observations of any leading shape. Every leaf is an array, so a
cohort of networks is the same module with a leading axis.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError
from shoal.nets.convolutions import Impala, NatureCNN
from shoal.nets.encoders import (
    JOINT,
    SHARED,
    ConcatEncoder,
    Encoder,
    actor_and_critic_inputs,
    has_joint,
    make_encoder,
)
from shoal.nets.layers import INITIALIZERS, MLP, SplitLayer, check_activation, orthogonal
from shoal.types import Box, EnvSpec, Tree


class Network(Protocol):
    """What PPO needs of a network: a policy's outputs (..., num_outputs) and a value (...)."""

    def __call__(self, obs: Tree) -> tuple[Array, Array]: ...


class NetworkMaker(Protocol):
    """Makes a `Network` for an environment."""

    def __call__(self, key: Array, spec: EnvSpec, num_outputs: int) -> Network: ...


class Split(NamedTuple):
    """Which part of an observation has layers of its own, before it is concatenated with the rest.

    For example proprioceptive and exteroceptive observations (Heess et al. 2016, 2017).
    """

    start: int | None = None  # the first numbers of a vector, this many
    keys: tuple[str, ...] = ()  # or these of the named parts
    hidden: tuple[int, ...] = (64, 64)  # the layers of each of the two parts


NO_SPLIT = Split()


class Layers(NamedTuple):
    """The sizes and kinds of an actor-critic's layers, as `actor_critic` describes them."""

    hidden: tuple[int, ...] = (64, 64)
    critic_hidden: tuple[int, ...] | None = None
    activation: str = "tanh"
    images: str = "nature"
    init: str = "orthogonal"
    init_log_std: float = 0.0
    split: Split = NO_SPLIT


DEFAULT_LAYERS = Layers()

HeadMaker: TypeAlias = Callable[[Array, tuple[int, ...], int, float], Any]
"""make_head(key, sizes, num_out, gain) -> an actor or a critic on encoded observations."""


class ActorCritic(eqx.Module):
    """A policy and a value on one encoder; for vectors it has no parameters, so they share none."""

    encoder: Encoder
    actor: MLP
    critic: MLP
    log_std: Array | None  # (A,) for continuous actions

    def __call__(self, obs: Tree) -> tuple[Array, Array]:
        x, (actor_input, critic_input) = self.encoder(obs), actor_and_critic_inputs(self.encoder)
        outputs = append_log_std(self.actor(x[..., actor_input]), self.log_std)
        return outputs, self.critic(x[..., critic_input])[..., 0]


def append_log_std(outputs: Array, log_std: Array | None) -> Array:
    """A policy's outputs, with the logarithms of standard deviations for continuous actions."""
    if log_std is None:
        return outputs
    return jnp.concatenate([outputs, jnp.broadcast_to(log_std, outputs.shape)], -1)


def actor_critic(
    *,
    hidden: tuple[int, ...] = (64, 64),
    critic_hidden: tuple[int, ...] | None = None,
    activation: Literal["tanh", "relu", "leaky_relu", "elu", "silu"] = "tanh",
    images: Literal["nature", "impala", "mlp"] = "nature",
    init: Literal["orthogonal", "xavier"] = "orthogonal",
    init_log_std: float = 0.0,
    split: Split = NO_SPLIT,
) -> NetworkMaker:
    """The usual actor-critic: heads orthogonal with gains 0.01 (policy) and 1 (value).

    Vectors go through separate `hidden` layers for actor and critic (`critic_hidden`, if given, for the
    critic); images go through a shared convolutional encoder to the heads. `split` gives parts of an
    observation layers of their own first.

    >>> import jax, shoal
    >>> spec = shoal.make("CartPole-v1").spec
    >>> network = actor_critic(hidden=(32,))(jax.random.key(0), spec, num_outputs=2)
    >>> outputs, value = network(jax.numpy.zeros((7, 4)))
    >>> outputs.shape, value.shape
    ((7, 2), (7,))
    """
    layers = Layers(hidden, critic_hidden, activation, images, init, init_log_std, split)

    def make_head(key: Array, sizes: tuple[int, ...], num_out: int, gain: float) -> MLP:
        return MLP(key, (*sizes, num_out), activation, INITIALIZERS[init], orthogonal(gain))

    return make_network_maker(ActorCritic, make_head, layers)


def make_network_maker(network: Callable[..., Tree], make_head: HeadMaker, layers: Layers) -> Any:
    """A maker of `network(encoder, actor, critic, log_std)`, whose actor and critic `make_head` makes."""
    check_activation(layers.activation)
    init = INITIALIZERS[layers.init]

    def make(key: Array, spec: EnvSpec, num_outputs: int) -> Tree:
        key_encoder, key_actor, key_critic = jax.random.split(key, 3)
        encoder = make_encoder(key_encoder, spec.observation, layers.images, init, layers.split.keys)
        hidden = (layers.hidden, layers.hidden if layers.critic_hidden is None else layers.critic_hidden)
        if isinstance(encoder, NatureCNN | Impala):
            hidden = ((), ())
        inputs = zip(actor_and_critic_inputs(encoder), hidden, strict=True)
        actor_sizes, critic_sizes = ((part.stop - part.start, *own) for part, own in inputs)
        start = find_split(layers.split, spec, encoder)
        make_part = partial(make_split_head, make_head, layers)
        continuous = isinstance(spec.action, Box)
        num_actions = num_outputs // 2 if continuous else num_outputs
        return network(
            encoder=encoder,
            actor=make_part(key_actor, actor_sizes, start, num_actions, 0.01),
            critic=make_part(key_critic, critic_sizes, None if has_joint(encoder) else start, 1, 1.0),
            log_std=jnp.full(num_actions, layers.init_log_std) if continuous else None,
        )

    return make


def make_split_head(
    make_head: HeadMaker,
    layers: Layers,
    key: Array,
    sizes: tuple[int, ...],
    start: int | None,
    num_out: int,
    gain: float,
) -> Tree:
    """An actor or a critic; with a split at `start`, a `SplitLayer` is its first layer."""
    if start is None:
        return make_head(key, sizes, num_out, gain)
    key_first, key_rest = jax.random.split(key)
    init = INITIALIZERS[layers.init]
    first = SplitLayer(key_first, sizes[0], start, layers.split.hidden, layers.activation, init)
    rest = make_head(key_rest, (first.num_out, *sizes[1:]), num_out, gain)
    return eqx.tree_at(lambda head: head.layers, rest, [first, *rest.layers])


def find_split(split: Split, spec: EnvSpec, encoder: Encoder) -> int | None:
    """How many of the encoder's numbers the first part has; None without a split."""
    if split.start is None and not split.keys:
        return None
    parts = encoder.order if isinstance(encoder, ConcatEncoder) else ()
    names = tuple(name for name in parts if name not in (JOINT, *SHARED))
    if split.keys:
        if not names or set(split.keys) - set(names) or not set(names) - set(split.keys):
            found = f"the parts {', '.join(names)}" if names else "no named parts"
            raise ShoalError(
                f"split_keys {', '.join(split.keys)}: {spec.name} has {found}; name some, not all"
            )
        return encoder.width(tuple(dict.fromkeys(split.keys))) if isinstance(encoder, ConcatEncoder) else None
    if len(names) > 1 or isinstance(encoder, NatureCNN | Impala):
        remedy = "split_keys splits named parts" if names else "an image cannot be split"
        raise ShoalError(f"split_start splits observations that are one vector; {remedy}")
    if not 0 < (split.start or 0) < encoder.num_out:
        raise ShoalError(
            f"split_start {split.start} leaves a part empty: {spec.name} has {encoder.num_out} numbers"
        )
    return split.start
