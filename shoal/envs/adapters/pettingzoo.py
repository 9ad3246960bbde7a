"""PettingZoo's environments, by their parallel interface: the agents become an axis.

Observations have named parts:

| part          | shape    | meaning                                                                     |
|---------------|----------|-----------------------------------------------------------------------------|
| `obs`         | (A, ...) | the observations, padded with zeros to the largest                          |
| `alive`       | (A,)     | 1, or 0 for an agent that has left the episode and observes zeros           |
| `action_mask` | (A, n)   | the allowed actions, where they differ between agents or steps              |
| `state`       | (A, S)   | the environment's state, the same for all, with the option `state`           |

The episode ends when all agents have left. It is truncated where one of the last was truncated, else
terminated; agents that are truncated at the end stay `alive`, since their episode could continue.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.envs.adapters.faults import Faults, Plan
from shoal.envs.adapters.host import HostAdapter, Step, one_line_errors
from shoal.envs.adapters.suite import Suite, option_errors
from shoal.envs.adapters.workers import without_workers, worker_env
from shoal.errors import ShoalError
from shoal.imports import import_user_module
from shoal.ops.masks import ACTION_MASK
from shoal.types import Box, Env, EnvRecipe, EnvSpec

if TYPE_CHECKING:
    from shoal.envs.adapters.agents import AgentAdapter


class Settings(NamedTuple):
    """The options that are ours, not the environment's."""

    max_episode_steps: int | None = None
    """Episodes are truncated after this many steps."""
    state: bool = False
    """Whether to observe the environment's state."""
    teams: tuple[str, ...] = ()
    """The beginning of the agents' names, for each team: ("adversary", "agent")."""


class Team(NamedTuple):
    """The agents of an environment."""

    name: str
    agents: tuple[str, ...]
    adapter: "AgentAdapter"
    masked: tuple[bool, ...]
    """Which agents' observations are dictionaries with a mask."""
    blanks: tuple[Any, ...]
    """An observation of zeros for each agent."""
    stack: tuple[Callable[[list[Any]], Any], ...]
    """Makes a batch of each agent's observations."""
    settings: Settings

    @property
    def has_mask(self) -> bool:
        return any(self.masked) or self.adapter.unequal


def pettingzoo_recipe(module: ModuleType, options: dict[str, Any]) -> EnvRecipe:
    """The environment that `module.parallel_env(**options)` makes."""
    options, num_workers = without_workers(f"pettingzoo:{module.__name__}", options)
    ours = {key: value for key, value in options.items() if key in Settings._fields}
    theirs = {key: value for key, value in options.items() if key not in ours}
    name = f"pettingzoo:{module.__name__}"
    if not callable(getattr(module, "parallel_env", None)):
        raise ShoalError(f"{name}: {module.__name__} has no parallel_env(); name the module that has it")
    env = _make(module, name, theirs)
    team = _team(env, name, Settings(**ours))
    spec = _spec(env, team)
    seen = spec.observation
    size = seen["state"].shape[0] if isinstance(seen, dict) and "state" in seen else 0
    env.close()

    def build(seeds: np.ndarray, rendering: bool) -> Env:
        drawn = theirs | ({"render_mode": "rgb_array"} if rendering else {})
        adapter = HostAdapter(spec, lambda obs: obs, lambda action: action, scored=False)
        make = lambda own: ParallelEnvs(partial(_make, module, name, drawn), own, team, size)
        return worker_env(adapter, make, seeds, num_workers)

    return EnvRecipe(spec, build, may_raise=True)


def _make(module: ModuleType, name: str, options: dict[str, Any]) -> Any:
    with one_line_errors(name), option_errors(name, options):
        return module.parallel_env(**options)


def _team(env: Any, name: str, settings: Settings) -> Team:
    from shoal.envs.adapters.agents import adapt_agents, has_mask, without_mask, zeros
    from shoal.envs.adapters.observations import batch_observations

    agents: tuple[str, ...] = tuple(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ShoalError(f"{name} needs `possible_agents`, the names of all its agents")
    observations = [env.observation_space(agent) for agent in agents]
    masked = tuple(map(has_mask, observations))
    adapter = adapt_agents(
        list(map(without_mask, observations)), [env.action_space(agent) for agent in agents], name
    )
    if any(masked) and not adapter.choices.size:
        raise ShoalError(f"{name}: masks are for discrete actions, not {adapter.action}; leave them out")
    stack = tuple(
        partial(batch_observations, space=space, name=f"{name}, {agent}")
        for agent, space in zip(agents, observations, strict=True)
    )
    return Team(name, agents, adapter, masked, tuple(map(zeros, observations)), stack, settings)


def _spec(env: Any, team: Team) -> EnvSpec:
    parts = {"obs": team.adapter.observation, "alive": Box((), 0.0, 1.0)}
    if team.has_mask:
        parts[ACTION_MASK] = Box((team.adapter.choices.shape[1],), 0.0, 1.0)
    if team.settings.state:
        with one_line_errors(team.name):
            env.reset(seed=0)
            parts["state"] = Box((np.size(env.state()),))
    return EnvSpec(
        name=team.name,
        backend="pettingzoo",
        observation=parts,
        action=team.adapter.action,
        max_episode_steps=team.settings.max_episode_steps,
        agents=len(team.agents),
        teams=_team_numbers(team),
        parallel=False,
        exact_resume=False,
    )


def _team_numbers(team: Team) -> tuple[int, ...]:
    """The number of each agent's team."""
    prefixes = team.settings.teams
    if not prefixes:
        return ()
    for agent in team.agents:
        if not agent.startswith(tuple(prefixes)):
            listed = ", ".join(prefixes)
            raise ShoalError(f"{team.name}: {agent} is in none of the teams {listed}; add its prefix to them")
    return tuple(
        next(i for i, prefix in enumerate(prefixes) if agent.startswith(prefix)) for agent in team.agents
    )


class ParallelEnvs:
    """N environments in a plain loop, each reset on the step after its end, each time with another seed."""

    def __init__(self, make: Callable[[], Any], seeds: np.ndarray, team: Team, state_size: int):
        self.make, self.seeds, self.team, self.state_size = make, seeds, team, state_size
        self.envs = envs = [make() for _ in seeds]
        self.faults = Faults(seeds)
        self.generators = [np.random.default_rng(int(seed)) for seed in seeds]
        self.alive = np.zeros((len(envs), len(team.agents)), bool)
        self.over = np.zeros(len(envs), bool)
        self.steps = np.zeros(len(envs), int)

    def contain(self, plan: Plan) -> None:
        """What one of these raises costs only its row; nobody but their process can end one that hangs."""
        self.faults.set(plan)

    def drop(self, rows: list[int]) -> None:
        """Step these no more."""
        self.faults.drop(rows)
        self.alive[rows] = False

    def revive(self, rows: list[int]) -> None:
        """Make these anew at the next step."""
        self.faults.revive(rows)
        self.over[rows] = True

    def begin_anew(self, worlds: list[dict[str, float]]) -> None:
        """Take the place of environments whose process has ended."""
        self.over[:] = True

    def reset(self, worlds: list[dict[str, float]]) -> dict[str, np.ndarray]:
        """Start from the seeds."""
        self.generators = [np.random.default_rng(int(seed)) for seed in self.seeds]
        return self.restart()

    def restart(self) -> dict[str, np.ndarray]:
        """New episodes; random numbers continue."""
        self.over = np.zeros(len(self.envs), bool)
        return self._observe([self._begin(i) for i in range(len(self.envs))])

    def _begin(self, index: int) -> dict[str, Any]:
        """`_reset`, or no observations where that fails."""
        faults = self.faults
        faults.at[0] = index
        if not faults.is_out(index):
            try:
                return self._reset(index)
            except BaseException as error:  # even SystemExit
                if not faults.contained:
                    raise
                faults.catch(index, error)
                self.over[index] = faults.renews[index]
        self.alive[index] = False
        return {}

    def step(self, actions: np.ndarray) -> Step:
        valid = ~self.over
        reward = np.zeros(self.alive.shape, np.float32)
        terminated, truncated = np.zeros((2, len(self.envs)), bool)
        raw, faults = [], self.faults
        for i, action in enumerate(self.team.adapter.act(actions)):
            faults.at[0], obs = i, {}
            try:
                if faults.is_out(i):
                    reward[i], valid[i], truncated[i] = np.nan, True, valid[i]
                elif valid[i]:
                    obs, reward[i], terminated[i], truncated[i] = self._step(i, action)
                else:
                    obs = self._reset(i)
            except BaseException as error:  # even SystemExit
                if not faults.contained:
                    raise
                faults.catch(i, error)
                reward[i], valid[i], terminated[i], truncated[i] = np.nan, True, False, True
                self.alive[i] = False
            raw.append(obs)
        over = terminated | truncated
        self.over = over | [faults.is_out(i) for i in range(len(over))]
        return self._observe(raw), reward, terminated, truncated, valid, over

    def render(self, index: int) -> np.ndarray | None:
        return self.envs[index].render()

    def _reset(self, index: int) -> dict[str, Any]:
        if self.faults.bad[index]:
            with suppress(Exception):
                self.envs[index].close()
            self.envs[index] = self.make()
            self.generators[index] = np.random.default_rng(self.faults.renewed(index))
        obs, _ = self.envs[index].reset(seed=int(self.generators[index].integers(2**31)))
        self.alive[index] = self._flags(self.envs[index].agents)
        self.steps[index] = 0
        return obs

    def _step(self, index: int, action: tuple) -> tuple[dict[str, Any], np.ndarray, bool, bool]:
        """One environment's step: observations, rewards, whether it was terminated or truncated."""
        env, before = self.envs[index], self.alive[index].copy()
        chosen = {agent: action[i] for i, agent in enumerate(self.team.agents) if before[i]}
        obs, rewards, terminations, truncations, _ = env.step(chosen)
        self.steps[index] += 1
        if self.steps[index] == self.team.settings.max_episode_steps:
            truncations = dict.fromkeys(self.team.agents, True)
        ended = before & self._flags(terminations)
        cut = before & ~ended & self._flags(truncations)
        stay = before & ~ended & ~cut & self._flags(env.agents)
        over, truncated = not stay.any(), cut.any()
        self.alive[index] = cut if over else stay
        received = np.array([rewards.get(agent, 0.0) for agent in self.team.agents], np.float32)
        return obs, received * before, bool(over and not truncated), bool(over and truncated)

    def _flags(self, marked: Any) -> np.ndarray:
        """Which agents are in a list, or true in a dictionary (A,)."""
        if isinstance(marked, dict):
            marked = [agent for agent, flag in marked.items() if flag]
        return np.array([agent in marked for agent in self.team.agents])

    def _observe(self, raw: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """The observations of all environments; zeros for agents that have left."""
        team, alive = self.team, self.alive
        seen = [self._seen_by(i, raw) for i in range(len(team.agents))]
        views = team.adapter.observe(list(map(_view, seen, team.masked)))
        views = views * alive.reshape(*alive.shape, *[1] * (views.ndim - 2)).astype(views.dtype)
        parts = {"obs": views, "alive": alive.astype(np.float32)}
        if team.has_mask:
            parts[ACTION_MASK] = self._masks(seen)
        if team.settings.state:
            blank, bad = np.zeros(self.state_size, np.float32), self.faults.bad
            states = [blank if bad[i] else np.ravel(env.state()) for i, env in enumerate(self.envs)]
            states = np.stack(states).astype(np.float32)
            parts["state"] = np.repeat(states[:, None], len(team.agents), axis=1)
        return parts

    def _seen_by(self, i: int, raw: list[dict[str, Any]]) -> Any:
        """The batch of one agent's observations, in all environments."""
        agent, blank = self.team.agents[i], self.team.blanks[i]
        here = self.alive[:, i]
        seen = [obs.get(agent, blank) if here[i] else blank for i, obs in enumerate(raw)]
        return self.team.stack[i](seen)

    def _masks(self, seen: list[Any]) -> np.ndarray:
        """Which actions are allowed (N, A, n); all of its own for an agent that has left."""
        masks = np.repeat(self.team.adapter.choices[None], len(self.envs), axis=0)
        for i, masked in enumerate(self.team.masked):
            if masked:
                mask = np.asarray(seen[i][ACTION_MASK], bool)
                masks[:, i, : mask.shape[1]] &= mask | ~self.alive[:, i, None]
        return masks.astype(np.float32)


def _view(seen: Any, masked: bool) -> Any:
    """A batch of observations without the masks."""
    if not masked:
        return seen
    parts = {key: part for key, part in seen.items() if key != ACTION_MASK}
    return next(iter(parts.values())) if len(parts) == 1 else parts


def _recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    import_user_module(name, f"pettingzoo:{name}")
    return pettingzoo_recipe(sys.modules[name], options)


SUITE = Suite(_recipe, names=list, knows=lambda name: True)
