"""Networks: encoders of observations, and the actor-critics and critics built on them.

A network is an Equinox module called with observations of any leading shape; every leaf is an array,
so a cohort of networks is the same module with a leading axis.
"""

from collections.abc import Callable
from math import prod
from typing import Any, Literal, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError
from shoal.nets.convolutions import Impala, NatureCNN, is_image
from shoal.nets.layers import (
    INITIALIZERS,
    MLP,
    Flatten,
    Initializer,
    SplitLayer,
    check_activation,
    orthogonal,
)
from shoal.ops.masks import without_mask
from shoal.types import Box, EnvSpec, ObservationSpace, Tree

JOINT, BOTH = "joint", ("agent_id",)
"""Parts of an observation: the one that only the critic sees, those that both actor and critic see."""


class Network(Protocol):
    """What PPO needs of a network: a policy's outputs (..., num_outputs) and a value (...)."""

    def __call__(self, obs: Tree) -> tuple[Array, Array]: ...


class NetworkMaker(Protocol):
    """Builds a `Network` for an environment."""

    def __call__(self, key: Array, spec: EnvSpec, num_outputs: int) -> Network: ...


class Encoder(Protocol):
    """Turns one observation into a vector of `num_out` numbers."""

    num_out: int

    def __call__(self, obs: Tree) -> Array: ...


class ConcatEncoder(eqx.Module):
    """Named observations, each through its own encoder, side by side in an order.

    Where one is `JOINT`, it comes last and is for the critic alone; those in `BOTH` come before it; all
    others come first and are for the actor alone.
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


def actor_and_critic_inputs(encoder: Encoder) -> tuple[slice, slice]:
    """Which of the encoded numbers the actor sees, and which the critic: all, unless one part is joint."""
    if not isinstance(encoder, ConcatEncoder) or JOINT not in encoder.encoders:
        return slice(0, encoder.num_out), slice(0, encoder.num_out)
    shared = sum(encoder.encoders[name].num_out for name in BOTH if name in encoder.encoders)
    joint = encoder.encoders[JOINT].num_out
    return slice(0, encoder.num_out - joint), slice(encoder.num_out - joint - shared, encoder.num_out)


class Split(NamedTuple):
    """Which part of an observation goes through its own layers before it is joined with the rest.

    For example proprioceptive and exteroceptive observations (Heess et al. 2016, 2017).
    """

    start: int | None = None  # the first numbers of a vector, this many
    keys: tuple[str, ...] = ()  # or these of the named parts
    hidden: tuple[int, ...] = (64, 64)  # the layers of each of the two parts


NO_SPLIT = Split()


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


class Policy(eqx.Module):
    """A deterministic policy, or a table of values for discrete actions: one vector per observation."""

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


def make_encoder(
    key: Array, space: ObservationSpace, images: str, init: Initializer, first: tuple[str, ...] = ()
) -> Encoder:
    """Vectors unchanged, images through `images` (`nature` or `impala`), named parts joined.

    Parts are in the order of their names, those in `first` before the others. The action mask is left out.
    """
    if isinstance(space, dict):
        boxes = sorted(without_mask(space).items())
        keys = jax.random.split(key, len(boxes))
        encoders = {
            name: make_encoder(k, box, images, init) for k, (name, box) in zip(keys, boxes, strict=True)
        }
        rank = lambda name: (name == JOINT, name in BOTH, name not in first, name)
        return ConcatEncoder(encoders, tuple(sorted(encoders, key=rank)))
    if images == "mlp" or not is_image(space):
        return Flatten(len(space.shape), prod(space.shape))
    return {"nature": NatureCNN, "impala": Impala}[images](key, space.shape, init)


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
    critic); images go through a shared convolutional encoder to the heads. `split` sends parts of an
    observation through their own layers first.

    >>> import jax, shoal
    >>> spec = shoal.make("CartPole-v1").spec
    >>> network = actor_critic(hidden=(32,))(jax.random.key(0), spec, num_outputs=2)
    >>> outputs, value = network(jax.numpy.zeros((7, 4)))
    >>> outputs.shape, value.shape
    ((7, 2), (7,))
    """
    check_activation(activation)

    def make_head(key: Array, sizes: tuple[int, ...], num_out: int, gain: float) -> MLP:
        return MLP(key, (*sizes, num_out), activation, INITIALIZERS[init], orthogonal(gain))

    return assemble(
        ActorCritic,
        make_head,
        hidden=hidden,
        critic_hidden=critic_hidden,
        activation=activation,
        images=images,
        init=init,
        init_log_std=init_log_std,
        split=split,
    )


def assemble(
    network: Callable[..., Tree],
    make_head: Callable[[Array, tuple[int, ...], int, float], Tree],
    *,
    hidden: tuple[int, ...],
    critic_hidden: tuple[int, ...] | None,
    activation: str,
    images: str,
    init: str,
    init_log_std: float,
    split: Split,
) -> Any:
    """A maker of `network(encoder, actor, critic, log_std)`.

    Actor and critic are `make_head(key, sizes, num_out, gain)`, behind a `SplitLayer` with `split`.
    """

    def make_split_head(
        key: Array, sizes: tuple[int, ...], start: int | None, num_out: int, gain: float
    ) -> Tree:
        if start is None:
            return make_head(key, sizes, num_out, gain)
        key_first, key_rest = jax.random.split(key)
        first = SplitLayer(key_first, sizes[0], start, split.hidden, activation, INITIALIZERS[init])
        rest = make_head(key_rest, (first.num_out, *sizes[1:]), num_out, gain)
        return eqx.tree_at(lambda head: head.layers, rest, [first, *rest.layers])

    def make(key: Array, spec: EnvSpec, num_outputs: int) -> Tree:
        key_encoder, key_actor, key_critic = jax.random.split(key, 3)
        encoder = make_encoder(key_encoder, spec.observation, images, INITIALIZERS[init], split.keys)
        layers = (hidden, hidden if critic_hidden is None else critic_hidden)
        if isinstance(encoder, NatureCNN | Impala):
            layers = ((), ())
        inputs = zip(actor_and_critic_inputs(encoder), layers, strict=True)
        actor_sizes, critic_sizes = ((part.stop - part.start, *own) for part, own in inputs)
        start = find_split(split, spec, encoder)
        joint = isinstance(encoder, ConcatEncoder) and JOINT in encoder.encoders
        continuous = isinstance(spec.action, Box)
        num_actions = num_outputs // 2 if continuous else num_outputs
        return network(
            encoder=encoder,
            actor=make_split_head(key_actor, actor_sizes, start, num_actions, 0.01),
            critic=make_split_head(key_critic, critic_sizes, None if joint else start, 1, 1.0),
            log_std=jnp.full(num_actions, init_log_std) if continuous else None,
        )

    return make


def find_split(split: Split, spec: EnvSpec, encoder: Encoder) -> int | None:
    """How many of the encoder's numbers the first part has; None where nothing is split."""
    if split.start is None and not split.keys:
        return None
    parts = encoder.order if isinstance(encoder, ConcatEncoder) else ()
    names = tuple(name for name in parts if name not in (JOINT, *BOTH))
    if split.keys:
        if not names or set(split.keys) - set(names) or not set(names) - set(split.keys):
            found = f"the parts {', '.join(names)}" if names else "no named parts"
            raise ShoalError(
                f"split_keys {', '.join(split.keys)}: {spec.name} has {found}; name some, not all"
            )
        return encoder.width(tuple(dict.fromkeys(split.keys))) if isinstance(encoder, ConcatEncoder) else None
    if len(names) > 1 or isinstance(encoder, NatureCNN | Impala):
        remedy = "split_keys splits named ones" if names else "a picture cannot be split"
        raise ShoalError(f"split_start splits observations that are one vector; {remedy}")
    if not 0 < (split.start or 0) < encoder.num_out:
        raise ShoalError(
            f"split_start {split.start} splits nothing off: {spec.name} shows {encoder.num_out} numbers"
        )
    return split.start


def append_log_std(outputs: Array, log_std: Array | None) -> Array:
    """A policy's outputs, then the logarithm of its standard deviation where actions are continuous."""
    if log_std is None:
        return outputs
    return jnp.concatenate([outputs, jnp.broadcast_to(log_std, outputs.shape)], -1)


def make_policy(
    key: Array,
    spec: EnvSpec,
    num_outputs: int,
    *,
    hidden: tuple[int, ...] = (256, 256),
    activation: str = "relu",
    images: str = "nature",
    init: str = "fan_in",
) -> Policy:
    """A vector of `num_outputs` per observation, through `hidden` layers."""
    key_encoder, key_head = jax.random.split(key)
    body = INITIALIZERS[init]
    encoder = make_encoder(key_encoder, spec.observation, images, body)
    return Policy(encoder, MLP(key_head, (encoder.num_out, *hidden, num_outputs), activation, body, body))


def make_action_value(
    key: Array,
    spec: EnvSpec,
    num_actions: int,
    *,
    hidden: tuple[int, ...] = (256, 256),
    activation: str = "relu",
    images: str = "nature",
    init: str = "fan_in",
) -> ActionValue:
    """Q(s, a) for actions of `num_actions` numbers."""
    key_encoder, key_head = jax.random.split(key)
    body = INITIALIZERS[init]
    encoder = make_encoder(key_encoder, spec.observation, images, body)
    sizes = (encoder.num_out + num_actions, *hidden, 1)
    return ActionValue(encoder, MLP(key_head, sizes, activation, body, body))
