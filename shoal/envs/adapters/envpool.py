"""EnvPool: environments in C++, stepped inside compiled code.

A pool's address is compiled into its functions. So every device has a pool of its own, chosen by a
`lax.switch` on the device's index. The state carries the pool's handle, which orders the steps, and which
episodes have just ended: their next step is a reset.
"""

import ctypes
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import io_callback

from shoal.distributed.mesh import local_device_index, num_cores
from shoal.envs.adapters.suite import Suite, UnknownOptions
from shoal.errors import ShoalError
from shoal.ops.masks import ACTION_MASK
from shoal.types import Box, Discrete, Env, EnvRecipe, EnvSpec, TimeStep, Tree

_NO_LIMIT = 2**31 - 1
"""EnvPool's number of steps for no time limit."""

_PGX_MASK = "legal_action_mask"
"""The mask in the `info` of EnvPool's Pgx environments."""

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


class PoolState(NamedTuple):
    """The state of one device; across devices the handle's first axis is the devices'."""

    handle: Array  # (1, K) uint8
    over: Array  # (N,) bool: the last step ended an episode, so the next one is a reset


class PoolAdapter(NamedTuple):
    """Converts between a pool's arrays and ours."""

    spec: EnvSpec
    family: str
    observe: Callable[[Tree], Tree]
    act: Callable[[Array], Array]
    scored: bool
    """Whether `info` has the unclipped reward and the true end of the game (Atari)."""
    restarts: bool
    """Whether a reset starts a new episode at any time; under `episodic_life` the game continues."""
    masked: bool
    """Whether `info` has a mask of the allowed actions (Pgx)."""


def envpool_recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    """An environment of EnvPool's; `options` are EnvPool's own (`episodic_life`, `frame_skip`...).

    Images are channels-last here, (H, W, C), whatever the pool's layout.
    """
    adapter = _adapter(name, options)

    def build(seeds: np.ndarray, rendering: bool) -> Env:
        if rendering and adapter.family.startswith("envpool.mujoco"):
            _load_opengl(name)
        pools = [_pool(adapter, options, own_seeds, len(seeds), rendering) for own_seeds in seeds]
        return _env(adapter, pools, seeds.shape[1])

    return EnvRecipe(adapter.spec, build)


def import_envpool() -> ModuleType:
    """EnvPool, imported when it is first needed."""
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise ShoalError("EnvPool is not installed: pip install envpool") from error
    except ImportError as error:
        raise ShoalError(f"EnvPool cannot be imported: {error}") from error
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
        raise ShoalError(f"{name} has {players} players; of EnvPool only environments with one player work")
    masked = f"info:{_PGX_MASK}" in pool_spec.state_array_spec
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
        raise ShoalError(f"{name}: EnvPool cannot load it: {_first_line(error)}") from error
    except TypeError as error:
        others = ", ".join(sorted(options.keys() - (known := option_names(name))))
        if not others:
            raise ShoalError(f"{name}: {_mistyped(name, options)}") from error
        takes = ", ".join(sorted(known))
        raise UnknownOptions(f"envpool:{name} does not take {others}; it takes {takes}") from error
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ShoalError(f"{name}: EnvPool refused it: {_first_line(error)}") from error


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


def _env(adapter: PoolAdapter, pools: list[Any], num_envs: int) -> Env:
    with jax.enable_x64(True):  # MuJoCo's pools use float64; nothing else does
        functions = [pool.xla() for pool in pools]
    handles = [np.asarray(handle) for handle, *_ in functions]
    receive = _on_this_device([_receive(adapter, recv) for _, recv, _, _ in functions])
    advance = _on_this_device([_advance(adapter, step) for _, _, _, step in functions])

    def host_reset(index, *handle):
        pools[int(index)].async_reset()
        return handles[int(index)]

    def start(*handle):
        """New episodes; the handle orders them after earlier steps."""
        shape = jax.ShapeDtypeStruct(handles[0].shape, np.uint8)
        fresh = io_callback(host_reset, shape, local_device_index(len(pools)), *handle)
        fresh, time_step = receive(fresh, jnp.ones(num_envs, bool))
        return PoolState(fresh[None], jnp.zeros(num_envs, bool)), time_step

    reset = lambda keys, params: start()  # the pool has the seeds
    restart = lambda keys, state: start(state.handle)

    def step(state, action, noise):
        del noise
        handle, time_step = advance(state.handle[0], state.over, action)
        return PoolState(handle[None], time_step.terminated | time_step.truncated), time_step

    def render(state, index):
        jax.block_until_ready(state)
        return _render(pools[index // num_envs], index % num_envs, adapter.spec.name)

    no_noise = lambda keys, state, num_steps: ()
    return Env(adapter.spec, reset, no_noise, step, render, restart if adapter.restarts else None)


def _on_this_device(branches: list[Callable]) -> Callable:
    if len(branches) == 1:
        return branches[0]
    return lambda *args: lax.switch(local_device_index(len(branches)), branches, *args)


def _receive(adapter: PoolAdapter, recv: Callable) -> Callable:
    def receive(handle, over):
        with jax.enable_x64(True):
            handle, raw = recv(handle)
            return handle, _time_step(adapter, raw, over)

    return receive


def _advance(adapter: PoolAdapter, step: Callable) -> Callable:
    def advance(handle, over, action):
        with jax.enable_x64(True):
            handle, raw = step(handle, adapter.act(action))
            return handle, _time_step(adapter, raw, over)

    return advance


def _time_step(adapter: PoolAdapter, raw: tuple, over: Array) -> TimeStep:
    """The pool's output as a time step; where `over`, it is the first of a new episode."""
    obs, reward, terminated, truncated, info = raw
    obs = {"obs": obs, ACTION_MASK: info[_PGX_MASK]} if adapter.masked else obs
    valid = ~over
    ended = terminated | truncated
    no_reward = jnp.zeros(reward.shape, jnp.float32)
    score = {}
    if adapter.scored:
        # Under `episodic_life` a lost life ends the learner's episode, but not the game that is scored; and
        # where the game ends on its last permitted frame, the pool reports only a truncation.
        game_over = info["terminated"] > 0
        terminated = ended & (terminated | game_over)
        score = {
            "raw_reward": jnp.where(valid, info["reward"].astype(jnp.float32), no_reward),
            "episode_over": ended & (truncated | game_over) & valid,
        }
    reward = jnp.where(valid, reward.astype(jnp.float32), no_reward)
    if agents := adapter.spec.agents:
        reward = jnp.repeat(reward[:, None] / agents, agents, axis=1)  # equal shares of the team's
    return TimeStep(
        obs=adapter.observe(obs),
        reward=reward,
        terminated=terminated & valid,
        truncated=truncated & valid,
        valid=valid,
        info=score,
    )


def _load_opengl(name: str) -> None:
    """Load OpenGL for MuJoCo, which looks only among the process's global symbols and exits without it.

    It must be the library that EnvPool's wheels contain.
    """
    bundled = Path(str(import_envpool().__file__)).parent.with_name("envpool.libs").glob("libEGL-*")
    try:
        ctypes.CDLL(str(next(bundled, "libEGL.so.1")), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ShoalError(f"{name}: rendering MuJoCo needs EGL: apt-get install libegl1") from error


def _render(pool: Any, index: int, name: str) -> np.ndarray:
    try:
        frames = pool.render(env_ids=index)
    except RuntimeError as error:
        remedy = "apt-get install libegl1" if "EGL" in str(error) else f"try gym:{name}"
        raise ShoalError(f"{name}: EnvPool cannot render it: {_first_line(error)}; {remedy}") from error
    return np.asarray(frames[0], np.uint8)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _names() -> Collection[str]:
    """Empty outside Linux: only EnvPool's Linux wheels can be called from compiled code."""
    return import_envpool().list_all_envs() if sys.platform == "linux" else []


SUITE = Suite(
    envpool_recipe,
    _names,
    needs_prefix=lambda name: ":" in name or name in _OTHER_OBSERVATIONS,  # modules register elsewhere
    library="envpool",
)
