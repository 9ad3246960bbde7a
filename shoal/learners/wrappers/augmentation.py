"""Augmentation: a learner also learns from variants of its observations, with the same actions and rewards.

The environment computes K variants of an observation, of which the first is the observation itself
(`EnvSpec.augment`). The wrapped learner has K times as many environments. Of its private state, only the part
of the real environments is kept.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError
from shoal.learners.hyper_schedules import steps_to_iterations
from shoal.learners.ppo_config import PPOConfig
from shoal.types import Augmentation, EnvSpec, Learner, LearnerState, Rollout, Tree


def add_augmentation(make: Callable[[PPOConfig], Learner], config: PPOConfig, spec: EnvSpec) -> Learner:
    """The learner of `make`, updated with the rollouts of K times as many environments as it acts in.

    Values and log-probabilities are those of the variants, so the first ratio is 1. The moments of
    observations include the variants. Peer targets at an observation are used for its variants. The number of
    minibatches stays the same, so it divides the larger rollout as well.
    """
    augment = check(spec)
    copies = augment.copies
    # Variants are no steps of the environment: schedules in steps go by the real ones.
    schedules = tuple(steps_to_iterations(text, config.rollout_size) for text in config.schedules)
    inputs = replace(config.inputs, augment=False)
    inner = make(replace(config, num_envs=copies * config.num_envs, schedules=schedules, inputs=inputs))
    keep_real, repeat = partial(take_real, copies, inner.by_env), partial(repeat_envs, copies, inner.by_env)

    def init(key: Array) -> LearnerState:
        state = inner.init(key)
        return state._replace(private=keep_real(state.private))

    def update(key: Array, state: LearnerState, rollout: Rollout) -> tuple[LearnerState, dict[str, Array]]:
        state = state._replace(private=repeat(state.private))
        state, metrics = inner.update(key, state, add_variants(augment, rollout))
        return state._replace(private=keep_real(state.private)), metrics

    return inner._replace(init=init, update=update)


def add_variants(augment: Augmentation, rollout: Rollout) -> Rollout:
    """The rollout with K times as many environments, an observation's variants adjacent: (T, E K, ...)."""
    copies = augment.copies
    last_obs = jax.tree.map(lambda x: x[None], rollout.last_obs)
    others = jax.tree.map(partial(jnp.repeat, repeats=copies, axis=1), rollout._replace(obs=(), last_obs=()))
    return others._replace(
        obs=variants(augment, rollout.obs),
        last_obs=jax.tree.map(lambda x: x[0], variants(augment, last_obs)),
    )


def variants(augment: Augmentation, obs: Tree) -> Tree:
    """Observations (T, E, ...) and their variants, (T, E K, ...)."""
    length, num_envs = jax.tree.leaves(obs)[0].shape[:2]
    batch = augment.apply(jax.tree.map(lambda x: x.reshape(length * num_envs, *x.shape[2:]), obs))
    return jax.tree.map(lambda x: x.reshape(length, num_envs * augment.copies, *x.shape[2:]), batch)


def repeat_envs(copies: int, by_env: Tree, private: Tree) -> Tree:
    """A private state with `copies` of everything that belongs to an environment, next to each other."""
    repeat = partial(jax.tree.map, lambda x: jnp.repeat(x, copies, axis=0))
    return jax.tree.map(lambda split, part: repeat(part) if split else part, by_env, private)


def take_real(copies: int, by_env: Tree, private: Tree) -> Tree:
    """The inverse of `repeat_envs`: the first copy of each."""
    first = partial(jax.tree.map, lambda x: x[::copies])
    return jax.tree.map(lambda split, part: first(part) if split else part, by_env, private)


def check(spec: EnvSpec) -> Augmentation:
    """The environment's augmentation; raises where it has none, or one that does not return observations."""
    augment = spec.augment
    if augment is None:
        raise ShoalError(
            f"{spec.name} offers no variants of its observations: give its JaxEnv `augment` or its Gymnasium "
            "class `augment_observation`, or use --no-augment"
        )
    shaped = lambda *lead: jax.tree.map(
        lambda box: jax.ShapeDtypeStruct((*lead, *box.shape), box.dtype), spec.observation
    )
    # Without shardings: inside a program on several devices, shapes have them.
    plain = partial(jax.tree.map, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
    found, expected = plain(jax.eval_shape(augment.apply, shaped(1))), plain(shaped(1, augment.copies))
    if found != expected:
        raise ShoalError(f"{spec.name}: variants must have the shapes and types {expected}, not {found}")
    return augment
