"""Networks: torsos for vectors and images, and the actor-critic built on them.

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

from shoal.ops.masks import visible
from shoal.types import Box, EnvSpec, ObservationSpace, ShoalError, Tree

Initializer = Callable[[Array, tuple[int, ...]], Array]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
}


class Network(Protocol):
    """What PPO asks of a network: a policy's outputs (..., num_outputs) and a value (...)."""

    def __call__(self, obs: Tree) -> tuple[Array, Array]: ...


class NetworkMaker(Protocol):
    """Builds a `Network` for an environment; pass your own to use your own."""

    def __call__(self, key: Array, spec: EnvSpec, num_outputs: int) -> Network: ...


class Encoder(Protocol):
    """Turns one observation into a vector of `num_out` numbers."""

    num_out: int

    def __call__(self, obs: Tree) -> Array: ...


@jax.custom_vjp
def affine(x: Array, weight: Array, bias: Array) -> Array:
    """x W + b."""
    y = x @ weight
    return y + jnp.broadcast_to(bias, y.shape)


def _affine_forward(x, weight, bias):
    return affine(x, weight, bias), (x, weight)


def _affine_backward(residual, g):
    x, weight = residual
    rows, g_rows = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    turned = jax.lax.platform_dependent(rows.T, cpu=jax.lax.optimization_barrier, default=lambda x: x)
    return g @ weight.T, turned @ g_rows, jnp.sum(g_rows, 0)


affine.defvjp(_affine_forward, _affine_backward)


class Dense(eqx.Module):
    """x W + b."""

    weight: Array  # (in, out)
    bias: Array  # (out,)

    def __init__(self, key: Array, num_in: int, num_out: int, init: Initializer):
        self.weight = init(key, (num_in, num_out))
        self.bias = jnp.zeros(num_out)

    def __call__(self, x: Array) -> Array:
        return affine(x, self.weight, self.bias)


class Convolution(eqx.Module):
    """A convolution over images (B, height, width, channels)."""

    weight: Array  # (k, k, in, out)
    bias: Array  # (out,)
    stride: int = eqx.field(static=True)
    padding: str = eqx.field(static=True)

    def __init__(
        self, key, size: int, num_in: int, num_out: int, stride: int, padding: str, init: Initializer
    ):
        self.weight = init(key, (size, size, num_in, num_out))
        self.bias = jnp.zeros(num_out)
        self.stride, self.padding = stride, padding

    def __call__(self, x: Array) -> Array:
        strides = (self.stride, self.stride)
        layout = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, self.weight, strides, self.padding, dimension_numbers=layout)
        return y + jnp.broadcast_to(self.bias, y.shape)


class Flatten(eqx.Module):
    """An observation as one vector; nothing to learn."""

    rank: int = eqx.field(static=True)
    num_out: int = eqx.field(static=True)

    def __call__(self, obs: Array) -> Array:
        return obs.reshape(*obs.shape[: obs.ndim - self.rank], self.num_out).astype(jnp.float32)


class NatureCNN(eqx.Module):
    """Three convolutions and a dense layer (Mnih et al. 2015)."""

    layers: list[Convolution]
    dense: Dense
    num_out: int = eqx.field(static=True)

    def __init__(self, key: Array, shape: tuple[int, ...], init: Initializer, num_out: int = 512):
        keys = jax.random.split(key, 4)
        sizes = [(8, 32, 4), (4, 64, 2), (3, 64, 1)]
        self.layers, (height, width, channels) = [], shape
        for layer_key, (size, filters, stride) in zip(keys, sizes, strict=False):
            self.layers.append(Convolution(layer_key, size, channels, filters, stride, "VALID", init))
            height, width, channels = (height - size) // stride + 1, (width - size) // stride + 1, filters
        self.dense = Dense(keys[3], height * width * channels, num_out, init)
        self.num_out = num_out

    def __call__(self, obs: Array) -> Array:
        x = _images(obs)
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        x = jax.nn.relu(self.dense(x.reshape(x.shape[0], -1)))
        return x.reshape(*obs.shape[:-3], self.num_out)


class Residual(eqx.Module):
    """x + conv(relu(conv(relu(x))))."""

    first: Convolution
    second: Convolution

    def __init__(self, key: Array, channels: int, init: Initializer):
        key_first, key_second = jax.random.split(key)
        self.first = Convolution(key_first, 3, channels, channels, 1, "SAME", init)
        self.second = Convolution(key_second, 3, channels, channels, 1, "SAME", init)

    def __call__(self, x: Array) -> Array:
        return x + self.second(jax.nn.relu(self.first(jax.nn.relu(x))))


class Impala(eqx.Module):
    """Three residual blocks of 16, 32 and 32 channels (Espeholt et al. 2018), as Procgen uses them."""

    blocks: list[tuple[Convolution, Residual, Residual]]
    dense: Dense
    num_out: int = eqx.field(static=True)

    def __init__(self, key: Array, shape: tuple[int, ...], init: Initializer, num_out: int = 256):
        key_dense, *block_keys = jax.random.split(key, 4)
        self.blocks, (height, width, channels) = [], shape
        for block_key, filters in zip(block_keys, (16, 32, 32), strict=True):
            keys = jax.random.split(block_key, 3)
            enter = Convolution(keys[0], 3, channels, filters, 1, "SAME", init)
            self.blocks.append((enter, Residual(keys[1], filters, init), Residual(keys[2], filters, init)))
            height, width, channels = (height + 1) // 2, (width + 1) // 2, filters
        self.dense = Dense(key_dense, height * width * channels, num_out, init)
        self.num_out = num_out

    def __call__(self, obs: Array) -> Array:
        x = _images(obs)
        for enter, first, second in self.blocks:
            x = enter(x)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            x = second(first(x))
        x = jax.nn.relu(self.dense(jax.nn.relu(x).reshape(x.shape[0], -1)))
        return x.reshape(*obs.shape[:-3], self.num_out)


class Joined(eqx.Module):
    """Named observations through encoders of their own, side by side in an order."""

    encoders: dict[str, Encoder]
    order: tuple[str, ...] = eqx.field(static=True)
    num_out: int = eqx.field(static=True)

    def __init__(self, encoders: dict[str, Encoder], order: tuple[str, ...]):
        self.encoders, self.order = encoders, order
        self.num_out = self.width(order)

    def width(self, names: tuple[str, ...]) -> int:
        """How many numbers some of the parts make together."""
        return sum(self.encoders[name].num_out for name in names)

    def __call__(self, obs: dict[str, Array]) -> Array:
        return jnp.concatenate([self.encoders[name](obs[name]) for name in self.order], -1)


class MLP(eqx.Module):
    """Dense layers with an activation between them; the first may be two halves."""

    layers: list["Dense | Halves"]
    activation: str = eqx.field(static=True)

    def __init__(
        self, key: Array, sizes: tuple[int, ...], activation: str, init: Initializer, last: Initializer
    ):
        keys = jax.random.split(key, len(sizes) - 1)
        inits = [init] * (len(sizes) - 2) + [last]
        self.layers = [Dense(*args) for args in zip(keys, sizes[:-1], sizes[1:], inits, strict=True)]
        self.activation = activation

    def __call__(self, x: Array) -> Array:
        *hidden, last = self.layers
        for layer in hidden:
            x = ACTIVATIONS[self.activation](layer(x))
        return last(x)


class Halves(eqx.Module):
    """The first `start` numbers, and the rest, through layers of their own, side by side."""

    left: MLP
    right: MLP
    start: int = eqx.field(static=True)
    num_out: int = eqx.field(static=True)

    def __init__(
        self, key: Array, num_in: int, start: int, hidden: tuple[int, ...], activation: str, init: Initializer
    ):
        key_left, key_right = jax.random.split(key)
        self.left = MLP(key_left, (start, *hidden), activation, init, init)
        self.right = MLP(key_right, (num_in - start, *hidden), activation, init, init)
        self.start, self.num_out = start, 2 * hidden[-1]

    def __call__(self, x: Array) -> Array:
        return jnp.concatenate([self.left(x[..., : self.start]), self.right(x[..., self.start :])], -1)


class Split(NamedTuple):
    """Which part of an observation goes through layers of its own before it meets the rest.

    The body, say, and what surrounds it: proprioceptive and exteroceptive (Heess et al. 2016, 2017).
    """

    start: int | None = None  # the first so many numbers of a vector
    keys: tuple[str, ...] = ()  # or these of named parts
    hidden: tuple[int, ...] = (64, 64)  # the layers of either part, of actor and critic each


WHOLE = Split()
"""Nothing is split off."""


class ActorCritic(eqx.Module):
    """A policy and a value on one encoder; for vectors the encoder is empty and they share nothing."""

    encoder: Encoder
    actor: MLP
    critic: MLP
    log_std: Array | None  # (A,) for continuous actions

    def __call__(self, obs: Tree) -> tuple[Array, Array]:
        x = self.encoder(obs)
        return with_deviation(self.actor(x), self.log_std), self.critic(x)[..., 0]


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


def orthogonal(gain: float) -> Initializer:
    """Orthogonal rows, scaled (Saxe et al. 2014)."""
    return jax.nn.initializers.orthogonal(gain)


def xavier(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform with variance 2 / (fan in + fan out) (Glorot and Bengio 2010)."""
    return jax.nn.initializers.glorot_uniform()(key, shape)


def fan_in(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform within +-1 / sqrt(fan in), as PyTorch begins."""
    bound = prod(shape[:-1]) ** -0.5
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


INITIALIZERS: dict[str, Initializer] = {
    "orthogonal": orthogonal(2**0.5),
    "xavier": xavier,
    "fan_in": fan_in,
}


def is_image(box: Box) -> bool:
    """Whether a box is a picture for convolutions: bytes, (height, width, channels), 36 pixels or more."""
    return len(box.shape) == 3 and box.dtype == "uint8" and min(box.shape[:2]) >= 36


def make_encoder(
    key: Array, space: ObservationSpace, images: str, init: Initializer, first: tuple[str, ...] = ()
) -> Encoder:
    """Vectors as they are, images through `images` (`nature` or `impala`), named parts joined.

    Parts are in the order of their names, those that come `first` before the others; an action mask is none.
    """
    if isinstance(space, dict):
        boxes = sorted(visible(space).items())
        keys = jax.random.split(key, len(boxes))
        encoders = {
            name: make_encoder(k, box, images, init) for k, (name, box) in zip(keys, boxes, strict=True)
        }
        return Joined(encoders, tuple(sorted(encoders, key=lambda name: (name not in first, name))))
    if images == "mlp" or not is_image(space):
        return Flatten(len(space.shape), prod(space.shape))
    return {"nature": NatureCNN, "impala": Impala}[images](key, space.shape, init)


def actor_critic(
    *,
    hidden: tuple[int, ...] = (64, 64),
    activation: Literal["tanh", "relu", "leaky_relu", "elu", "silu"] = "tanh",
    images: Literal["nature", "impala", "mlp"] = "nature",
    init: Literal["orthogonal", "xavier"] = "orthogonal",
    init_log_std: float = 0.0,
    split: Split = WHOLE,
) -> NetworkMaker:
    """The usual actor-critic: heads orthogonal with gains 0.01 (policy) and 1 (value).

    Vectors go through separate `hidden` layers for actor and critic; images through a shared
    convolutional encoder and straight to the heads. `split` sends parts of an observation through layers of
    their own first.

    >>> import jax, shoal
    >>> spec = shoal.make("CartPole-v1").spec
    >>> network = actor_critic(hidden=(32,))(jax.random.key(0), spec, num_outputs=2)
    >>> outputs, value = network(jax.numpy.zeros((7, 4)))
    >>> outputs.shape, value.shape
    ((7, 2), (7,))
    """
    check_activation(activation)

    def part(key: Array, sizes: tuple[int, ...], num_out: int, gain: float) -> MLP:
        return MLP(key, (*sizes, num_out), activation, INITIALIZERS[init], orthogonal(gain))

    return put_together(
        ActorCritic,
        part,
        hidden=hidden,
        activation=activation,
        images=images,
        init=init,
        init_log_std=init_log_std,
        split=split,
    )


def put_together(
    whole: Callable[..., Tree],
    part: Callable[[Array, tuple[int, ...], int, float], Tree],
    *,
    hidden: tuple[int, ...],
    activation: str,
    images: str,
    init: str,
    init_log_std: float,
    split: Split,
) -> Any:
    """A maker of `whole(encoder, actor, critic, log_std)` of parts `part(key, sizes, num_out, gain)`."""

    def halved(key: Array, sizes: tuple[int, ...], start: int | None, num_out: int, gain: float) -> Tree:
        if start is None:
            return part(key, sizes, num_out, gain)
        key_halves, key_rest = jax.random.split(key)
        halves = Halves(key_halves, sizes[0], start, split.hidden, activation, INITIALIZERS[init])
        rest = part(key_rest, (halves.num_out, *sizes[1:]), num_out, gain)
        return eqx.tree_at(lambda network: network.layers, rest, [halves, *rest.layers])

    def make(key: Array, spec: EnvSpec, num_outputs: int) -> Tree:
        key_encoder, key_actor, key_critic = jax.random.split(key, 3)
        encoder = make_encoder(key_encoder, spec.observation, images, INITIALIZERS[init], split.keys)
        sizes = (encoder.num_out, *(() if isinstance(encoder, NatureCNN | Impala) else hidden))
        start = split_at(split, spec, encoder)
        continuous = isinstance(spec.action, Box)
        num_actions = num_outputs // 2 if continuous else num_outputs
        return whole(
            encoder=encoder,
            actor=halved(key_actor, sizes, start, num_actions, 0.01),
            critic=halved(key_critic, sizes, start, 1, 1.0),
            log_std=jnp.full(num_actions, init_log_std) if continuous else None,
        )

    return make


def split_at(split: Split, spec: EnvSpec, encoder: Encoder) -> int | None:
    """Where the encoder's numbers fall into two, if they are to."""
    if split.start is None and not split.keys:
        return None
    names = encoder.order if isinstance(encoder, Joined) else ()
    if split.keys:
        if not names or set(split.keys) - set(names) or not set(names) - set(split.keys):
            found = f"the parts {', '.join(names)}" if names else "no named parts"
            raise ShoalError(
                f"split_keys {', '.join(split.keys)}: {spec.name} has {found}; name some, not all"
            )
        return encoder.width(tuple(dict.fromkeys(split.keys))) if isinstance(encoder, Joined) else None
    if len(names) > 1 or isinstance(encoder, NatureCNN | Impala):
        remedy = "split_keys splits named ones" if names else "a picture is not split"
        raise ShoalError(f"split_start splits observations that are one vector; {remedy}")
    if not 0 < (split.start or 0) < encoder.num_out:
        raise ShoalError(
            f"split_start {split.start} splits nothing off: {spec.name} shows {encoder.num_out} numbers"
        )
    return split.start


def with_deviation(outputs: Array, log_std: Array | None) -> Array:
    """A policy's outputs, and behind them the logarithm of its deviation where actions are continuous."""
    if log_std is None:
        return outputs
    return jnp.concatenate([outputs, jnp.broadcast_to(log_std, outputs.shape)], -1)


def check_activation(name: str) -> None:
    """Raise where there is no such activation."""
    if name not in ACTIVATIONS:
        raise ShoalError(f"unknown activation {name!r}; choose from {', '.join(ACTIVATIONS)}")


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
    """A number per observation and action of `num_actions` numbers."""
    key_encoder, key_head = jax.random.split(key)
    body = INITIALIZERS[init]
    encoder = make_encoder(key_encoder, spec.observation, images, body)
    sizes = (encoder.num_out + num_actions, *hidden, 1)
    return ActionValue(encoder, MLP(key_head, sizes, activation, body, body))


def _images(obs: Array) -> Array:
    return obs.reshape(-1, *obs.shape[-3:]).astype(jnp.float32) / 255
