"""Layers: what networks are made of. Every leaf is an array, so a cohort of them has a leading axis."""

from collections.abc import Callable
from math import prod

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError
from shoal.types import Box

Initializer = Callable[[Array, tuple[int, ...]], Array]


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
}


NARROW, FEW = 4, 1024
"""Up to so many columns, of up to so many rows, are multiplied one by one on the way back: of 256 rows of
256, one takes 8 us, two to six at once 40 to 70."""
PAIR = 2
"""Up to so many on the way forward, and back to x: the two of 32 x 4 rows of 64 take 1.3 us, at once 6."""


@jax.custom_vjp
def affine(x: Array, weight: Array, bias: Array) -> Array:
    """x W + b."""
    if x.size // x.shape[-1] <= FEW and weight.shape[1] <= PAIR:
        y = jax.lax.platform_dependent(x, weight, cpu=_by_columns, default=jnp.matmul)
    else:
        y = x @ weight
    return y + jnp.broadcast_to(bias, y.shape)


def _affine_forward(x, weight, bias):
    return affine(x, weight, bias), (x, weight)


def _affine_backward(residual, g):
    x, weight = residual
    rows, g_rows = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    few, columns = g_rows.shape[0] <= FEW, g_rows.shape[1]
    on_cpu = _transposed_by_columns if few and columns <= NARROW else _transposed_product
    by_weight = jax.lax.platform_dependent(rows, g_rows, cpu=on_cpu, default=lambda x, g: x.T @ g)
    if few and columns <= PAIR:
        by_x = jax.lax.platform_dependent(g, weight, cpu=_outer_sum, default=lambda g, w: g @ w.T)
    else:
        by_x = g @ weight.T
    return by_x, by_weight, jnp.sum(g_rows, 0)


# The same products, each as XLA is quickest at on a CPU.


def _by_columns(x: Array, weight: Array) -> Array:
    """x W, one column after the other: XLA makes much of a matrix of a few columns."""
    return jnp.stack([x @ column for column in weight.T], -1)


def _outer_sum(g: Array, weight: Array) -> Array:
    """g W' of a few columns each, as a sum that what comes next can be computed along with."""
    return jnp.asarray(sum(jnp.multiply.outer(g[..., k], weight[:, k]) for k in range(weight.shape[1])))


def _transposed_product(x: Array, g: Array) -> Array:
    """x' g, where x is turned first: the product of the two takes longer than both steps."""
    return jax.lax.optimization_barrier(x.T) @ g


def _transposed_by_columns(x: Array, g: Array) -> Array:
    """x' g, one column of g after the other."""
    return jnp.stack([column @ x for column in g.T], -1)


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


class SplitLayer(eqx.Module):
    """The first `start` numbers, and the rest, through layers of their own, side by side."""

    left: "MLP"
    right: "MLP"
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


class MLP(eqx.Module):
    """Dense layers with an activation between them; the first may be two halves."""

    layers: list["Dense | SplitLayer"]
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


class Flatten(eqx.Module):
    """An observation as one vector; nothing to learn."""

    rank: int = eqx.field(static=True)
    num_out: int = eqx.field(static=True)

    def __call__(self, obs: Array) -> Array:
        return obs.reshape(*obs.shape[: obs.ndim - self.rank], self.num_out).astype(jnp.float32)


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


def check_activation(name: str) -> None:
    """Raise where there is no such activation."""
    if name not in ACTIVATIONS:
        raise ShoalError(f"unknown activation {name!r}; choose from {', '.join(ACTIVATIONS)}")


def _images(obs: Array) -> Array:
    return obs.reshape(-1, *obs.shape[-3:]).astype(jnp.float32) / 255
