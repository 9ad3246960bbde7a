"""Evaluation: one greedy episode per environment, and nothing else changed."""

from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.worlds import parameters
from shoal.errors import ShoalError
from shoal.exchanges.mixing import mean_learner
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig, ppo
from shoal.ops import trees
from shoal.ops.statistics import Running, merge
from shoal.runs import checkpoint
from shoal.training.config import TrainConfig
from shoal.training.episode import episode
from shoal.training.evaluate import assign_worlds, distances, evaluate_worlds, play_episodes, summarise
from shoal.training.players import CHUNK, greedy
from shoal.training.program import make_trainer
from shoal.types import Box, Discrete, EnvSpec, JaxEnv, Learner, LearnerState
from tests import probes

PPO = PPOConfig(num_envs=2, hidden=(4,), norm_obs=True)
ENV = probes.continuous_target()
RECIPE = from_jax(ENV)


@cache
def trained():
    """Two learners on two devices that know something, and have seen something to standardise by."""
    trainer = make_trainer(TrainConfig("target", algo=PPO, learners=2), recipe=RECIPE)
    cohort = trainer.init().cohort
    seen = Running(jnp.array([9.0, 3.0]), jnp.array([[0.5], [-1.0]]), jnp.array([[18.0], [1.0]]))
    statistics = cohort.statistics._replace(obs={"obs": seen})
    params = jax.tree.map(lambda x: x + 0.3, cohort.params)
    changed = cohort._replace(params=params, statistics=statistics)
    return trainer.parts.learner, jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), changed, cohort)


@cache
def evaluated():
    return play_episodes(RECIPE, *trained(), episodes=6, seed=4)


def first_starts(seed, num_learners, episodes):
    """Where the environments begin: by the keys of the seed."""
    key_reset, _ = jax.random.split(jax.random.key(seed))
    keys = jax.random.split(key_reset, (num_learners, episodes))
    return jax.vmap(jax.vmap(lambda key: ENV.reset(key, ())))(keys)


def test_each_environment_plays_exactly_one_greedy_episode():
    """The target's episodes last a step, so a chunk holds many: the score is of the first alone.

    It starts at o, the greedy action is the policy's mean a(o), and the return -(a - o / 2)^2.
    """
    learner, cohort = trained()
    starts = first_starts(4, 2, 6)

    @jax.jit
    def expected(cohort, starts):
        action, _ = jax.vmap(partial(learner.act, noise=0.0))(cohort, starts[..., None])
        return -((jnp.clip(action[..., 0], -1, 1) - starts / 2) ** 2)

    returns, lengths = evaluated()
    assert returns.shape == lengths.shape == (2, 6)
    np.testing.assert_allclose(returns, expected(cohort, starts), rtol=1e-4, atol=1e-6)
    assert np.unique(returns).size == 12
    assert (lengths == 1).all()


def test_evaluation_is_deterministic_and_the_seed_decides_it():
    again, _ = play_episodes(RECIPE, *trained(), episodes=6, seed=4)
    other, _ = play_episodes(RECIPE, *trained(), episodes=6, seed=5)
    np.testing.assert_array_equal(again, evaluated()[0])
    assert not np.intersect1d(other, again).size


def test_greedy_has_no_noise():
    learner, _ = trained()
    assert learner.draw(jax.random.key(0), (3, 2)).any()
    silent = greedy(learner).draw(jax.random.key(0), (3, 2))
    assert silent.shape == learner.draw(jax.random.key(0), (3, 2)).shape
    assert not silent.any()


def test_evaluation_leaves_the_cohort_as_it_was():
    learner, cohort = trained()
    before = jax.tree.map(lambda x: np.asarray(x).tobytes(), cohort)
    play_episodes(RECIPE, learner, cohort, episodes=6)
    assert jax.tree.map(lambda x: np.asarray(x).tobytes(), cohort) == before
    assert (np.asarray(cohort.statistics.obs["obs"].count) > 0).all()


class Still(NamedTuple):
    """A network that always says the same."""

    outputs: jax.Array

    def __call__(self, obs):
        return jnp.broadcast_to(self.outputs, (*obs.shape[:-1], 2)), obs[..., 0]


def still_learner(spec, num=1):
    network = lambda key, spec, num_outputs: Still(jnp.zeros(2))
    learner = ppo(PPOConfig(num_envs=1), spec, LearnerContext(num_updates=1, network=network))
    return learner, jax.vmap(learner.init)(jax.random.split(jax.random.key(0), num))


def test_an_episode_longer_than_a_chunk_counts_whole():
    recipe = from_jax(probes.counter(limit=CHUNK + 9))
    returns, lengths = play_episodes(recipe, *still_learner(recipe.spec), episodes=2)
    assert returns.tolist() == lengths.tolist() == [[CHUNK + 9.0] * 2]


def test_the_mean_learner_has_the_mean_parameters_and_the_pooled_statistics():
    _, cohort = trained()
    mean = mean_learner(cohort)
    host = jax.device_get(cohort)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x[0], y.mean(0), rtol=1e-6, atol=1e-7),
        mean.params,
        host.params,
    )
    both = merge(*(trees.take(host.statistics.obs["obs"], i) for i in range(2)))
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-5), trees.take(mean.statistics.obs["obs"], 0), both
    )


def test_the_mean_learner_and_one_of_several_can_be_evaluated():
    """They are cohorts of one that come from arrays on two devices."""
    learner, cohort = trained()
    for one in (mean_learner(cohort), jax.jit(trees.take)(cohort, jnp.array([1]))):
        returns, lengths = play_episodes(RECIPE, learner, one, episodes=3)
        assert returns.shape == lengths.shape == (1, 3)
        assert np.isfinite(returns).all()


def test_a_saved_and_loaded_cohort_acts_the_same(tmp_path):
    learner, cohort = trained()
    checkpoint.save(tmp_path, 80, {"cohort": cohort}, {})
    loaded, _ = checkpoint.load_latest(tmp_path, {"cohort": jax.eval_shape(lambda: cohort)})

    @jax.jit
    def actions(cohort):
        obs = jax.random.normal(jax.random.key(0), (2, 50, 1))
        noise = jax.vmap(lambda key: learner.draw(key, (50,)))(jax.random.split(jax.random.key(1)))
        return jax.vmap(learner.act)(cohort, obs, noise)[0]

    before, after = actions(jax.device_get(cohort)), actions(loaded["cohort"])
    assert before.size == 100
    np.testing.assert_array_equal(before, after)
    host = play_episodes(RECIPE, learner, loaded["cohort"], episodes=6, seed=4)
    jax.tree.map(np.testing.assert_array_equal, host, evaluated())


def test_an_episode_to_watch_ends_with_its_episode():
    picture = lambda state, params: np.full((2, 2, 3), state, np.uint8)
    recipe = from_jax(probes.ending_counter(3)._replace(render=picture))
    steps = list(episode(recipe, *still_learner(recipe.spec), pictures=True))
    assert [step.picture[0, 0, 0] for step in steps] == [0, 1, 2, 3]
    assert [step.reward for step in steps] == [0, 1, 1, 1]


def paying_for_second():
    """Three steps, each of which pays where the second of two actions was taken."""

    def step(key, state, action, params):
        return state + 1, action.astype(jnp.float32), state == 2

    spec = EnvSpec("coin", "jax", Box((1,)), Discrete(2), 10)
    picture = lambda state, params: np.zeros((2, 2, 3), np.uint8)
    observe = lambda state, params: jnp.zeros(1)
    return from_jax(JaxEnv(spec, lambda key, params: jnp.int32(0), step, observe, picture))


def test_sampled_actions_are_the_policy_s_own():
    """Two actions equally likely: greedily always the first, drawn a coin for every step and environment."""
    recipe = paying_for_second()
    learner, cohort = still_learner(recipe.spec, num=2)
    calm, _ = play_episodes(recipe, learner, cohort, episodes=200)
    drawn, _ = play_episodes(recipe, learner, cohort, episodes=200, sampled=True)
    assert not calm.any()
    shares = [np.bincount(row.astype(int), minlength=4) / 200 for row in drawn]
    np.testing.assert_allclose(shares, [[1 / 8, 3 / 8, 3 / 8, 1 / 8]] * 2, atol=0.15)
    assert np.any(drawn[0] != drawn[1])
    one = jax.tree.map(lambda x: x[:1], cohort)
    play = lambda **how: sum(step.reward for step in episode(recipe, learner, one, **how))
    totals = {play(seed=seed, sampled=True) for seed in (0, 1)}
    assert {1.0, 2.0} <= totals
    assert play() == 0


def test_the_summary_of_a_learner():
    row = summarise(3, np.array([1.0, 2.0, 6.0]), np.array([2, 4, 6]))
    assert row.to_dict() == {
        "learner": 3,
        "episodes": 3,
        "return_mean": 3.0,
        "return_std": pytest.approx(14**0.5 / 3**0.5),
        "return_min": 1.0,
        "return_max": 6.0,
        "length_mean": 4.0,
        "world": "default",
    }


class Prizes(NamedTuple):
    """What a step pays, and what it pays for where the episode began."""

    prize: float = 7.0
    luck: float = 0.0


def prize_env():
    """Two steps that pay prize + luck * start, half of it each: the return says which world was played."""
    pay = lambda state, params: (params.prize + params.luck * state[0]) / 2
    return JaxEnv(
        EnvSpec("prizes", "jax", Box((1,)), Discrete(2), 2, Prizes(), {"prize": (1.0, -np.inf, np.inf)}),
        reset=lambda key, params: jax.random.uniform(key, (1,)),
        step=lambda key, state, action, params: (state, pay(state, params), jnp.bool_(False)),
        observe=lambda state, params: state,
        render=lambda state, params: np.full((1, 1, 3), params.prize, np.uint8),
    )


PRIZES = from_jax(prize_env())


def prizes(values, luck=0.0):
    values = np.float32(values)
    return Prizes(values, np.full_like(values, luck))


def returns_of(rows):
    return {(row.learner, row.world): row.return_mean for row in rows}


def test_every_episode_is_played_in_the_world_given_for_it():
    learner, cohort = still_learner(PRIZES.spec, num=4)
    chosen = np.arange(12.0).reshape(4, 3)
    returns, lengths = play_episodes(PRIZES, learner, cohort, episodes=3, params=prizes(chosen))
    assert returns.tolist() == chosen.tolist()
    assert (lengths == 2).all()
    assert play_episodes(PRIZES, learner, cohort, episodes=3)[0].tolist() == [[7.0] * 3] * 4


def test_the_default_world_given_is_the_default_world():
    learner, cohort = still_learner(PRIZES.spec, num=2)
    luck = from_jax(prize_env()._replace(spec=replace(PRIZES.spec, params=Prizes(luck=3.0))))
    given = play_episodes(luck, learner, cohort, 5, 1, prizes(np.full((2, 5), 7.0), luck=3.0))
    jax.tree.map(np.testing.assert_array_equal, given, play_episodes(luck, learner, cohort, 5, 1))
    assert np.unique(given[0]).size == 10


def test_worlds_that_do_not_fit_are_refused():
    learner, cohort = still_learner(PRIZES.spec, num=2)
    transposed = r"parameters of prizes must be \(2, 3\) per leaf here, not \(3, 2\)"
    with pytest.raises(ShoalError, match=transposed):
        play_episodes(PRIZES, learner, cohort, episodes=3, params=prizes(np.ones((3, 2))))
    with pytest.raises(ShoalError, match=r"prizes has the parameters Prizes\(prize=7.0, luck=0.0\), not "):
        play_episodes(PRIZES, learner, cohort, episodes=3, params={"prize": np.ones((2, 3))})
    with pytest.raises(ShoalError, match=r"must be \(\) per leaf here, not \(1,\)"):
        next(episode(PRIZES, learner, cohort, params=prizes([1.0])))


def test_own_seen_unseen_and_each_world_by_hand():
    visited = assign_worlds([0, 1, 2], prizes([10, 20, 30]), 4, fresh=prizes([1, 2, 3, 4]), each=True)
    expected = {
        "own": [[10] * 4, [20] * 4, [30] * 4],
        "seen": [[10, 20, 30, 10]] * 3,
        "unseen": [[1, 2, 3, 4]] * 3,
        "world 0": [[10] * 4] * 3,
        "world 1": [[20] * 4] * 3,
        "world 2": [[30] * 4] * 3,
    }
    assert {name: place.prize.tolist() for name, place in visited.items()} == expected
    assert list(assign_worlds([0], prizes([10, 20]), 4)) == ["own", "seen"]


def test_a_learner_chosen_alone_has_its_own_world_still():
    visited = assign_worlds([np.int64(2)], prizes([10, 20, 30]), 3)
    assert visited["own"].prize.tolist() == [[30] * 3]
    assert visited["seen"].prize.tolist() == [[10, 20, 30]]
    rows = evaluate_worlds(PRIZES, *still_learner(PRIZES.spec), [np.int64(2)], visited)
    assert returns_of(rows) == {(2, "own"): 30, (2, "seen"): 20}


def test_rows_say_which_world_was_played_and_the_mean_has_none_of_its_own():
    learner, cohort = still_learner(PRIZES.spec, num=3)
    names = [0, 1, "mean"]
    rows = evaluate_worlds(
        PRIZES,
        learner,
        cohort,
        names,
        assign_worlds(names, prizes([10, 20]), 4, prizes([1, 2, 3, 6]), each=True),
    )
    everywhere = {"seen": 15, "unseen": 3, "world 0": 10, "world 1": 20}
    expected = {(0, "own"): 10} | {(0, world): value for world, value in everywhere.items()}
    expected |= {(1, "own"): 20} | {(1, world): value for world, value in everywhere.items()}
    expected |= {("mean", world): value for world, value in everywhere.items()}
    assert returns_of(rows) == expected
    assert [(row.learner, row.world) for row in rows] == list(expected), "by learner, then by world"
    assert {row.episodes for row in rows} == {4}
    unseen = next(row for row in rows if row.world == "unseen")
    assert (unseen.return_min, unseen.return_max, unseen.length_mean) == (1, 6, 2)


def test_drawn_worlds_reach_their_learners():
    learner, cohort = still_learner(PRIZES.spec, num=2)
    own, fresh = (
        parameters.draw_worlds(PRIZES.spec, 0.5, range(2), 3),
        parameters.draw_unseen_worlds(PRIZES.spec, 0.5, 6, 3),
    )
    rows = evaluate_worlds(PRIZES, learner, cohort, [0, 1], assign_worlds([0, 1], own, 6, fresh))
    scores = returns_of(rows)
    np.testing.assert_allclose([scores[0, "own"], scores[1, "own"]], own.prize, rtol=1e-6)
    np.testing.assert_allclose(scores[0, "seen"], own.prize.mean(), rtol=1e-6)
    np.testing.assert_allclose(scores[1, "unseen"], fresh.prize.mean(), rtol=1e-6)


def test_all_worlds_are_visited_from_the_same_starts():
    """So a learner's own world and the row of that world agree to the last bit, luck and all."""
    learner, cohort = still_learner(PRIZES.spec, num=2)
    places = assign_worlds([0, 1], prizes([10, 20], luck=5.0), 8, each=True)
    scores = returns_of(evaluate_worlds(PRIZES, learner, cohort, [0, 1], places, seed=2))
    for k in range(2):
        assert scores[k, "own"] == scores[k, f"world {k}"]
        assert scores[k, "own"] not in (10, 20)
    assert scores[0, "world 1"] - scores[0, "world 0"] == pytest.approx(10, rel=1e-5)
    alone, _ = play_episodes(PRIZES, learner, cohort, 8, seed=2, params=places["own"])
    assert scores[1, "own"] == alone[1].mean()


def test_an_episode_to_watch_may_be_in_another_world():
    learner, cohort = still_learner(PRIZES.spec)
    for params, prize in [(None, 7), (Prizes(prize=4.0), 4), (trees.take(prizes([3, 9]), 1), 9)]:
        steps = list(episode(PRIZES, learner, cohort, params=params, pictures=True))
        assert [step.reward for step in steps] == [0, prize / 2, prize / 2]
        assert steps[0].picture[0, 0, 0] == prize


def test_distances_between_all_pairs():
    """Policies x_i = 1, 2, 4 that are (x_j - x_i) o apart where they see o: d_ij = (x_j - x_i) mean(o_i)."""
    nobody = Learner(init=lambda key: (), draw=None, act=None, update=None)  # type: ignore
    learner = nobody._replace(distance=lambda mine, other, obs: (other.params - mine.params) * obs["o"])
    x = jnp.array([1.0, 2.0, 4.0])
    cohort = LearnerState(params=x, statistics=(), opt_state=(), hypers=(), private=())
    obs = {"o": jnp.array([[1.0, 3.0], [10.0, 10.0], [0.0, 1.0]])}
    found = distances(learner, cohort, obs)
    np.testing.assert_allclose(found, [[0, 2, 6], [-10, 0, 20], [-1.5, -1, 0]])
    with pytest.raises(ShoalError, match="defines no `distance`"):
        distances(nobody, cohort, obs)


def test_equal_returns_have_the_mean_they_all_are():
    row = summarise(0, np.full(50, 0.955, np.float32), np.full(50, 5))
    assert row.return_mean == row.return_min == row.return_max
    assert row.return_std == 0


def test_sampled_scores_are_the_same_on_any_number_of_devices(monkeypatch):
    """A learner's randomness is its own, not its device's."""
    learner = ppo(PPO, ENV.spec)
    cohort = jax.jit(jax.vmap(learner.init))(jax.random.split(jax.random.key(4), 2))
    sampled = lambda: play_episodes(RECIPE, learner, cohort, episodes=3, sampled=True)[0]
    two = sampled()
    alone = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("learners", "data"))
    monkeypatch.setattr("shoal.training.evaluate.make_mesh", lambda *sizes, **options: alone)
    np.testing.assert_allclose(sampled(), two, rtol=1e-6)
    assert len(np.unique(two)) == two.size
