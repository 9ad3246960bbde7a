"""One episode of one learner, step by step, with or without pictures."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.adapters.host import raise_crash
from shoal.ops import trees
from shoal.training.evaluate import check_params, fill_params, set_sampling
from shoal.training.rollout import act, begin_acting, draw_noise, raw_outcome, reset_envs
from shoal.training.scores import team_return
from shoal.types import EnvRecipe, Learner, LearnerState, Tree


class Step(NamedTuple):
    """The start of an episode, or one of its steps."""

    obs: Tree  # (1, ...) after the step
    action: Tree  # (1, ...) as the learner gave it, before the environment clips it; None at the start
    reward: float  # raw
    picture: np.ndarray | None  # (H, W, 3) uint8, after the step


class Trajectory(NamedTuple):
    """One episode of T steps."""

    obs: Tree  # (T + 1, ...) the last one included, which has no action
    action: Tree  # (T, ...)
    reward: np.ndarray  # (T,)


def episode(
    recipe: EnvRecipe,
    learner: Learner,
    cohort: LearnerState,
    seed: int = 0,
    max_steps: int = 1000,
    params: Tree | None = None,
    *,
    sampled: bool = False,
    pictures: bool = False,
) -> Iterator[Step]:
    """One episode of a cohort of one, greedy or `sampled`, step by step.

    `params` is the world, () per leaf; the default one unless given.
    """
    env = recipe.build(np.random.SeedSequence([seed, 11]).generate_state(1)[None], pictures)
    learner = set_sampling(learner, sampled)
    key_reset, key_play = jax.random.split(jax.random.key(seed))
    check_params(env.spec, params, ())
    reset_keys = jax.random.split(key_reset, (1, 1))
    reset = lambda keys, params: reset_envs(env, keys, params)
    envs = jax.jit(reset)(reset_keys, fill_params(env.spec, params, (1, 1)))
    cohort = jax.tree.map(jnp.asarray, trees.take(cohort, np.array([0])))  # a loaded one is NumPy's
    cohort = jax.vmap(lambda state: learner.for_evaluation(state, 1))(cohort)
    picture = lambda state: env.render(state, 0) if pictures else None
    yield Step(trees.take(envs.step.obs, 0), None, 0.0, picture(envs.state))

    @jax.jit
    def advance(t, cohort, acting):
        keys = jax.random.fold_in(key_play, t)[None]
        noise = trees.take(draw_noise(env, learner, 1, keys, envs._replace(state=acting.state)), 0)
        acting, action, step = act(env, learner, cohort, acting, *noise)
        reward, _, over = raw_outcome(step, step.info)
        return acting, trees.take(action, 0), (team_return(env.spec, reward)[0, 0], over[0, 0])

    acting = begin_acting(cohort, envs)
    for t in range(max_steps):
        acting, action, outcome = advance(t, cohort, acting)
        reward, over = jax.device_get(outcome)
        raise_crash()
        yield Step(trees.take(acting.obs, 0), action, float(reward), picture(acting.state))
        if over:
            return


def trajectory(episode: Iterable[Step]) -> Trajectory:
    """An episode's observations, actions and rewards as arrays."""
    steps = list(episode)
    concatenate = lambda trees: jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
    return Trajectory(
        obs=concatenate([step.obs for step in steps]),
        action=concatenate([step.action for step in steps[1:]]),
        reward=np.array([step.reward for step in steps[1:]]),
    )
