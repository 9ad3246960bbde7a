"""Wrappers for what Gymnasium environments report in `info`: action masks, and the lives of a game.

info["action_mask"]    which actions are allowed, with each observation (Taxi)
env.action_masks()     the same (the convention of sb3-contrib)
info["lives"]          the lives a player has left (Arcade Learning Environment)
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np

from shoal.ops.masks import ACTION_MASK

Wrap = Callable[[gymnasium.Env], gymnasium.Env]
"""Wraps an environment."""


class Masked(gymnasium.Wrapper):
    """An environment with its mask among its observations, beside `obs` or its other parts."""

    def __init__(self, env: gymnasium.Env, num: int, has_method: bool):
        super().__init__(env)
        self.num, self.read = num, env.get_wrapper_attr("action_masks") if has_method else None
        space = env.observation_space
        self.has_names = isinstance(space, gs.Dict)
        parts = space.spaces if isinstance(space, gs.Dict) else {"obs": space}
        self.observation_space = gs.Dict({**parts, ACTION_MASK: gs.MultiBinary(num)})

    def add_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        """The observation with its mask; zeros, which forbid nothing, where none is reported."""
        mask = self.read() if self.read else info.get(ACTION_MASK, np.zeros(self.num))
        parts = obs if self.has_names else {"obs": obs}
        return {**parts, ACTION_MASK: np.asarray(mask, np.int8).reshape(self.num)}

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return self.add_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self.add_mask(obs, info), reward, terminated, truncated, info


class OneLife(gymnasium.Wrapper):
    """A game in which a lost life ends the episode; the next episode continues the game.

    `info["episode_over"]` says when the game itself is over. An episode starts with FIRE where the game has
    that action, because some games do not start without it.
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


def find_mask_wrap(env: gymnasium.Env) -> Wrap | None:
    """The wrapper that adds an environment's mask to its observations; None where it has no mask.

    Only `reset` shows whether `info` has a mask, so an environment with discrete actions is reset once here.
    An exception is ignored: the same one is raised, and reported, when training resets the environment.
    """
    if not isinstance(env.action_space, gs.Discrete | gs.MultiDiscrete | gs.MultiBinary):
        return None
    if isinstance(env.observation_space, gs.Dict) and ACTION_MASK in env.observation_space.spaces:
        return None
    try:
        _, info = env.reset(seed=0)
    except Exception:
        return None
    has_method = env.has_wrapper_attr("action_masks")
    if not has_method and ACTION_MASK not in info:
        return None
    num = np.size(env.get_wrapper_attr("action_masks")() if has_method else info[ACTION_MASK])
    return lambda env: Masked(env, num, has_method)
