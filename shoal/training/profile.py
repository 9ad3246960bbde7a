"""Profiles an iteration: its parts are compiled separately, run one by one and timed."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shoal.training.program import Progress, Stages, TrainState
from shoal.types import Tree

PARTS = ("rollout", "optimisation", "exchange", "logging")
"""The parts of an iteration."""


class Profile:
    """Seconds per part, since the last row of metrics and since the start.

    >>> profile = Profile()
    >>> profile.count_iteration(); profile.add("rollout", 0.25)
    >>> profile.row()["seconds/rollout"], profile.row()["seconds/rollout"]
    (0.25, 0.0)
    """

    def __init__(self):
        self.row_seconds = dict.fromkeys(PARTS, 0.0)
        self.all_seconds = dict.fromkeys(PARTS, 0.0)
        self.row_iterations = self.all_iterations = 0

    def count_iteration(self) -> None:
        """Count an iteration."""
        self.row_iterations += 1
        self.all_iterations += 1

    def add(self, part: str, seconds: float) -> None:
        """Add the time that a part took."""
        self.row_seconds[part] += seconds
        self.all_seconds[part] += seconds

    def time(self, part: str, function: Callable, *arguments: Any) -> Any:
        """Call a part, wait for its result and add the time."""
        before = time.perf_counter()
        result = jax.block_until_ready(function(*arguments))
        self.add(part, time.perf_counter() - before)
        return result

    def row(self) -> dict[str, float]:
        """Seconds per iteration since the last row, for the metrics; logging is that of the row before."""
        iterations = max(self.row_iterations, 1)
        seconds = {f"seconds/{part}": x / iterations for part, x in self.row_seconds.items()}
        self.row_seconds, self.row_iterations = dict.fromkeys(PARTS, 0.0), 0
        return seconds

    def table(self) -> dict[str, float]:
        """Seconds per iteration since the start."""
        return {part: x / max(self.all_iterations, 1) for part, x in self.all_seconds.items()}


def profiled(stages: Stages, state: TrainState, profile: Profile) -> Callable:
    """`Trainer.advance`, part by part and timed: (state, count) -> (state, progress)."""
    collect, shapes = _compile(stages.collect, state)
    update, shapes = _compile(stages.update, *shapes)
    exchange, _ = _compile(stages.exchange, *shapes)

    def advance(state: TrainState, count: np.int32) -> tuple[TrainState, Progress]:
        valid_steps, bad_rewards = 0, False
        progress = None
        for _ in range(count):
            state, rollout = profile.time("rollout", collect, state)
            state, progress = profile.time("optimisation", update, state, rollout)
            state, progress = profile.time("exchange", exchange, state, progress)
            profile.count_iteration()
            valid_steps, bad_rewards = valid_steps + progress.valid_steps, bad_rewards | progress.bad_rewards
        assert progress is not None, "at least one iteration"
        return state, Progress(progress.metrics, valid_steps, bad_rewards)

    return advance


def _compile(function: Callable, *arguments: Tree) -> tuple[Callable, Tree]:
    """A jitted function compiled for arguments like these, and the shapes and shardings of its result."""
    lowered = function.lower(*arguments)
    program = lowered.compile()
    placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    return program, jax.tree.map(placed, lowered.out_info, program.output_shardings)
