"""Where the time of an iteration goes: its parts compiled apart, run one by one and timed."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shoal.training.program import Progress, Stages, TrainState
from shoal.types import Tree

PARTS = ("rollout", "optimisation", "exchange", "logging")
"""What an iteration consists of."""


class Profile:
    """Seconds per part, since the last row of metrics and since the start.

    >>> profile = Profile()
    >>> profile.iterated(); profile.add("rollout", 0.25)
    >>> profile.row()["seconds/rollout"], profile.row()["seconds/rollout"]
    (0.25, 0.0)
    """

    def __init__(self):
        self.row_seconds = dict.fromkeys(PARTS, 0.0)
        self.all_seconds = dict.fromkeys(PARTS, 0.0)
        self.row_iterations = self.all_iterations = 0

    def iterated(self) -> None:
        """Count an iteration."""
        self.row_iterations += 1
        self.all_iterations += 1

    def add(self, part: str, seconds: float) -> None:
        """Time that a part took."""
        self.row_seconds[part] += seconds
        self.all_seconds[part] += seconds

    def timed(self, part: str, function: Callable, *arguments: Any) -> Any:
        """A part's result, waited for."""
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


def staged(stages: Stages, state: TrainState, profile: Profile) -> Callable:
    """`Trainer.advance` piece by piece; like it, (state, count) -> (state, pulse)."""
    collect, shapes = _compiled(stages.collect, state)
    update, shapes = _compiled(stages.update, *shapes)
    exchange, _ = _compiled(stages.exchange, *shapes)

    def advance(state: TrainState, count: np.int32) -> tuple[TrainState, Progress]:
        valid_steps, bad_rewards = 0, False
        progress = None
        for _ in range(count):
            state, rollout = profile.timed("rollout", collect, state)
            state, progress = profile.timed("optimisation", update, state, rollout)
            state, progress = profile.timed("exchange", exchange, state, progress)
            profile.iterated()
            valid_steps, bad_rewards = valid_steps + progress.valid_steps, bad_rewards | progress.bad_rewards
        assert progress is not None, "at least one iteration"
        return state, Progress(progress.metrics, valid_steps, bad_rewards)

    return advance


def _compiled(function: Callable, *arguments: Tree) -> tuple[Callable, Tree]:
    """A jitted function, compiled for arguments like these, and what it will return, without calling it."""
    lowered = function.lower(*arguments)
    program = lowered.compile()
    placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    return program, jax.tree.map(placed, lowered.out_info, program.output_shardings)
