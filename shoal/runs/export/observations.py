"""Observations as ONNX: inputs as the environment gives them, stacked frames, standardisation."""

from typing import NamedTuple

import numpy as np

from shoal.envs.frame_stack import NOT_STACKED, is_grey
from shoal.learners.observations import named
from shoal.nets.encoders import JOINT
from shoal.ops.statistics import Running
from shoal.runs.graphs.graph import Graph, Operand
from shoal.types import Box, ObservationSpace


class View(NamedTuple):
    """What a policy sees, and how it is prepared."""

    space: ObservationSpace  # of the network, with stacked frames
    frame: ObservationSpace  # of the environment, without
    num_frames: int
    moments: dict[str, Running]
    clip: float

    @property
    def parts(self) -> dict[str, Box]:
        """The observations by name, but those of the critic."""
        return {name: box for name, box in named(self.space).items() if name != JOINT}

    def is_stacked(self, name: str) -> bool:
        """Whether this part is a stack of frames."""
        return self.num_frames > 1 and name in named(self.frame) and name not in NOT_STACKED


def add_observations(graph: Graph, view: View, episode_start: str) -> dict[str, str]:
    """The inputs of all observations; float32 values by name as the network sees them."""
    seen = {}
    for name, box in view.parts.items():
        if view.is_stacked(name):
            x = add_frames(graph, name, named(view.frame)[name], view.num_frames, episode_start)
        else:
            x = graph.add_input(name, "observation", box.dtype, box.shape)
        x = x if box.dtype == "float32" else add_cast(graph, x, "float32")
        seen[name] = add_standardised(graph, x, view.moments[name], view.clip) if name in view.moments else x
    return seen


def add_frames(graph: Graph, name: str, frame: Box, num_frames: int, episode_start: str) -> str:
    """The newest frame as an input, those before it as a state; an episode's first frame fills the stack."""
    x = graph.add_input(name, "observation", frame.dtype, frame.shape)
    grey = is_grey(frame.shape, frame.dtype)
    shape = (*frame.shape, 1) if grey else frame.shape
    x = graph.add("Unsqueeze", x, np.array([-1])) if grey else x
    stacked = (*shape[:-1], num_frames * shape[-1])
    before = graph.add_input(f"frames.{name}", "state", frame.dtype, stacked)
    later = graph.add("Concat", graph.add_slice(before, shape[-1]), x, axis=-1)
    full = graph.add("Concat", *[x] * num_frames, axis=-1)
    starts = graph.add("Unsqueeze", episode_start, np.arange(1, len(shape) + 1))
    after = graph.add("Where", starts, full, later)
    graph.add_output(f"next.frames.{name}", "state", frame.dtype, stacked, after, of=f"frames.{name}")
    return after


def add_standardised(graph: Graph, x: str, moments: Running, clip: float) -> str:
    """(x - mean) / sqrt(variance + eps), clipped: `ops.statistics.standardise`."""
    one = np.float32(1)
    mean_square = graph.add("Div", moments.m2, graph.add("Max", moments.count, one))
    variance = graph.add("Where", graph.add("Greater", moments.count, one), mean_square, one)
    deviation = graph.add("Sqrt", graph.add("Add", variance, np.float32(1e-8)))
    centred = graph.add("Sub", x, moments.mean)
    return graph.add("Clip", graph.add("Div", centred, deviation), np.float32(-clip), np.float32(clip))


def add_cast(graph: Graph, x: Operand, dtype: str) -> str:
    """The same values in another type."""
    return graph.add("Cast", x, to=ONNX_TYPES[dtype])


ONNX_TYPES = {"float32": 1, "int64": 7, "bool": 9}
"""The numbers of ONNX's types (`onnx.TensorProto`)."""
