"""A policy acts as its learner does in its run's own greedy episodes, whatever the algorithm."""

import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import shoal
from shoal.envs.adapters.jax_env import from_jax
from shoal.learners.ppo import PPOConfig, ppo
from shoal.runs.graphs.spaces import describe_parts, describe_space
from shoal.runs.jax_policy import jax_policy
from shoal.runs.learners import choose_learner, load_learners, load_policy
from shoal.runs.numpy_policy import DESCRIPTION
from shoal.runs.policy import clip_action
from shoal.training.episode import episode, trajectory
from shoal.types import Box, Discrete, EnvSpec, JaxEnv
from tests.runs.own_networks import normed, sorting

PPO = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "hidden": (4,), "steps": 64}
REPLAY = {
    "num_envs": 2,
    "hidden": (4,),
    "buffer_size": 64,
    "batch_size": 8,
    "learning_starts": 16,
    "steps": 64,
}
KINDS = {
    "ppo": ("Pendulum-v1", PPO | {"norm_obs": True, "network.init_log_std": 2.0, "learners": 2}),
    "lstm": ("Pendulum-v1", PPO | {"memory": "lstm", "memory.size": 4}),
    "stacked": ("Pendulum-v1", PPO | {"frame_stack": 3}),
    "td3": ("Pendulum-v1", REPLAY | {"algo": "td3", "norm_obs": True}),
    "dqn": ("Acrobot-v1", REPLAY | {"algo": "dqn", "seed": 4}),
    "team": ("Foraging-8x8-2p-2f-coop-v3", PPO | {"memory": "gru", "memory.size": 4}),
}


SLOW = ("stacked", "td3", "dqn", "team")


@pytest.fixture(
    scope="module", params=[pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in KINDS]
)
def played(request, tmp_path_factory):
    """A trained run, one greedy episode of its best learner, and how many frames it sees at once."""
    env, settings = KINDS[request.param]
    run = shoal.run(env, folder=tmp_path_factory.mktemp(request.param), **settings)
    trained = load_learners(run.folder)
    _, cohort = choose_learner(trained, "best")
    return run, trajectory(episode(trained.recipe, trained.learner, cohort, seed=5, max_steps=40))


def newest_frame(run, obs):
    """The part of an observation that the policy is given, which stacks the frames itself."""
    return jax.tree.map(lambda x: x[..., -(x.shape[-1] // run.config.frame_stack) :], obs)


def step_of(obs, t):
    return jax.tree.map(lambda x: np.asarray(x[t]), obs)


def test_a_policy_acts_as_in_a_greedy_episode(played):
    """One observation at a time; twice, so what one episode leaves is forgotten in the next."""
    run, episode = played
    policy, obs = run.policy(), newest_frame(run, episode.obs)
    expected = clip_action(policy.action, episode.action)
    for _ in range(2):
        policy.reset()
        actions = np.array([policy(step_of(obs, t)) for t in range(len(expected))])
        np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)
    assert len(np.unique(expected)) > 1


def test_in_numpy_and_in_jax_a_policy_is_the_same(played):
    """Random observations, with episodes that end; sampled actions are others, in NumPy."""
    run, episode = played
    policy, reference = run.policy(), load_policy(run.folder, run.parts, "best", "latest")
    assert describe_parts(policy.observation) == describe_parts(reference.observation)
    assert describe_space(policy.action) == describe_space(reference.action)
    rng, obs = np.random.default_rng(0), newest_frame(run, episode.obs)
    noisy = lambda x: x + np.asarray(rng.normal(size=(20, *x.shape[1:])), x.dtype)
    for step in range(10):
        batch = jax.tree.map(lambda x: noisy(x[step : step + 1]), obs)  # noqa: B023
        np.testing.assert_allclose(policy(batch), reference(batch), rtol=0, atol=1e-5)
        ended = rng.random(20) < 0.2
        policy.reset(ended)
        reference.reset(ended)


@pytest.mark.parametrize("played", ["ppo"], indirect=True)
def test_a_policy_is_loaded_without_jax(played):
    """Where JAX cannot even be imported; only the mean of all learners needs it."""
    run, _ = played
    code = f"""
import json, sys
sys.modules["jax"] = None
import shoal
policy = shoal.load({str(run.folder)!r}).policy(1, sampled=False)
action = policy([0.5, 0.5, 1.0])
print(json.dumps([action.tolist(), sorted(set(sys.modules) & {{"jaxlib", "equinox", "optax"}})]))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    action, loaded = json.loads(printed)
    np.testing.assert_allclose(action, run.policy(1)([0.5, 0.5, 1.0]), rtol=0, atol=1e-6)
    assert not loaded


@pytest.mark.parametrize("played", ["ppo"], indirect=True)
def test_a_run_without_a_description_acts_in_jax(played, tmp_path):
    """A run of version 0.1, or one whose network has no form in NumPy."""
    run, _ = played
    folder = shutil.copytree(run.folder, tmp_path / "run")
    (folder / DESCRIPTION).unlink()
    obs = np.random.default_rng(0).normal(size=(50, 3))
    np.testing.assert_allclose(shoal.load(folder).policy()(obs), run.policy()(obs), rtol=0, atol=1e-5)

    run = shoal.run("Pendulum-v1", network=sorting, folder=tmp_path / "own", **PPO)
    assert not (run.folder / DESCRIPTION).exists()
    assert run.policy()(obs).shape == (50, 1)


def test_a_network_of_ones_own_acts_in_numpy_and_is_exported(tmp_path):
    run = shoal.run("CartPole-v1", network=normed, folder=tmp_path / "own", **PPO)
    policy, reference = run.policy(), load_policy(run.folder, run.parts, "best", "latest")
    assert (run.folder / DESCRIPTION).exists()
    obs = np.float32(np.random.default_rng(0).normal(size=(100, 4)))
    actions = policy(obs)
    np.testing.assert_array_equal(actions, reference(obs))
    assert len(np.unique(actions)) == 2
    assert "policy.onnx" in [path.name for path in run.export(tmp_path / "exported")]


def test_a_batch_is_its_rows(played):
    """Three copies of the episode, the last of which begins anew in the middle."""
    run, episode = played
    policy, obs = run.policy(), newest_frame(run, episode.obs)
    middle, end = len(episode.action) // 2, len(episode.action)
    alone = [policy(step_of(obs, t)) for t in range(end)]
    policy.reset()
    begun = [policy(step_of(obs, t)) for t in range(middle, end)]
    policy.reset()
    for t in range(end):
        if t == middle:
            policy.reset([False, False, True])
        actions = policy(jax.tree.map(lambda x: np.stack([x] * 3), step_of(obs, t)))
        assert actions.shape == (3, *np.shape(alone[t]))
        rows = (alone[t], alone[t], begun[t - middle] if t >= middle else alone[t])
        np.testing.assert_allclose(actions, rows, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("played", ["lstm", pytest.param("stacked", marks=pytest.mark.slow)], indirect=True)
def test_a_policy_with_memory_is_reset_before_another_number_of_rows(played):
    policy = played[0].policy()
    policy(np.zeros(3))
    with pytest.raises(shoal.ShoalError, match=r"the state of 1 environments, not 2; call reset\(\)"):
        policy(np.zeros((2, 3)))
    with pytest.raises(shoal.ShoalError, match="reset takes 1 flags"):
        policy.reset([True, False])
    policy.reset()
    assert policy(np.zeros((2, 3))).shape == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("played", ["dqn"], indirect=True)
def test_a_policy_without_memory_takes_any_number_of_rows(played):
    policy = played[0].policy()
    assert [policy(np.zeros(shape)).shape for shape in ((6,), (3, 6), (2, 6))] == [(), (3,), (2,)]


@pytest.mark.parametrize("played", ["ppo"], indirect=True)
def test_actions_are_inside_their_bounds_and_differ_when_sampled(played):
    run, _ = played
    sampled = run.policy(sampled=True, seed=1)
    actions = [sampled(np.zeros((50, 3))) for _ in range(2)]
    assert np.abs(actions).max() == 2.0, "a deviation of e^2 goes beyond Pendulum's bounds"
    assert np.any(actions[0] != actions[1])
    again = run.policy(sampled=True, seed=1)(np.zeros((50, 3)))
    np.testing.assert_array_equal(again, actions[0])
    greedy = run.policy()
    np.testing.assert_array_equal(greedy(np.zeros(3)), greedy(np.zeros(3)))


@pytest.mark.parametrize("played", ["ppo"], indirect=True)
def test_the_learner_of_a_policy_can_be_chosen(played):
    run, _ = played
    obs = np.array([0.5, 0.5, 1.0])
    actions = {which: float(run.policy(which)(obs)[0]) for which in (0, 1, "mean", "best")}
    assert actions["best"] == actions[run.best]
    assert len({actions[0], actions[1], actions["mean"]}) == 3
    with pytest.raises(shoal.ShoalError, match="no learner '2'"):
        run.policy(2)
    with pytest.raises(shoal.ShoalError, match="one learner can play at a time"):
        run.policy("all")


@pytest.mark.parametrize("played", ["ppo"], indirect=True)
def test_observations_of_another_shape_are_refused(played):
    policy = played[0].policy()
    for wrong in ((4,), (2, 2, 3), ()):
        with pytest.raises(shoal.ShoalError, match=r"an observation of Pendulum-v1 is \(3,\), or \(B, ...\)"):
            policy(np.zeros(wrong))


def test_named_observations_and_masks():
    """A forbidden action is never taken; every part is one observation, or every part is a batch."""
    parts = {"obs": Box((2,)), "action_mask": Box((3,))}
    env = JaxEnv(
        EnvSpec("masked", "jax", parts, Discrete(3)),
        reset=lambda key, params: jax.numpy.zeros(2),
        step=lambda key, state, action, params: (state, 0.0, False),
        observe=lambda state, params: {"obs": state, "action_mask": jax.numpy.ones(3)},
    )
    spec = from_jax(env).spec
    learner = ppo(PPOConfig(hidden=(4,)), spec)
    policy = jax_policy(spec, learner, learner.init(jax.random.key(0)))
    masks = np.eye(3)
    obs = {"obs": np.ones((3, 2)), "action_mask": masks}
    assert policy(obs).tolist() == [0, 1, 2]
    assert policy({"obs": np.ones(2), "action_mask": masks[1]}) == 1
    with pytest.raises(shoal.ShoalError, match="has the parts obs, action_mask"):
        policy({"obs": np.ones(2)})
    with pytest.raises(shoal.ShoalError, match="a batch and others are not"):
        policy({"obs": np.ones(2), "action_mask": masks})
