"""shoal/LunarLanderWorlds-v0: LunarLander with engines, gravity and wind that differ between learners.

With the defaults it is Gymnasium's LunarLander, step for step; its actions are continuous unless
`continuous=False`. `wind_power` and `turbulence_power` blow as with Gymnasium's `enable_wind`.

>>> import gymnasium, shoal.envs.worlds.lander
>>> env = gymnasium.make("shoal/LunarLanderWorlds-v0", main_engine_power=11)
>>> _ = env.reset(seed=1, options={"world": {"gravity": -8}})
>>> env.unwrapped.gravity, env.unwrapped.current["main_engine_power"]
(-8.0, 11.0)
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import gymnasium
from gymnasium.envs.box2d import lunar_lander
from gymnasium.envs.box2d.lunar_lander import LunarLander
from gymnasium.utils import EzPickle

from shoal.envs.worlds.gymnasium import complete_world, register_ours, requested_world

ENGINES = {
    "main_engine_power": "MAIN_ENGINE_POWER",
    "side_engine_power": "SIDE_ENGINE_POWER",
    "side_engine_height": "SIDE_ENGINE_HEIGHT",
    "side_engine_away": "SIDE_ENGINE_AWAY",
}
"""Gymnasium's names of the engines' parameters."""

WORLD = {name: float(getattr(lunar_lander, theirs)) for name, theirs in ENGINES.items()} | {
    "gravity": -10.0,
    "wind_power": 0.0,
    "turbulence_power": 0.0,
}
"""Gymnasium's LunarLander, without wind."""

SPREAD = {
    "main_engine_power": (1.0, 10.0, 16.0),
    "side_engine_power": (0.05, 0.3, 0.9),
    "side_engine_height": (1.0, 8.0, 20.0),
    "side_engine_away": (1.0, 6.0, 18.0),
}
"""How drawn worlds differ: in the parameters of github.com/WaimenMak/FRL, each by about a twelfth. The main
engine must be at least 7.5 to hold the lander up."""


def step_with(engines: dict[str, float]) -> Callable[..., Any]:
    """Gymnasium's `LunarLander.step` with these constants in place of its module's.

    It reads them as globals, so it gets globals of its own: worlds in one process stay independent.
    """
    constants = {ENGINES[name]: value for name, value in engines.items()}
    return FunctionType(LunarLander.step.__code__, vars(lunar_lander) | constants)


class LunarLanderWorlds(LunarLander):
    """LunarLander in its world; keyword arguments change the default world."""

    world_spread = SPREAD

    def __init__(self, render_mode: str | None = None, continuous: bool = True, **world: float):
        super().__init__(render_mode, continuous)
        EzPickle.__init__(self, render_mode, continuous, **world)
        self.world_params = complete_world(world, WORLD)
        self.set_world(self.world_params)

    def set_world(self, world: dict[str, float]) -> None:
        """Use this world from the next episode on."""
        if not -12 < world["gravity"] < 0:
            raise ValueError(f"gravity must be between -12 and 0, not {world['gravity']}")
        self.current = world
        self.gravity = world["gravity"]
        self.wind_power, self.turbulence_power = world["wind_power"], world["turbulence_power"]
        self.enable_wind = bool(self.wind_power or self.turbulence_power)
        self._step = step_with({name: world[name] for name in ENGINES})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new episode, in the world among `options`, else in the same world as before."""
        world = requested_world(options, self.world_params)
        if world is not None:
            self.set_world(world)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any):
        """One step with the engines of this world."""
        return self._step(self, action)


register_ours(gymnasium)
