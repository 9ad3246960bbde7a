"""Convolutional encoders of images."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from shoal.nets.layers import Dense, Initializer
from shoal.types import Box


def is_image(box: Box) -> bool:
    """Whether a box is an image: uint8, (height, width, channels), at least 36 pixels high and wide."""
    return len(box.shape) == 3 and box.dtype == "uint8" and min(box.shape[:2]) >= 36


def to_images(obs: Array) -> Array:
    """Images (..., height, width, channels) of bytes as one batch of numbers from 0 to 1."""
    return obs.reshape(-1, *obs.shape[-3:]).astype(jnp.float32) / 255


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
        x = to_images(obs)
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
    """Three residual blocks of 16, 32 and 32 channels (Espeholt et al. 2018), as used for Procgen."""

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
        x = to_images(obs)
        for enter, first, second in self.blocks:
            x = enter(x)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            x = second(first(x))
        x = jax.nn.relu(self.dense(jax.nn.relu(x).reshape(x.shape[0], -1)))
        return x.reshape(*obs.shape[:-3], self.num_out)
