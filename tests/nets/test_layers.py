"""Layers whose gradients are our own, against JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.nets.layers import FEW, NARROW, PAIR, affine


@pytest.mark.parametrize("num_out", [1, PAIR, PAIR + 1, NARROW, NARROW + 1])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (FEW + 1,)])
def test_a_layer_and_its_gradients_are_those_of_its_formula(shape, num_out):
    keys = jax.random.split(jax.random.key(0), 4)
    x, aim = jax.random.normal(keys[0], (*shape, 6)), jax.random.normal(keys[1], (*shape, num_out))
    weight, bias = jax.random.normal(keys[2], (6, num_out)), jax.random.normal(keys[3], (num_out,))
    plain = lambda x, weight, bias: jnp.einsum("...i,io->...o", x, weight) + jnp.broadcast_to(bias, aim.shape)
    np.testing.assert_allclose(affine(x, weight, bias), plain(x, weight, bias), rtol=1e-4, atol=1e-5)
    gradients = [
        jax.grad(lambda *args, layer=layer: jnp.mean((layer(*args) - aim) ** 2), (0, 1, 2))(x, weight, bias)
        for layer in (affine, plain)
    ]
    for own, jaxs in zip(*gradients, strict=True):
        np.testing.assert_allclose(own, jaxs, rtol=1e-4, atol=1e-6)


def test_a_cohort_of_layers_has_the_gradients_of_each():
    keys = jax.random.split(jax.random.key(0), 3)
    x, weight = jax.random.normal(keys[0], (4, 7, 6)), jax.random.normal(keys[1], (4, 6, 2))
    bias = jax.random.normal(keys[2], (4, 2))
    gradient = jax.grad(lambda weight, bias, x: jnp.sum(affine(x, weight, bias) ** 2), (0, 1))
    together = jax.vmap(gradient)(weight, bias, x)
    for i in range(4):
        for all_, one in zip(together, gradient(weight[i], bias[i], x[i]), strict=True):
            np.testing.assert_allclose(all_[i], one, rtol=1e-5, atol=1e-6)
