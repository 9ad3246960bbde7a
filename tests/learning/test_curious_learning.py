"""Curiosity, in seconds: a corridor that chance does not get through is walked to its end.

Of 64 learners with curiosity 95 % scored 1, of 64 without it 17 %.
"""

import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.learners.ppo import PPOConfig
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.loop import train
from tests import probes

pytestmark = pytest.mark.slow

LEARNERS = 12


def scores(intrinsic_coef):
    """Of a cohort at the end, (L,). One program serves any weight of the bonus."""
    algo = with_settings(
        PPOConfig(),
        num_envs=8,
        num_steps=32,
        num_minibatches=2,
        hidden=(32,),
        learning_rate=0.003,
        anneal_lr=False,
        gamma=0.97,
        curiosity=True,
        intrinsic_coef=intrinsic_coef,
        icm_size=32,
        icm_learning_rate=0.001,
    )
    config = TrainConfig("corridor", algo=algo, steps=120 * algo.rollout_size, learners=LEARNERS, reports=1)
    (report,) = train(config, recipe=from_jax(probes.corridor()))
    return report.metrics["return_mean"]


def test_a_corridor_is_walked_with_curiosity_and_not_without():
    curious, plain = scores(1.0).mean(), scores(0.0).mean()
    assert curious > 0.6
    assert curious > plain + 0.3
