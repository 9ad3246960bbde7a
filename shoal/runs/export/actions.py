"""Actions as ONNX: greedy ones, or with noise sampled ones, as the environment takes them."""

from math import prod

import numpy as np

from shoal.ops.masks import FORBIDDEN
from shoal.runs.export.observations import add_cast
from shoal.runs.graphs.graph import Graph, Operand
from shoal.types import ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete


def add_noise(graph: Graph, size: int, distribution: str) -> str:
    """The noise of sampled actions as an input."""
    return graph.add_input("noise", "noise", "float32", (size,), distribution=distribution)


def add_action(graph: Graph, space: ActionSpace, action: str) -> None:
    """The output of the graph."""
    match space:
        case Box(shape):
            graph.add_output("action", "action", "float32", shape, action)
        case Discrete():
            graph.add_output("action", "action", "int64", (), action)
        case MultiDiscrete(nums):
            graph.add_output("action", "action", "int64", (len(nums),), action)
        case MultiBinary(num):
            graph.add_output("action", "action", "int64", (num,), action)


def add_choice(graph: Graph, space: ActionSpace, scores: str) -> str:
    """The choices with the highest scores; for MultiBinary the switches with a score above 0."""
    match space:
        case MultiBinary():
            return add_cast(graph, graph.add("Greater", scores, np.float32(0)), "int64")
        case MultiDiscrete(nums):
            parts = graph.add_several("Split", len(nums), scores, np.array(nums), axis=-1)
            return graph.add("Concat", *(graph.add("ArgMax", part, axis=-1) for part in parts), axis=-1)
    return graph.add("ArgMax", scores, axis=-1, keepdims=0)


def add_restricted(graph: Graph, outputs: str, allowed: str | None) -> str:
    """The logits, or values, with `FORBIDDEN` for forbidden choices."""
    return outputs if allowed is None else graph.add("Where", allowed, outputs, np.float32(FORBIDDEN))


def add_allowed(graph: Graph, space: ActionSpace, mask: str) -> str:
    """Which choices are allowed (B, n) bool: all of a part whose entries are all 0 (`ops.masks.allowed`)."""
    mask = graph.add("Flatten", mask)
    if isinstance(space, MultiBinary):
        return add_cast(graph, mask, "bool")
    nums = space.nums if isinstance(space, MultiDiscrete) else ()
    if len(nums) < 2:
        return _allowed_of_part(graph, mask)
    parts = graph.add_several("Split", len(nums), mask, np.array(nums), axis=-1)
    return graph.add("Concat", *(_allowed_of_part(graph, part) for part in parts), axis=-1)


def _allowed_of_part(graph: Graph, mask: str) -> str:
    entries = graph.add("Abs", mask)
    any_allowed = add_cast(graph, graph.add("ReduceMax", entries, axes=[-1]), "bool")
    return graph.add("Or", add_cast(graph, mask, "bool"), graph.add("Not", any_allowed))


def add_random_choice(graph: Graph, num: int, allowed: str | None, noise: str) -> str:
    """A choice drawn uniformly from those allowed (B, n), for noise (B,) in [0, 1): `dqn.random_action`."""
    if allowed is None:
        scaled = add_cast(graph, graph.add("Mul", noise, np.float32(num)), "int64")
        return graph.add("Min", scaled, np.int64(num - 1))
    rank = graph.add("CumSum", add_cast(graph, allowed, "float32"), np.int64(-1))
    last = graph.add("ReduceMax", rank, axes=[-1])
    scaled = graph.add("Floor", graph.add("Mul", last, graph.add("Unsqueeze", noise, np.array([-1]))))
    chosen = graph.add("Min", graph.add("Add", scaled, np.float32(1)), last)
    reached = graph.add("GreaterOrEqual", rank, chosen)
    return graph.add("ArgMax", add_cast(graph, reached, "float32"), axis=-1, keepdims=0)


def add_normal(graph: Graph, mean: str, deviation: Operand, noise: str) -> str:
    """mean + deviation noise."""
    return graph.add("Add", mean, graph.add("Mul", noise, deviation))


def add_scaled(graph: Graph, space: Box, action: str) -> str:
    """Actions in [-1, 1] (B, A) in the bounds of their space, flat: low + (a + 1) / 2 (high - low)."""
    low, high = flat_bounds(space)
    share = graph.add("Div", graph.add("Add", action, np.float32(1)), np.float32(2))
    return graph.add("Add", graph.add("Mul", share, high - low), low)


def add_bounded(graph: Graph, space: Box, action: str) -> str:
    """Real actions (B, A) in the shape of their space, clipped to its bounds."""
    low, high = flat_bounds(space)
    if np.any(np.isfinite(high)):
        action = graph.add("Min", action, high)
    if np.any(np.isfinite(low)):
        action = graph.add("Max", action, low)
    return action if len(space.shape) == 1 else graph.add("Reshape", action, np.array([-1, *space.shape]))


def flat_bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of each number of an action, (A,) each."""
    size = (prod(space.shape),)
    low, high = (np.broadcast_to(np.float32(bound), space.shape) for bound in (space.low, space.high))
    return low.reshape(size), high.reshape(size)
