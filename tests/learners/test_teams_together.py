"""Teams along the learner axis: on any devices, averaged, with peer targets, competing, stopped."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.exchanges.config import ExchangeConfig
from shoal.learners.ppo import PPOConfig
from shoal.runs.metrics import read_metrics
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.program import make_trainer
from shoal.types import Box, Discrete, EnvSpec, JaxEnv

pytestmark = pytest.mark.slow

jax.devices()  # two of them, before a trainer divides the cores its own way

PPO = with_settings(
    PPOConfig(),
    num_envs=4,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    hidden=(4,),
    learning_rate=0.01,
    policies="agent",
)
GAME = TrainConfig("game", replace(PPO, norm_obs=True), steps=32 * 4, learners=2, seed=3)
TAG = with_settings(PPO, policies="team", past_selves=2, snapshot_every=1, freeze_every=2)
RING = ExchangeConfig("neighbours", topology="complete", local_updates=1)


def game():
    """Two agents see a number each and are paid for where they move it."""

    def reset(key, params):
        return jax.random.normal(key, (2,))

    def step(key, state, action, params):
        state = state + jnp.array([-0.5, 0.5])[action] + 0.1 * jax.random.normal(key, (2,))
        return state, -jnp.abs(state - jnp.arange(2.0)), jnp.bool_(False)

    spec = EnvSpec("game", "jax", Box((1,)), Discrete(2), 5, agents=2, shortest=5)
    return from_jax(JaxEnv(spec, reset, step, lambda state, params: state[:, None]))


def advanced(config, mesh="2x1"):
    trainer = make_trainer(config, recipe=game(), mesh=mesh)
    return trainer.advance(trainer.init(), np.int32(4))


@cache
def alone():
    return advanced(GAME)


def assert_close(a, b):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), a, b)


def test_environments_of_a_team_may_be_divided_over_devices():
    (one, _), (other, _) = alone(), advanced(GAME, "1x2")
    assert_close(one.cohort.params, other.cohort.params)
    assert_close(one.envs.episodes, other.envs.episodes)
    assert one.envs.episodes.returns.shape == (2, 100, 2)


def test_a_team_of_a_cohort_is_its_solo_run():
    solo, _ = advanced(replace(GAME, learners=1, first_member=1), "1x1")
    assert_close(jax.tree.map(lambda x: x[1:], alone()[0].cohort.params), solo.cohort.params)


def test_teams_that_meet_are_one():
    """Policy by policy: the agents of a team stay apart."""
    meeting = replace(GAME, exchanges=(ExchangeConfig("average", local_updates=2),))
    params = advanced(meeting)[0].cohort.params
    jax.tree.map(lambda x: np.testing.assert_array_equal(x[0], x[1]), params)
    first, second = (jax.tree.leaves(policy)[0] for policy in params.values())
    assert np.any(np.asarray(first) != np.asarray(second))


def test_every_policy_of_a_team_has_peer_targets_of_its_own_in_other_teams():
    """An agent's policy is drawn to the same agent's elsewhere: held hard enough, the teams are alike."""
    apart, near = (
        advanced(replace(GAME, algo=with_settings(GAME.algo, comm_penalty_coeff=weight), exchanges=(RING,)))
        for weight in (0.0, 100.0)
    )
    paid = [near[1].metrics[f"agent{i}/loss/neighbours"] for i in range(2)]
    assert all(np.all(np.asarray(loss) > 0) for loss in paid)
    distance = make_trainer(GAME, recipe=game()).parts.learner.distance
    assert distance is not None
    obs = jnp.linspace(-2, 2, 9)[:, None, None].repeat(2, 1)  # (9, A, 1)

    def between(state):
        one, other = (jax.tree.map(lambda x: x[i], state.cohort) for i in range(2))  # noqa: B023
        return np.asarray(distance(one, other, obs)).mean(0)

    assert np.all(between(near[0]) < between(apart[0]) / 2)


def test_new_episodes_with_every_rollout():
    state, _ = advanced(replace(GAME, hard_resets=True))
    assert np.all(np.asarray(state.envs.episodes.lengths)[:, :4] == 5)


def test_a_run_of_teams_that_was_stopped_ends_as_if_it_had_not_been(go_on, tmp_path):
    """Two teams in turn against their past selves, with peer targets of others, the better one copied."""
    exchanges = (RING, with_settings(ExchangeConfig("winner", local_updates=2), min_episodes=1))
    config = TrainConfig("simple_tag_v3", TAG, steps=32 * 8, learners=2, reports=8, exchanges=exchanges)
    assert go_on(config, tmp_path / "whole")[0] is None
    assert go_on(config, tmp_path / "halves", until=128)[0] is None
    assert go_on(config, tmp_path / "halves")[0] == 128
    one, two = (
        (tmp_path / kind / "checkpoints" / "step_000000256.safetensors").read_bytes()
        for kind in ("whole", "halves")
    )
    assert one == two
    assert {f"return_agent{i}" for i in range(4)} <= read_metrics(tmp_path / "halves").keys()
