"""Soft actor-critic with a learned temperature (SAC, Haarnoja et al. 2018b), for one learner.

y = r + gamma^n (min_i Q'_i(s', a') - alpha log pi(a' | s')),  a' ~ pi(s')
critics: sum_i (Q_i(s, a) - y)^2        actor: alpha log pi(a | s) - min_i Q_i(s, a), a ~ pi(s)

The policy is a normal distribution squashed by tanh: a = tanh(u), u = mean + deviation * noise. So actions
are between -1 and 1 in here, whatever the environment's bounds, and zero noise gives the greedy action.
"""

from dataclasses import dataclass, field
from functools import partial
from math import log, pi
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.learners import gradients, off_policy, replay, twin_critics
from shoal.learners.bounded_actions import find_free, to_bounds, zero_fixed
from shoal.learners.context import ALONE, LearnerContext
from shoal.learners.off_policy import OffPolicySetup, standardise
from shoal.learners.off_policy_config import OffPolicyConfig
from shoal.learners.replay import ReplayBuffer, Transition
from shoal.learners.twin_critics import Critics, anchor_distance, update_actor, update_critics
from shoal.nets.single_head import VectorNetwork, make_vector_network
from shoal.ranges import NonNegative, Positive, Share
from shoal.settings import check
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree

LOG_STD = (-20.0, 2.0)
"""Bounds on the logarithm of the policy's standard deviation."""


@dataclass(frozen=True)
class SACExplorationConfig:
    """How actions are drawn from the policy."""

    kind: Literal["gaussian", "ou"] = "gaussian"
    """Independent noise, or noise correlated in time (Ornstein-Uhlenbeck)."""
    theta: Share = 0.15
    """Rate at which correlated noise decays per step (ou)."""

    def __post_init__(self):
        check(self, "exploration")


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """SAC's settings.

    >>> import shoal
    >>> shoal.SACConfig(batch_size=64).gamma
    0.99
    """

    learning_rate: Positive = 3e-4
    """The critics' step size."""
    actor_learning_rate: Positive | None = None
    """The actor's step size; unless given it equals learning_rate at all times."""
    alpha: NonNegative | None = None
    """The temperature, the weight of the entropy; learned unless given."""
    initial_alpha: Positive = 1.0
    """Initial value of a learned temperature."""
    alpha_learning_rate: Positive | None = None
    """Step size of the temperature's logarithm; unless given it equals learning_rate at all times."""
    target_entropy: float | None = None
    """The entropy, in nats per action, that a learned temperature aims at; unless given, minus the dimension
    of an action."""
    prox_form: Literal["parameters", "outputs"] = "parameters"
    """What prox_coef measures the distance of: parameters, or values and actions (with the same noise)."""
    exploration: SACExplorationConfig = field(default_factory=SACExplorationConfig)

    evolved: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma")
    """Hyperparameters that a population changes by default."""
    learns: ClassVar[frozenset[str]] = frozenset({"actor", "critic"})
    """The networks that learn, as exchanges name them."""

    @property
    def idle(self) -> dict[str, str]:
        """Hyperparameters without effect as configured, each with what gives it one."""
        idle = super().idle
        if self.actor_learning_rate is None:
            idle |= {"actor_learning_rate": "an actor_learning_rate to begin with"}
        if self.alpha is None:
            idle |= {"alpha": "an alpha to begin with"}
        else:
            idle |= {"target_entropy": "a learned temperature, so no alpha"}
        if self.alpha is not None or self.alpha_learning_rate is None:
            idle |= {"alpha_learning_rate": "a learned temperature, and an alpha_learning_rate to begin with"}
        return idle


class Hypers(NamedTuple):
    """Hyperparameters that are data: a change never recompiles. Every leaf is ()."""

    learning_rate: Array
    actor_learning_rate: Array
    alpha_learning_rate: Array
    gamma: Array
    tau: Array
    alpha: Array
    target_entropy: Array
    comm_penalty_coeff: Array
    prox_coef: Array


class Params(NamedTuple):
    """The networks and the temperature; exchanges select them by these names."""

    actor: VectorNetwork  # means, then logarithms of standard deviations
    critic: Critics
    target_critic: Critics
    log_alpha: Array  # (), not used where the temperature is given


class OptStates(NamedTuple):
    """The optimiser's state for everything that learns."""

    actor: Tree
    critic: Tree
    log_alpha: Tree


class Private(NamedTuple):
    """What never leaves the learner."""

    buffer: ReplayBuffer
    correlated_noise: Array  # (E, A) of deviation 1 (exploration ou)


SACSetup: TypeAlias = OffPolicySetup[SACConfig]


def sac(config: SACConfig, spec: EnvSpec, context: LearnerContext = ALONE) -> Learner:
    """A SAC learner for an environment with continuous, bounded actions.

    >>> import jax, shoal
    >>> learner = shoal.sac(shoal.SACConfig(buffer_size=100), shoal.make("Pendulum-v1").spec)
    >>> state = learner.init(jax.random.key(0))
    >>> obs, noise = jax.numpy.zeros((7, 3)), jax.numpy.zeros((7, 1))
    >>> action, private = learner.act(learner.for_evaluation(state, 7), obs, noise)
    >>> action.shape
    (7, 1)
    """
    setup = twin_critics.make_setup("sac", config, spec, context)
    return twin_critics.make_learner(setup, init=init, act=act, update=update, policy=policy)


def init(setup: SACSetup, key: Array) -> LearnerState:
    """A new learner; its two critics differ from the start."""
    config, num_actions = setup.config, setup.num_actions
    key_actor, key_noise, *keys_critic = jax.random.split(key, 4)
    actor = make_vector_network(key_actor, setup.spec, 2 * num_actions, **config.layers)
    critic = twin_critics.make_critics(setup, keys_critic)
    log_alpha = jnp.log(jnp.float32(config.initial_alpha))
    start = partial(off_policy.init_optimiser, setup)
    private = Private(
        buffer=twin_critics.initial_buffer(setup),
        correlated_noise=jax.random.normal(key_noise, (config.num_envs, num_actions)),
    )
    params = Params(actor, critic, critic, log_alpha)
    opt_state = OptStates(start(actor), start(critic), start(log_alpha))
    return off_policy.initial_state(setup, params, opt_state, initial_hypers(setup), private)


def initial_hypers(setup: SACSetup) -> Hypers:
    """The hyperparameters as configured, or their defaults."""
    config = setup.config
    values = off_policy.hyper_values(
        config,
        Hypers._fields,
        actor_learning_rate=config.learning_rate,
        alpha_learning_rate=config.learning_rate,
        alpha=config.initial_alpha,
        target_entropy=-np.sum(find_free(setup.spec.action)),
    )
    return Hypers(**values)


def act(
    setup: SACSetup, state: LearnerState, obs: Tree, noise: Array, episode_starts: Array | None = None
) -> tuple[Array, Private]:
    """a ~ pi(s); before learning starts, a is uniform."""
    random = twin_critics.uniform_actions(noise)
    noise, private = twin_critics.correlate(setup, state.private, noise)
    drawn, _ = sample(setup, state.params.actor, standardise(setup, state, obs), noise)
    return to_bounds(setup.spec.action, jnp.where(private.buffer.warming_up, random, drawn)), private


def policy(setup: SACSetup, actor: VectorNetwork, obs: Tree) -> Array:
    """The greedy actions, tanh(mean), (..., A)."""
    mean, _ = jnp.split(actor(obs), 2, -1)
    return zero_fixed(setup.spec.action, jnp.tanh(mean))


def sample(setup: SACSetup, actor: VectorNetwork, obs: Tree, noise: Array) -> tuple[Array, Array]:
    """Actions a = tanh(u), u = mean + deviation * noise, (..., A), and their log pi(a | s), (...).

    log pi(a) = sum_i log N(u_i) - log(1 - tanh(u_i)^2), over the numbers that are free.
    """
    mean, log_std = jnp.split(actor(obs), 2, -1)
    log_std = jnp.clip(log_std, *LOG_STD)
    u = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * log(2 * pi)
    log_prob = jnp.sum(zero_fixed(setup.spec.action, log_normal - log_slope(u)), -1)
    return zero_fixed(setup.spec.action, jnp.tanh(u)), log_prob


def log_slope(u: Array) -> Array:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which is finite for every u."""
    return 2 * (log(2) - u - jax.nn.softplus(-2 * u))


def update(
    setup: SACSetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Store one rollout, then take gradient steps on batches from the buffer; none before learning starts."""
    config = setup.config
    key_sample, key_noise = jax.random.split(key)
    buffer = twin_critics.store(setup, state.private.buffer, rollout)
    state = off_policy.update_moments(setup, state, rollout)
    batches = off_policy.sample_batches(setup, key_sample, state, buffer)
    noise = jax.random.normal(key_noise, (config.num_gradients, 2, config.batch_size, setup.num_actions))
    rollout = rollout._replace(obs=standardise(setup, state, rollout.obs))
    learned, metrics = learn(setup, state, rollout, batches, noise)
    state, metrics = off_policy.keep_if_started(setup, state, buffer, learned, metrics)
    metrics["alpha"] = temperature(setup, state.hypers, state.params)
    return state._replace(private=state.private._replace(buffer=buffer)), metrics


def learn(
    setup: SACSetup, state: LearnerState, rollout: Rollout, batches: Transition, noise: Array
) -> tuple[tuple[Params, OptStates], dict[str, Array]]:
    """On each batch one step of the critics, the actor, the temperature and the targets, in this order."""

    def step(carry, part):
        batch, (noise_now, noise_next) = part
        target = targets(setup, state.hypers, carry[0], batch, noise_next)
        carry, critic = update_critics(setup, state, carry, (batch, target))
        loss = partial(actor_loss, setup, state, rollout, carry[0], batch, noise_now)
        carry, actor = update_actor(setup, state, carry, loss)
        params, opt_state = update_temperature(setup, state, carry, actor["entropy"])
        moved = gradients.polyak_update(state.hypers.tau, params.target_critic, params.critic)
        return (params._replace(target_critic=moved), opt_state), critic | actor

    learned, metrics = jax.lax.scan(step, (state.params, state.opt_state), (batches, noise))
    return learned, off_policy.mean_metrics(metrics)


def targets(setup: SACSetup, hypers: Hypers, params: Params, batch: Transition, noise: Array) -> Array:
    """y = r + gamma^n (min_i Q'_i(s', a') - alpha log pi(a' | s')), a' ~ pi(s')."""
    next_action, log_prob = sample(setup, params.actor, batch.next_obs, noise)
    first, second = (critic(batch.next_obs, next_action) for critic in params.target_critic)
    reward, discount = replay.n_step_return(batch, hypers.gamma)
    alpha = temperature(setup, hypers, params)
    return reward + discount * (jnp.minimum(first, second) - alpha * log_prob)


def actor_loss(
    setup: SACSetup,
    state: LearnerState,
    rollout: Rollout,
    params: Params,
    batch: Transition,
    noise: Array,
    actor: VectorNetwork,
) -> tuple[Array, dict[str, Array]]:
    """mean alpha log pi(a | s) - min_i Q_i(s, a), a ~ pi(s), and the distances to anchor and neighbours."""
    alpha = temperature(setup, state.hypers, params)
    action, log_prob = sample(setup, actor, batch.obs, noise)
    first, second = (critic(batch.obs, action) for critic in params.critic)
    terms = {"loss/actor": jnp.mean(alpha * log_prob - jnp.minimum(first, second))}
    if setup.config.prox_coef:
        anchor = state.anchor.actor
        theirs, _ = sample(setup, anchor, batch.obs, noise)
        penalty = anchor_distance(setup, actor, anchor, [action], [theirs])
        terms["loss/actor_prox"] = state.hypers.prox_coef * penalty
    if rollout.peer_targets:
        own, coef = policy(setup, actor, rollout.obs), state.hypers.comm_penalty_coeff
        terms["loss/neighbours"] = off_policy.neighbours_penalty(coef, own, rollout)
    return jnp.asarray(sum(terms.values())), terms | {"entropy": -jnp.mean(log_prob)}


def update_temperature(
    setup: SACSetup, state: LearnerState, carry: tuple[Params, OptStates], entropy: Array
) -> tuple[Params, OptStates]:
    """One step down log alpha (entropy - target): alpha grows where the entropy is below the target."""
    (params, opt_state), hypers = carry, state.hypers
    if setup.config.alpha is not None:
        return carry
    rate = hypers.learning_rate if setup.config.alpha_learning_rate is None else hypers.alpha_learning_rate
    grads = entropy - hypers.target_entropy
    log_alpha, moments = off_policy.apply_gradients(setup, rate, params.log_alpha, opt_state.log_alpha, grads)
    return params._replace(log_alpha=log_alpha), opt_state._replace(log_alpha=moments)


def temperature(setup: SACSetup, hypers: Hypers, params: Params) -> Array:
    """alpha, as given or as learned."""
    return jnp.exp(params.log_alpha) if setup.config.alpha is None else hypers.alpha
