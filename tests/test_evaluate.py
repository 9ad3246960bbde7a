"""Evaluation: one greedy episode per environment, and nothing else changed."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import trees
from shoal.envs import probes
from shoal.envs.functional import from_jax
from shoal.evaluate import CHUNK, episode, evaluate, greedy, summarise
from shoal.exchange.mixing import average
from shoal.learners.ppo import PPOConfig, ppo
from shoal.ops.statistics import Running, merge
from shoal.runs import checkpoint
from shoal.train import TrainConfig, make_trainer

PPO = PPOConfig(num_envs=2, hidden=(4,), norm_obs=True)
ENV = probes.continuous_target()
RECIPE = from_jax(ENV)


@cache
def trained():
    """Two learners on two devices that know something, and have seen something to standardise by."""
    trainer = make_trainer(TrainConfig("target", algo=PPO, learners=2), recipe=RECIPE)
    cohort = trainer.begin().cohort
    seen = Running(jnp.array([9.0, 3.0]), jnp.array([[0.5], [-1.0]]), jnp.array([[18.0], [1.0]]))
    statistics = cohort.statistics._replace(obs={"obs": seen})
    params = jax.tree.map(lambda x: x + 0.3, cohort.params)
    changed = cohort._replace(params=params, statistics=statistics)
    return trainer.learner, jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), changed, cohort)


@cache
def evaluated():
    return evaluate(RECIPE, *trained(), episodes=6, seed=4)


def first_starts(seed, num_learners, episodes):
    """Where the environments begin: by the keys of the seed."""
    keys = jax.random.split(jax.random.key(seed), (num_learners, episodes))
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
    again, _ = evaluate(RECIPE, *trained(), episodes=6, seed=4)
    other, _ = evaluate(RECIPE, *trained(), episodes=6, seed=5)
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
    evaluate(RECIPE, learner, cohort, episodes=6)
    assert jax.tree.map(lambda x: np.asarray(x).tobytes(), cohort) == before
    assert (np.asarray(cohort.statistics.obs["obs"].count) > 0).all()


class Still(NamedTuple):
    """A network that always says the same."""

    outputs: jax.Array

    def __call__(self, obs):
        return jnp.broadcast_to(self.outputs, (*obs.shape[:-1], 2)), obs[..., 0]


def still_learner(spec):
    network = lambda key, spec, num_outputs: Still(jnp.zeros(2))
    learner = ppo(PPOConfig(num_envs=1), spec, num_updates=1, network=network)
    return learner, jax.vmap(learner.init)(jax.random.split(jax.random.key(0), 1))


def test_an_episode_longer_than_a_chunk_counts_whole():
    recipe = from_jax(probes.counter(limit=CHUNK + 9))
    returns, lengths = evaluate(recipe, *still_learner(recipe.spec), episodes=2)
    assert returns.tolist() == lengths.tolist() == [[CHUNK + 9.0] * 2]


def test_the_mean_learner_has_the_mean_parameters_and_the_pooled_statistics():
    _, cohort = trained()
    mean = average(cohort)
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
    for one in (average(cohort), trees.take(cohort, jnp.array([1]))):
        returns, lengths = evaluate(RECIPE, learner, one, episodes=3)
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
    host = evaluate(RECIPE, learner, loaded["cohort"], episodes=6, seed=4)
    jax.tree.map(np.testing.assert_array_equal, host, evaluated())


def test_an_episode_to_watch_ends_with_its_episode():
    picture = lambda state, params: np.full((2, 2, 3), state, np.uint8)
    recipe = from_jax(probes.ending_counter(3)._replace(render=picture))
    frames = list(episode(recipe, *still_learner(recipe.spec)))
    assert [frame[0, 0, 0] for frame, _ in frames] == [0, 1, 2, 3]
    assert [reward for _, reward in frames] == [0, 1, 1, 1]


def test_the_summary_of_a_learner():
    row = summarise(3, np.array([1.0, 2.0, 6.0]), np.array([2, 4, 6]))
    assert row._asdict() == {
        "learner": 3,
        "episodes": 3,
        "return_mean": 3.0,
        "return_std": pytest.approx(14**0.5 / 3**0.5),
        "return_min": 1.0,
        "return_max": 6.0,
        "length_mean": 4.0,
        "world": "default",
    }
