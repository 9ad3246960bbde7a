"""Layers whose gradients are our own, against JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.nets.layers import FEW, NARROW, PAIR, affine


@pytest.mark.parametrize("shape", [(7,), (3, 5), (FEW + 1,)])
def test_a_layer_and_its_gradients_are_those_of_its_formula(shape):
    """One program for all numbers of columns."""
    rng = np.random.default_rng(0)
    real = lambda *shape: np.float32(rng.normal(size=shape))
    x = real(*shape, 6)
    cases = {n: (real(6, n), real(n), real(*shape, n)) for n in (1, PAIR, PAIR + 1, NARROW, NARROW + 1)}

    def loss(x, weight, bias, aim):
        y = affine(x, weight, bias)
        return jnp.mean((y - aim) ** 2), y

    gradients = jax.grad(loss, (0, 1, 2), has_aux=True)
    found = jax.jit(lambda x, cases: {n: gradients(x, *case) for n, case in cases.items()})(x, cases)
    for n, (weight, bias, aim) in cases.items():
        slopes, y = found[n]
        expected = np.einsum("...i,io->...o", np.float64(x), weight) + bias
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5, err_msg=n)
        slope = 2 * (expected - aim) / aim.size
        rows, slope_rows = x.reshape(-1, 6), slope.reshape(-1, n)
        by_hand = slope @ weight.T, rows.T @ slope_rows, slope_rows.sum(0)
        for own, plain in zip(slopes, by_hand, strict=True):
            np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-6, err_msg=n)


def test_a_cohort_of_layers_has_the_gradients_of_each():
    rng = np.random.default_rng(0)
    real = lambda *shape: np.float32(rng.normal(size=shape))
    x, weight, bias = real(4, 7, 6), real(4, 6, 2), real(4, 2)
    gradient = jax.grad(lambda weight, bias, x: jnp.sum(affine(x, weight, bias) ** 2), (0, 1))
    together = jax.device_get(jax.jit(jax.vmap(gradient))(weight, bias, x))
    alone = jax.jit(gradient)
    for i in range(4):
        for all_, one in zip(together, alone(weight[i], bias[i], x[i]), strict=True):
            np.testing.assert_allclose(all_[i], one, rtol=1e-5, atol=1e-6)
