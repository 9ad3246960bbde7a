"""Any Gymnasium environment, stepped in Python by a callback from compiled code.

A token in the state, which every step returns with its count one higher, puts the callbacks in order; it
carries the device's index too, because every argument of a callback costs about 20 microseconds.

An environment that raises must not take the compiled program with it: the other devices would wait for this
one until XLA aborts the process. So its exception goes into a mailbox, its rows stand still from then on, and
whoever runs the program asks `take_crash()` each time it returns.
"""

import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import io_callback

from shoal.envs.adapters.envpool import UnknownOptions, device_index
from shoal.envs.spaces import axis_of
from shoal.envs.worlds.gymnasium import by_row, declared, register_ours
from shoal.errors import ShoalError
from shoal.types import Augmentation, Box, Env, EnvRecipe, EnvSpec, ObservationSpace, TimeStep, Tree

if TYPE_CHECKING:
    from shoal.envs.adapters.gym_wrappers import Wrap

Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Raw observations, rewards, terminated, truncated, valid, whether what is scored is over: N each."""


_FRAMES = {os.path.join(os.path.dirname(__file__), name) for name in ("host.py", "pettingzoo.py")}
"""Files whose lines in a traceback are ours and not the environment's."""


class EnvironmentCrashed(ShoalError):
    """An environment raised; the message is one line, `traceback_text` the environment's own traceback."""

    def __init__(self, name: str, error: BaseException):
        reason = str(error).strip().splitlines()
        super().__init__(f"{name} raised {type(error).__name__}" + (f": {reason[0]}" if reason else ""))
        below = error.__traceback__
        while below is not None and below.tb_frame.f_code.co_filename in _FRAMES:
            below = below.tb_next
        self.traceback_text = "".join(traceback.format_exception(type(error), error, below))


_mailbox: list[EnvironmentCrashed] = []
"""Exceptions from callbacks, oldest first. A callback has no other way to reach its program's caller."""


def take_crash() -> EnvironmentCrashed | None:
    """The first exception an environment raised since the last call, or None; empties the mailbox.

    To be asked after every run of a program that steps such an environment: what came back from a run
    with a crash in it is worthless.
    """
    first = _mailbox[0] if _mailbox else None
    _mailbox.clear()
    return first


def raise_crash() -> None:
    """Raise what `take_crash` finds, if anything."""
    if crash := take_crash():
        raise crash


class HostState(NamedTuple):
    """What one device carries from step to step; globally the token's first axis is the devices'."""

    token: Array  # (1, 2) int32: which device this is, how many steps it has taken


class EnvAdapter(NamedTuple):
    """What stands between Gymnasium's arrays and ours."""

    spec: EnvSpec
    observe: Callable[[Any], Tree]
    act: Callable[[np.ndarray], np.ndarray]
    scored: bool
    """Whether the environment says itself when an episode is over (`info["episode_over"]`)."""


def gym_recipe(name: str, options: dict[str, Any], episodic_life: bool = False) -> EnvRecipe:
    """An environment of Gymnasium's registry, `options` going to `gymnasium.make`.

    `episodic_life` ends a learner's episode where a life is lost, not the game that is scored. One whose
    spaces are tuples, a part for each agent, has an axis of agents here.
    """
    rows, wraps = _wrapped(name, options, episodic_life)
    adapter = _adapter(name, rows, episodic_life)
    rows.close()

    def build(seeds: np.ndarray, rendering: bool) -> Env:
        if rendering and "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")
        devices = [_rows(name, options, row, rendering, wraps) for row in seeds]
        return host_env(adapter, devices, seeds.shape[1])

    return EnvRecipe(adapter.spec, build, may_raise=True)


def _adapter(name: str, rows: "Rows", episodic_life: bool) -> EnvAdapter:
    from shoal.envs import spaces
    from shoal.envs.adapters.agents import adapt_agents
    from shoal.envs.worlds.variants import offered

    if rows.agents is None:
        observation, observe, action, act = spaces.adapter(rows.observation_space, rows.action_space, name)
    else:
        adapter = adapt_agents(rows.observation_space.spaces, rows.action_space.spaces, name)
        observation, action, observe, act, _ = adapter
        if adapter.unequal:
            raise ShoalError(f"{name}: its agents have {rows.action_space}; they need equally many choices")
    known = (name, "gym", observation, action, rows.max_episode_steps, *declared(rows.inner, name))
    with one_line_errors(name):
        first = _first(rows.reset([])) if hasattr(rows.inner, "augment_observation") else None
        variants = offered(rows.inner, rows.observation_space, observation, first, name)
    augment = variants and Augmentation(variants.copies, partial(_call_rows, name, *variants))
    spec = EnvSpec(*known, agents=rows.agents, parallel=False, exact_resume=False, augment=augment)
    return EnvAdapter(spec, observe, act, episodic_life)


def import_gymnasium() -> ModuleType:
    """Gymnasium, imported when it is first asked for, with our environments in its registry."""
    try:
        import gymnasium
    except ImportError as error:
        raise ShoalError("Gymnasium is not installed: pip install gymnasium") from error
    register_ours(gymnasium)
    return gymnasium


def _wrapped(name: str, options: dict[str, Any], episodic_life: bool) -> "tuple[Rows, list[Wrap]]":
    """One row, and what is put around every row."""
    from shoal.envs.adapters.gym_wrappers import OneLife, mask_wrap

    seeds = np.zeros(1, np.uint32)
    wraps: list[Wrap] = [OneLife] if episodic_life else []
    rows = _rows(name, options, seeds, False, wraps)
    if isinstance(rows, VectorRows):
        return rows, []
    with one_line_errors(name):
        mask = mask_wrap(rows.envs[0])
    return (SingleRows([mask(rows.envs[0])], seeds), [*wraps, mask]) if mask else (rows, wraps)


def _rows(
    name: str, options: dict[str, Any], seeds: np.ndarray, rendering: bool, wraps: "Sequence[Wrap]"
) -> "Rows":
    gymnasium = import_gymnasium()
    options = options | ({"render_mode": "rgb_array"} if rendering else {})
    with one_line_errors(name):
        try:
            return _make_rows(gymnasium, gymnasium.spec(name), options, seeds, wraps)
        except TypeError as error:
            if not options or "unexpected keyword" not in str(error):
                raise
            raise UnknownOptions(f"gym:{name} does not take these options: {error}") from error


def _make_rows(
    gymnasium: Any, registered: Any, options: dict[str, Any], seeds: np.ndarray, wraps: "Sequence[Wrap]"
) -> "Rows":
    if registered.entry_point is not None:
        make = lambda: gymnasium.make(registered, disable_env_checker=True, **options)
        return SingleRows([reduce(lambda env, wrap: wrap(env), wraps, make()) for _ in seeds], seeds)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*AutoresetMode|.*autoreset_mode")  # refused below
        return VectorRows(gymnasium.make_vec(registered, num_envs=len(seeds), **options), seeds)


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Gymnasium's complaints keep their own words; anything else is the environment's crash."""
    try:
        yield
    except ShoalError:
        raise
    except ModuleNotFoundError as error:
        raise ShoalError(f"{name} needs {error.name}: pip install {error.name}") from error
    except (ImportError, import_gymnasium().error.Error) as error:
        raise ShoalError(f"{name}: {' '.join(str(error).split())}") from error
    except Exception as error:
        raise EnvironmentCrashed(name, error) from error


class SingleRows:
    """N environments in a plain loop, each reset on the step after its end.

    Faster than Gymnasium's `SyncVectorEnv` (4 CartPoles: 87k against 72k steps per second). Where an
    environment has worlds, every reset tells it its own, so it need not keep it to stay in it.
    """

    def __init__(self, envs: list[Any], seeds: np.ndarray):
        from shoal.envs.adapters.agents import num_agents

        self.envs = envs
        self.seeds = [int(seed) for seed in seeds]
        self.worlds: list[dict[str, float]] = [{}] * len(envs)
        self.over = [False] * len(envs)
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.max_episode_steps = envs[0].spec.max_episode_steps
        self.agents = num_agents(self.observation_space, self.action_space)
        self.inner = envs[0].unwrapped

    def reset(self, worlds: list[dict[str, float]]) -> Any:
        """Begin anew, from the rows' seeds: other worlds are then entered from the same starts."""
        self.worlds = worlds or self.worlds
        self.over = [False] * len(self.envs)
        return batch_rows([self._begin(i, seed=seed) for i, seed in enumerate(self.seeds)])

    def restart(self) -> Any:
        """New episodes in the same worlds, from starts that go on from the last ones."""
        self.over = [False] * len(self.envs)
        return batch_rows([self._begin(i) for i in range(len(self.envs))])

    def _begin(self, row: int, **seed: int) -> Any:
        world = {"options": {"world": dict(self.worlds[row])}} if self.worlds[row] else {}
        return self.envs[row].reset(**seed, **world)[0]

    def step(self, actions: np.ndarray) -> Step:
        valid = ~np.array(self.over)
        reward = np.zeros((len(self.envs), *axis_of(self.agents)), np.float32)
        terminated, truncated, over = np.zeros((3, len(self.envs)), bool)
        rows = []
        for i, env in enumerate(self.envs):
            if self.over[i]:
                obs = self._begin(i)
            else:
                obs, reward[i], terminated[i], truncated[i], info = env.step(actions[i])
                if terminated[i] and info.get("non-terminal done", False):
                    terminated[i], truncated[i] = False, True
                over[i] = info.get("episode_over", terminated[i] or truncated[i])
            self.over[i] = bool(terminated[i] or truncated[i])
            rows.append(obs)
        return batch_rows(rows), reward, terminated, truncated, valid, over

    def render(self, row: int) -> np.ndarray | None:
        return self.envs[row].render()

    def close(self) -> None:
        for env in self.envs:
            env.close()


class VectorRows:
    """A vector environment that exists only as such, its automatic reset made that of the step after the end.

    A vector environment steps all its rows together, so a row that must stand still for the reset step is
    stepped all the same and then reset (`reset_mask`), and what it did in between is dropped.
    """

    def __init__(self, vector: Any, seeds: np.ndarray):
        self.vector = vector
        self.seeds = [int(seed) for seed in seeds]
        self.over = np.zeros(len(seeds), bool)
        self.mode = _autoreset_mode(vector)
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.max_episode_steps = vector.spec.max_episode_steps
        self.agents = None
        self.inner = None  # it declares no worlds: a reset's options are for all rows alike

    def reset(self, worlds: list[dict[str, float]]) -> Any:
        """Begin anew, from the rows' seeds."""
        obs, _ = self.vector.reset(seed=self.seeds)
        self.over = np.zeros(len(self.over), bool)
        return obs

    def restart(self) -> Any:
        """New episodes, from starts that go on from the last ones."""
        obs, _ = self.vector.reset()
        self.over = np.zeros(len(self.over), bool)
        return obs

    def step(self, actions: np.ndarray) -> Step:
        over = self.over
        if self.mode == "DISABLED" and over.any():
            self.vector.reset(options={"reset_mask": over.copy()})
        obs, reward, terminated, truncated, info = self.vector.step(actions)
        terminated, truncated = terminated & ~over, truncated & ~over
        ended = terminated | truncated
        if self.mode == "SAME_STEP" and ended.any():
            obs = _replace_rows(obs, ended, info["final_obs"])
            info = info.get("final_info", {})
        if self.mode != "NEXT_STEP" and over.any():
            fresh, _ = self.vector.reset(options={"reset_mask": over.copy()})
            obs = _where(over, fresh, obs)
        cut_short = terminated & np.asarray(info.get("non-terminal done", False), bool)
        terminated, truncated = terminated & ~cut_short, truncated | cut_short
        self.over = ended
        return obs, np.where(over, 0.0, reward), terminated, truncated, ~over, ended

    def render(self, row: int) -> np.ndarray | None:
        frames = self.vector.render()
        return None if frames is None else frames[row]

    def close(self) -> None:
        self.vector.close()


Rows = SingleRows | VectorRows
"""The N environments of one device."""


class AnyRows(Protocol):
    """What `host_env` asks of the N environments of a device."""

    def reset(self, worlds: list[dict[str, float]]) -> Any: ...
    def restart(self) -> Any: ...
    def step(self, actions: Any) -> Step: ...
    def render(self, row: int) -> np.ndarray | None: ...


def _autoreset_mode(vector: Any) -> str:
    modes = import_gymnasium().vector.AutoresetMode
    declared = vector.metadata.get("autoreset_mode")
    try:
        return modes(declared).name
    except ValueError:
        raise ShoalError(
            f"{vector.spec.id}: unknown autoreset_mode {declared!r}; NEXT_STEP, SAME_STEP and DISABLED work"
        ) from None


def host_env(adapter: EnvAdapter, devices: Sequence[AnyRows], num_rows: int) -> Env:
    """The environment whose rows are stepped in Python, those of each device by one of `devices`."""
    name, axes = adapter.spec.name, (num_rows, *axis_of(adapter.spec.agents))
    blank, nothing = _blank(adapter.spec.observation, axes), np.zeros(axes, np.float32)
    crash: list[EnvironmentCrashed] = []  # the devices' own: when one falls, the others need not work on
    still = np.zeros(num_rows, bool)
    num_flags = 4 if adapter.scored else 3  # whatever crosses a callback costs time

    def guarded(call: Callable[[], Step]) -> tuple[Tree, ...]:
        """Our arrays of one call, or blank ones after a crash."""
        try:
            if not crash:
                obs, reward, *flags = call()
                flags = [np.asarray(flag, bool) for flag in flags[:num_flags]]
                return adapter.observe(obs), np.asarray(reward, np.float32), *flags
        except BaseException as error:  # even SystemExit: nothing may leave a callback
            crash.append(EnvironmentCrashed(name, error))
        if not _mailbox:
            _mailbox.append(crash[0])
        return blank, nothing, *[still] * num_flags

    begun = (nothing, *[still] * 4)  # what comes with a first observation
    later = np.array([[0, 1]], np.int32)

    def host_reset(index, params):
        call = lambda: (devices[int(index)].reset(by_row(params)), *begun)
        return np.array([[index, 0]], np.int32), *guarded(call)

    def host_restart(token):
        token = np.asarray(token)
        return token + later, *guarded(lambda: (devices[token[0, 0]].restart(), *begun))

    def host_step(token, action):
        token = np.asarray(token)
        call = lambda: devices[token[0, 0]].step(adapter.act(np.asarray(action)))
        return token + later, *guarded(call)

    flag = jax.ShapeDtypeStruct((num_rows,), bool)
    shapes = (
        jax.ShapeDtypeStruct((1, 2), jnp.int32),
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), blank),
        jax.ShapeDtypeStruct(axes, jnp.float32),
        *[flag] * num_flags,
    )

    def reset(keys, params):
        del keys  # every row has its seed already
        return _state_and_time_step(io_callback(host_reset, shapes, device_index(len(devices)), params))

    def restart(keys, state):
        del keys
        return _state_and_time_step(io_callback(host_restart, shapes, state.token))

    def step(state, action, chance):
        del chance
        return _state_and_time_step(io_callback(host_step, shapes, state.token, action))

    def render(state, row):
        jax.block_until_ready(state)
        with one_line_errors(name):
            picture = devices[row // num_rows].render(row % num_rows)
        if picture is None:
            raise ShoalError(f"{name} draws no pictures (render_mode rgb_array)")
        return np.asarray(picture, np.uint8)

    no_chance = lambda keys, state, num_steps: ()
    return Env(adapter.spec, reset, no_chance, step, render, None if adapter.scored else restart)


def _call_rows(name: str, copies: int, rows: Callable[[Tree], Tree], obs: Tree) -> Tree:
    """Variants of observations by a callback, (B, ...) -> (B, K, ...); its exceptions go to the mailbox."""

    def host_rows(obs):
        obs = jax.tree.map(np.asarray, obs)
        try:
            return rows(obs)
        except BaseException as error:  # even SystemExit: nothing may leave a callback
            _mailbox.append(EnvironmentCrashed(name, error))
            return jax.tree.map(lambda x: np.repeat(x[:, None], copies, 1), obs)

    shaped = lambda x: jax.ShapeDtypeStruct((x.shape[0], copies, *x.shape[1:]), x.dtype)
    return jax.pure_callback(host_rows, jax.tree.map(shaped, obs), obs, vmap_method="sequential")


def _state_and_time_step(answer: tuple) -> tuple[HostState, TimeStep]:
    token, obs, reward, terminated, truncated, valid, *over = answer
    score = {"episode_over": over[0]} if over else {}
    return HostState(token), TimeStep(obs, reward, terminated, truncated, valid, info=score)


def _blank(observation: ObservationSpace, axes: tuple[int, ...]) -> Tree:
    if isinstance(observation, Box):
        return np.zeros((*axes, *observation.shape), observation.dtype)
    return {key: _blank(box, axes) for key, box in observation.items()}


def _first(batch: Any) -> Any:
    """The first row of a batch of one structure."""
    return jax.tree.map(lambda x: x[0], batch)


def batch_rows(rows: list[Any]) -> Any:
    """Rows of one structure as one structure of rows."""
    match rows[0]:
        case dict():
            return {key: batch_rows([row[key] for row in rows]) for key in rows[0]}
        case tuple():
            return tuple(batch_rows(list(parts)) for parts in zip(*rows, strict=True))
    return np.stack(rows)


def _replace_rows(batch: Any, where: np.ndarray, rows: Any) -> Any:
    """`batch` with the rows named by `where` taken from a sequence of single observations."""
    first = int(np.argmax(where))
    return _where(where, batch_rows([rows[i if where[i] else first] for i in range(len(where))]), batch)


def _where(where: np.ndarray, left: Any, right: Any) -> Any:
    """Row by row, `left` where true and `right` where false."""
    match left:
        case dict():
            return {key: _where(where, left[key], right[key]) for key in left}
        case tuple():
            return tuple(_where(where, *pair) for pair in zip(left, right, strict=True))
    return np.where(where.reshape(-1, *[1] * (np.ndim(left) - 1)), left, right)
