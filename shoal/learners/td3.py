"""Twin delayed deep deterministic policy gradients (TD3, Fujimoto et al. 2018), for one learner.

y = r + gamma^n min_i Q'_i(s', clip(pi'(s') + clip(noise)))
critics: sum_i (Q_i(s, a) - y)^2        actor, every `policy_delay` steps: -Q_1(s, pi(s))

Actions are between -1 and 1 in here, whatever the environment's bounds; noise is in the same units.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from annotated_types import Ge
from jax import Array

from shoal.learners import gradients, off_policy, replay, twin_critics
from shoal.learners.bounded_actions import to_bounds, zero_fixed
from shoal.learners.context import ALONE, LearnerContext
from shoal.learners.off_policy import OffPolicySetup, standardise
from shoal.learners.off_policy_config import OffPolicyConfig
from shoal.learners.replay import ReplayBuffer, Transition
from shoal.learners.twin_critics import Critics, anchor_distance, update_actor, update_critics
from shoal.nets.single_head import VectorNetwork, make_vector_network
from shoal.ops import trees
from shoal.ranges import MayBeInfinite, NonNegative, Positive, Share, Updates
from shoal.settings import check
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree

UNROLL = 4
"""Critic updates that are written out one after another instead of as a loop."""


@dataclass(frozen=True)
class TD3ExplorationConfig:
    """Noise on actions."""

    kind: Literal["gaussian", "ou"] = "gaussian"
    """Independent noise, or noise correlated in time (Ornstein-Uhlenbeck)."""
    noise: NonNegative = 0.1
    """Standard deviation of the noise; actions are between -1 and 1."""
    theta: Share = 0.15
    """Rate at which correlated noise decays per step (ou)."""

    def __post_init__(self):
        check(self, "exploration")


@dataclass(frozen=True)
class TargetNoiseConfig:
    """Noise on the target network's actions."""

    noise: NonNegative = 0.2
    """Standard deviation of the noise."""
    clip: Annotated[float, Ge(0), MayBeInfinite()] = 0.5
    """Bound on the noise."""

    def __post_init__(self):
        check(self, "target")


@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """TD3's settings.

    >>> import shoal
    >>> shoal.TD3Config(batch_size=64).gamma
    0.99
    """

    actor_learning_rate: Positive | None = None
    """The actor's step size; unless given it equals learning_rate at all times."""
    policy_delay: Updates = 2
    """Critic updates per update of the actor and the target networks."""
    prox_form: Literal["parameters", "outputs"] = "parameters"
    """What prox_coef measures the distance of: parameters, or actions and values."""
    exploration: TD3ExplorationConfig = field(default_factory=TD3ExplorationConfig)
    target: TargetNoiseConfig = field(default_factory=TargetNoiseConfig)

    evolved: ClassVar[tuple[str, ...]] = ("learning_rate", "exploration_noise")
    """Hyperparameters that a population changes by default."""
    learns: ClassVar[frozenset[str]] = frozenset({"actor", "critic"})
    """The networks that learn, as exchanges name them."""

    @property
    def idle(self) -> dict[str, str]:
        """Hyperparameters without effect as configured, each with what gives it one."""
        if self.actor_learning_rate is not None:
            return super().idle
        return super().idle | {"actor_learning_rate": "an actor_learning_rate to begin with"}


class Hypers(NamedTuple):
    """Hyperparameters that are data: a change never recompiles. Every leaf is ()."""

    learning_rate: Array
    actor_learning_rate: Array
    gamma: Array
    tau: Array
    exploration_noise: Array
    target_noise: Array
    target_noise_clip: Array
    comm_penalty_coeff: Array
    prox_coef: Array


class Params(NamedTuple):
    """The networks; exchanges select them by these names."""

    actor: VectorNetwork
    critic: Critics
    target_actor: VectorNetwork
    target_critic: Critics


class OptStates(NamedTuple):
    """The optimiser's state for each network that learns."""

    actor: Tree
    critic: Tree


class Private(NamedTuple):
    """What never leaves the learner."""

    buffer: ReplayBuffer
    num_gradients: Array  # () int32, critic updates so far
    correlated_noise: Array  # (E, A) of deviation 1 (exploration ou)


TD3Setup: TypeAlias = OffPolicySetup[TD3Config]


def td3(config: TD3Config, spec: EnvSpec, context: LearnerContext = ALONE) -> Learner:
    """A TD3 learner for an environment with continuous, bounded actions.

    >>> import jax, shoal
    >>> learner = shoal.td3(shoal.TD3Config(buffer_size=100), shoal.make("Pendulum-v1").spec)
    >>> state = learner.init(jax.random.key(0))
    >>> obs, noise = jax.numpy.zeros((7, 3)), jax.numpy.zeros((7, 1))
    >>> action, private = learner.act(learner.for_evaluation(state, 7), obs, noise)
    >>> action.shape
    (7, 1)
    """
    setup = twin_critics.make_setup("td3", config, spec, context)
    return twin_critics.make_learner(setup, init=init, act=act, update=update, policy=policy)


def init(setup: TD3Setup, key: Array) -> LearnerState:
    """A new learner; its two critics differ from the start."""
    config, num_actions = setup.config, setup.num_actions
    key_actor, key_noise, *keys_critic = jax.random.split(key, 4)
    actor = make_vector_network(key_actor, setup.spec, num_actions, **config.layers)
    critic = twin_critics.make_critics(setup, keys_critic)
    start = partial(off_policy.init_optimiser, setup)
    private = Private(
        buffer=twin_critics.initial_buffer(setup),
        num_gradients=jnp.int32(0),
        correlated_noise=jax.random.normal(key_noise, (config.num_envs, num_actions)),
    )
    hypers = off_policy.hyper_values(config, Hypers._fields, actor_learning_rate=config.learning_rate)
    params, opt_state = Params(actor, critic, actor, critic), OptStates(start(actor), start(critic))
    return off_policy.initial_state(setup, params, opt_state, Hypers(**hypers), private)


def act(
    setup: TD3Setup, state: LearnerState, obs: Tree, noise: Array, episode_starts: Array | None = None
) -> tuple[Array, Private]:
    """a = clip(pi(s) + exploration_noise noise, -1, 1); before learning starts, a is uniform."""
    random = twin_critics.uniform_actions(noise)
    noise, private = twin_critics.correlate(setup, state.private, noise)
    chosen = policy(setup, state.params.actor, standardise(setup, state, obs))
    noisy = jnp.clip(chosen + state.hypers.exploration_noise * noise, -1, 1)
    return to_bounds(setup.spec.action, jnp.where(private.buffer.warming_up, random, noisy)), private


def policy(setup: TD3Setup, actor: VectorNetwork, obs: Tree) -> Array:
    """pi(s), actions between -1 and 1, (..., A)."""
    return zero_fixed(setup.spec.action, jnp.tanh(actor(obs)))


def update(
    setup: TD3Setup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Store one rollout, then take gradient steps on batches from the buffer; none before learning starts."""
    config, private = setup.config, state.private
    key_sample, key_noise = jax.random.split(key)
    buffer = twin_critics.store(setup, private.buffer, rollout)
    state = off_policy.update_moments(setup, state, rollout)
    batches = off_policy.sample_batches(setup, key_sample, state, buffer)
    noise = jax.random.normal(key_noise, (config.num_gradients, config.batch_size, setup.num_actions))
    rollout = rollout._replace(obs=standardise(setup, state, rollout.obs))
    learned, metrics = learn(setup, state, rollout, batches, noise)
    state, metrics = off_policy.keep_if_started(setup, state, buffer, learned, metrics)
    num_gradients = private.num_gradients + off_policy.has_started(buffer) * config.num_gradients
    return state._replace(private=private._replace(buffer=buffer, num_gradients=num_gradients)), metrics


def learn(
    setup: TD3Setup, state: LearnerState, rollout: Rollout, batches: Transition, noise: Array
) -> tuple[tuple[Params, OptStates], dict[str, Array]]:
    """Critic updates, each on its own batch; after every `policy_delay` of them the actor and the targets.

    The delay is a loop in a loop, so nothing is computed to be thrown away. Only where it does not divide
    the critic updates of a rollout is the actor's step taken every time, and dropped when it is not due.
    """
    delay, num_gradients = setup.config.policy_delay, setup.config.num_gradients
    start = (state.params, state.opt_state)
    critic_step = partial(update_critics, setup, state)
    make_targets = partial(targets, setup, state.hypers)

    def actor_step(carry, batch):
        loss = partial(actor_loss, setup, state, rollout, carry[0], batch)
        carry, metrics = update_actor(setup, state, carry, loss)
        return (update_targets(state.hypers.tau, carry[0]), carry[1]), metrics

    def delayed(carry, part):
        batches, noise = part
        target = make_targets(carry[0], batches, noise)  # of all: target networks do not move in between
        carry, critic = jax.lax.scan(critic_step, carry, (batches, target), unroll=min(delay, UNROLL))
        carry, actor = actor_step(carry, trees.take(batches, -1))
        return carry, jax.tree.map(jnp.mean, critic) | actor

    def one_by_one(carry, part):
        (batch, noise), count = part
        carry, critic = critic_step(carry, (batch, make_targets(carry[0], batch, noise)))
        moved, actor = actor_step(carry, batch)
        return trees.where(count % delay == 0, moved, carry), critic | actor

    if num_gradients % delay == 0:
        parts = trees.split_axis((batches, noise), num_gradients // delay)
        learned, metrics = jax.lax.scan(delayed, start, parts)
    else:
        counts = state.private.num_gradients + 1 + jnp.arange(num_gradients)
        learned, metrics = jax.lax.scan(one_by_one, start, ((batches, noise), counts))
    return learned, off_policy.mean_metrics(metrics)


def targets(setup: TD3Setup, hypers: Hypers, params: Params, batch: Transition, noise: Array) -> Array:
    """y = r + gamma^n min_i Q'_i(s', clip(pi'(s') + clip(noise)))."""
    bound = hypers.target_noise_clip
    smoothing = jnp.clip(hypers.target_noise * noise, -bound, bound)
    next_action = jnp.clip(policy(setup, params.target_actor, batch.next_obs) + smoothing, -1, 1)
    next_action = zero_fixed(setup.spec.action, next_action)
    first, second = (critic(batch.next_obs, next_action) for critic in params.target_critic)
    reward, discount = replay.n_step_return(batch, hypers.gamma)
    return reward + discount * jnp.minimum(first, second)


def actor_loss(
    setup: TD3Setup,
    state: LearnerState,
    rollout: Rollout,
    params: Params,
    batch: Transition,
    actor: VectorNetwork,
) -> tuple[Array, dict[str, Array]]:
    """-mean Q_1(s, pi(s)), and the distances to the anchor and to neighbours."""
    action = policy(setup, actor, batch.obs)
    terms = {"loss/actor": -jnp.mean(params.critic[0](batch.obs, action))}
    if setup.config.prox_coef:
        anchor = state.anchor.actor
        penalty = anchor_distance(setup, actor, anchor, [action], [policy(setup, anchor, batch.obs)])
        terms["loss/actor_prox"] = state.hypers.prox_coef * penalty
    if rollout.peer_targets:
        own, coef = policy(setup, actor, rollout.obs), state.hypers.comm_penalty_coeff
        terms["loss/neighbours"] = off_policy.neighbours_penalty(coef, own, rollout)
    return jnp.asarray(sum(terms.values())), terms


def update_targets(tau: Array, params: Params) -> Params:
    """target <- (1 - tau) target + tau network."""
    return params._replace(
        target_actor=gradients.polyak_update(tau, params.target_actor, params.actor),
        target_critic=gradients.polyak_update(tau, params.target_critic, params.critic),
    )
