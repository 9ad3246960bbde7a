"""Levels of procedurally generated games: seen in training, unseen, or all."""

from typing import Any

from shoal.envs.adapters.envpool import option_names
from shoal.errors import ShoalError

NUM_LEVELS = 2**31 - 1
"""The number of levels of a Procgen game; a level is its number."""


def has_levels(env: str, options: dict[str, Any]) -> bool:
    """Whether `start_level` and `num_levels` choose an environment's levels, as they do in Procgen."""
    return {"start_level", "num_levels"} <= option_names(env) | options.keys()


def level_options(env: str, options: dict[str, Any], which: str) -> tuple[str, dict[str, Any]]:
    """A title for the levels `which`, and the options that choose exactly those.

    seen      `num_levels` from `start_level` on, as in training
    unseen    every level above those
    all       every level: `num_levels` 0

    >>> level_options("BigfishEasy-v0", {"start_level": 0, "num_levels": 200}, "unseen")
    ('unseen levels', {'start_level': 200, 'num_levels': 2147483447})
    """
    start, num = options.get("start_level", 0), options.get("num_levels", 0)
    if which == "all" or (which == "seen" and num <= 0):
        return "all levels", options | {"num_levels": 0}
    if which == "seen":
        return "seen levels", options
    end = start + num
    if num <= 0 or end >= NUM_LEVELS:
        raise ShoalError(f"{env}: all levels are seen (num_levels={num}); choose levels all")
    if options.get("use_sequential_levels"):
        raise ShoalError(f"{env}: use_sequential_levels sees levels beyond num_levels; choose levels all")
    return "unseen levels", options | {"start_level": end, "num_levels": NUM_LEVELS - end}
