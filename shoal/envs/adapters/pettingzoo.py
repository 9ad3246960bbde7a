"""Any PettingZoo environment of the parallel interface: its agents become an axis.

What agents observe has named parts:

| part          | shape    | meaning                                                                     |
|---------------|----------|-----------------------------------------------------------------------------|
| `obs`         | (A, ...) | their observations, filled up with zeros to the largest                     |
| `alive`       | (A,)     | 1, or 0 for one that has left the world and observes zeros                  |
| `action_mask` | (A, n)   | their choices, where they differ from agent to agent or from time to time   |
| `state`       | (A, S)   | the state of the whole world, the same for all, with the option `state`     |

The world ends when all have left. It is truncated where one of the last was truncated, else terminated; those
who are truncated with it stay `alive`, since they might have gone on.
"""

from types import ModuleType
from typing import Any, NamedTuple

import gymnasium.spaces as gs
import numpy as np

from shoal.envs.adapters.agents import AgentAdapter, adapt_agents
from shoal.envs.adapters.envpool import UnknownOptions
from shoal.envs.adapters.gymnasium import EnvAdapter, Step, batch_rows, host_env, one_line_errors
from shoal.errors import ShoalError
from shoal.types import Box, Env, EnvRecipe, EnvSpec

MASK = "action_mask"


class Settings(NamedTuple):
    """What is ours among an environment's options."""

    max_episode_steps: int | None = None
    """The world is truncated after so many steps, if it has not ended."""
    state: bool = False
    """Whether to observe the state of the whole world."""
    teams: tuple[str, ...] = ()
    """How the names of the agents of each team begin: ("adversary", "agent")."""


class Team(NamedTuple):
    """What is known of an environment before the first step."""

    name: str
    agents: tuple[str, ...]
    adapter: AgentAdapter
    masked: tuple[bool, ...]
    """Whose observations are dictionaries with a mask in them."""
    blanks: tuple[Any, ...]
    """Observations to fill the places of those who have left."""
    settings: Settings

    @property
    def has_mask(self) -> bool:
        return any(self.masked) or self.adapter.unequal


def pettingzoo_recipe(module: ModuleType, options: dict[str, Any]) -> EnvRecipe:
    """The environment that `module.parallel_env(**options)` makes."""
    ours = {key: value for key, value in options.items() if key in Settings._fields}
    theirs = {key: value for key, value in options.items() if key not in ours}
    name = f"pettingzoo:{module.__name__}"
    if not callable(getattr(module, "parallel_env", None)):
        raise ShoalError(f"{name}: {module.__name__} has no parallel_env(); name the module that has it")
    env = _make(module, name, theirs)
    team = _team(env, name, Settings(**ours))
    spec = _spec(env, team)
    env.close()

    def build(seeds: np.ndarray, rendering: bool) -> Env:
        drawn = theirs | ({"render_mode": "rgb_array"} if rendering else {})
        devices = [ParallelRows([_make(module, name, drawn) for _ in row], row, team) for row in seeds]
        return host_env(
            EnvAdapter(spec, lambda obs: obs, lambda action: action, False), devices, seeds.shape[1]
        )

    return EnvRecipe(spec, build, may_raise=True)


def _make(module: ModuleType, name: str, options: dict[str, Any]) -> Any:
    with one_line_errors(name):
        try:
            return module.parallel_env(**options)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            raise UnknownOptions(f"{name} does not take these options: {error}") from error


def _team(env: Any, name: str, settings: Settings) -> Team:
    agents: tuple[str, ...] = tuple(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ShoalError(f"{name} does not say who may take part: it needs `possible_agents`")
    observations = [env.observation_space(agent) for agent in agents]
    masked = tuple(isinstance(space, gs.Dict) and MASK in space.spaces for space in observations)
    alone = [_without_mask(space) for space in observations]
    adapter = adapt_agents(alone, [env.action_space(agent) for agent in agents], name)
    if any(masked) and not adapter.choices.size:
        raise ShoalError(f"{name}: masks are for agents that choose; its actions are {adapter.action}")
    return Team(name, agents, adapter, masked, tuple(map(_blank, observations)), settings)


def _without_mask(space: gs.Space) -> gs.Space:
    """What an agent observes apart from its mask."""
    if not (isinstance(space, gs.Dict) and MASK in space.spaces):
        return space
    parts = {key: part for key, part in space.spaces.items() if key != MASK}
    return next(iter(parts.values())) if len(parts) == 1 else gs.Dict(parts)


def _spec(env: Any, team: Team) -> EnvSpec:
    parts = {"obs": team.adapter.observation, "alive": Box((), 0.0, 1.0)}
    if team.has_mask:
        parts[MASK] = Box((team.adapter.choices.shape[1],), 0.0, 1.0)
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
        teams=_numbers(team),
        parallel=False,
        exact_resume=False,
    )


def _numbers(team: Team) -> tuple[int, ...]:
    """The number of each agent's team."""
    beginnings = team.settings.teams
    if not beginnings:
        return ()
    for agent in team.agents:
        if not agent.startswith(tuple(beginnings)):
            raise ShoalError(f"{team.name}: {agent} is in none of the teams {', '.join(beginnings)}")
    return tuple(
        next(i for i, beginning in enumerate(beginnings) if agent.startswith(beginning))
        for agent in team.agents
    )


class ParallelRows:
    """N worlds in a plain loop, each reset on the step after its end, every time by another seed."""

    def __init__(self, envs: list[Any], seeds: np.ndarray, team: Team):
        self.envs, self.seeds, self.team = envs, seeds, team
        self.generators: list[np.random.Generator] = []
        self.alive = np.zeros((len(envs), len(team.agents)), bool)
        self.over = np.zeros(len(envs), bool)
        self.steps = np.zeros(len(envs), int)

    def reset(self, worlds: list[dict[str, float]]) -> dict[str, np.ndarray]:
        """Begin anew, from the rows' seeds."""
        self.generators = [np.random.default_rng(int(seed)) for seed in self.seeds]
        return self.restart()

    def restart(self) -> dict[str, np.ndarray]:
        """New episodes, from starts that go on from the last ones."""
        self.over = np.zeros(len(self.envs), bool)
        return self._observe([self._begin(row) for row in range(len(self.envs))])

    def step(self, actions: np.ndarray) -> Step:
        valid = ~self.over
        reward = np.zeros(self.alive.shape, np.float32)
        terminated, truncated = np.zeros((2, len(self.envs)), bool)
        raw = []
        for row, action in enumerate(self.team.adapter.act(actions)):
            if valid[row]:
                obs, reward[row], terminated[row], truncated[row] = self._continue(row, action)
            else:
                obs = self._begin(row)
            raw.append(obs)
        self.over = terminated | truncated
        return self._observe(raw), reward, terminated, truncated, valid, self.over

    def render(self, row: int) -> np.ndarray | None:
        return self.envs[row].render()

    def _begin(self, row: int) -> dict[str, Any]:
        obs, _ = self.envs[row].reset(seed=int(self.generators[row].integers(2**31)))
        self.alive[row] = self._told(self.envs[row].agents)
        self.steps[row] = 0
        return obs

    def _continue(self, row: int, action: tuple) -> tuple[dict[str, Any], np.ndarray, bool, bool]:
        """One world's step: observations, rewards, and whether it was terminated or truncated."""
        env, before = self.envs[row], self.alive[row].copy()
        chosen = {agent: action[i] for i, agent in enumerate(self.team.agents) if before[i]}
        obs, rewards, terminations, truncations, _ = env.step(chosen)
        self.steps[row] += 1
        if self.steps[row] == self.team.settings.max_episode_steps:
            truncations = dict.fromkeys(self.team.agents, True)
        ended = before & self._told(terminations)
        cut = before & ~ended & self._told(truncations)
        stay = before & ~ended & ~cut & self._told(env.agents)
        over, truncated = not stay.any(), cut.any()
        self.alive[row] = cut if over else stay
        received = np.array([rewards.get(agent, 0.0) for agent in self.team.agents], np.float32)
        return obs, received * before, bool(over and not truncated), bool(over and truncated)

    def _told(self, of: Any) -> np.ndarray:
        """Who is in a list, or true in a dictionary (A,)."""
        among = (lambda agent: bool(of.get(agent))) if isinstance(of, dict) else (lambda agent: agent in of)
        return np.array([among(agent) for agent in self.team.agents])

    def _observe(self, raw: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """The observations of all worlds; zeros for those who have left."""
        team, alive = self.team, self.alive
        seen = [self._seen_by(i, raw) for i in range(len(team.agents))]
        views = team.adapter.observe(list(map(_view, seen, team.masked)))
        views = views * alive.reshape(*alive.shape, *[1] * (views.ndim - 2)).astype(views.dtype)
        parts = {"obs": views, "alive": alive.astype(np.float32)}
        if team.has_mask:
            parts[MASK] = self._masks(seen)
        if team.settings.state:
            states = np.stack([np.ravel(env.state()) for env in self.envs]).astype(np.float32)
            parts["state"] = np.repeat(states[:, None], len(team.agents), axis=1)
        return parts

    def _seen_by(self, i: int, raw: list[dict[str, Any]]) -> Any:
        """The batch of what one agent observes in all worlds."""
        agent, blank = self.team.agents[i], self.team.blanks[i]
        here = self.alive[:, i]
        return batch_rows([obs.get(agent, blank) if here[row] else blank for row, obs in enumerate(raw)])

    def _masks(self, seen: list[Any]) -> np.ndarray:
        """Which choices the agents have (N, A, n); one who has left has all of its own."""
        masks = np.repeat(self.team.adapter.choices[None], len(self.envs), axis=0)
        for i, masked in enumerate(self.team.masked):
            if masked:
                told = np.asarray(seen[i][MASK], bool)
                masks[:, i, : told.shape[1]] &= told | ~self.alive[:, i, None]
        return masks.astype(np.float32)


def _view(seen: Any, masked: bool) -> Any:
    """What is left of a batch of observations without their masks."""
    if not masked:
        return seen
    parts = {key: part for key, part in seen.items() if key != MASK}
    return next(iter(parts.values())) if len(parts) == 1 else parts


def _blank(space: gs.Space) -> Any:
    """An observation of this space, to fill the place of one that is missing."""
    match space:
        case gs.Dict():
            return {key: _blank(part) for key, part in space.spaces.items()}
        case gs.Tuple():
            return tuple(_blank(part) for part in space.spaces)
    return np.zeros(space.shape or (), space.dtype)
