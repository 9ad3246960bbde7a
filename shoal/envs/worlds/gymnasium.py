"""Worlds of Gymnasium environments: how an environment declares and receives them, and ours by id.

An environment declares its worlds with two attributes. It receives one as an option of `reset`:

    world_params    name -> default value
    world_spread    name -> (scale, low, high), as in `EnvSpec.spread`; optional
    env.reset(options={"world": {name: value}})

(The attribute `world` is taken: Gymnasium's Box2D environments keep their physics there.)
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
"""Our Gymnasium environments. Box2D is imported when one of them is made."""


def register_ours(gymnasium: ModuleType) -> None:
    """Add our environments to Gymnasium's registry; a second call changes nothing."""
    for name, entry in OURS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, **entry)


def declared_worlds(env: Any, name: str) -> tuple[Tree, dict[str, tuple[float, float, float]]]:
    """The default parameters of an environment, `()` where it has none, and their spread."""
    params = getattr(env, "world_params", {})
    spread = getattr(env, "world_spread", {})
    if not _numbers_by_name(params, ()):
        raise ShoalError(
            f"{name}: `world_params` must be numbers by name, {{'gravity': 9.8}}, not {params!r}"
        )
    if not _numbers_by_name(spread, (3,)):
        raise ShoalError(f"{name}: `world_spread` must be (scale, low, high) by name, not {spread!r}")
    return {key: float(value) for key, value in params.items()} or (), dict(spread)


def _numbers_by_name(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether this is a dictionary of numbers of this shape."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return False
    arrays = [np.asarray(each) for each in value.values()]
    return all(array.shape == shape and array.dtype.kind in "iuf" for array in arrays)


def worlds_by_env(params: Tree) -> list[dict[str, float]]:
    """Each environment's world, from float32 parameters (N,) per leaf; [] without parameters.

    Each number is the shortest one that rounds to that float32, so a default of 0.6 arrives as 0.6.

    >>> worlds_by_env({"power": np.float32([0.6, 13])})
    [{'power': 0.6}, {'power': 13.0}]
    """
    if not params:
        return []
    numbers = [[float(str(x)) for x in np.asarray(leaf)] for leaf in params.values()]
    return [dict(zip(params, values, strict=True)) for values in zip(*numbers, strict=True)]


def requested_world(
    options: Mapping[str, Any] | None, defaults: Mapping[str, float]
) -> dict[str, float] | None:
    """The world among a reset's options, with defaults for what it does not name; None if there is none.

    >>> requested_world({"world": {"wind": 3}}, {"wind": 0.0, "gravity": -10.0})
    {'wind': 3.0, 'gravity': -10.0}
    """
    if options is None or "world" not in options:
        return None
    return complete_world(options["world"], defaults)


def complete_world(world: Mapping[str, float], defaults: Mapping[str, float]) -> dict[str, float]:
    """`world`, with defaults for what it does not name."""
    unknown = sorted(world.keys() - defaults.keys())
    if unknown:
        raise TypeError(f"unexpected keyword {unknown[0]!r}: a world here has {', '.join(defaults)}")
    return {name: float(world.get(name, default)) for name, default in defaults.items()}
