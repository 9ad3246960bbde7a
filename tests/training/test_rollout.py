"""Collection: what a rollout holds at the ends of episodes, the scores, and whose randomness is whose."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.learners import ppo
from shoal.learners.context import LearnerContext
from shoal.training import rollout as collection
from shoal.training.scores import score_metrics
from shoal.types import Box, EnvSpec, JaxEnv
from tests import probes

L, E = 2, 3
GAMMA = 0.9


class Linear(NamedTuple):
    """A policy without preferences, and V(o) = 10 o: the value tells which observation it was asked for."""

    slope: jax.Array

    def __call__(self, obs):
        return jnp.zeros((*obs.shape[:-1], 2)), self.slope * obs[..., 0]


def player(one_row, num_steps, num_envs=E):
    """Compiled functions: begin(key) -> cohort and worlds, play(key, cohort, worlds) -> collect's results."""
    config = ppo.PPOConfig(num_envs=num_envs, gamma=GAMMA)
    linear = lambda key, spec, num_outputs: Linear(jnp.float32(10))
    learner = ppo.ppo(config, one_row.spec, LearnerContext(num_updates=1, network=linear))
    env = from_jax(one_row).build(np.zeros((1, L * num_envs), np.uint32), False)

    @jax.jit
    def begin(key):
        keys = jax.random.split(key, (L, num_envs))
        return jax.vmap(learner.init)(keys[:, 0]), collection.reset_envs(env, keys, ())

    @jax.jit
    def play(key, cohort, worlds):
        return collection.collect(env, learner, num_steps, jax.random.split(key, L), cohort, worlds)

    return learner, begin, play


def play_two(one_row, num_steps, num_envs=E, seed=0):
    """Two rollouts after each other, as NumPy arrays joined along time, and the worlds after them."""
    _, begin, play = player(one_row, num_steps, num_envs)
    cohort, worlds = begin(jax.random.key(seed))
    rollouts = []
    for key in jax.random.split(jax.random.key(seed + 1)):
        worlds, cohort, rollout = play(key, cohort, worlds)
        rollouts.append(rollout)
    last = rollouts[-1].last_obs
    joined = jax.tree.map(lambda *x: np.concatenate(x), *(r._replace(last_obs=()) for r in rollouts))
    return joined._replace(last_obs=np.asarray(last)), worlds


@pytest.fixture(scope="module")
def counted():
    """The counter with limit 4, in rollouts of 7 steps: episodes of 4 steps and a reset, across rollouts."""
    return play_two(probes.counter(limit=4), 7)


def test_axes_are_time_learner_environment(counted):
    rollout, worlds = counted
    assert rollout.obs.shape == (14, L, E, 1)
    assert rollout.last_obs.shape == (L, E, 1)
    for leaf in (rollout.action, rollout.reward, rollout.terminated, rollout.truncated, rollout.valid):
        assert leaf.shape == (14, L, E)
    np.testing.assert_array_equal(worlds.step.obs, rollout.last_obs)


def test_no_valid_transition_starts_at_the_final_observation(counted):
    rollout, _ = counted
    t = np.arange(14)
    column = lambda x: np.broadcast_to(x[:, None, None], (14, L, E))
    np.testing.assert_array_equal(rollout.obs[..., 0], column(t % 5))
    np.testing.assert_array_equal(rollout.valid, column(t % 5 != 4))
    np.testing.assert_array_equal(rollout.truncated, column(t % 5 == 3))
    np.testing.assert_array_equal(rollout.reward, rollout.valid)
    assert not rollout.terminated.any()
    assert 4 not in rollout.obs[rollout.valid]
    assert (rollout.last_obs == 4).all()  # the second rollout ends with an episode: its final observation


def test_a_truncated_episode_bootstraps_from_its_final_observation():
    """V(o) = 10 o, lambda = 0: A_t = 1 + gamma 10 (t + 1) - 10 t, at the last step with V(4), never V(0)."""
    learner, begin, play = player(probes.counter(limit=4), 7)
    setup = learner.update.args[0]
    cohort, worlds = begin(jax.random.key(0))
    _, cohort, rollout = play(jax.random.key(1), cohort, worlds)
    mine = jax.tree.map(lambda x: x[:, 0], rollout._replace(last_obs=()))
    mine = mine._replace(last_obs=rollout.last_obs[0])
    state = jax.tree.map(lambda x: x[0], cohort)
    state = state._replace(hypers=state.hypers._replace(gae_lambda=jnp.float32(0)))
    batch = jax.jit(partial(ppo.make_batch, setup))(state, mine)
    t = np.arange(7) % 5
    expected = np.where(t < 4, 1 + GAMMA * 10 * (t + 1) - 10 * t, 0)
    np.testing.assert_allclose(np.reshape(batch.advantage, (7, E))[:, 0], expected, rtol=1e-5)
    np.testing.assert_array_equal(np.reshape(batch.weight, (7, E))[:, 0], t < 4)


def random_walk():
    """Every step pays a number of its own and ends the episode by a coin, so every episode is told apart."""

    def step(key, state, action, params):
        key_reward, key_end = jax.random.split(key)
        return state, jax.random.normal(key_reward), jax.random.bernoulli(key_end)

    spec = EnvSpec("random_walk", "jax", Box((1,)), probes.counter().spec.action)
    return JaxEnv(spec, lambda key, params: jnp.zeros(1), step, lambda state, params: state)


def finished_episodes(rollout, learner):
    """(return, length) of every episode in the order of its end, summed up in plain Python."""
    episodes, running = [], [(0.0, 0)] * rollout.reward.shape[2]
    for t, e in np.ndindex(rollout.reward.shape[0], rollout.reward.shape[2]):
        if rollout.valid[t, learner, e]:
            total, length = running[e]
            running[e] = (total + rollout.reward[t, learner, e], length + 1)
            if rollout.terminated[t, learner, e] or rollout.truncated[t, learner, e]:
                episodes.append(running[e])
                running[e] = (0.0, 0)
    return episodes


def test_scores_are_those_of_the_last_hundred_episodes():
    """More than a hundred episodes in each of two rollouts: the ring holds the last of them."""
    rollout, worlds = play_two(random_walk(), 200)
    for learner in range(L):
        episodes = finished_episodes(rollout, learner)
        assert len(episodes) > 2 * 150
        assert worlds.episodes.finished[learner] == len(episodes)
        last = sorted(episodes[-collection.WINDOW :])
        ring = sorted(zip(worlds.episodes.returns[learner], worlds.episodes.lengths[learner], strict=True))
        np.testing.assert_allclose(ring, last, atol=1e-5)
    summary = score_metrics(probes.counter().spec, worlds.episodes)
    np.testing.assert_allclose(summary["return_mean"][1], np.mean([r for r, _ in last]), atol=1e-5)
    np.testing.assert_allclose(summary["length_mean"][1], np.mean([n for _, n in last]), atol=1e-5)


def test_a_few_episodes_are_averaged_alone(counted):
    """In 14 steps each of the three environments ends episodes at steps 4, 9 and 14."""
    _, worlds = counted
    summary = score_metrics(probes.counter().spec, worlds.episodes)
    assert summary["episodes"].tolist() == [9] * L
    assert summary["return_mean"].tolist() == summary["length_mean"].tolist() == [4.0] * L
    assert summary["return_std"].tolist() == [0.0] * L
    assert np.isnan(worlds.episodes.returns[:, 9:]).all()
    assert not np.any(worlds.episodes.running_length)


def test_before_the_first_end_there_is_no_score():
    _, worlds = play_two(probes.counter(limit=50), 7)
    summary = score_metrics(probes.counter().spec, worlds.episodes)
    assert summary["episodes"].tolist() == [0] * L
    for name in ("return_mean", "return_std", "length_mean"):
        assert np.isnan(summary[name]).all()
    assert (worlds.episodes.running_length == 14).all()
    assert (worlds.episodes.running_return == 14).all()


def test_every_learner_and_environment_draws_its_own():
    """Learners alike in all but their keys: no two rows see the same episodes or do the same."""
    noise = EnvSpec("noise", "jax", Box((1,)), Box((1,)), max_episode_steps=2)
    uniform = lambda key, params: jax.random.uniform(key, (1,))
    env = JaxEnv(
        noise,
        reset=uniform,
        step=lambda key, state, action, params: (uniform(key, ()), 0.0, False),
        observe=lambda state, params: state,
    )
    (rollout, _), (again, _), (other, _) = (play_two(env, 10, seed=seed) for seed in (0, 0, 1))
    for drawn in (rollout.obs, rollout.action):
        assert np.unique(drawn).size == drawn.size
    jax.tree.map(np.testing.assert_array_equal, rollout, again)
    assert not np.intersect1d(rollout.obs, other.obs).size
    assert not np.intersect1d(rollout.action, other.action).size


def test_choices_differ_between_rows_and_agree_between_equal_runs():
    (rollout, _), (again, _) = (play_two(probes.observation_choice(), 40) for _ in range(2))
    columns = lambda x: {tuple(row) for row in x.reshape(len(x), L * E).T.tolist()}
    assert len(columns(rollout.action)) == len(columns(rollout.obs)) == L * E
    jax.tree.map(np.testing.assert_array_equal, rollout, again)


def test_an_environment_is_answered_by_its_own_learner():
    """Observation, action and reward of a row belong together: reward 1 if action = (obs > 0)."""
    rollout, _ = play_two(probes.observation_choice(), 40)
    expected = rollout.valid & (rollout.action == (rollout.obs[..., 0] > 0))
    np.testing.assert_array_equal(rollout.reward, expected)
    assert 0 < rollout.reward[rollout.valid].mean() < 1
