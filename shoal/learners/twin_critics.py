"""What TD3 and SAC share: actions between -1 and 1, noise correlated in time, two critics.

Actions are between -1 and 1 in these algorithms, whatever the environment's bounds; noise is in these units.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from shoal.learners import off_policy, replay
from shoal.learners.bounded_actions import bounded_space, correlate_noise, from_bounds
from shoal.learners.context import LearnerContext
from shoal.learners.off_policy import Config, OffPolicySetup, standardise
from shoal.learners.replay import ReplayBuffer, Transition
from shoal.nets.single_head import ActionValue, VectorNetwork, make_action_value
from shoal.ops import losses, peers
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree

Setup: TypeAlias = OffPolicySetup[Any]
Critics: TypeAlias = tuple[ActionValue, ActionValue]
ActorLoss: TypeAlias = Callable[[VectorNetwork], tuple[Array, dict[str, Array]]]
GreedyPolicy: TypeAlias = Callable[[Setup, VectorNetwork, Tree], Array]
"""policy(setup, actor, obs) -> actions between -1 and 1, without noise."""


def make_setup(name: str, config: Config, spec: EnvSpec, context: LearnerContext) -> OffPolicySetup[Config]:
    """The setup of an algorithm for continuous, bounded actions."""
    return off_policy.make_setup(name, config, spec, context, prod(bounded_space(spec, name).shape))


def make_learner(
    setup: Setup, *, init: Callable, act: Callable, update: Callable, policy: GreedyPolicy
) -> Learner:
    """A learner of an algorithm's own functions, which take the setup first."""
    return Learner(
        init=partial(init, setup),
        draw=partial(draw, setup),
        act=partial(act, setup),
        update=partial(update, setup),
        policy_terms=partial(policy_terms, setup, policy),
        distance=partial(distance, setup, policy),
        value=partial(value, setup, policy),
        for_evaluation=partial(for_evaluation, setup),
        on_restart=on_restart,
        grouped=False,
    )


def make_critics(setup: Setup, keys: list[Array]) -> Critics:
    """Two critics Q(s, a) with different weights."""
    first, second = (
        make_action_value(key, setup.spec, setup.num_actions, **setup.config.layers) for key in keys
    )
    return first, second


def initial_buffer(setup: Setup) -> ReplayBuffer:
    """The buffer of a new learner."""
    config = setup.config
    return empty_buffer(setup, config.num_envs, config.buffer_size, warming_up=config.learning_starts > 0)


def empty_buffer(setup: Setup, num_envs: int, capacity: int, warming_up: bool) -> ReplayBuffer:
    """A buffer without transitions."""
    action = jax.ShapeDtypeStruct((setup.num_actions,), jnp.float32)
    return replay.empty_buffer(setup.spec, action, capacity, num_envs, setup.config.n_step, warming_up)


def draw(setup: Setup, key: Array, shape: tuple[int, int]) -> Array:
    """Normal noise for (T, E) actions."""
    return jax.random.normal(key, (*shape, setup.num_actions))


def uniform_actions(noise: Array) -> Array:
    """Uniform actions in [-1, 1], made of normal noise: each number through its distribution function."""
    return jax.scipy.special.erf(noise / 2**0.5)


def correlate(setup: Setup, private: Any, noise: Array) -> tuple[Array, Any]:
    """The noise to act with, correlated in time for exploration ou, and the private state that keeps it."""
    if setup.config.exploration.kind != "ou":
        return noise, private
    noise = correlate_noise(setup.config.exploration.theta, private.correlated_noise, noise)
    return noise, private._replace(correlated_noise=noise)


def for_evaluation(setup: Setup, state: LearnerState, num_envs: int) -> LearnerState:
    """The learner for `num_envs` other environments: an empty buffer, and no random actions."""
    correlated_noise = jnp.zeros((num_envs, setup.num_actions))
    buffer = empty_buffer(setup, num_envs, capacity=1, warming_up=False)
    return state._replace(private=state.private._replace(buffer=buffer, correlated_noise=correlated_noise))


def on_restart(state: LearnerState) -> LearnerState:
    """The learner before new episodes."""
    return state._replace(private=state.private._replace(buffer=replay.on_restart(state.private.buffer)))


def store(setup: Setup, buffer: ReplayBuffer, rollout: Rollout) -> ReplayBuffer:
    """The buffer with a rollout's transitions in it, their actions between -1 and 1."""
    scaled = rollout._replace(action=from_bounds(setup.spec.action, rollout.action))
    return off_policy.store(setup, buffer, scaled)


def critic_loss(
    setup: Setup, state: LearnerState, batch: Transition, target: Array, critic: Critics
) -> tuple[Array, dict[str, Array]]:
    """sum_i mean (Q_i(s, a) - target)^2, and the distance to the anchor."""
    values = [one(batch.obs, batch.action) for one in critic]
    terms = {"loss/critic": jnp.asarray(sum(jnp.mean((value - target) ** 2) for value in values))}
    if setup.config.prox_coef:
        anchor = state.anchor.critic
        theirs = [one(batch.obs, batch.action) for one in anchor]
        penalty = anchor_distance(setup, critic, anchor, values, theirs)
        terms["loss/critic_prox"] = state.hypers.prox_coef * penalty
    return jnp.asarray(sum(terms.values())), terms | {"q_mean": jnp.mean(values[0])}


def update_critics(
    setup: Setup, state: LearnerState, carry: tuple[Any, Any], batch_and_target: tuple[Transition, Array]
) -> tuple[tuple[Any, Any], dict[str, Array]]:
    """One gradient step of both critics towards the same target."""
    (params, opt_state), (batch, target) = carry, batch_and_target
    loss = partial(critic_loss, setup, state, batch, target)
    grads, metrics = jax.grad(loss, has_aux=True)(params.critic)
    critic, moments = off_policy.apply_gradients(
        setup, state.hypers.learning_rate, params.critic, opt_state.critic, grads
    )
    return (params._replace(critic=critic), opt_state._replace(critic=moments)), metrics


def update_actor(
    setup: Setup, state: LearnerState, carry: tuple[Any, Any], loss: ActorLoss
) -> tuple[tuple[Any, Any], dict[str, Array]]:
    """One gradient step of the actor."""
    (params, opt_state), hypers = carry, state.hypers
    grads, metrics = jax.grad(loss, has_aux=True)(params.actor)
    rate = hypers.learning_rate if setup.config.actor_learning_rate is None else hypers.actor_learning_rate
    actor, moments = off_policy.apply_gradients(setup, rate, params.actor, opt_state.actor, grads)
    return (params._replace(actor=actor), opt_state._replace(actor=moments)), metrics


def anchor_distance(
    setup: Setup, params: Tree, anchor: Tree, outputs: list[Array], anchor_outputs: list[Array]
) -> Array:
    """||theta - anchor||^2; with prox_form outputs, the mean squared distance of the networks' outputs."""
    if setup.config.prox_form == "parameters":
        return losses.proximal(params, anchor)
    pairs = zip(outputs, anchor_outputs, strict=True)
    return jnp.asarray(sum(jnp.mean((own - theirs) ** 2) for own, theirs in pairs))


def policy_terms(setup: Setup, policy: GreedyPolicy, state: LearnerState, obs: Tree) -> tuple[Array, Array]:
    """The greedy actions and their squared lengths: the terms of a sum of squared distances."""
    return peers.output_terms(policy(setup, state.params.actor, standardise(setup, state, obs)))


def distance(
    setup: Setup, policy: GreedyPolicy, state: LearnerState, other: LearnerState, obs: Tree
) -> Array:
    """The squared distance between two policies' greedy actions at each observation."""
    own = policy(setup, state.params.actor, standardise(setup, state, obs))
    theirs = policy(setup, other.params.actor, standardise(setup, other, obs))
    return jnp.sum((own - theirs) ** 2, -1)


def value(setup: Setup, policy: GreedyPolicy, state: LearnerState, obs: Tree) -> Array:
    """Q_1(s, pi(s)) of the greedy policy pi."""
    obs = standardise(setup, state, obs)
    return state.params.critic[0](obs, policy(setup, state.params.actor, obs))
