"""Layers and the initialisation of weights. Every leaf is an array, so a cohort has a leading axis."""

from collections.abc import Callable
from math import prod

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError

Initializer = Callable[[Array, tuple[int, ...]], Array]


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
}


NARROW, FEW = 4, 1024
"""On a CPU, the gradient of a weight with at most NARROW columns, from at most FEW samples, is computed
column by column: for 256 samples of 256 numbers one column takes 8 us, a product of two to six 40 to 70."""
PAIR = 2
"""The same for the output, and the gradient of x: 32 x 4 samples of 64 numbers take 1.3 us for two columns,
the product 6."""


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
    samples, g_samples = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    few, columns = g_samples.shape[0] <= FEW, g_samples.shape[1]
    on_cpu = _transposed_by_columns if few and columns <= NARROW else _transposed_product
    weight_gradient = jax.lax.platform_dependent(samples, g_samples, cpu=on_cpu, default=lambda x, g: x.T @ g)
    if few and columns <= PAIR:
        x_gradient = jax.lax.platform_dependent(g, weight, cpu=_outer_sum, default=lambda g, w: g @ w.T)
    else:
        x_gradient = g @ weight.T
    return x_gradient, weight_gradient, jnp.sum(g_samples, 0)


# The same products in the forms that are fastest on a CPU.


def _by_columns(x: Array, weight: Array) -> Array:
    """x W, column by column: XLA is slow at products with few columns."""
    return jnp.stack([x @ column for column in weight.T], -1)


def _outer_sum(g: Array, weight: Array) -> Array:
    """g W' for few columns, as a sum that XLA fuses with the next operation."""
    return jnp.asarray(sum(jnp.multiply.outer(g[..., k], weight[:, k]) for k in range(weight.shape[1])))


def _transposed_product(x: Array, g: Array) -> Array:
    """x' g, with x transposed first: the fused product takes longer than both steps."""
    return jax.lax.optimization_barrier(x.T) @ g


def _transposed_by_columns(x: Array, g: Array) -> Array:
    """x' g, column by column."""
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
    """The first `start` numbers and the rest, each through its own layers; the outputs are concatenated."""

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
    """Dense layers with an activation between them; the first may be split."""

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
    """An observation as one vector, without parameters."""

    rank: int = eqx.field(static=True)
    num_out: int = eqx.field(static=True)

    def __call__(self, obs: Array) -> Array:
        return obs.reshape(*obs.shape[: obs.ndim - self.rank], self.num_out).astype(jnp.float32)


def orthogonal(gain: float) -> Initializer:
    """Orthogonal matrices times `gain` (Saxe et al. 2014)."""
    return jax.nn.initializers.orthogonal(gain)


def xavier(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform with variance 2 / (fan in + fan out) (Glorot and Bengio 2010)."""
    return jax.nn.initializers.glorot_uniform()(key, shape)


def fan_in(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform in [-1, 1] / sqrt(fan in), PyTorch's default."""
    bound = prod(shape[:-1]) ** -0.5
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


INITIALIZERS: dict[str, Initializer] = {
    "orthogonal": orthogonal(2**0.5),
    "xavier": xavier,
    "fan_in": fan_in,
}


def check_activation(name: str) -> None:
    """Raise where there is no such activation."""
    if name not in ACTIVATIONS:
        raise ShoalError(f"unknown activation {name!r}; choose from {', '.join(ACTIVATIONS)}")
