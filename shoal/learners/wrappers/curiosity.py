"""Curiosity (Pathak et al. 2017): the prediction errors of a learned model are added to the rewards.

bonus = scale / 2 |forward(phi(o), a) - phi(o')|^2
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from shoal.distributed.mesh import psum
from shoal.learners import gradients, observations
from shoal.learners.context import data_axes
from shoal.learners.minibatches import draw_orders, gather_minibatches
from shoal.learners.ppo_config import PPOConfig
from shoal.learners.wrappers.curiosity_model import (
    Model,
    Transitions,
    action_numbers,
    curiosity_loss,
    forward_error,
    make_model,
)
from shoal.nets.convolutions import is_image
from shoal.ops import trees
from shoal.ops.advantages import discounted_returns
from shoal.ops.statistics import weighted_mean
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree


class WithCuriosity(NamedTuple):
    """A field of the state in two parts: the policy's and the curiosity model's."""

    policy: Tree
    curiosity: Tree


class Intrinsic(NamedTuple):
    """Sums of bonuses: of the running episodes, and the mean over the episodes that ended last."""

    running: Array  # (E,)
    finished: Array  # (), NaN until an episode has ended


class CuriositySetup(NamedTuple):
    """What is fixed when a learner is made: the first argument of the functions below."""

    config: PPOConfig
    spec: EnvSpec
    learner: Learner
    axes: tuple[str, ...] = ()
    shards: int = 1

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The mapped axes over which a learner's environments are divided."""
        return data_axes(self.shards)


def add_curiosity(
    learner: Learner, config: PPOConfig, spec: EnvSpec, axes: tuple[str, ...] = (), shards: int = 1
) -> Learner:
    """The learner with a curiosity model, whose prediction errors are a bonus (`Rollout.bonus`).

    Parameters, optimiser, private state and anchor become pairs (`WithCuriosity`). Exchanges mix both parts;
    the second is called `curiosity`. The statistics are the learner's own.
    """
    setup = CuriositySetup(config, spec, learner, axes, shards)
    return Learner(
        init=partial(init, setup),
        draw=learner.draw,
        act=partial(act, setup),
        update=partial(update, setup),
        policy_terms=with_policies(learner.policy_terms) if learner.policy_terms else None,
        distance=with_policies(learner.distance) if learner.distance else None,
        value=with_policies(learner.value) if learner.value else None,
        for_evaluation=partial(for_evaluation, setup),
        on_restart=partial(on_restart, setup),
        grouped=learner.grouped,
        by_env=WithCuriosity(learner.by_env, Intrinsic(running=True, finished=False)),
        sequence_terms=with_policies(learner.sequence_terms) if learner.sequence_terms else None,
    )


def policy_of(state: LearnerState) -> LearnerState:
    """The state of the learner without curiosity."""
    inner = lambda part: part.policy if isinstance(part, WithCuriosity) else part
    return state._replace(
        params=inner(state.params),
        opt_state=inner(state.opt_state),
        private=inner(state.private),
        anchor=inner(state.anchor),
    )


def replace_policy(state: LearnerState, policy: LearnerState) -> LearnerState:
    """The state with another policy beside the same curiosity model."""
    pair = lambda old, new: old._replace(policy=new) if isinstance(old, WithCuriosity) else new
    return policy._replace(
        params=pair(state.params, policy.params),
        opt_state=pair(state.opt_state, policy.opt_state),
        private=pair(state.private, policy.private),
        anchor=pair(state.anchor, policy.anchor),
    )


def with_policies(function: Callable) -> Callable:
    """A function of the learner's states and other arguments, called with the policies' states."""
    inner = lambda argument: policy_of(argument) if isinstance(argument, LearnerState) else argument
    return lambda *arguments: function(*map(inner, arguments))


def init(setup: CuriositySetup, key: Array) -> LearnerState:
    """The learner, and a new model beside it."""
    key_policy, key_model = jax.random.split(key)
    state = setup.learner.init(key_policy)
    model = make_model(key_model, setup.spec, setup.config.curiosity.size, setup.config.network.images)
    num_envs = setup.config.num_envs // setup.shards
    params = WithCuriosity(state.params, model)
    return state._replace(
        params=params,
        opt_state=WithCuriosity(state.opt_state, optimiser(setup.config, jnp.float32(1)).init(model)),
        private=WithCuriosity(state.private, Intrinsic(jnp.zeros(num_envs), jnp.float32(jnp.nan))),
        anchor=params if setup.config.prox_coef else (),
    )


def act(
    setup: CuriositySetup, state: LearnerState, obs: Tree, noise: Tree, episode_starts: Array | None = None
) -> tuple[Tree, WithCuriosity]:
    """The policy's actions, and the private state."""
    action, private = setup.learner.act(policy_of(state), obs, noise, episode_starts)
    return action, state.private._replace(policy=private)


def for_evaluation(setup: CuriositySetup, state: LearnerState, num_envs: int) -> LearnerState:
    """The policy for `num_envs` other environments; the model is not used in evaluation."""
    return replace_policy(state, setup.learner.for_evaluation(policy_of(state), num_envs))


def on_restart(setup: CuriositySetup, state: LearnerState) -> LearnerState:
    """The learner before new episodes: bonuses count from 0."""
    state = replace_policy(state, setup.learner.on_restart(policy_of(state)))
    sums = state.private.curiosity
    return state._replace(
        private=state.private._replace(curiosity=sums._replace(running=jnp.zeros_like(sums.running)))
    )


def update(
    setup: CuriositySetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Learn from one rollout; bonuses are the model's errors before it learns from the rollout."""
    key_policy, key_model = jax.random.split(key)
    seen = standardise(setup, state, rollout)
    bonus = compute_bonus(setup, state.params.curiosity, seen)
    sums, bonus_metrics = add_bonuses(setup, state.private.curiosity, rollout, bonus)
    policy, metrics = setup.learner.update(key_policy, policy_of(state), rollout._replace(bonus=bonus))
    model, opt_state, model_metrics = train_model(setup, key_model, state, seen)
    changed = replace_policy(state, policy)
    changed = changed._replace(
        params=changed.params._replace(curiosity=model),
        opt_state=changed.opt_state._replace(curiosity=opt_state),
        private=changed.private._replace(curiosity=sums),
    )
    return changed, metrics | model_metrics | bonus_metrics


def standardise(setup: CuriositySetup, state: LearnerState, rollout: Rollout) -> Rollout:
    """The rollout with its observations standardised as the policy that acted saw them."""
    moments, clip = state.statistics.obs, setup.config.inputs.clip_obs
    return rollout._replace(
        obs=observations.standardise(rollout.obs, moments, clip),
        last_obs=observations.standardise(rollout.last_obs, moments, clip),
    )


def compute_bonus(setup: CuriositySetup, model: Model, rollout: Rollout) -> Array:
    """The bonus of every step, (T, E): 0 where an environment was reset."""
    obs = jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), rollout.obs, rollout.last_obs)
    images = any(is_image(box) for box in observations.named(setup.spec.observation).values())
    # A whole rollout of images would not fit in memory at once.
    features = jax.lax.map(model.encode, obs) if images else model.encode(obs)
    action = action_numbers(setup.spec.action, rollout.action)
    error = forward_error(model, features[:-1], action, features[1:])
    return setup.config.curiosity.scale * jnp.where(rollout.valid, error, 0.0)


def add_bonuses(
    setup: CuriositySetup, sums: Intrinsic, rollout: Rollout, bonus: Array
) -> tuple[Intrinsic, dict[str, Array]]:
    """The sums of bonuses with a rollout's, and their metrics."""
    over = rollout.terminated | rollout.truncated
    running, totals = discounted_returns(sums.running, bonus, over, 1.0)
    mean = weighted_mean(totals, over.astype(jnp.float32), setup.data_axes)
    any_over = psum(jnp.sum(over, dtype=jnp.int32), setup.data_axes) > 0
    finished = jnp.where(any_over, mean, sums.finished)
    per_step = weighted_mean(bonus, rollout.valid.astype(jnp.float32), setup.data_axes)
    return Intrinsic(running, finished), {"curiosity/bonus": per_step, "curiosity/return": finished}


def train_model(
    setup: CuriositySetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[Model, Tree, dict[str, Array]]:
    """Epochs of shuffled minibatches for the model; the rollout's observations are standardised."""
    config = setup.config
    next_obs = jax.tree.map(
        lambda x, last: jnp.concatenate([x[1:], last[None]]), rollout.obs, rollout.last_obs
    )
    weight = rollout.valid.astype(jnp.float32)
    batch = trees.merge_axes(Transitions(rollout.obs, rollout.action, next_obs, weight))
    orders = draw_orders(
        key, config.update_epochs, config.num_steps, config.num_envs, config.num_minibatches, setup.shards
    )
    step = partial(take_step, setup, state.hypers.max_grad_norm)

    def epoch(carry, blocks):
        carry, metrics = jax.lax.scan(step, carry, gather_minibatches(batch, blocks))
        return carry, jax.tree.map(jnp.mean, metrics)

    start = (state.params.curiosity, state.opt_state.curiosity)
    (model, opt_state), metrics = jax.lax.scan(epoch, start, orders)
    return model, opt_state, jax.tree.map(jnp.mean, metrics)


def take_step(
    setup: CuriositySetup, max_grad_norm: Array, carry: tuple[Model, Tree], batch: Transitions
) -> tuple[tuple[Model, Tree], dict[str, Array]]:
    """One step of the model's optimiser on one minibatch."""
    model, opt_state = carry
    loss = partial(curiosity_loss, setup.config.curiosity.beta, setup.spec.action)
    gradient = jax.grad(loss, has_aux=True)
    found = gradients.accumulate_gradients(gradient, model, batch, setup.config.network.grad_accumulation)
    found, num_valid = psum((found, jnp.sum(batch.weight)), setup.data_axes)  # sums, over devices too
    grads, metrics = jax.tree.map(lambda x: x / jnp.maximum(num_valid, 1.0), found)
    grads = gradients.pmean(grads, setup.axes)
    updates, opt_state = optimiser(setup.config, max_grad_norm).update(grads, opt_state, model)
    return (eqx.apply_updates(model, updates), opt_state), metrics


def optimiser(config: PPOConfig, max_grad_norm: Array) -> optax.GradientTransformation:
    """Adam on a gradient of bounded norm."""
    bounded = optax.clip_by_global_norm(max_grad_norm)
    return optax.flatten(optax.chain(bounded, gradients.optimiser("adam", config.curiosity.learning_rate)))
