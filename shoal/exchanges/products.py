"""Products with a matrix along the learner axis: the same bits on any number of devices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shoal.distributed.mesh import BY_LEARNER, REPLICATED
from shoal.exchanges import routing
from shoal.exchanges.routing import ONE_DEVICE, Transport
from shoal.ops import trees
from shoal.types import Tree

NARROW = 128
"""Columns below which a product is a sum: XLA may compute small products differently in each program."""
FEW = 8
"""Nonzero entries of a row of M up to which neighbours are added one by one."""


def linear(matrix: np.ndarray, transport: Transport = ONE_DEVICE) -> Callable[[Tree], Tree]:
    """x -> M x for every leaf x (L, n): neighbour by neighbour if M is sparse, else a matrix product.

    The choice depends on M alone. The order of a sum must not depend on the number of devices, so each device
    computes the whole product.
    """
    degree = int(np.max(np.count_nonzero(matrix, axis=1), initial=0))
    if degree > max(FEW, len(matrix) // 8):
        return _product(matrix, transport)
    slots = np.argsort(matrix == 0, axis=1, kind="stable")[:, :degree]  # (L, degree)
    weights = np.take_along_axis(matrix, slots, 1)
    slots = np.where(weights != 0, slots, np.arange(len(matrix))[:, None])  # padding: its own row
    route = routing.plan(slots.reshape(-1), len(matrix), transport)
    positions = route.positions.reshape(slots.shape)

    def add(positions: Array, weights: Array, rows: Tree) -> Tree:
        """On one device, sum_k weights_ik x[positions_ik]."""

        def total(x: Array) -> Array:
            result = jnp.zeros((len(positions), x.shape[1]), x.dtype)
            for k in range(degree):
                result = result + times(weights[:, k, None], x[positions[:, k]])
            return result

        return jax.tree.map(total, routing.build_table(route, rows))

    return lambda rows: transport.sharded(add)(positions, jnp.asarray(weights), rows)


def _product(matrix: np.ndarray, transport: Transport) -> Callable[[Tree], Tree]:
    def multiply(mine: Array, rows: Tree) -> Tree:
        """On one device, its rows of M x."""
        x, back = trees.as_matrix(rows)
        if x.shape[1] < NARROW:
            mixed = jnp.sum(times(matrix[:, :, None], x[None]), 1)
        else:
            mixed = jnp.matmul(matrix, x, precision="highest")
        return back(lax.dynamic_slice_in_dim(mixed, mine[0], len(mine)))

    return lambda rows: transport.sharded(multiply, (BY_LEARNER, REPLICATED))(jnp.arange(len(matrix)), rows)


def times(weight: Array, x: Array) -> Array:
    """w x, rounded before anything is added to it.

    A compiler may fuse a product and a sum into one rounding, depending on the code around them. The `where`
    prevents that, so results do not depend on the number of devices. It does not prevent it where the product
    is subtracted: x - 0 is always x, but x + 0 is not where x is -0.
    """
    return jnp.where((weight != 0) & (x != 0), weight * x, 0.0)
