"""Convolutions and pooling on a CPU are XLA's own, forwards and backwards; other platforms have XLA's."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.nets import convolutions

RANDOM = np.random.default_rng(0)


def images(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def value_and_gradients(function, *inputs):
    """What a function returns, and its gradients by all inputs for some weights of the sum."""
    shape = jax.eval_shape(function, *inputs).shape
    weights = np.random.default_rng(1).normal(size=shape).astype(np.float32)

    def total(*inputs):
        y = function(*inputs)
        return jnp.sum(y * weights), y

    (_, y), gradients = jax.jit(jax.value_and_grad(total, tuple(range(len(inputs))), has_aux=True))(*inputs)
    return y, *gradients


@pytest.mark.parametrize(
    ("height", "width", "size", "stride", "padding"),
    [
        (12, 16, 8, 4, "VALID"),  # Nature's first layer
        (13, 15, 4, 2, "VALID"),  # the last pixels are in no window
        (7, 7, 3, 1, "VALID"),
        (6, 5, 3, 1, "SAME"),  # Impala's
        (7, 8, 3, 2, "SAME"),  # the stride does not divide the size
        (5, 5, 1, 3, "VALID"),
    ],
)
def test_a_convolution_by_products_is_xlas(height, width, size, stride, padding):
    x, weight = images(2, height, width, 3), images(size, size, 3, 5)
    settings = {"stride": stride, "padding": padding}
    ours = value_and_gradients(partial(convolutions.convolve_by_products, **settings), x, weight)
    xlas = value_and_gradients(partial(convolutions.convolve, **settings), x, weight)
    for one, other in zip(ours, xlas, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_convolution_of_ones_counts_the_pixels_of_a_window():
    x, weight = np.ones((1, 3, 3, 1), np.float32), np.ones((3, 3, 1, 1), np.float32)
    y = convolutions.convolve_by_products(x, weight, 1, "SAME")
    np.testing.assert_array_equal(y[0, :, :, 0], [[4, 6, 4], [6, 9, 6], [4, 6, 4]])


@pytest.mark.parametrize("shape", [(2, 6, 6, 3), (1, 5, 8, 2)])
@pytest.mark.parametrize("equal", [False, True])
def test_pooling_by_slices_is_xlas(shape, equal):
    """Where pixels are equal, the gradient goes to the first of them in both."""
    x = np.round(images(*shape)) if equal else images(*shape)
    ours = value_and_gradients(convolutions.max_pool_by_slices, x)
    xlas = value_and_gradients(convolutions.max_pool, x)
    for one, other in zip(ours, xlas, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(("platform", "has_convolutions"), [("cpu", False), ("cuda", True)])
def test_a_cpu_has_products_and_a_gpu_convolutions(platform, has_convolutions):
    network = jax.eval_shape(
        lambda key: convolutions.Impala(key, (36, 36, 3), jax.nn.initializers.orthogonal()), jax.random.key(0)
    )
    gradient = jax.grad(lambda network, obs: jnp.sum(network(obs)))
    traced = jax.jit(gradient).trace(network, jax.ShapeDtypeStruct((2, 36, 36, 3), np.uint8))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.convolution" in text) is has_convolutions
    assert ("stablehlo.select_and_scatter" in text) is has_convolutions
