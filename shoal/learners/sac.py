"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018b), for one learner.

The policy is a normal distribution squashed by tanh: an action is tanh(u), u = mean + deviation * noise. So
actions are numbers between -1 and 1 in here, whatever the environment's bounds, and zero noise is the greedy
one. What does not depend on how actions are chosen is TD3's.
"""

from dataclasses import dataclass, field
from functools import partial
from math import log, pi, prod
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from shoal.errors import ShoalError
from shoal.learners import gradients, observations, replay
from shoal.learners.bounded_actions import (
    bounds_of,
    correlated,
    from_bounds,
    in_play,
    leaves_a_choice,
    to_bounds,
)
from shoal.learners.context import ALONE, LearnerContext, check_single_agent
from shoal.learners.replay import ReplayBuffer, ReplayConfig, Transition
from shoal.learners.td3 import (
    apart,
    draw,
    empty_buffer,
    for_evaluation,
    improve_critics,
    on_restart,
    standardise,
)
from shoal.nets.actor_critic import ActionValue, Policy, make_action_value, make_policy
from shoal.ops import masks, peers, trees
from shoal.ops.statistics import weighted_mean
from shoal.settings import check_choices, get
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree

LOG_STD = (-20.0, 2.0)
"""Bounds on the logarithm of the policy's deviation."""


@dataclass(frozen=True)
class SACExplorationConfig:
    """How actions are drawn from the policy."""

    kind: Literal["gaussian", "ou"] = "gaussian"
    """Independent noise, or noise correlated in time (Ornstein-Uhlenbeck)."""
    theta: float = 0.15
    """How fast correlated noise fades per step (ou)."""

    def __post_init__(self):
        check_choices(self, "exploration")
        if not 0 < self.theta <= 1:
            raise ShoalError(f"exploration.theta must be above 0 and at most 1, not {self.theta}")


@dataclass(frozen=True)
class SACConfig(ReplayConfig):
    """SAC's settings.

    >>> import shoal
    >>> shoal.SACConfig(batch_size=64).gamma
    0.99
    """

    learning_rate: float = 3e-4
    """The critics' step size."""
    actor_learning_rate: float | None = None
    """The actor's step size; the critics', whatever becomes of it, unless given."""
    alpha: float | None = None
    """The temperature: what a nat of entropy is worth in reward; learned unless given."""
    initial_alpha: float = 1.0
    """Where a temperature that is learned begins."""
    alpha_learning_rate: float | None = None
    """Its step size, in logarithms; the critics', whatever becomes of it, unless given."""
    target_entropy: float | None = None
    """The entropy it is learned to keep, in nats per action; minus the numbers of an action unless given."""
    prox_form: Literal["parameters", "outputs"] = "parameters"
    """What prox_coef keeps near: parameters, or the values and (by the same noise) actions they give."""
    exploration: SACExplorationConfig = field(default_factory=SACExplorationConfig)

    evolved: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma")
    """What a population changes unless told."""
    learns: ClassVar[frozenset[str]] = frozenset({"actor", "critic"})
    """The networks that learn, as exchanges name them."""

    @property
    def idle(self) -> dict[str, str]:
        """Hyperparameters that change nothing as configured, each with what it takes."""
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

    def __post_init__(self):
        super().__post_init__()
        rates = {"actor_learning_rate": self.actor_learning_rate}
        rates |= {"alpha_learning_rate": self.alpha_learning_rate, "initial_alpha": self.initial_alpha}
        for name, number in rates.items():
            if number is not None and number <= 0:
                raise ShoalError(f"{name} must be positive, not {number}")
        if self.alpha is not None and self.alpha < 0:
            raise ShoalError(f"alpha must not be negative, but is {self.alpha}")


class Hypers(NamedTuple):
    """What a population may evolve: data, so a change never recompiles. Every leaf is ()."""

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
    """The networks and the temperature; an exchange may take some of them by name."""

    actor: Policy  # means, then logarithms of deviations
    critic: tuple[ActionValue, ActionValue]
    target_critic: tuple[ActionValue, ActionValue]
    log_alpha: Array  # (), which nothing reads where the temperature is given


class OptStates(NamedTuple):
    """Adam's moments, of everything that learns."""

    actor: Tree
    critic: Tree
    log_alpha: Tree


class Private(NamedTuple):
    """What stays with the learner."""

    buffer: ReplayBuffer
    correlated_noise: Array  # (E, A) of deviation 1 (exploration ou)


class SACSetup(NamedTuple):
    """What is fixed when a learner is made: the static argument of every function below."""

    config: SACConfig
    spec: EnvSpec
    num_actions: int
    axes: tuple[str, ...] = ()


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
    check_single_agent("sac", spec, context)
    bounds = bounds_of(spec, "sac")
    masks.check(spec)
    setup = SACSetup(config, spec, prod(bounds.shape), context.axes)
    return Learner(
        init=partial(init, setup),
        draw=partial(draw, setup),
        act=partial(act, setup),
        update=partial(update, setup),
        policy_terms=partial(policy_terms, setup),
        distance=partial(distance, setup),
        value=partial(value, setup),
        for_evaluation=partial(for_evaluation, setup),
        on_restart=on_restart,
        grouped=False,
    )


def init(setup: SACSetup, key: Array) -> LearnerState:
    """A learner that has seen nothing; its two critics differ from the start."""
    config, spec, num_actions = setup.config, setup.spec, setup.num_actions
    key_actor, key_noise, *keys_critic = jax.random.split(key, 4)
    actor = make_policy(key_actor, spec, 2 * num_actions, **config.layers)
    first, second = (make_action_value(key, spec, num_actions, **config.layers) for key in keys_critic)
    params = Params(actor, (first, second), (first, second), jnp.log(jnp.float32(config.initial_alpha)))
    start = gradients.optimiser(config.optimiser, 0.0).init
    return LearnerState(
        params=params,
        statistics=observations.empty_moments(spec.observation) if config.norm_obs else {},
        opt_state=OptStates(start(params.actor), start(params.critic), start(params.log_alpha)),
        hypers=first_hypers(setup),
        private=Private(
            buffer=empty_buffer(
                setup, config.num_envs, config.buffer_size, warming_up=config.learning_starts > 0
            ),
            correlated_noise=jax.random.normal(key_noise, (config.num_envs, num_actions)),
        ),
        anchor=params if config.prox_coef else (),
    )


def first_hypers(setup: SACSetup) -> Hypers:
    """Hyperparameters as they are given, and what stands for those that are not."""
    config = setup.config
    settings = {name: get(config, name) for name in Hypers._fields}
    missing = {
        "actor_learning_rate": config.learning_rate,
        "alpha_learning_rate": config.learning_rate,
        "alpha": config.initial_alpha,
        "target_entropy": -np.sum(leaves_a_choice(setup.spec.action)),
    }
    settings |= {name: number for name, number in missing.items() if settings[name] is None}
    return Hypers(**{name: jnp.float32(number) for name, number in settings.items()})


def act(
    setup: SACSetup, state: LearnerState, obs: Tree, noise: Array, episode_starts: Array | None = None
) -> tuple[Array, Private]:
    """Actions drawn from the policy; at the start, random ones.

    Normal noise through its own distribution function is uniform: that is what random actions are made of.
    """
    private, random = state.private, jax.scipy.special.erf(noise / 2**0.5)
    if setup.config.exploration.kind == "ou":
        noise = correlated(setup.config.exploration.theta, private.correlated_noise, noise)
        private = private._replace(correlated_noise=noise)
    drawn, _ = sample(setup, state.params.actor, standardise(setup, state, obs), noise)
    return to_bounds(setup.spec.action, jnp.where(private.buffer.warming_up, random, drawn)), private


def update(
    setup: SACSetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Remember one rollout, then learn from what is remembered; the first steps are only remembered."""
    config = setup.config
    seen = rollout._replace(action=from_bounds(setup.spec.action, rollout.action))
    buffer = replay.remember(state.private.buffer, seen, config.n_step, config.learning_starts)
    moments = observations.update_moments(state.statistics, rollout.obs, rollout.valid, setup.axes)
    state = state._replace(statistics=moments, private=state.private._replace(buffer=buffer))
    key_sample, key_noise = jax.random.split(key)
    batches = replay.sample(buffer.ring, key_sample, (config.num_gradients, config.batch_size))
    batches = batches._replace(
        obs=standardise(setup, state, batches.obs), next_obs=standardise(setup, state, batches.next_obs)
    )
    noise = jax.random.normal(key_noise, (config.num_gradients, 2, config.batch_size, setup.num_actions))
    rollout = rollout._replace(obs=standardise(setup, state, rollout.obs))
    (params, opt_state), metrics = learn(setup, state, rollout, batches, noise)

    started = ~buffer.warming_up & (replay.size(buffer.ring) > 0)
    params, opt_state = trees.where(started, (params, opt_state), (state.params, state.opt_state))
    metrics = jax.tree.map(lambda x: jnp.where(started, x, 0.0), metrics)
    metrics["alpha"] = temperature(setup, state.hypers, params)
    metrics["updates_per_step"] = started * jnp.float32(config.num_gradients / config.rollout_size)
    metrics["replay_size"] = replay.size(buffer.ring).astype(jnp.float32)
    return state._replace(params=params, opt_state=opt_state), metrics


def learn(
    setup: SACSetup, state: LearnerState, rollout: Rollout, batches: Transition, noise: Array
) -> tuple[tuple[Params, OptStates], dict[str, Array]]:
    """Steps of the critics, the actor, the temperature and the targets, in this order, on each batch."""

    def improve(carry, part):
        batch, (noise_now, noise_next) = part
        aims = targets(setup, state.hypers, carry[0], batch, noise_next)
        carry, critic = improve_critics(setup, state, carry, (batch, aims))
        carry, actor = improve_actor(setup, state, rollout, carry, batch, noise_now)
        params, opt_state = improve_temperature(setup, state, carry, actor["entropy"])
        moved = gradients.polyak_update(state.hypers.tau, params.target_critic, params.critic)
        return (params._replace(target_critic=moved), opt_state), critic | actor

    carry, metrics = jax.lax.scan(improve, (state.params, state.opt_state), (batches, noise))
    metrics = jax.tree.map(jnp.mean, metrics)
    total = sum(term for name, term in metrics.items() if name.startswith("loss/"))
    return carry, metrics | {"loss/total": jnp.asarray(total)}


def targets(setup: SACSetup, hypers: Hypers, params: Params, batch: Transition, noise: Array) -> Array:
    """r + gamma^n (min_i Q'_i(s', a') - alpha log pi(a' | s')), a' ~ pi(s')."""
    next_action, log_prob = sample(setup, params.actor, batch.next_obs, noise)
    first, second = (critic(batch.next_obs, next_action) for critic in params.target_critic)
    reward, discount = replay.discounted(batch, hypers.gamma)
    alpha = temperature(setup, hypers, params)
    return reward + discount * (jnp.minimum(first, second) - alpha * log_prob)


def improve_actor(
    setup: SACSetup,
    state: LearnerState,
    rollout: Rollout,
    carry: tuple[Params, OptStates],
    batch: Transition,
    noise: Array,
) -> tuple[tuple[Params, OptStates], dict[str, Array]]:
    """One step of the actor down alpha log pi(a | s) - min_i Q_i(s, a), a ~ pi(s)."""
    (params, opt_state), hypers = carry, state.hypers
    alpha = temperature(setup, hypers, params)

    def loss(actor: Policy) -> tuple[Array, dict[str, Array]]:
        action, log_prob = sample(setup, actor, batch.obs, noise)
        first, second = (critic(batch.obs, action) for critic in params.critic)
        terms = {"loss/actor": jnp.mean(alpha * log_prob - jnp.minimum(first, second))}
        if setup.config.prox_coef:
            anchor = state.anchor.actor
            theirs, _ = sample(setup, anchor, batch.obs, noise)
            terms["loss/actor_prox"] = hypers.prox_coef * apart(setup, actor, anchor, [action], [theirs])
        if rollout.peer_targets:
            own, valid = policy(setup, actor, rollout.obs), rollout.valid.astype(jnp.float32)
            theirs = sum(peers.squared_distance(own, given) for given in rollout.peer_targets)
            terms["loss/neighbours"] = hypers.comm_penalty_coeff * weighted_mean(theirs, valid)
        return jnp.asarray(sum(terms.values())), terms | {"entropy": -jnp.mean(log_prob)}

    grads, metrics = jax.grad(loss, has_aux=True)(params.actor)
    follows = setup.config.actor_learning_rate is None
    rate = hypers.learning_rate if follows else hypers.actor_learning_rate
    take_step = gradients.optimiser(setup.config.optimiser, rate, setup.axes).update
    updates, moments = take_step(grads, opt_state.actor)
    actor = optax.apply_updates(params.actor, updates)
    return (params._replace(actor=actor), opt_state._replace(actor=moments)), metrics


def improve_temperature(
    setup: SACSetup, state: LearnerState, carry: tuple[Params, OptStates], entropy: Array
) -> tuple[Params, OptStates]:
    """One step down log alpha (entropy - target): where there is too little of it, it becomes worth more."""
    (params, opt_state), hypers = carry, state.hypers
    if setup.config.alpha is not None:
        return carry
    follows = setup.config.alpha_learning_rate is None
    rate = hypers.learning_rate if follows else hypers.alpha_learning_rate
    take_step = gradients.optimiser(setup.config.optimiser, rate, setup.axes).update
    updates, moments = take_step(entropy - hypers.target_entropy, opt_state.log_alpha)
    log_alpha = optax.apply_updates(params.log_alpha, updates)
    return params._replace(log_alpha=log_alpha), opt_state._replace(log_alpha=moments)


def temperature(setup: SACSetup, hypers: Hypers, params: Params) -> Array:
    """alpha, as it was given or learned."""
    return jnp.exp(params.log_alpha) if setup.config.alpha is None else hypers.alpha


def policy_terms(setup: SACSetup, state: LearnerState, obs: Tree) -> tuple[Array, Array]:
    """The greedy actions and their squared lengths: what a sum of squared distances is made of."""
    return peers.output_terms(policy(setup, state.params.actor, standardise(setup, state, obs)))


def distance(setup: SACSetup, state: LearnerState, other: LearnerState, obs: Tree) -> Array:
    """The squared distance between two policies' greedy actions at each observation."""
    own = policy(setup, state.params.actor, standardise(setup, state, obs))
    theirs = policy(setup, other.params.actor, standardise(setup, other, obs))
    return jnp.sum((own - theirs) ** 2, -1)


def value(setup: SACSetup, state: LearnerState, obs: Tree) -> Array:
    """Q_1(s, tanh mean(s)), the entropy of later steps counted in."""
    obs = standardise(setup, state, obs)
    return state.params.critic[0](obs, policy(setup, state.params.actor, obs))


def policy(setup: SACSetup, actor: Policy, obs: Tree) -> Array:
    """The greedy actions, tanh of the mean, (..., A)."""
    mean, _ = jnp.split(actor(obs), 2, -1)
    return in_play(setup.spec.action, jnp.tanh(mean))


def sample(setup: SACSetup, actor: Policy, obs: Tree, noise: Array) -> tuple[Array, Array]:
    """Actions a = tanh(u), u = mean + deviation * noise, (..., A), and their log pi(a | s), (...).

    log pi(a) = sum_i log N(u_i) - log(1 - tanh(u_i)^2), over the numbers whose bounds leave a choice.
    """
    mean, log_std = jnp.split(actor(obs), 2, -1)
    log_std = jnp.clip(log_std, *LOG_STD)
    u = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * log(2 * pi)
    log_prob = jnp.sum(in_play(setup.spec.action, log_normal - log_slope(u)), -1)
    return in_play(setup.spec.action, jnp.tanh(u)), log_prob


def log_slope(u: Array) -> Array:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which is finite for every u."""
    return 2 * (log(2) - u - jax.nn.softplus(-2 * u))
