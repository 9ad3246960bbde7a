"""Environments in Python, stepped by callbacks from compiled code.

A token in the state orders the callbacks: every step returns it with its count one higher. It also carries
the device's index, because every argument of a callback costs about 20 microseconds.

An exception must not leave a callback: the other devices would wait for this one until XLA aborts the
process. So the exception is kept in a list, the device's environments stop, and the caller of the program
calls `take_crash()` each time the program returns.

Where failures are contained (`Env.containment`) a row that fails costs its learner instead, and there is no
exception: see `faults`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import io_callback

from shoal.distributed.mesh import local_device_index
from shoal.envs.adapters.faults import Containment, Faults, Plan, spoiled
from shoal.envs.adapters.faults import EnvironmentCrashed as EnvironmentCrashed
from shoal.envs.worlds.gymnasium import worlds_by_env
from shoal.errors import ShoalError
from shoal.imports import missing_module, needs
from shoal.types import Augmentation, Box, Env, EnvSpec, ObservationSpace, TimeStep, Tree

Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Raw observations, rewards, terminated, truncated, valid, whether what is scored is over: N each."""


_crashes: list[EnvironmentCrashed] = []
"""Exceptions of callbacks, oldest first: the only way they reach the caller of the program."""


_time_steps = [0]
"""How many time steps the first device's environments of this process have taken."""


def time_steps() -> int:
    """How many time steps environments in Python have taken in this process, each of all rows at once.

    It is right also while a compiled program runs. Devices go on side by side, so the first one is counted.
    """
    return _time_steps[0]


def take_crash() -> EnvironmentCrashed | None:
    """The first exception an environment raised since the last call, or None; forgets them all.

    Call it after every run of a program that steps such an environment: a run with a
    crash returns invalid arrays.
    """
    first = _crashes[0] if _crashes else None
    _crashes.clear()
    return first


def raise_crash() -> None:
    """Raise what `take_crash` finds, if anything."""
    if crash := take_crash():
        raise crash


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Turn exceptions into a `ShoalError` of one line; one of the environment is an `EnvironmentCrashed`."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        if module := missing_module(error):
            raise needs(name, module) from error
        if isinstance(error, ImportError) or _is_gymnasium_error(error):
            raise ShoalError(f"{name}: {' '.join(str(error).split())}") from error
        raise EnvironmentCrashed(name, error) from error


def _is_gymnasium_error(error: Exception) -> bool:
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(error, gymnasium.error.Error)


class HostState(NamedTuple):
    """The state of one device; across devices the token's first axis is the devices'."""

    token: Array  # (1, 2) int32: the device's index, the number of steps so far


class HostAdapter(NamedTuple):
    """Converts between the environment's arrays and ours."""

    spec: EnvSpec
    observe: Callable[[Any], Tree]
    act: Callable[[np.ndarray], np.ndarray]
    scored: bool
    """Whether the environment reports the end of an episode in `info["episode_over"]`."""


class HostEnvs(Protocol):
    """The N environments of one device. The step after an episode's end is its reset."""

    def reset(self, worlds: list[dict[str, float]]) -> Any:
        """Start from the environments' seeds, in these worlds; [] keeps the worlds."""
        ...

    def restart(self) -> Any:
        """Start new episodes; random numbers continue."""
        ...

    def step(self, actions: Any) -> Step: ...

    def render(self, index: int) -> np.ndarray | None: ...

    faults: Faults

    def contain(self, plan: Plan) -> None:
        """Say what becomes of those that fail."""
        ...

    def drop(self, rows: list[int]) -> None:
        """Step these no more."""
        ...

    def revive(self, rows: list[int]) -> None:
        """Make these anew at the next step."""
        ...

    def begin_anew(self, worlds: list[dict[str, float]]) -> None:
        """Take the place of environments in these worlds whose process has ended."""
        ...


def host_env(adapter: HostAdapter, make: Callable[[np.ndarray], HostEnvs], seeds: np.ndarray) -> Env:
    """The environment that calls those that `make` makes, N of them for each device; seeds (D, N)."""
    devices, num_envs = list(map(make, seeds)), seeds.shape[1]
    name, axes = adapter.spec.name, (num_envs, *adapter.spec.agent_axis)
    zero_obs, no_reward = _zeros(adapter.spec.observation, axes), np.zeros(axes, np.float32)
    crash: list[EnvironmentCrashed] = []  # of any device: after one crash the others stop too
    false = np.zeros(num_envs, bool)
    num_flags = 4 if adapter.scored else 3  # every array that crosses a callback costs time
    containment = Containment(name, devices)

    def guarded(device: int, call: Callable[[], Step]) -> tuple[Tree, ...]:
        """Our arrays of one call, or zeros after a crash."""
        try:
            if not crash:
                obs, reward, *flags = call()
                flags = [np.asarray(flag, bool) for flag in flags[:num_flags]]
                obs = spoiled(adapter.observe(obs), containment.collect(device))
                return obs, np.asarray(reward, np.float32), *flags
        except BaseException as error:  # even SystemExit: nothing may leave a callback
            crash.append(EnvironmentCrashed(name, error))
        if not _crashes:
            _crashes.append(crash[0])
        return zero_obs, no_reward, *[false] * num_flags

    first_step = (no_reward, *[false] * 4)
    one_more = np.array([[0, 1]], np.int32)

    def host_reset(index, params):
        device = int(index)
        call = lambda: (devices[device].reset(worlds_by_env(params)), *first_step)
        return np.array([[index, 0]], np.int32), *guarded(device, call)

    def host_restart(token):
        token = np.asarray(token)
        device = int(token[0, 0])
        return token + one_more, *guarded(device, lambda: (devices[device].restart(), *first_step))

    def host_step(token, action):
        token = np.asarray(token)
        device = int(token[0, 0])
        call = lambda: devices[device].step(adapter.act(np.asarray(action)))
        answer = token + one_more, *guarded(device, call)
        _time_steps[0] += device == 0
        return answer

    shapes = (
        jax.ShapeDtypeStruct((1, 2), jnp.int32),
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), zero_obs),
        jax.ShapeDtypeStruct(axes, jnp.float32),
        *[jax.ShapeDtypeStruct((num_envs,), bool)] * num_flags,
    )

    def reset(keys, params):
        del keys  # every environment has its seed already
        index = local_device_index(len(devices))
        return _state_and_time_step(io_callback(host_reset, shapes, index, params))

    def restart(keys, state):
        del keys
        return _state_and_time_step(io_callback(host_restart, shapes, state.token))

    def step(state, action, noise):
        del noise
        return _state_and_time_step(io_callback(host_step, shapes, state.token, action))

    def render(state, index):
        jax.block_until_ready(state)
        picture = None
        with one_line_errors(name), suppress(NotImplementedError):
            picture = devices[index // num_envs].render(index % num_envs)
        if picture is None:
            raise ShoalError(f"{name} has no pictures; it must support the render_mode rgb_array")
        return np.asarray(picture, np.uint8)

    def renew(seeds):
        devices[:] = map(make, seeds)
        crash.clear()
        containment.renewed()

    return Env(
        adapter.spec,
        reset,
        draw=lambda keys, state, num_steps: (),
        step=step,
        render=render,
        restart=None if adapter.scored else restart,
        renew=renew,
        containment=containment,
    )


def host_augmentation(name: str, copies: int, variants: Callable[[Tree], Tree]) -> Augmentation:
    """Variants of observations, (B, ...) -> (B, K, ...), computed by a callback."""
    return Augmentation(copies, partial(_call_variants, name, copies, variants))


def _call_variants(name: str, copies: int, variants: Callable[[Tree], Tree], obs: Tree) -> Tree:
    def host_variants(obs):
        obs = jax.tree.map(np.asarray, obs)
        try:
            return variants(obs)
        except BaseException as error:  # even SystemExit: nothing may leave a callback
            _crashes.append(EnvironmentCrashed(name, error))
            return jax.tree.map(lambda x: np.repeat(x[:, None], copies, 1), obs)

    shaped = lambda x: jax.ShapeDtypeStruct((x.shape[0], copies, *x.shape[1:]), x.dtype)
    return jax.pure_callback(host_variants, jax.tree.map(shaped, obs), obs, vmap_method="sequential")


def _state_and_time_step(answer: tuple) -> tuple[HostState, TimeStep]:
    token, obs, reward, terminated, truncated, valid, *over = answer
    score = {"episode_over": over[0]} if over else {}
    return HostState(token), TimeStep(obs, reward, terminated, truncated, valid, info=score)


def _zeros(observation: ObservationSpace, axes: tuple[int, ...]) -> Tree:
    if isinstance(observation, Box):
        return np.zeros((*axes, *observation.shape), observation.dtype)
    return {key: _zeros(box, axes) for key, box in observation.items()}
