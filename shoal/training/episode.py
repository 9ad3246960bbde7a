"""One episode of one learner, step by step, with or without pictures."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from shoal.envs.adapters.host import raise_crash
from shoal.ops import trees
from shoal.training.players import check_params, fill_params, set_sampling
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
    check_params(env.spec, params, ())

    @jax.jit
    def begin(key, cohort, params):
        key_reset, key_play = jax.random.split(key)
        keys = jax.random.split(key_reset, (1, 1))
        envs = reset_envs(env, keys, fill_params(env.spec, params, (1, 1)))
        cohort = jax.vmap(lambda state: learner.for_evaluation(state, 1))(trees.take(cohort, np.array([0])))
        return key_play, cohort, envs, begin_acting(cohort, envs)

    @jax.jit
    def advance(key, t, cohort, envs, acting):
        keys = jax.random.fold_in(key, t)[None]
        noise = trees.take(draw_noise(env, learner, 1, keys, envs._replace(state=acting.state)), 0)
        acting, action, step = act(env, learner, cohort, acting, *noise)
        reward, _, over = raw_outcome(step, step.info)
        outcome = trees.take((acting.obs, action, team_return(env.spec, reward), over), 0)
        return acting, outcome

    picture = lambda state: env.render(state, 0) if pictures else None
    key, cohort, envs, acting = begin(jax.random.key(seed), cohort, params)
    yield Step(trees.take(jax.device_get(acting.obs), 0), None, 0.0, picture(acting.state))
    for t in range(max_steps):
        acting, outcome = advance(key, np.int32(t), cohort, envs, acting)
        obs, action, reward, over = jax.device_get(outcome)
        raise_crash()
        yield Step(obs, action, float(reward[0]), picture(acting.state))
        if over[0]:
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
