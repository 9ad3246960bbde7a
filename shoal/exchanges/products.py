"""Products with a matrix along the learner axis, the same to the bit however the rows are divided."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shoal.distributed.mesh import BY_LEARNER, REPLICATED
from shoal.exchanges import routing
from shoal.exchanges.routing import HERE, Transport
from shoal.ops import trees
from shoal.types import Tree

NARROW = 128
"""Columns below which a product is a plain sum: a small one may be computed differently in every program."""
FEW = 8
"""Neighbours up to which rows are added one by one, however few learners there are."""


def linear(matrix: np.ndarray, transport: Transport = HERE) -> Callable[[Tree], Tree]:
    """x -> M x for rows x (L, n) in every leaf: neighbour by neighbour where M is sparse, else by a product.

    Which of the two depends on M alone. The order of a sum must not depend on how the rows are divided, so
    a product is computed whole on every device.
    """
    degree = int(np.max(np.count_nonzero(matrix, axis=1), initial=0))
    if degree > max(FEW, len(matrix) // 8):
        return _product(matrix, transport)
    slots = np.argsort(matrix == 0, axis=1, kind="stable")[:, :degree]  # (L, degree)
    weights = np.take_along_axis(matrix, slots, 1)
    slots = np.where(weights != 0, slots, np.arange(len(matrix))[:, None])  # who has fewer needs no others
    route = routing.plan(slots.reshape(-1), len(matrix), transport)
    places = route.places.reshape(slots.shape)

    def add(places: Array, weights: Array, rows: Tree) -> Tree:
        """On one device, sum_k weights_ik x[places_ik]."""

        def total(x: Array) -> Array:
            result = jnp.zeros((len(places), x.shape[1]), x.dtype)
            for k in range(degree):
                result = result + times(weights[:, k, None], x[places[:, k]])
            return result

        return jax.tree.map(total, routing.table(route, rows))

    return lambda rows: transport.on_each(add)(places, jnp.asarray(weights), rows)


def _product(matrix: np.ndarray, transport: Transport) -> Callable[[Tree], Tree]:
    def multiply(mine: Array, rows: Tree) -> Tree:
        """On one device, its own rows of M x."""
        x, back = trees.as_matrix(rows)
        if x.shape[1] < NARROW:
            mixed = jnp.sum(times(matrix[:, :, None], x[None]), 1)
        else:
            mixed = jnp.matmul(matrix, x, precision="highest")
        return back(lax.dynamic_slice_in_dim(mixed, mine[0], len(mine)))

    return lambda rows: transport.on_each(multiply, (BY_LEARNER, REPLICATED))(jnp.arange(len(matrix)), rows)


def times(weight: Array, x: Array) -> Array:
    """w x, rounded before anything is added to it.

    Compilers join a product and a sum into one rounding or leave it at two by what else they join. The choice
    between two values stands in their way, so that results do not depend on how the rows are divided. It does
    not where the product is subtracted: x - 0 is always x, but x + 0 is not where x is -0.
    """
    return jnp.where((weight != 0) & (x != 0), weight * x, 0.0)
