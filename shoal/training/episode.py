"""One episode of one learner, step by step: its pictures for a video, or its trajectory."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.adapters.host import raise_crash
from shoal.ops import trees
from shoal.training.evaluate import check_params, greedy, set_sampling
from shoal.training.rollout import act, begin_acting, draw_noise, raw_outcome, reset_envs
from shoal.training.scores import team_return
from shoal.types import Env, EnvRecipe, Learner, LearnerState, Tree


class Trajectory(NamedTuple):
    """One episode of T steps."""

    obs: Tree  # (T + 1, ...) the last one included, which has no action
    action: Tree  # (T, ...) as the learner gave it, before the environment clips it
    reward: np.ndarray  # (T,) raw


def episode(
    recipe: EnvRecipe,
    learner: Learner,
    cohort: LearnerState,
    seed: int = 0,
    max_steps: int = 1000,
    params: Tree | None = None,
    sampled: bool = False,
) -> Iterator[tuple[np.ndarray, float]]:
    """Pictures and raw rewards of one episode of a cohort of one, greedy or `sampled`, step by step.

    `params` is the world, () per leaf; the default one unless given.
    """
    env = recipe.build(_episode_seeds(seed), True)
    for step in _steps(env, set_sampling(learner, sampled), cohort, seed, max_steps, params):
        yield env.render(step.state, 0), step.reward


def trajectory(
    recipe: EnvRecipe,
    learner: Learner,
    cohort: LearnerState,
    seed: int = 0,
    max_steps: int = 1000,
    params: Tree | None = None,
) -> Trajectory:
    """Observations, actions and rewards of the same episode, greedy and without pictures."""
    env = recipe.build(_episode_seeds(seed), False)
    steps = list(_steps(env, greedy(learner), cohort, seed, max_steps, params))
    concatenate = lambda trees: jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
    return Trajectory(
        obs=concatenate([step.obs for step in steps]),
        action=concatenate([step.action for step in steps[1:]]),
        reward=np.array([step.reward for step in steps[1:]]),
    )


class _Step(NamedTuple):
    """The start of an episode, or one of its steps."""

    state: Tree  # (1, ...)
    obs: Tree  # (1, ...)
    action: Tree  # (1, ...); None at the start
    reward: float


def _episode_seeds(seed: int) -> np.ndarray:
    """The seed of the one environment, (1, 1)."""
    return np.random.SeedSequence([seed, 11]).generate_state(1)[None]


def _steps(
    env: Env, learner: Learner, cohort: LearnerState, seed: int, max_steps: int, params: Tree | None
) -> Iterator[_Step]:
    key_reset, key_play = jax.random.split(jax.random.key(seed))
    check_params(env.spec, params, ())
    given = env.spec.params if params is None else params
    params = jax.tree.map(lambda x: jnp.full((1, 1), x, jnp.float32), given)
    reset_keys = jax.random.split(key_reset, (1, 1))
    envs = jax.jit(lambda keys, params: reset_envs(env, keys, params))(reset_keys, params)
    cohort = jax.tree.map(jnp.asarray, trees.take(cohort, np.array([0])))  # a loaded one is NumPy's
    cohort = jax.vmap(lambda state: learner.for_evaluation(state, 1))(cohort)
    yield _Step(envs.state, trees.take(envs.step.obs, 0), None, 0.0)

    @jax.jit
    def advance(t, cohort, acting):
        keys = jax.random.fold_in(key_play, t)[None]
        noise = trees.take(draw_noise(env, learner, 1, keys, envs._replace(state=acting.state)), 0)
        acting, action, time_step = act(env, learner, cohort, acting, *noise)
        reward, _, over = raw_outcome(time_step, time_step.info)
        return acting, trees.take(action, 0), (team_return(env.spec, reward)[0, 0], over[0, 0])

    acting = begin_acting(cohort, envs)
    for t in range(max_steps):
        acting, action, ending = advance(t, cohort, acting)
        reward, over = jax.device_get(ending)
        raise_crash()
        yield _Step(acting.state, trees.take(acting.obs, 0), action, float(reward))
        if over:
            return
