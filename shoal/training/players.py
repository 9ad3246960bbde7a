"""Players: one whole episode of every environment, by programs that are compiled once and kept."""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import count
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding

from shoal.distributed.mesh import BY_LEARNER, REPLICATED, on_each_device
from shoal.envs.adapters.host import raise_crash
from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.training.rollout import (
    EnvStates,
    accumulate_scores,
    act,
    begin_acting,
    draw_noise,
    raw_outcome,
    reset_envs,
)
from shoal.types import Env, EnvRecipe, EnvSpec, Learner, LearnerState, Tree

CHUNK = 64
"""Steps of one call of the compiled program."""
MAX_STEPS = 1_000_000
"""The longest episode, where the environment sets no limit."""
KEPT = 8
"""How many evaluations keep their compiled programs."""
Player: TypeAlias = Callable[[LearnerState, Tree], tuple[np.ndarray, np.ndarray]]
"""Plays whole episodes: (cohort, worlds) -> returns and lengths, (L, episodes) each."""


class FirstEpisodes(NamedTuple):
    """The first episode of every environment."""

    stale: Array  # (L, E) bool: the episode under way began earlier, so it does not count
    done: Array  # (L, E)
    returns: Array  # (L, E) or (L, E, A)
    lengths: Array  # (L, E)


class Programs(NamedTuple):
    """An evaluation's compiled programs, and the environments that they step."""

    env: Env
    begin: Callable[[Array, Array, Tree], tuple[EnvStates, FirstEpisodes]]
    play: Callable[..., tuple[Tree, EnvStates, FirstEpisodes]]


_programs: dict[tuple, Programs] = {}


def greedy(learner: Learner) -> Learner:
    """The same learner without exploration."""

    def no_noise(key, shape):
        like = jax.eval_shape(lambda key: learner.draw(key, shape), key)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

    return learner._replace(draw=no_noise)


def set_sampling(learner: Learner, sampled: bool) -> Learner:
    """The learner with sampled actions, as in training, or greedy ones."""
    return learner if sampled else greedy(learner)


@lru_cache(KEPT)
def ready_to_play(
    for_evaluation: Callable[[LearnerState, int], LearnerState], episodes: int
) -> Callable[[LearnerState], LearnerState]:
    """A compiled function that makes a learner's cohort ready for a `Player` of so many episodes."""
    return jax.jit(jax.vmap(lambda state: for_evaluation(state, episodes)))


def make_player(
    recipe: EnvRecipe,
    learner: Learner,
    sampled: bool,
    mesh: Mesh,
    num_learners: int,
    episodes: int,
    seed: int,
) -> Player:
    """A player of cohorts that `ready_to_play` made ready: every environment plays exactly one episode.

    Its programs are compiled once. Where environments keep no random numbers of their own beyond their
    seeds, every call plays the same starts.
    """
    seeds = np.random.SeedSequence([seed, 7]).generate_state(num_learners * episodes)
    by_device = seeds.reshape(mesh.shape["learners"], -1)
    programs = find_programs(recipe, learner, sampled, mesh, by_device, num_learners)
    key_reset, key_play = jax.random.split(jax.random.key(seed))
    reset_keys = jax.random.split(key_reset, (num_learners, episodes))
    play_keys = jax.random.split(key_play, num_learners)  # a learner's own, whatever device it is on
    calls = count()

    def play(cohort: LearnerState, params: Tree) -> tuple[np.ndarray, np.ndarray]:
        check_params(recipe.spec, params, (num_learners, episodes))
        cohort = jax.device_put(cohort, NamedSharding(mesh, BY_LEARNER))  # it may come from other devices
        private, models = cohort.private, cohort._replace(private=())
        # A game with several lives cannot begin anew: what an earlier call left of it is played first.
        stale = np.bool_(next(calls) > 0 and programs.env.restart is None)
        envs, played = programs.begin(stale, reset_keys, params)
        for chunk in range(MAX_STEPS // CHUNK):
            private, envs, played = programs.play(np.int32(chunk), play_keys, models, private, envs, played)
            done = np.all(played.done)
            raise_crash()
            if done:
                tell_crashes(programs.env)
                return np.asarray(played.returns), np.asarray(played.lengths)
        raise ShoalError(
            f"an episode of {recipe.spec.name} has no end after {MAX_STEPS:,} steps; set max_episode_steps"
        )

    return play


def find_programs(
    recipe: EnvRecipe,
    learner: Learner,
    sampled: bool,
    mesh: Mesh,
    seeds: np.ndarray,
    num_learners: int,
) -> Programs:
    """The programs of a learner in an environment; the last `KEPT` are kept, so that they compile once.

    Those that are tied to their first environments are not.
    """
    key = (
        recipe.build,
        learner.draw,
        learner.act,
        learner.for_evaluation,
        sampled,
        mesh,
        seeds.shape,
        num_learners,
    )
    found = _programs.pop(key, None)
    if found and (renew := found.env.renew):
        renew(seeds)
    else:
        env, player = recipe.build(seeds, False), set_sampling(learner, sampled)
        if env.containment is not None and num_learners > 1:  # a failure costs its learner's score alone
            owners = np.repeat(np.arange(num_learners), seeds.size // num_learners)
            env.containment.contain(owners.reshape(seeds.shape))
        specs = (REPLICATED, *[BY_LEARNER] * 5)
        found = Programs(
            env,
            begin=jax.jit(on_each_device(mesh, partial(_begin, env), specs[:3], BY_LEARNER)),
            play=jax.jit(on_each_device(mesh, partial(_play, env, player), specs, BY_LEARNER)),
        )
    if found.env.renew:
        _programs[key] = found
    for old in list(_programs)[:-KEPT]:
        del _programs[old]
    return found


def tell_crashes(env: Env) -> None:
    """Warn of learners whose environments failed; their scores are NaN."""
    for learner, fault in env.containment.take().items() if env.containment else ():
        warnings.warn(f"learner {learner} has no score: {fault}", RuntimeWarning)


def _begin(env: Env, stale: Array, keys: Array, params: Tree | None) -> tuple[EnvStates, FirstEpisodes]:
    envs = reset_envs(env, keys, fill_params(env.spec, params, keys.shape))
    stale, done = jnp.broadcast_to(stale, keys.shape), jnp.zeros(keys.shape, bool)
    zero = jnp.zeros_like(envs.episodes.running_return)
    return envs, FirstEpisodes(stale, done, zero, jnp.zeros(keys.shape, jnp.int32))


def _play(
    env: Env,
    learner: Learner,
    chunk: Array,
    keys: Array,
    models: LearnerState,
    private: Tree,
    envs: EnvStates,
    played: FirstEpisodes,
) -> tuple[Tree, EnvStates, FirstEpisodes]:
    """`CHUNK` more steps of every learner; the first finished episode of each environment counts."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, chunk)
    cohort = models._replace(private=private)

    def advance(carry, noise):
        acting, running, played = carry
        acting, _, step = act(env, learner, cohort, acting, *noise)
        running, (over, total, length) = accumulate_scores(running, raw_outcome(step, step.info))
        first = over & ~played.done & ~played.stale
        played = FirstEpisodes(
            played.stale & ~over,
            played.done | first,
            jnp.where(trees.align(first, total), total, played.returns),
            jnp.where(first, length, played.lengths),
        )
        return (acting, running, played), None

    episodes = envs.episodes
    running = (episodes.running_return, episodes.running_length)
    start = (begin_acting(cohort, envs), running, played)
    (acting, running, played), _ = jax.lax.scan(advance, start, draw_noise(env, learner, CHUNK, keys, envs))
    episodes = episodes._replace(running_return=running[0], running_length=running[1])
    step = envs.step._replace(obs=acting.obs, valid=~acting.episode_starts)
    return acting.private, EnvStates(acting.state, step, episodes), played


def fill_params(spec: EnvSpec, params: Tree | None, shape: tuple[int, ...]) -> Tree:
    """Parameters of this shape per leaf; the default ones where `params` is None."""
    given = spec.params if params is None else params
    return jax.tree.map(lambda x: jnp.full(shape, x, jnp.float32), given)


def check_params(spec: EnvSpec, params: Tree | None, shape: tuple[int, ...]) -> None:
    """Raise where worlds are those of another environment, or have the wrong shape."""
    if params is None:
        return
    if jax.tree.structure(params) != jax.tree.structure(spec.params):
        raise ShoalError(f"{spec.name} has the parameters {spec.params}, not {params}")
    shapes = {np.shape(leaf) for leaf in jax.tree.leaves(params)} - {shape}
    if shapes:
        raise ShoalError(f"parameters of {spec.name} must be {shape} per leaf here, not {shapes.pop()}")
