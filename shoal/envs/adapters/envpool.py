"""EnvPool: environments in C++, with their options, spaces and error messages."""

import ctypes
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.distributed.mesh import num_cores
from shoal.envs.adapters.pool_env import PGX_MASK, PoolAdapter, first_line, pool_env
from shoal.envs.adapters.suite import Suite, UnknownOptions
from shoal.errors import ShoalError
from shoal.types import Box, Discrete, Env, EnvRecipe, EnvSpec

_NO_LIMIT = 2**31 - 1
"""EnvPool's number of steps for no time limit."""

_RESERVED = {
    "num_envs",
    "batch_size",
    "seed",
    "env_seed",
    "max_num_players",
    "gym_reset_return_info",
    "base_path",
    "render_mode",
}
"""Settings of a pool that Shoal decides."""

_OTHER_OBSERVATIONS = {"Blackjack-v1", "tabular/Blackjack-v0"}
"""Ids that EnvPool shares with Gymnasium with other observations: only a prefix picks EnvPool's."""

_CHEAP_STEPS = ("envpool.classic_control", "envpool.toy_text", "envpool.minigrid")
"""Families whose step costs less than waking a second thread.

On 2 cores, steps per second with 1 thread and with 2, by number of environments: CartPole, 4: 126k and 96k,
64: 884k and 706k; HalfCheetah, 4: 20k and 31k, 16: 27k and 37k; BipedalWalker, 8: 16k and 20k; Breakout,
8: 2.5k and 4.7k. On 2 devices of one core each, a second thread gains nothing anywhere.
"""


def envpool_recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    """An environment of EnvPool's; `options` are EnvPool's own (`episodic_life`, `frame_skip`...).

    Images are channels-last here, (H, W, C), whatever the pool's layout.
    """
    adapter = _adapter(name, options)

    def build(seeds: np.ndarray, rendering: bool) -> Env:
        if rendering and adapter.family.startswith("envpool.mujoco"):
            _load_opengl(name)
        pools = [_pool(adapter, options, own_seeds, len(seeds), rendering) for own_seeds in seeds]
        return pool_env(adapter, pools, seeds.shape[1])

    return EnvRecipe(adapter.spec, build)


def import_envpool() -> ModuleType:
    """EnvPool, imported when it is first needed."""
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise ShoalError("EnvPool is not installed: pip install envpool") from error
    except ImportError as error:
        raise ShoalError(f"EnvPool cannot be imported: {first_line(error)}; reinstall it") from error
    return envpool


def option_names(name: str) -> set[str]:
    """The options EnvPool has for an environment; none where it is not EnvPool's."""
    identifier = name.removeprefix("envpool:")
    try:
        known = import_envpool().list_all_envs()
    except ShoalError:
        return set()
    return set(_pool_spec(identifier, {}).config._fields) - _RESERVED if identifier in known else set()


def _adapter(name: str, options: dict[str, Any]) -> PoolAdapter:
    from shoal.envs import spaces

    reserved = sorted(_RESERVED & options.keys())
    if reserved:
        raise ShoalError(f"{name}: Shoal decides the option {reserved[0]!r}; leave it out")
    pool_spec = _pool_spec(name, options)
    players, limit = pool_spec.config.max_num_players, pool_spec.config.max_episode_steps
    if players > 1:
        raise ShoalError(f"{name} has {players} players; choose an environment with one player")
    masked = f"info:{PGX_MASK}" in pool_spec.state_array_spec
    with _quiet_boxes():
        seen = pool_spec.observation_space
        seen = spaces.add_mask(seen, pool_spec.action_space) if masked else seen
        observation, observe, action, act = spaces.adapt(seen, pool_spec.action_space, name)
    agents = None
    if isinstance(observation, dict) and {"agents_view", "action_mask"} <= observation.keys():
        agents, observation, action = _agent_spaces(observation)
        observe, act = _observe_agents, lambda action: action
    dtype, shape = pool_spec._action_spec[-1][:2]
    action_shape = tuple(size for size in shape if size != -1)
    return PoolAdapter(
        spec=EnvSpec(
            name=name,
            backend="envpool",
            observation=observation,
            action=action,
            max_episode_steps=None if limit >= _NO_LIMIT else limit,
            agents=agents,
            exact_resume=False,
        ),
        family=import_envpool().registration.registry.specs[name][0],
        observe=observe,
        act=lambda action: act(action).astype(dtype).reshape(len(action), *action_shape),
        scored={"info:reward", "info:terminated"} <= set(pool_spec.state_array_spec),
        restarts=not pool_spec.config._asdict().get("episodic_life", False),
        masked=masked,
    )


def _agent_spaces(boxes: dict[str, Box]) -> tuple[int, dict[str, Box], Discrete]:
    """The number of agents of Jumanji's warehouse or forest, and the spaces of one agent."""
    agents, num_choices = boxes["action_mask"].shape
    view = Box(boxes["agents_view"].shape[1:])
    return agents, {"obs": view, "action_mask": Box((num_choices,), 0.0, 1.0)}, Discrete(num_choices)


def _observe_agents(raw: dict[str, Array]) -> dict[str, Array]:
    parts = {"obs": raw["agents_view"], "action_mask": raw["action_mask"]}
    return {name: part.astype(jnp.float32) for name, part in parts.items()}


def _pool_spec(name: str, options: dict[str, Any]) -> Any:
    """EnvPool's own specification; its exceptions become errors of one line."""
    try:
        return import_envpool().make_spec(name, **options)
    except ImportError as error:
        if "Qt" in str(error):
            raise ShoalError(f"{name} needs Qt 5: apt-get install libqt5gui5") from error
        raise ShoalError(f"{name}: EnvPool cannot load it: {first_line(error)}; try gym:{name}") from error
    except TypeError as error:
        others = ", ".join(sorted(options.keys() - (known := option_names(name))))
        if not others:
            raise ShoalError(f"{name}: {_mistyped(name, options)}") from error
        takes = ", ".join(sorted(known))
        raise UnknownOptions(f"envpool:{name} does not take {others}; it takes {takes}") from error
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ShoalError(f"{name}: EnvPool refuses the options {options}: {first_line(error)}") from error


def _mistyped(name: str, options: dict[str, Any]) -> str:
    """The option whose value has the wrong type; an integer is accepted for a float."""
    defaults = import_envpool().make_spec(name).config._asdict()
    for key, value in options.items():
        kind = type(defaults[key])
        if not isinstance(value, (int, float) if kind is float else kind):
            return f"the option {key} is of type {kind.__name__}, not {value!r}"
    return f"an option has a value of the wrong type, in {options}"


def _pool(
    adapter: PoolAdapter, options: dict[str, Any], seeds: np.ndarray, num_devices: int, rendering: bool
) -> Any:
    settings = {"num_threads": _num_threads(len(seeds), num_devices, adapter.family)} | options
    if rendering:
        settings["render_mode"] = "rgb_array"
    pool = import_envpool().make_gymnasium(
        adapter.spec.name,
        num_envs=len(seeds),
        env_seed=[int(seed) & 0x7FFFFFFF for seed in seeds],  # EnvPool's seeds are signed
        **settings,
    )
    with _quiet_boxes():
        _ = pool.observation_space  # computed once and cached; every step reads it
    return pool


@contextmanager
def _quiet_boxes() -> Iterator[None]:
    """EnvPool gives float32 boxes float64 bounds, of which `gymnasium.spaces.Box` warns each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting", category=UserWarning)
        yield


def _num_threads(num_envs: int, num_devices: int, family: str) -> int:
    """A thread for each core of this device; one where a step costs less than waking a thread."""
    if family.startswith(_CHEAP_STEPS):
        return 1
    return max(1, min(num_envs, num_cores() // num_devices))


def _load_opengl(name: str) -> None:
    """Load OpenGL for MuJoCo, which looks only among the process's global symbols and exits without it.

    It must be the library that EnvPool's wheels contain.
    """
    bundled = Path(str(import_envpool().__file__)).parent.with_name("envpool.libs").glob("libEGL-*")
    try:
        ctypes.CDLL(str(next(bundled, "libEGL.so.1")), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ShoalError(f"{name}: rendering MuJoCo needs EGL: apt-get install libegl1") from error


def _names() -> Collection[str]:
    """Empty outside Linux: only EnvPool's Linux wheels can be called from compiled code."""
    return import_envpool().list_all_envs() if sys.platform == "linux" else []


SUITE = Suite(
    envpool_recipe,
    _names,
    needs_prefix=lambda name: ":" in name or name in _OTHER_OBSERVATIONS,  # modules register elsewhere
    library="envpool",
)
