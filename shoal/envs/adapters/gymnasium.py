"""Gymnasium's environments, stepped in Python; also those that other packages register there."""

import fnmatch
import importlib
import importlib.util
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from shoal.envs.adapters.host import HostAdapter, host_augmentation, one_line_errors
from shoal.envs.adapters.suite import Suite, option_errors
from shoal.envs.adapters.workers import WORKERS, without_workers, worker_env
from shoal.envs.worlds.gymnasium import declared_worlds, register_ours
from shoal.errors import ShoalError
from shoal.imports import needs
from shoal.types import Env, EnvRecipe, EnvSpec

if TYPE_CHECKING:
    from shoal.envs.adapters.gym_batches import GymEnvs
    from shoal.envs.adapters.gym_wrappers import Wrap

_PLUGINS = {
    "ALE/*": "ale_py",
    "MiniGrid-*": "minigrid",
    "BabyAI-*": "minigrid",
    "*BulletEnv-v*": "pybullet_envs_gymnasium",
}
"""Ids that another module registers when it is imported."""

LIVES = "episodic_life"
"""Our option of Atari games."""


def gym_recipe(
    name: str, options: dict[str, Any], episodic_life: bool = False, registered: Any = None
) -> EnvRecipe:
    """An environment of Gymnasium's registry, or of the entry `registered`; `options` go to `gymnasium.make`.

    The option `workers` steps the environments in so many processes. `episodic_life` ends a learner's episode
    where a life is lost; the score is still the whole game's. Where both spaces are tuples with a space for
    each agent, the environment has an axis of agents.
    """
    options, num_workers = without_workers(name, options)
    make = partial(_make, name, options, registered)
    envs, wraps = _wrapped(make, name, episodic_life)
    if num_workers > 1 and envs.inner is None:
        raise ShoalError(f"{name} is a vector environment, which has workers of its own: leave {WORKERS} out")
    adapter = _adapter(name, envs, episodic_life)
    envs.close()

    def build(seeds: np.ndarray, rendering: bool) -> Env:
        if rendering and "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")
        entry = registered or import_gymnasium().spec(name)  # a worker does not know what was registered here
        create = partial(_make, name, options, entry, rendering=rendering, wraps=wraps)
        return worker_env(adapter, create, seeds, num_workers)

    return EnvRecipe(adapter.spec, build, may_raise=True)


def import_gymnasium() -> ModuleType:
    """Gymnasium, imported when it is first needed, with our environments in its registry."""
    try:
        import gymnasium
    except ImportError as error:
        raise ShoalError("Gymnasium is not installed: pip install gymnasium") from error
    register_ours(gymnasium)
    return gymnasium


def _adapter(name: str, envs: "GymEnvs", episodic_life: bool) -> HostAdapter:
    from shoal.envs import spaces
    from shoal.envs.adapters.agents import adapt_agents
    from shoal.envs.adapters.gym_variants import find_variants

    if envs.agents is None:
        observation, observe, action, act = spaces.adapt(envs.observation_space, envs.action_space, name)
    else:
        adapter = adapt_agents(envs.observation_space.spaces, envs.action_space.spaces, name)
        observation, action, observe, act, _ = adapter
        if adapter.unequal:
            raise ShoalError(f"{name}: its agents have {envs.action_space}; they need equally many choices")
    params, spread = declared_worlds(envs.inner, name)
    with one_line_errors(name):
        first = lambda: jax.tree.map(lambda x: x[0], envs.reset([]))
        variants = find_variants(envs.inner, envs.observation_space, observation, first, name)
    spec = EnvSpec(
        name=name,
        backend="gym",
        observation=observation,
        action=action,
        max_episode_steps=envs.max_episode_steps,
        params=params,
        spread=spread,
        agents=envs.agents,
        parallel=False,
        exact_resume=False,
        augment=host_augmentation(name, *variants) if variants else None,
    )
    return HostAdapter(spec, observe, act, episodic_life)


def _wrapped(make: Callable, name: str, episodic_life: bool) -> "tuple[GymEnvs, list[Wrap]]":
    """One environment, and the wrappers that go around each."""
    from shoal.envs.adapters.gym_batches import SingleEnvs, VectorEnvs
    from shoal.envs.adapters.gym_wrappers import OneLife, find_mask_wrap

    seeds = np.zeros(1, np.uint32)
    wraps: list[Wrap] = [OneLife] if episodic_life else []
    envs = make(seeds, False, wraps)
    if isinstance(envs, VectorEnvs):
        return envs, []
    with one_line_errors(name):
        mask = find_mask_wrap(envs.envs[0])
    return (SingleEnvs(lambda: mask(envs.envs[0]), seeds), [*wraps, mask]) if mask else (envs, wraps)


def _make(
    name: str,
    options: dict[str, Any],
    registered: Any,
    seeds: np.ndarray,
    rendering: bool,
    wraps: "Sequence[Wrap]",
) -> "GymEnvs":
    from shoal.envs.adapters.gym_batches import make_envs

    registry = import_gymnasium()
    options = options | ({"render_mode": "rgb_array"} if rendering else {})
    with one_line_errors(name), option_errors(f"gym:{name}", options):
        return make_envs(registered or registry.spec(name), options, seeds, wraps)


def make_single(name: str, options: dict[str, Any]) -> Any:
    """One environment as Gymnasium makes it; None where there is only a vector environment."""
    from shoal.envs.adapters.gym_batches import SingleEnvs

    options, _ = without_workers(name, options)
    envs = _make(*_in_registry(name, options), None, np.zeros(1, np.uint32), False, [])
    return envs.envs[0] if isinstance(envs, SingleEnvs) else None


def _recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    recipe = gym_recipe(*_in_registry(name, options), name.startswith("ALE/") and options.get(LIVES, False))
    return recipe._replace(spec=replace(recipe.spec, name=name))


def _in_registry(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and options that Gymnasium knows."""
    if not name.startswith("ALE/"):
        return name, options
    game, ram = _without_ram(name)
    return game, {key: value for key, value in (ram | options).items() if key != LIVES}


def _without_ram(name: str) -> tuple[str, dict[str, Any]]:
    """ale-py 0.11 turned the ids with "-ram" into an option of the others."""
    if not name.startswith("ALE/"):
        return name, {}
    return name.replace("-ram-", "-"), {"obs_type": "ram"} if "-ram-" in name else {}


def _names() -> Collection[str]:
    for module in _PLUGINS.values():
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
    old_apis = "GymV"
    return [name for name in import_gymnasium().registry if not name.startswith(old_apis)]


def _knows(name: str) -> bool:
    registered, _ = _without_ram(name)
    if registered in import_gymnasium().registry:
        return True
    for pattern, module in _PLUGINS.items():
        if fnmatch.fnmatchcase(name, pattern) and importlib.util.find_spec(module) is None:
            raise needs(name, module)
    return registered in _names()


SUITE = Suite(_recipe, _names, _knows, needs_prefix=lambda name: False, library="gymnasium")
