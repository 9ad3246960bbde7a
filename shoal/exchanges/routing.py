"""Movement: how rows travel between the devices that the learners are divided over.

Rows travel as bits, so that what arrives is what was sent, a negative zero or a NaN included, and results
are the same to the bit whatever the number of devices.
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
    """The devices that rows travel between."""

    mesh: Mesh | None = None

    @property
    def num_devices(self) -> int:
        """How many devices the learners are divided over."""
        return 1 if self.mesh is None else self.mesh.shape["learners"]

    def on_each(
        self, function: Callable, in_specs: Any = BY_LEARNER, out_specs: Any = BY_LEARNER
    ) -> Callable:
        """`function` on every device with that device's rows; as it is where there is only one."""
        if self.mesh is None or self.num_devices == 1:
            return function
        return on_each_device(self.mesh, function, in_specs, out_specs)

    def on_all(self, function: Callable) -> Callable:
        """`function` on every device with all rows, for what is small and must not depend on the division."""
        return self.on_each(function, REPLICATED, REPLICATED)


HERE = Transport()
"""All rows are on one device."""


class Hop(NamedTuple):
    """What devices send to those a fixed number of places further on."""

    pairs: tuple[tuple[int, int], ...]  # (from, to), where anything is to be sent
    rows: np.ndarray  # (D, width) int32: which of its rows a device sends; the first fills up short shares


class Plan(NamedTuple):
    """How the rows that a device needs come to its table: its own rows, then what each hop brings."""

    places: np.ndarray  # (M,) int32: where in its device's table each wanted row lies
    hops: tuple[Hop, ...]


def plan(sources: np.ndarray, num_rows: int, transport: Transport) -> Plan:
    """The way of x -> x[sources], whose rows are divided over the devices in equal shares like those of x.

    A row that a device needs more than once travels to it once.

    >>> plan(np.array([1, 0]), 2, HERE)
    Plan(places=array([1, 0], dtype=int32), hops=())
    """
    num, sources = transport.num_devices, np.asarray(sources, np.int32)
    if num_rows % num or len(sources) % num:
        raise ShoalError(f"{num_rows} rows, {len(sources)} wanted, cannot be divided over {num} devices")
    block, shares = num_rows // num, sources.reshape(num, -1)
    places = np.where(shares // block == np.arange(num)[:, None], shares % block, 0)  # (D, M / D)
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
            places[to, coming] = length + np.searchsorted(needed, shares[to][coming])
        pairs = tuple((device, to) for device, to in enumerate(receivers) if len(sent[device]))
        hops.append(Hop(pairs, rows))
        length += width
    return Plan(places.reshape(-1).astype(np.int32), tuple(hops))


def table(route: Plan, rows: Tree) -> Tree:
    """On one device, the rows that `route.places` count in: its own and those that others send it."""
    if not route.hops:
        return rows
    here = lax.axis_index("learners")
    tables = [rows]
    for hop in route.hops:
        words, back = as_words(_take(rows, jnp.asarray(hop.rows)[here]))
        tables.append(back([lax.ppermute(word, "learners", hop.pairs) for word in words]))
    join = lambda *parts: _from_bits(jnp.concatenate([_bits(x) for x in parts]), parts[0].dtype)
    return jax.tree.map(join, *tables)


def taker(sources: np.ndarray, num_rows: int, transport: Transport = HERE) -> Callable[[Tree], Tree]:
    """x -> x[sources] for trees of rows, with `sources` (M,) that never change.

    >>> taker(np.array([2, 2, 0]), 3)(jnp.array([5.0, 6.0, 7.0])).tolist()
    [7.0, 7.0, 5.0]
    """
    route = plan(sources, num_rows, transport)
    take = transport.on_each(lambda places, rows: _take(table(route, rows), places))
    return lambda rows: take(jnp.asarray(route.places), rows)


def take_drawn(rows: Tree, parent: Array, most: int, transport: Transport = HERE) -> Tree:
    """x[parent], with `parent` (L,) drawn anew each time; at most `most` rows are wanted by others.

    Those alone travel: every device fills its own into a buffer (most, ...), and the buffers are summed.
    Who is its own parent keeps its row. A sum moves a row twice, so from half of them on all are gathered.
    """
    num_rows = parent.shape[0]
    if transport.num_devices == 1:
        return _take(rows, parent)
    everyone = jnp.arange(num_rows)
    if 2 * most >= num_rows:
        return transport.on_each(lambda parent, rows: _take(gather(rows), parent))(parent, rows)

    def take_few(parent: Array, mine: Array, rows: Tree) -> Tree:
        wanted = (
            jnp.zeros(num_rows, bool)
            .at[jnp.where(parent == everyone, num_rows, parent)]
            .set(True, mode="drop")
        )
        donors = jnp.nonzero(wanted, size=most, fill_value=num_rows)[0]  # (most,)
        local = donors - mine[0]
        held = (local >= 0) & (local < len(mine)) & (donors < num_rows)
        words, back = as_words(_take(rows, jnp.where(held, local, 0)))
        travelling = back([lax.psum(jnp.where(held[:, None], word, 0), "learners") for word in words])
        places = (jnp.cumsum(wanted) - 1)[parent[mine]]
        stays = parent[mine] == mine
        arrived = _take(travelling, jnp.where(stays, 0, places))
        choose = lambda own, new: _from_bits(trees.where_rows(stays, _bits(own), _bits(new)), own.dtype)
        return jax.tree.map(choose, rows, arrived)

    return transport.on_each(take_few, (REPLICATED, BY_LEARNER, BY_LEARNER))(parent, everyone, rows)


def gather(rows: Tree) -> Tree:
    """On one of several devices, everyone's rows."""
    words, back = as_words(rows)
    return back([lax.all_gather(word, "learners", tiled=True) for word in words])


def as_words(rows: Tree) -> tuple[list[Array], Callable[[list[Array]], Tree]]:
    """Rows as bits side by side, a matrix of unsigned integers for each width of number; and the way back.

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
    """rows[index], as bits: where `jit` divides the rows, it adds zeros to what it takes, and -0 + 0 is 0."""
    return jax.tree.map(lambda x: _from_bits(_bits(x)[index], x.dtype), rows)


def _bits(x: Array) -> Array:
    if jnp.issubdtype(x.dtype, jnp.bool_):
        return x.astype(jnp.uint8)
    return lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _from_bits(bits: Array, dtype: Any) -> Array:
    is_bool = jnp.issubdtype(dtype, jnp.bool_)
    return bits.astype(bool) if is_bool else lax.bitcast_convert_type(bits, dtype)
