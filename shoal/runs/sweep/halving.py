"""Successive halving: after a part of the steps only the best trials go on (Jamieson and Talwalkar 2016)."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from shoal.training.config import TrainConfig

ETA = 3
"""One in so many trials goes on."""
RUNGS = 3
"""How often trials are compared, the end included."""

Key = TypeVar("Key")


def rungs_of(config: TrainConfig, longest: int = 0) -> list[int]:
    """The steps at which trials are compared: about a ninth, a third and all of them, each with a report.

    They are not compared before every environment has had time for an episode of the `longest` length.

    >>> from shoal import PPOConfig
    >>> rungs_of(TrainConfig("CartPole-v1", PPOConfig(num_envs=4, num_steps=25), steps=9000, reports=90))
    [1000, 3000, 9000]
    >>> rungs_of(TrainConfig("CartPole-v1", PPOConfig(num_envs=4, num_steps=25), steps=9000, reports=90), 500)
    [2000, 3000, 9000]
    """
    every, last = config.report_every, config.num_iterations
    first = -(-longest * config.algo.num_envs // config.algo.rollout_size)
    parts = [max(first, -(-last // ETA**k)) for k in range(RUNGS - 1, 0, -1)]
    iterations = [min(-(-part // every) * every, last) for part in parts]
    return [config.steps_after(iteration) for iteration in dict.fromkeys([*iterations, last])]


def num_kept(number: int, rung: int) -> int:
    """How many of so many trials train to a rung, the first of which is 0: ceil(number / ETA^rung).

    >>> [num_kept(10, rung) for rung in range(3)]
    [10, 4, 2]
    """
    return -(-number // ETA**rung)


def ranked(scores: Mapping[Key, float]) -> list[Key]:
    """The best first; those without a score last; of equal ones the earlier.

    >>> ranked({"a": 1.0, "b": float("nan"), "c": 2.0, "d": 1.0})
    ['c', 'a', 'd', 'b']
    """
    return sorted(scores, key=lambda name: -scores[name] if np.isfinite(scores[name]) else np.inf)


def promote(
    scores: Mapping[int, float], keep: int, groups: Sequence[Sequence[int]], sizes: Sequence[int]
) -> list[list[int]]:
    """The trials of each group that go on: the `keep` best of all, and the next best to fill their programs.

    `scores` has the trials that came this far; `groups` are all trials in groups of one program each, that
    train `sizes` trials at once. A row would be idle otherwise.

    >>> promote({0: 5.0, 1: 4.0, 2: 3.0, 3: 2.0}, 1, [[0, 1, 2], [3]], [2, 1])
    [[0, 1], []]
    """
    order = ranked(scores)
    best = set(order[:keep])
    going_on = []
    for group, size in zip(groups, sizes, strict=True):
        own = [number for number in order if number in group]
        chosen = sum(number in best for number in own)
        going_on.append(own[: -(-chosen // size) * size])
    return going_on
