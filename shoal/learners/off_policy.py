"""What TD3, SAC and DQN share: storing a rollout, sampling batches, steps of the optimiser, penalties."""

from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from shoal.learners import gradients, observations, replay
from shoal.learners.context import LearnerContext, check_single_agent
from shoal.learners.off_policy_config import OffPolicyConfig
from shoal.learners.replay import ReplayBuffer, Transition
from shoal.ops import masks, peers, trees
from shoal.ops.statistics import weighted_mean
from shoal.settings import get
from shoal.types import EnvSpec, LearnerState, Rollout, Tree

Config = TypeVar("Config", bound=OffPolicyConfig)


class OffPolicySetup(NamedTuple, Generic[Config]):
    """What is fixed when a learner is made: the first argument of an algorithm's functions."""

    config: Config
    spec: EnvSpec
    num_actions: int  # numbers of a continuous action, or choices of a discrete one
    axes: tuple[str, ...] = ()  # mapped axes over which gradients are averaged
    num_updates: int | Array = 1  # that annealing takes


def make_setup(
    name: str, config: Config, spec: EnvSpec, context: LearnerContext, num_actions: int
) -> OffPolicySetup[Config]:
    """The setup of algorithm `name`; raises where it does not support the environment or the context."""
    check_single_agent(name, spec, context)
    masks.check(spec)
    return OffPolicySetup(config, spec, num_actions, context.axes, context.num_updates)


def initial_state(
    setup: OffPolicySetup, params: Tree, opt_state: Tree, hypers: Tree, private: Tree
) -> LearnerState:
    """A new learner with these networks."""
    return LearnerState(
        params=params,
        statistics=observations.empty_moments(setup.spec.observation) if setup.config.norm_obs else {},
        opt_state=opt_state,
        hypers=hypers,
        private=private,
        anchor=params if setup.config.prox_coef else (),
    )


def hyper_values(config: OffPolicyConfig, names: tuple[str, ...], **defaults: Any) -> dict[str, Array]:
    """The hyperparameters `names` as configured; `defaults` replace those that are None."""
    settings = {name: get(config, name) for name in names}
    settings |= {name: number for name, number in defaults.items() if settings[name] is None}
    return {name: jnp.float32(number) for name, number in settings.items()}


def standardise(setup: OffPolicySetup, state: LearnerState, obs: Tree) -> Tree:
    """Observations as the networks see them."""
    return observations.standardise(obs, state.statistics, setup.config.clip_obs)


def update_moments(setup: OffPolicySetup, state: LearnerState, rollout: Rollout) -> LearnerState:
    """The learner with a rollout in its moments of observations."""
    moments = observations.update_moments(state.statistics, rollout.obs, rollout.valid, setup.axes)
    return state._replace(statistics=moments)


def store(setup: OffPolicySetup, buffer: ReplayBuffer, rollout: Rollout) -> ReplayBuffer:
    """The buffer with a rollout's transitions in it."""
    return replay.add(buffer, rollout, setup.config.n_step, setup.config.learning_starts)


def sample_batches(
    setup: OffPolicySetup, key: Array, state: LearnerState, buffer: ReplayBuffer
) -> Transition:
    """A batch for each gradient step, (num_gradients, batch_size, ...), its observations standardised."""
    batches = replay.sample(buffer.ring, key, (setup.config.num_gradients, setup.config.batch_size))
    return batches._replace(
        obs=standardise(setup, state, batches.obs), next_obs=standardise(setup, state, batches.next_obs)
    )


def has_started(buffer: ReplayBuffer) -> Array:
    """Whether the warm-up is over and there is a transition to learn from."""
    return ~buffer.warming_up & (replay.size(buffer.ring) > 0)


def keep_if_started(
    setup: OffPolicySetup,
    state: LearnerState,
    buffer: ReplayBuffer,
    learned: tuple[Tree, Tree],
    metrics: dict[str, Array],
) -> tuple[LearnerState, dict[str, Array]]:
    """The learner with the learned parameters and optimiser; before learning starts, its own, and zeros.

    Warm-up is a mask, so one program serves the whole run.
    """
    started, config = has_started(buffer), setup.config
    params, opt_state = trees.where(started, learned, (state.params, state.opt_state))
    metrics = jax.tree.map(lambda x: jnp.where(started, x, 0.0), metrics)
    metrics["updates_per_step"] = started * jnp.float32(config.num_gradients / config.rollout_size)
    metrics["replay_size"] = replay.size(buffer.ring).astype(jnp.float32)
    return state._replace(params=params, opt_state=opt_state), metrics


def mean_metrics(metrics: dict[str, Array]) -> dict[str, Array]:
    """Means over the gradient steps, and the sum of the losses."""
    metrics = jax.tree.map(jnp.mean, metrics)
    total = sum(term for name, term in metrics.items() if name.startswith("loss/"))
    return metrics | {"loss/total": jnp.asarray(total)}


def init_optimiser(setup: OffPolicySetup, params: Tree) -> Tree:
    """The optimiser's state before the first step."""
    return gradients.optimiser(setup.config.optimiser, 0.0).init(params)


def apply_gradients(
    setup: OffPolicySetup, learning_rate: Array, params: Tree, opt_state: Tree, grads: Tree
) -> tuple[Tree, Tree]:
    """One step of the optimiser: new parameters and its new state."""
    optimiser = gradients.optimiser(setup.config.optimiser, learning_rate, setup.axes)
    updates, opt_state = optimiser.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state


def neighbours_penalty(coef: Array, outputs: Array, rollout: Rollout) -> Array:
    """coef times the mean of sum_j w_j ||x - x_j||^2 over the rollout; x are the outputs at its steps."""
    valid = rollout.valid.astype(jnp.float32)
    distance = sum(peers.squared_distance(outputs, targets) for targets in rollout.peer_targets)
    return coef * weighted_mean(distance, valid)
