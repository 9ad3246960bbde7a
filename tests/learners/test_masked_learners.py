"""Learners under action masks: what is forbidden is not done, not believed and not learned from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.learners import dqn, ppo
from shoal.learners.context import LearnerContext
from shoal.learners.dqn import DQNConfig
from shoal.learners.ppo import PPOConfig
from shoal.ops import peers
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.program import make_trainer
from shoal.types import PeerTargets
from tests.probes import masked_choice

RECIPE = from_jax(masked_choice())
PPO = PPOConfig(num_envs=8, num_steps=16, num_minibatches=2, hidden=(8,), learning_rate=0.02, norm_obs=True)
CONFIGS = {
    "ppo": PPO,
    "gru": with_settings(PPO, memory="gru", memory_size=8, objective="kl"),
    "dqn": DQNConfig(
        num_envs=8, batch_size=32, learning_starts=64, hidden=(8,), learning_rate=0.02, buffer_size=2000
    ),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_tempting_action_is_never_taken_and_the_best_allowed_one_is_found(kind):
    """The forbidden one pays 10: a single time would show, as no iteration ends more than are kept."""
    trainer = make_trainer(TrainConfig("probe", CONFIGS[kind], steps=4000), recipe=RECIPE)
    state = trainer.init()
    for _ in range(trainer.parts.config.num_iterations):
        state, progress = trainer.advance(state, 1)
        paid = np.asarray(state.envs.episodes.returns)
        assert not (paid > 2).any()
        assert all(np.isfinite(x).all() for x in progress.metrics.values())
    assert paid.mean() > 1.4  # of 5/3; at random 1


def test_opinions_of_masked_policies_make_the_penalty_by_hand():
    """KL over the two allowed choices, in both directions, to one neighbour."""
    obs = {"obs": jnp.zeros((1, 1, 1)), "action_mask": jnp.array([[[True, False, True]]])}
    for direction in ("forward", "reverse"):
        config = with_settings(
            PPOConfig(), num_envs=1, num_steps=1, num_minibatches=1, hidden=(4,), comm_direction=direction
        )
        learner = ppo.ppo(config, RECIPE.spec, LearnerContext(1))
        assert learner.policy_terms is not None
        mine, other = (shaken(learner.init(jax.random.key(seed)), seed) for seed in (1, 2))
        own, theirs = (np.asarray(state.params(obs)[0], np.float64)[0, 0, [0, 2]] for state in (mine, other))
        p, q = (np.exp(x) / np.exp(x).sum() for x in (own, theirs))
        expected = (q * np.log(q / p)).sum() if direction == "forward" else (p * np.log(p / q)).sum()
        told = PeerTargets(jnp.ones((1, 1)), learner.policy_terms(other, obs))
        setup = ppo.PPOSetup(config, RECIPE.spec, ppo.distribution_for(RECIPE.spec.action), None, 1)
        heard = peers.aggregate(setup.distribution, direction, config.peers.form, told)
        heard = heard._replace(outputs=ppo.restrict(setup, obs, heard.outputs))
        outputs = ppo.restrict(setup, obs, mine.params(obs)[0])
        penalty = peers.penalty(setup.distribution, direction, heard, outputs)
        np.testing.assert_allclose(penalty[0, 0], expected, rtol=1e-3, atol=1e-6)
        assert learner.distance is not None
        apart = (p * np.log(p / q)).sum()
        np.testing.assert_allclose(learner.distance(mine, other, obs)[0, 0], apart, rtol=1e-3)


def shaken(state, seed):
    """A learner whose policy is not the even one it begins with."""
    leaves, tree = jax.tree.flatten(state.params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noisy = [leaf + jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return state._replace(params=jax.tree.unflatten(tree, noisy))


def test_the_mask_is_neither_standardised_nor_seen():
    learner = ppo.ppo(PPO, RECIPE.spec, LearnerContext(1))
    state = learner.init(jax.random.key(0))
    assert state.statistics.obs.keys() == {"obs"}
    assert state.params.encoder.num_out == 1


def test_random_actions_are_drawn_evenly_from_those_allowed():
    allowed = jnp.tile(jnp.array([[True, False, True, True, False]]), (9000, 1))
    noise = jax.random.uniform(jax.random.key(0), (9000,))
    counts = np.bincount(dqn.pick_one(allowed, 5, noise), minlength=5)
    assert counts[[1, 4]].sum() == 0
    assert (np.abs(counts[[0, 2, 3]] - 3000) < 250).all()
    assert dqn.pick_one(allowed[:1], 5, jnp.array([np.nextafter(np.float32(1), np.float32(0))])).item() == 3


def test_targets_are_of_allowed_actions_only():
    """Q' = (1, 9, 3) of which the second is forbidden: the target is 0 + gamma 3, chosen by Q = (2, 9, 5)."""
    config = DQNConfig(num_envs=1, batch_size=1, buffer_size=4, learning_starts=0, hidden=(4,))
    setup = dqn.DQNSetup(config, RECIPE.spec, 3, 1)
    obs = {"action_mask": jnp.array([[True, False, True]])}
    judged = dqn.judge(setup, lambda obs: jnp.array([[1.0, 9.0, 3.0]]), obs)
    chosen = jnp.argmax(dqn.judge(setup, lambda obs: jnp.array([[2.0, 9.0, 5.0]]), obs), -1)
    assert dqn.pick(judged, chosen).tolist() == [3.0]
    assert dqn.compared_values(setup, lambda obs: jnp.array([[1.0, 9.0, 3.0]]), obs).tolist() == [
        [1.0, 0.0, 3.0]
    ]
