"""What is faster on a CPU alone stays out of programs for a GPU. They are lowered here, not run."""

import re

import jax
import jax.numpy as jnp
import pytest

import shoal
from shoal.types import Rollout

NUM_LEARNERS, NUM_STEPS, NUM_ENVS = 3, 24, 2


@pytest.fixture(scope="module")
def lowered():
    """A PPO update of a cohort, as text for each platform."""
    spec = shoal.make("CartPole-v1").spec
    config = shoal.PPOConfig(num_envs=NUM_ENVS, num_steps=NUM_STEPS, num_minibatches=3, hidden=(5,))
    learner = shoal.ppo(config, spec)

    def update(keys):
        zeros = jnp.zeros((NUM_LEARNERS, NUM_STEPS, NUM_ENVS))
        no, yes = zeros > 0, zeros == 0
        obs, last_obs = jnp.zeros((*zeros.shape, 4)), jnp.zeros((NUM_LEARNERS, NUM_ENVS, 4))
        rollout = Rollout(obs, jnp.int32(zeros), zeros, no, no, yes, last_obs, episode_starts=no)
        return jax.vmap(learner.update)(keys, jax.vmap(learner.init)(keys), rollout)

    traced = jax.jit(update).trace(jax.random.split(jax.random.key(0), NUM_LEARNERS))
    return {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda")}


def shuffles_by_counting(text):
    """Comparisons of every sample with every other, which take minutes to compile on a GPU."""
    return [line for line in text.splitlines() if "compare" in line and f"{NUM_STEPS}x{NUM_STEPS}x" in line]


def products_by_column(text):
    """Products of a matrix with a vector, of each learner: (L, n, k) with (L, k)."""
    shapes = re.findall(r"dot_general.*: \(tensor<([\dx]+)xf32>, tensor<([\dx]+)xf32>\)", text)
    assert shapes
    return [pair for pair in shapes if min(len(shape.split("x")) for shape in pair) < 3]


@pytest.mark.parametrize("find", [shuffles_by_counting, products_by_column])
def test_what_is_tuned_for_a_cpu_is_not_in_a_gpus_program(lowered, find):
    assert find(lowered["cpu"])
    assert not find(lowered["cuda"])


def test_transposes_are_separate_on_a_cpu_alone(lowered):
    assert "optimization_barrier" in lowered["cpu"]
    assert "optimization_barrier" not in lowered["cuda"]
