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
ONE_MORE = np.array([[0, 1]], np.int32)
"""Added to a token at every step."""

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
    calls = HostCalls(adapter, make, seeds)

    def reset(keys: Array, params: Tree) -> tuple[HostState, TimeStep]:
        del keys  # every environment has its seed already
        index = local_device_index(len(calls.devices))
        return _state_and_time_step(io_callback(calls.reset, calls.shapes, index, params))

    def restart(keys: Array, state: HostState) -> tuple[HostState, TimeStep]:
        del keys
        return _state_and_time_step(io_callback(calls.restart, calls.shapes, state.token))

    def step(state: HostState, action: Tree, noise: Tree) -> tuple[HostState, TimeStep]:
        del noise
        return _state_and_time_step(io_callback(calls.step, calls.shapes, state.token, action))

    return Env(
        adapter.spec,
        reset,
        draw=lambda keys, state, num_steps: (),
        step=step,
        render=calls.render,
        restart=None if adapter.scored else restart,
        renew=calls.renew,
        containment=calls.containment,
    )


class HostCalls:
    """What compiled code calls: the environments of every device, their answers in our arrays."""

    def __init__(self, adapter: HostAdapter, make: Callable[[np.ndarray], HostEnvs], seeds: np.ndarray):
        self.adapter, self.make, self.name = adapter, make, adapter.spec.name
        self.devices, self.num_envs = list(map(make, seeds)), seeds.shape[1]
        self.containment = Containment(self.name, self.devices)
        self.crash: EnvironmentCrashed | None = None  # of any device: after one crash the others stop too
        self.num_flags = 4 if adapter.scored else 3  # every array that crosses a callback costs time
        axes, false = (self.num_envs, *adapter.spec.agent_axis), np.zeros(self.num_envs, bool)
        no_reward = np.zeros(axes, np.float32)
        self.first_step = (no_reward, *[false] * 4)
        self.after_crash = (_zeros(adapter.spec.observation, axes), no_reward, *[false] * self.num_flags)
        shaped = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
        self.shapes = jax.tree.map(shaped, (np.zeros((1, 2), np.int32), *self.after_crash))

    def reset(self, index: Array, params: Tree) -> tuple[Tree, ...]:
        """The first token of a device and its first time step."""
        device = int(index)
        call = lambda: (self.devices[device].reset(worlds_by_env(params)), *self.first_step)
        return np.array([[device, 0]], np.int32), *self._guarded(device, call)

    def restart(self, token: Array) -> tuple[Tree, ...]:
        """The next token and the first time step of new episodes."""
        number = np.asarray(token)
        device = int(number[0, 0])
        call = lambda: (self.devices[device].restart(), *self.first_step)
        return number + ONE_MORE, *self._guarded(device, call)

    def step(self, token: Array, action: Tree) -> tuple[Tree, ...]:
        """The next token and time step."""
        number = np.asarray(token)
        device = int(number[0, 0])
        call = lambda: self.devices[device].step(self.adapter.act(np.asarray(action)))
        answer = number + ONE_MORE, *self._guarded(device, call)
        _time_steps[0] += device == 0
        return answer

    def render(self, state: HostState, row: int) -> np.ndarray:
        """A picture of one of all the environments."""
        jax.block_until_ready(state)
        picture = None
        with one_line_errors(self.name), suppress(NotImplementedError):
            picture = self.devices[row // self.num_envs].render(row % self.num_envs)
        if picture is None:
            raise ShoalError(f"{self.name} has no pictures; it must support the render_mode rgb_array")
        return np.asarray(picture, np.uint8)

    def renew(self, seeds: np.ndarray) -> None:
        """Other environments in their places."""
        self.devices[:] = map(self.make, seeds)
        self.crash = None
        self.containment.renewed()

    def _guarded(self, device: int, call: Callable[[], Step]) -> tuple[Tree, ...]:
        """Our arrays of one call, or zeros after a crash."""
        try:
            if self.crash is None:
                obs, reward, *flags = call()
                flags = [np.asarray(flag, bool) for flag in flags[: self.num_flags]]
                obs = spoiled(self.adapter.observe(obs), self.containment.collect(device))
                return obs, np.asarray(reward, np.float32), *flags
        except BaseException as error:  # even SystemExit: nothing may leave a callback
            self.crash = self.crash or EnvironmentCrashed(self.name, error)
        if not _crashes and self.crash is not None:
            _crashes.append(self.crash)
        return self.after_crash


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
