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
from shoal.nets.actor_critic import actor_critic
from shoal.ops import peers
from shoal.ops.distributions import distribution_for
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.program import make_trainer
from shoal.types import PeerTargets
from tests.learners.lab import plainly
from tests.probes import masked_choice

RECIPE = from_jax(masked_choice())
PPO = PPOConfig(num_envs=8, num_steps=16, num_minibatches=2, hidden=(8,), learning_rate=0.02, norm_obs=True)
CONFIGS = {
    "ppo": PPO,
    "gru": with_settings(PPO, memory="gru", memory_size=8, hidden=(), objective="kl"),
    "dqn": DQNConfig(
        num_envs=8, batch_size=32, learning_starts=64, hidden=(8,), learning_rate=0.02, buffer_size=2000
    ),
}


@pytest.mark.parametrize("kind", [pytest.param("ppo", marks=pytest.mark.slow), "gru", "dqn"])
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


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_opinions_of_masked_policies_make_the_penalty_by_hand(direction):
    """KL over the two allowed choices, in both directions, to one neighbour."""
    config = with_settings(
        PPOConfig(), num_envs=1, num_steps=1, num_minibatches=1, hidden=(4,), comm_direction=direction
    )
    network = plainly(actor_critic(hidden=config.hidden))
    learner = ppo.ppo(config, RECIPE.spec, LearnerContext(1, network=network))
    assert learner.policy_terms is not None
    assert learner.distance is not None
    setup = ppo.PPOSetup(config, RECIPE.spec, distribution_for(RECIPE.spec.action), network, 1)

    @jax.jit
    def found(mine, other, obs):
        outputs = [state.params(obs)[0] for state in (mine, other)]
        told = PeerTargets(jnp.ones((1, 1)), learner.policy_terms(other, obs))
        heard = peers.aggregate(setup.distribution, direction, config.peers.form, told)
        heard = heard._replace(outputs=ppo.restrict(setup, obs, heard.outputs))
        penalty = peers.penalty(setup.distribution, direction, heard, ppo.restrict(setup, obs, outputs[0]))
        return outputs, penalty, learner.distance(mine, other, obs)

    mine, other = (jax.device_get(learner.init(jax.random.key(seed))) for seed in (1, 2))
    mask = np.array([[[True, False, True]]])
    outputs, penalty, distance = found(mine, other, {"obs": np.zeros((1, 1, 1)), "action_mask": mask})
    free = [np.float64(x)[0, 0, [0, 2]] for x in outputs]
    p, q = (np.exp(x) / np.exp(x).sum() for x in free)
    expected = (q * np.log(q / p)).sum() if direction == "forward" else (p * np.log(p / q)).sum()
    assert expected > 1e-3
    np.testing.assert_allclose(penalty[0, 0], expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(distance[0, 0], (p * np.log(p / q)).sum(), rtol=1e-3)


def test_the_mask_is_neither_standardised_nor_seen():
    state = jax.eval_shape(ppo.ppo(PPO, RECIPE.spec, LearnerContext(1)).init, jax.random.key(0))
    assert state.statistics.obs.keys() == {"obs"}
    assert state.params.encoder.num_out == 1


def test_random_actions_are_drawn_evenly_from_those_allowed():
    allowed = np.tile([[True, False, True, True, False]], (9000, 1))
    noise = np.float32(np.random.default_rng(0).uniform(size=9000))
    noise[0] = np.nextafter(np.float32(1), np.float32(0))
    found = np.asarray(jax.jit(lambda allowed, noise: dqn.random_action(allowed, 5, noise))(allowed, noise))
    counts = np.bincount(found, minlength=5)
    assert counts[[1, 4]].sum() == 0
    assert (np.abs(counts[[0, 2, 3]] - 3000) < 250).all()
    assert found[0] == 3


def test_targets_are_of_allowed_actions_only():
    """Q' = (1, 9, 3) of which the second is forbidden: the target is 0 + gamma 3, chosen by Q = (2, 9, 5)."""
    config = DQNConfig(num_envs=1, batch_size=1, buffer_size=4, learning_starts=0, hidden=(4,))
    setup = dqn.DQNSetup(config, RECIPE.spec, 3)
    obs, values = {"action_mask": np.array([[True, False, True]])}, np.float32([[1.0, 9.0, 3.0]])

    @jax.jit
    def found(obs, own, target):
        judged, chosen = (dqn.action_values(setup, lambda obs, x=x: x, obs) for x in (target, own))
        compared = dqn.compared_values(setup, lambda obs: target, obs)
        return dqn.gather_values(judged, jnp.argmax(chosen, -1)), compared

    picked, compared = found(obs, np.float32([[2.0, 9.0, 5.0]]), values)
    assert picked.tolist() == [3.0]
    assert compared.tolist() == [[1.0, 0.0, 3.0]]
