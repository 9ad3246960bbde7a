"""What Gymnasium environments tell beside their observations: action masks, and the lives of a game.

info["action_mask"]    what is allowed, with each observation (as Taxi says it)
env.action_masks()     the same (as sb3-contrib asks for it)
info["lives"]          how many a player has left (as the Arcade Learning Environment says it)
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np

from shoal.ops.masks import ACTION_MASK

Wrap = Callable[[gymnasium.Env], gymnasium.Env]
"""From one environment to another around it."""


class Masked(gymnasium.Wrapper):
    """An environment whose mask is a part of its observations, beside `obs` or the parts it had."""

    def __init__(self, env: gymnasium.Env, num: int, asked: bool):
        super().__init__(env)
        self.num, self.ask = num, env.get_wrapper_attr("action_masks") if asked else None
        space = env.observation_space
        self.has_names = isinstance(space, gs.Dict)
        parts = space.spaces if isinstance(space, gs.Dict) else {"obs": space}
        self.observation_space = gs.Dict({**parts, ACTION_MASK: gs.MultiBinary(num)})

    def with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        """The observation and what it allows; nothing said is nothing forbidden."""
        mask = self.ask() if self.ask else info.get(ACTION_MASK, np.zeros(self.num))
        parts = obs if self.has_names else {"obs": obs}
        return {**parts, ACTION_MASK: np.asarray(mask, np.int8).reshape(self.num)}

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return self.with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self.with_mask(obs, info), reward, terminated, truncated, info


class OneLife(gymnasium.Wrapper):
    """A game in which a lost life ends the episode, and the next one goes on where it was lost.

    `info["episode_over"]` says when the game itself is over. An episode begins with FIRE where the game has
    such an action, because without it some wait for ever.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        meanings = env.get_wrapper_attr("get_action_meanings")()
        self.first = meanings.index("FIRE") if "FIRE" in meanings else 0
        self.lives, self.game_over = 0, True

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict[str, Any]]:
        if self.game_over or seed is not None:
            self.env.reset(seed=seed, options=options)
        obs, _, terminated, truncated, info = self.env.step(self.first)
        if terminated or truncated:
            obs, info = self.env.reset(options=options)
        self.lives, self.game_over = info["lives"], False
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.game_over = terminated or truncated
        lost, self.lives = info["lives"] < self.lives, info["lives"]
        return obs, reward, terminated or lost, truncated, info | {"episode_over": self.game_over}


def mask_wrap(env: gymnasium.Env) -> Wrap | None:
    """How to make an environment's mask a part of its observations; None if it has no mask, or has it there.

    Only `reset` shows whether a mask comes with `info`, so an environment of choices is begun once for it.
    What it raises then, it raises again when it is played, and there it is told.
    """
    if not isinstance(env.action_space, gs.Discrete | gs.MultiDiscrete | gs.MultiBinary):
        return None
    if isinstance(env.observation_space, gs.Dict) and ACTION_MASK in env.observation_space.spaces:
        return None
    try:
        _, info = env.reset(seed=0)
    except Exception:
        return None
    asked = env.has_wrapper_attr("action_masks")
    if not asked and ACTION_MASK not in info:
        return None
    num = np.size(env.get_wrapper_attr("action_masks")() if asked else info[ACTION_MASK])
    return lambda env: Masked(env, num, asked)
