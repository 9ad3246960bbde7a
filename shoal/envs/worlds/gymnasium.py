"""Worlds of Gymnasium environments: how one declares them, how it is told its own, and ours by id.

An environment declares its worlds with two attributes, and is put into one by Gymnasium's own means:

    world_params    name -> default value
    world_spread    name -> (scale, low, high), as in `EnvSpec.spread`; optional
    env.reset(options={"world": {name: value}})

(`world` itself is taken: Gymnasium's Box2D environments keep their physics there.)
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.types import Tree

OURS: dict[str, dict[str, Any]] = {
    "shoal/BipedalObstacles-v0": {
        "entry_point": "shoal.envs.worlds.walker:BipedalObstacles",
        "max_episode_steps": 1600,
        "reward_threshold": 300,
    },
    "shoal/LunarLanderWorlds-v0": {
        "entry_point": "shoal.envs.worlds.lander:LunarLanderWorlds",
        "max_episode_steps": 1000,
        "reward_threshold": 200,
    },
}
"""Our Gymnasium environments; Box2D is imported when one of them is made, not before."""


def register_ours(gymnasium: ModuleType) -> None:
    """Make our environments known to Gymnasium; a second time changes nothing."""
    for name, how in OURS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, **how)


def declared(env: Any, name: str) -> tuple[Tree, dict[str, tuple[float, float, float]]]:
    """The default parameters of an environment's world, `()` where it has none, and their spread."""
    params = getattr(env, "world_params", {})
    spread = getattr(env, "world_spread", {})
    if not _numbers_by_name(params, ()):
        raise ShoalError(f"{name}: `world_params` are numbers by name, {{'gravity': 9.8}}, not {params!r}")
    if not _numbers_by_name(spread, (3,)):
        raise ShoalError(f"{name}: `world_spread` is (scale, low, high) by name, not {spread!r}")
    return {key: float(value) for key, value in params.items()} or (), dict(spread)


def _numbers_by_name(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether this is a dictionary of numbers, of such shape each."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return False
    arrays = [np.asarray(each) for each in value.values()]
    return all(array.shape == shape and array.dtype.kind in "iuf" for array in arrays)


def by_row(params: Tree) -> list[dict[str, float]]:
    """Every row's world from columns of float32, (N,) per leaf; [] where there are no parameters.

    Each number is the shortest that float32 takes for it, so that a default of 0.6 arrives as 0.6.

    >>> by_row({"power": np.float32([0.6, 13])})
    [{'power': 0.6}, {'power': 13.0}]
    """
    if not params:
        return []
    columns = [[float(str(x)) for x in np.asarray(column)] for column in params.values()]
    return [dict(zip(params, row, strict=True)) for row in zip(*columns, strict=True)]


def asked(options: Mapping[str, Any] | None, defaults: Mapping[str, float]) -> dict[str, float] | None:
    """The world that a reset asks for, with defaults for what it does not name; None if it asks for none.

    >>> asked({"world": {"wind": 3}}, {"wind": 0.0, "gravity": -10.0})
    {'wind': 3.0, 'gravity': -10.0}
    """
    if options is None or "world" not in options:
        return None
    return completed(options["world"], defaults)


def completed(world: Mapping[str, float], defaults: Mapping[str, float]) -> dict[str, float]:
    """`defaults` with what `world` names in their place."""
    unknown = sorted(world.keys() - defaults.keys())
    if unknown:
        raise TypeError(f"unexpected keyword {unknown[0]!r}: a world here has {', '.join(defaults)}")
    return {name: float(world.get(name, default)) for name, default in defaults.items()}
