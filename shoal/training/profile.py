"""Profiles an iteration: its stages are compiled separately, run one by one and timed."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shoal.training.iteration import Progress, TrainState, joined
from shoal.training.program import Stages
from shoal.types import Tree

STAGES = ("rollout", "optimisation", "exchange", "logging")
"""The stages of an iteration."""


class Profile:
    """Seconds per stage, since the last report and since the start.

    >>> profile = Profile()
    >>> profile.count_iteration(); profile.add("rollout", 0.25)
    >>> profile.pop_report()["seconds/rollout"], profile.pop_report()["seconds/rollout"]
    (0.25, 0.0)
    """

    def __init__(self):
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.iterations = 0
        self.reported = (self.seconds.copy(), 0)

    def count_iteration(self) -> None:
        """Count an iteration."""
        self.iterations += 1

    def add(self, stage: str, seconds: float) -> None:
        """Add the time of a stage."""
        self.seconds[stage] += seconds

    def time(self, stage: str, function: Callable, *arguments: Any) -> Any:
        """Call a stage, wait for its result and add its time."""
        before = time.perf_counter()
        result = jax.block_until_ready(function(*arguments))
        self.add(stage, time.perf_counter() - before)
        return result

    def pop_report(self) -> dict[str, float]:
        """Metrics: seconds per iteration since the last call. Logging counts in the report after it."""
        (before, iterations), self.reported = self.reported, (self.seconds.copy(), self.iterations)
        count = max(self.iterations - iterations, 1)
        return {f"seconds/{stage}": (x - before[stage]) / count for stage, x in self.seconds.items()}

    def table(self) -> dict[str, float]:
        """Seconds per iteration since the start."""
        return {stage: x / max(self.iterations, 1) for stage, x in self.seconds.items()}


def profiled(stages: Stages, state: TrainState, profile: Profile) -> Callable:
    """`Trainer.advance`, stage by stage and timed: (state, count) -> (state, progress)."""
    collect, shapes = _compile(stages.collect, state)
    update, shapes = _compile(stages.update, *shapes)
    exchange, _ = _compile(stages.exchange, *shapes)

    def advance(state: TrainState, count: np.int32) -> tuple[TrainState, Progress]:
        total = None
        for _ in range(count):
            state, rollout = profile.time("rollout", collect, state)
            state, progress = profile.time("optimisation", update, state, rollout)
            state, progress = profile.time("exchange", exchange, state, progress)
            profile.count_iteration()
            total = joined(total, progress) if total else progress
        assert total is not None, "at least one iteration"
        return state, total

    return advance


def _compile(function: Callable, *arguments: Tree) -> tuple[Callable, Tree]:
    """A jitted function compiled for arguments like these, and the shapes and shardings of its result."""
    lowered = function.lower(*arguments)
    program = lowered.compile()
    placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    return program, jax.tree.map(placed, lowered.out_info, program.output_shardings)
