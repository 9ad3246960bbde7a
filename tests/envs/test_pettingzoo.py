"""PettingZoo's parallel interface and Gymnasium's tuples: agents that differ, leave, are cut short, crash."""

import sys
from types import ModuleType

import gymnasium
import gymnasium.spaces as gs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.host import EnvironmentCrashed, take_crash
from shoal.envs.adapters.suite import UnknownOptions
from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.types import Box, Discrete

AGENTS = ["candle_0", "candle_1", "lamp_0"]


class Candles:
    """Agent i observes [steps, seed, ...] in i + 1 places, has i + 2 choices and earns its action plus one.

    Candle 0 burns down after 2 steps, candle 1 after 3, the lamp after 4; `cut` is when they are truncated.
    """

    possible_agents = AGENTS

    def __init__(self, cut=None, masks=False, fails=False, render_mode=None):
        self.cut, self.masks, self.fails = cut, masks, fails

    def observation_space(self, agent):
        box = gs.Box(-np.inf, np.inf, (AGENTS.index(agent) + 1,), np.float64)
        if not self.masks:
            return box
        return gs.Dict({"observation": box, "action_mask": gs.MultiBinary(self.size(agent))})

    def action_space(self, agent):
        return gs.Discrete(self.size(agent))

    def size(self, agent):
        return AGENTS.index(agent) + 2

    def observe(self, agent):
        seen = np.array([self.steps, self.seed, 7.0])[: AGENTS.index(agent) + 1]
        only_last = np.eye(self.size(agent), dtype=np.int8)[-1]
        return {"observation": seen, "action_mask": only_last} if self.masks else seen

    def reset(self, seed=None, options=None):
        self.agents, self.steps, self.seed = list(AGENTS), 0, seed
        return {agent: self.observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents, "only those who are there act"
        self.steps += 1
        if self.fails:
            raise RuntimeError("out of wax")
        acting = self.agents
        ended = {agent: self.steps == AGENTS.index(agent) + 2 for agent in acting}
        cut = dict.fromkeys(acting, self.steps == self.cut)
        rewards = {agent: float(actions[agent] + 1) for agent in acting}
        self.agents = [agent for agent in acting if not (ended[agent] or cut[agent])]
        return {agent: self.observe(agent) for agent in acting}, rewards, ended, cut, {a: {} for a in acting}

    def state(self):
        return np.array([[self.steps, 2.0], [3.0, 4.0]])

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)

    def close(self):
        pass


class Pair(gymnasium.Env):
    """Two agents in Gymnasium's tuples, of which one sees more; each earns its action."""

    observation_space = gs.Tuple([gs.Box(-9, 9, (1,)), gs.Box(-9, 9, (2,))])
    action_space = gs.Tuple([gs.Discrete(3, start=1), gs.Discrete(3)])

    def reset(self, *, seed=None, options=None):
        return (np.zeros(1, np.float32), np.zeros(2, np.float32)), {}

    def step(self, actions):
        assert self.action_space.contains(actions)
        left, right = actions
        return (np.float32([left]), np.float32([right, 5])), [left, right], bool(right == 2), False, {}


@pytest.fixture(scope="module", autouse=True)
def installed():
    module = ModuleType("candle_park.candles_v0")
    module.parallel_env = Candles
    sys.modules |= {"candle_park": ModuleType("candle_park"), module.__name__: module}
    gymnasium.register("test/Pair-v0", entry_point=Pair)
    yield
    del sys.modules["candle_park"], sys.modules["candle_park.candles_v0"], gymnasium.registry["test/Pair-v0"]


def roll(recipe, actions, seeds=(3,)):
    """Time steps of the actions (T, N, A), the first included, from one compiled program."""
    env = recipe.build(np.array([seeds], np.uint32), False)

    @jax.jit
    def run():
        keys = jax.random.split(jax.random.key(0), len(seeds))
        state, first = env.reset(keys, ())
        state, steps = jax.lax.scan(lambda s, action: env.step(s, action, ()), state, actions)
        return state, jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, steps)

    _, steps = jax.block_until_ready(run())
    return jax.tree.map(np.asarray, steps)


def test_agents_that_leave_observe_and_earn_nothing():
    recipe = make("pettingzoo:candle_park.candles_v0", state=True, teams=("candle", "lamp"))
    spec = recipe.spec
    assert (spec.agents, spec.teams, spec.action, spec.backend) == (3, (0, 0, 1), Discrete(4), "pettingzoo")
    assert {key: box.shape for key, box in spec.observation.items()} == {
        "obs": (3,),
        "alive": (),
        "action_mask": (4,),
        "state": (4,),
    }
    steps = roll(recipe, jnp.full((6, 1, 3), 3))  # one choice too high for candle 1, two for candle 0
    alive = steps.obs["alive"][:, 0]
    assert alive.tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1]]
    earned = [[0, 0, 0], [2, 3, 4], [2, 3, 4], [0, 3, 4], [0, 0, 4], [0, 0, 0], [2, 3, 4]]
    assert steps.reward[:, 0].tolist() == earned
    assert steps.terminated[:, 0].tolist() == [False] * 4 + [True, False, False]
    assert steps.valid[:, 0].tolist() == [False] + [True] * 4 + [False, True]
    assert not steps.truncated.any()
    first, later = steps.obs["obs"][1, 0], steps.obs["obs"][3, 0]
    assert first[:, 0].tolist() == [1, 1, 1]
    assert (first[:, 2].tolist(), first[0, 1]) == ([0, 0, 7], 0)
    assert later[:, 0].tolist() == [0, 0, 3]
    assert steps.obs["action_mask"][0, 0].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert steps.obs["state"][2, 0].tolist() == [[2, 2, 3, 4]] * 3


@pytest.mark.parametrize("options", [{"cut": 3}, {"max_episode_steps": 3}])
def test_who_is_truncated_with_the_world_is_seen_to_its_end(options):
    steps = roll(make("pettingzoo:candle_park.candles_v0", **options), jnp.zeros((3, 1, 3), int))
    assert steps.truncated[:, 0].tolist() == [False] * 3 + [True]
    assert not steps.terminated.any()
    assert steps.obs["alive"][3, 0].tolist() == [0, 0, 1], "candle 1 burned down in the last step"
    assert steps.obs["obs"][3, 0, 2, 0] == 3


def test_masks_of_the_environment_and_of_smaller_agents():
    steps = roll(make("pettingzoo:candle_park.candles_v0", masks=True), jnp.zeros((2, 1, 3), int))
    last_alone = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert steps.obs["action_mask"][0, 0].tolist() == last_alone
    assert steps.obs["action_mask"][2, 0].tolist() == [[1, 1, 0, 0], *last_alone[1:]], "who left may do all"
    assert steps.obs["obs"][1, 0, :, 0].tolist() == [1, 1, 1]


def test_every_episode_has_a_seed_of_its_row():
    recipe = make("pettingzoo:candle_park.candles_v0", max_episode_steps=1)
    one, other = (roll(recipe, jnp.zeros((4, 2, 3), int), rows).obs["obs"] for rows in ((3, 4), (4, 3)))
    assert (one == other[:, ::-1]).all()
    assert len(np.unique(one[::2, :, 2, 1])) == 6


def test_a_crash_comes_with_the_environments_own_traceback():
    roll(make("pettingzoo:candle_park.candles_v0", fails=True), jnp.zeros((3, 1, 3), int))
    crash = take_crash()
    assert isinstance(crash, EnvironmentCrashed)
    assert str(crash) == "pettingzoo:candle_park.candles_v0 raised RuntimeError: out of wax"
    assert "raise RuntimeError" in crash.traceback_text
    assert "envs/pettingzoo.py" not in crash.traceback_text


def test_a_crash_that_is_contained_costs_its_row():
    """Row 1 fails in its second step: from then on all of it is NaN, and row 0 is as without it."""
    recipe = make("pettingzoo:candle_park.candles_v0", masks=True, state=True)
    env = recipe.build(np.array([[3, 4]], np.uint32), False)
    env.containment.contain(np.array([[0, 1]]))
    first, second = env.containment.devices[0].envs

    def play(actions):
        state, _ = env.reset(jax.random.split(jax.random.key(0), 2), ())
        return jax.lax.scan(lambda s, action: env.step(s, action, ()), state, actions)

    second.fails = True
    _, steps = jax.block_until_ready(jax.jit(play)(jnp.ones((3, 2, 3), int)))
    assert np.isnan(steps.reward).tolist() == [[[False] * 3, [True] * 3]] * 3
    assert np.isnan(steps.obs["obs"]).any((-1, -2)).tolist() == [[False, True]] * 3
    assert steps.obs["state"][:, 0, 0, 0].tolist() == [1, 2, 3]
    assert steps.truncated.tolist() == [[False, True], [False, False], [False, False]]
    assert {learner: str(fault)[:50] for learner, fault in env.containment.take().items()} == {
        1: "pettingzoo:candle_park.candles_v0 raised RuntimeEr"
    }
    assert first.steps == 3


def test_mistakes_are_told_in_a_line():
    with pytest.raises(UnknownOptions, match="wicks"):
        make("pettingzoo:candle_park.candles_v0", wicks=2)
    with pytest.raises(ShoalError, match="has no parallel_env"):
        make("pettingzoo:candle_park")
    with pytest.raises(ShoalError, match="no module 'no_such_park'"):
        make("pettingzoo:no_such_park")
    with pytest.raises(ShoalError, match="lamp_0 is in none of the teams candle"):
        make("pettingzoo:candle_park.candles_v0", teams=("candle",))


def test_gymnasiums_tuples_are_agents():
    recipe = make("test/Pair-v0")
    assert (recipe.spec.agents, recipe.spec.action, recipe.spec.observation) == (2, Discrete(3), Box((2,)))
    steps = roll(recipe, jnp.array([[[0, 1]], [[1, 2]], [[0, 0]]]))
    assert steps.reward[:, 0].tolist() == [[0, 0], [1, 1], [2, 2], [0, 0]]
    assert steps.obs[2, 0].tolist() == [[2, 0], [2, 5]]
    assert steps.terminated[:, 0].tolist() == [False, False, True, False]
    assert steps.valid[:, 0].tolist() == [False, True, True, False]


def test_the_packages_tag_is_ours():
    pytest.importorskip("mpe2")
    recipe, ours = make("pettingzoo:mpe2.simple_tag_v3"), make("simple_tag_v3")
    assert recipe.spec.agents == ours.spec.agents
    assert recipe.spec.observation["obs"].shape == ours.spec.observation.shape
    steps = roll(recipe, jnp.zeros((26, 1, 4), int))
    assert steps.truncated[:, 0].tolist() == [False] * 25 + [True, False]
    assert steps.obs["alive"].all()
    assert (steps.obs["obs"][25, 0, 3, :14] != 0).any()
