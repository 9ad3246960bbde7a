"""Neighbours' policies on islands: each learner's snapshots travel to where it lives.

An exchange may keep policies that learners read while they train, a row for each edge of a graph
(`ops.trees.ByDevice`). On an island every learner has the same number of edges: those that are missing are
copies of others with weight 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.ops.trees import ByDevice
from shoal.runs.checkpoint import named_leaves
from shoal.types import Exchange, ExchangeState, LearnerState, Tree

UNREAD = ("target",)
"""What an island works out by itself."""


def edges_of(state: ExchangeState) -> list[ByDevice]:
    """The rows of an exchange that belong to edges."""
    return list(filter(is_edges, jax.tree.leaves(state.per_learner, is_leaf=is_edges)))


def is_edges(node: Any) -> bool:
    """Whether a part of an exchange's state has a row for each edge."""
    return isinstance(node, ByDevice)


def snapshots_for(members: tuple[int, ...], state: ExchangeState) -> dict[str, np.ndarray]:
    """The rows of the edges to some learners, (members, edges of each, ...), by name."""
    found = {}
    for number, edges in enumerate(edges_of(state)):
        targets = np.asarray(edges.rows.target)
        real = np.zeros(len(targets), bool)
        real[list(edges.slots)] = True
        own = [np.flatnonzero(real & (targets == member)) for member in members]
        width = max(1, *map(len, own))
        rows = np.stack([np.resize(index if len(index) else [0], width) for index in own])
        there = np.arange(width) < np.array([len(index) for index in own])[:, None]
        arrays = {name: np.asarray(x)[rows] for name, x in named_leaves(edges.rows._asdict()).items()}
        arrays["weight"] = np.where(there, arrays["weight"], 0).astype(np.float32)
        found |= {f"peers/{number}/{name}": x for name, x in arrays.items() if name not in UNREAD}
    return found


def state_for(
    exchange: Exchange,
    shapes: LearnerState,
    num_learners: int,
    num_devices: int,
    arrays: dict[str, np.ndarray],
) -> ExchangeState:
    """The state of an exchange on an island: the snapshots in its messages, and nothing else.

    `shapes` are those of one learner, `num_learners` those of the whole run.
    """
    whole = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_learners, *x.shape), x.dtype), shapes)
    like, _ = jax.eval_shape(exchange.init, whole._replace(private=()))
    number = -1

    def filled(node: Tree) -> Tree:
        nonlocal number
        if not is_edges(node):
            return ()
        number += 1
        return _edges(node, f"peers/{number}", num_devices, arrays)

    per_learner = jax.tree.map(filled, like.per_learner, is_leaf=is_edges)
    return ExchangeState(per_learner, jax.tree.map(lambda _: (), like.shared))


def _edges(like: ByDevice, name: str, num_devices: int, arrays: dict[str, np.ndarray]) -> ByDevice:
    members, width = arrays[f"{name}/weight"].shape
    target = np.repeat(np.arange(members, dtype=np.int32) % (members // num_devices), width)
    merged = lambda x: np.reshape(x, (members * width, *np.shape(x)[2:]))
    found = {
        key: merged(arrays[f"{name}/{key}"]) for key in named_leaves(like.rows._asdict()) if key != "target"
    }
    leaves = [target if key == "target" else found[key] for key in named_leaves(like.rows._asdict())]
    rows = jax.tree.unflatten(jax.tree.structure(like.rows), leaves)
    return ByDevice(jax.tree.map(jnp.asarray, rows), tuple(range(members * width)))
