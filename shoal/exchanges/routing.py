"""Routing: how rows of sharded arrays move between devices.

A row is one index of the leading axis: a learner, or an edge of a graph. Rows move as bits, so that -0 and
NaN arrive unchanged and results are the same bits on any number of devices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from shoal.distributed.mesh import BY_LEARNER, REPLICATED, on_each_device
from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.types import Tree


class Transport(NamedTuple):
    """The devices that rows move between."""

    mesh: Mesh | None = None

    @property
    def num_devices(self) -> int:
        """The number of devices along the learner axis."""
        return 1 if self.mesh is None else self.mesh.shape["learners"]

    def sharded(
        self, function: Callable, in_specs: Any = BY_LEARNER, out_specs: Any = BY_LEARNER
    ) -> Callable:
        """`function` on each device with its own rows; unchanged for one device."""
        if self.mesh is None or self.num_devices == 1:
            return function
        return on_each_device(self.mesh, function, in_specs, out_specs)

    def replicated(self, function: Callable) -> Callable:
        """`function` on each device with all rows, for small results that must not depend on the sharding."""
        return self.sharded(function, REPLICATED, REPLICATED)


ONE_DEVICE = Transport()
"""All rows are on one device."""


class Hop(NamedTuple):
    """What each device sends to the device at a fixed offset: one `ppermute`."""

    pairs: tuple[tuple[int, int], ...]  # (from, to), where there is something to send
    rows: np.ndarray  # (D, width) int32: which of its rows a device sends, padded with 0


class Plan(NamedTuple):
    """How each device builds a table of the rows it needs: its own rows, then those of each hop."""

    positions: np.ndarray  # (M,) int32: the index of each wanted row in its device's table
    hops: tuple[Hop, ...]


def plan(sources: np.ndarray, num_rows: int, transport: Transport) -> Plan:
    """The plan of x -> x[sources]; x and the result are sharded in equal parts along the leading axis.

    A row that a device needs more than once is sent to it once.

    >>> plan(np.array([1, 0]), 2, ONE_DEVICE)
    Plan(positions=array([1, 0], dtype=int32), hops=())
    """
    num, sources = transport.num_devices, np.asarray(sources, np.int32)
    if num_rows % num or len(sources) % num:
        raise ShoalError(f"{num_rows} rows, {len(sources)} wanted, do not divide over {num} devices")
    block, shares = num_rows // num, sources.reshape(num, -1)
    positions = np.where(shares // block == np.arange(num)[:, None], shares % block, 0)  # (D, M / D)
    hops, length = [], block
    for offset in range(1, num):
        receivers = [(device + offset) % num for device in range(num)]
        sent = [np.unique(shares[to][shares[to] // block == device]) for device, to in enumerate(receivers)]
        width = max(map(len, sent))
        if not width:
            continue
        rows = np.zeros((num, width), np.int32)
        for device, (to, needed) in enumerate(zip(receivers, sent, strict=True)):
            rows[device, : len(needed)] = needed - device * block
            coming = shares[to] // block == device
            positions[to, coming] = length + np.searchsorted(needed, shares[to][coming])
        pairs = tuple((device, to) for device, to in enumerate(receivers) if len(sent[device]))
        hops.append(Hop(pairs, rows))
        length += width
    return Plan(positions.reshape(-1).astype(np.int32), tuple(hops))


def build_table(route: Plan, rows: Tree) -> Tree:
    """On one device, the table that `route.positions` index: its own rows and those that others send."""
    if not route.hops:
        return rows
    device = lax.axis_index("learners")
    tables = [rows]
    for hop in route.hops:
        words, back = as_words(_take(rows, jnp.asarray(hop.rows)[device]))
        tables.append(back([lax.ppermute(word, "learners", hop.pairs) for word in words]))
    join = lambda *parts: _from_bits(jnp.concatenate([_bits(x) for x in parts]), parts[0].dtype)
    return jax.tree.map(join, *tables)


def make_take(
    sources: np.ndarray, num_rows: int, transport: Transport = ONE_DEVICE
) -> Callable[[Tree], Tree]:
    """A function x -> x[sources] of trees of rows; `sources` (M,) are constant.

    >>> make_take(np.array([2, 2, 0]), 3)(jnp.array([5.0, 6.0, 7.0])).tolist()
    [7.0, 7.0, 5.0]
    """
    route = plan(sources, num_rows, transport)
    take = transport.sharded(lambda positions, rows: _take(build_table(route, rows), positions))
    return lambda rows: take(jnp.asarray(route.positions), rows)


def take_dynamic(rows: Tree, parent: Array, most: int, transport: Transport = ONE_DEVICE) -> Tree:
    """x[parent], where `parent` (L,) is computed; at most `most` rows are the parents of other rows.

    Only those rows move: each device writes its own into a buffer (most, ...), and the buffers are summed. A
    row that is its own parent stays. A sum moves a row twice, so if `most` is half of the rows or more, all
    are gathered.
    """
    num_rows = parent.shape[0]
    if transport.num_devices == 1:
        return _take(rows, parent)
    indices = jnp.arange(num_rows)
    if 2 * most >= num_rows:
        return transport.sharded(lambda parent, rows: _take(gather(rows), parent))(parent, rows)

    def take_few(parent: Array, mine: Array, rows: Tree) -> Tree:
        wanted = (
            jnp.zeros(num_rows, bool)
            .at[jnp.where(parent == indices, num_rows, parent)]
            .set(True, mode="drop")
        )
        donors = jnp.nonzero(wanted, size=most, fill_value=num_rows)[0]  # (most,)
        local = donors - mine[0]
        held = (local >= 0) & (local < len(mine)) & (donors < num_rows)
        words, back = as_words(_take(rows, jnp.where(held, local, 0)))
        moved = back([lax.psum(jnp.where(held[:, None], word, 0), "learners") for word in words])
        slots = (jnp.cumsum(wanted) - 1)[parent[mine]]
        stays = parent[mine] == mine
        arrived = _take(moved, jnp.where(stays, 0, slots))
        choose = lambda own, new: _from_bits(trees.where_rows(stays, _bits(own), _bits(new)), own.dtype)
        return jax.tree.map(choose, rows, arrived)

    return transport.sharded(take_few, (REPLICATED, BY_LEARNER, BY_LEARNER))(parent, indices, rows)


def gather(rows: Tree) -> Tree:
    """The rows of all devices, on one of several."""
    words, back = as_words(rows)
    return back([lax.all_gather(word, "learners", tiled=True) for word in words])


def as_words(rows: Tree) -> tuple[list[Array], Callable[[list[Array]], Tree]]:
    """Rows as bits: a matrix of unsigned integers for each width of number, and the inverse function.

    >>> words, back = as_words({"a": jnp.ones((2, 3)), "b": jnp.zeros(2, jnp.int32), "c": jnp.zeros(2, bool)})
    >>> [(x.shape, x.dtype.name) for x in words]
    [((2, 1), 'uint8'), ((2, 4), 'uint32')]
    """
    leaves, structure = jax.tree.flatten(rows)
    widths = sorted({leaf.dtype.itemsize for leaf in leaves})
    kinds = [[i for i, leaf in enumerate(leaves) if leaf.dtype.itemsize == width] for width in widths]
    packed = [trees.as_matrix([_bits(leaves[i]) for i in kind]) for kind in kinds]

    def back(words: list[Array]) -> Tree:
        found = {}
        for kind, word, (_, divide) in zip(kinds, words, packed, strict=True):
            found |= dict(zip(kind, divide(word), strict=True))
        shaped = [_from_bits(found[i], leaf.dtype) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, shaped)

    return [matrix for matrix, _ in packed], back


def _take(rows: Tree, index: Array) -> Tree:
    """rows[index], as bits: on sharded rows `jit` indexes by adding zeros, and -0 + 0 is 0."""
    return jax.tree.map(lambda x: _from_bits(_bits(x)[index], x.dtype), rows)


def _bits(x: Array) -> Array:
    if jnp.issubdtype(x.dtype, jnp.bool_):
        return x.astype(jnp.uint8)
    return lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _from_bits(bits: Array, dtype: Any) -> Array:
    is_bool = jnp.issubdtype(dtype, jnp.bool_)
    return bits.astype(bool) if is_bool else lax.bitcast_convert_type(bits, dtype)
