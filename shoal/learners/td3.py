"""Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018), for one learner.

Actions are numbers between -1 and 1 in here, whatever the environment's bounds; noise is in the same units.
"""

from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from shoal.errors import ShoalError
from shoal.learners import gradients, observations, replay
from shoal.learners.bounded_actions import bounds_of, correlated, from_bounds, in_play, to_bounds
from shoal.learners.context import ALONE, LearnerContext, check_single_agent
from shoal.learners.replay import ReplayBuffer, ReplayConfig, Transition
from shoal.nets.actor_critic import ActionValue, Policy, make_action_value, make_policy
from shoal.ops import masks, peers, trees
from shoal.ops.statistics import weighted_mean
from shoal.settings import check_at_least, check_choices, get
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree

UNROLL = 4
"""Critic updates that are written out one after another instead of as a loop."""


@dataclass(frozen=True)
class TD3ExplorationConfig:
    """Noise on actions."""

    kind: Literal["gaussian", "ou"] = "gaussian"
    """Independent noise, or one that remembers (Ornstein-Uhlenbeck)."""
    noise: float = 0.1
    """Its deviation."""
    theta: float = 0.15
    """How fast its memory fades per step (ou)."""

    def __post_init__(self):
        check_choices(self, "exploration")
        check_at_least(self, 0, "noise", group="exploration")
        if not 0 < self.theta <= 1:
            raise ShoalError(f"exploration.theta must be above 0 and at most 1, not {self.theta}")


@dataclass(frozen=True)
class TargetNoiseConfig:
    """Noise on the actions of the target network."""

    noise: float = 0.2
    """Its deviation."""
    clip: float = 0.5
    """Bound on it."""

    def __post_init__(self):
        check_at_least(self, 0, "noise", "clip", group="target")


@dataclass(frozen=True)
class TD3Config(ReplayConfig):
    """TD3's settings.

    >>> import shoal
    >>> shoal.TD3Config(batch_size=64).gamma
    0.99
    """

    actor_learning_rate: float | None = None
    """The actor's step size; the critics', whatever becomes of it, unless given."""
    policy_delay: int = 2
    """Critic updates for each of the actor and the targets."""
    prox_form: Literal["parameters", "outputs"] = "parameters"
    """What prox_coef keeps near: parameters, or the actions and values they give."""
    exploration: TD3ExplorationConfig = field(default_factory=TD3ExplorationConfig)
    target: TargetNoiseConfig = field(default_factory=TargetNoiseConfig)

    evolved: ClassVar[tuple[str, ...]] = ("learning_rate", "exploration_noise")
    """What a population changes unless told."""
    learns: ClassVar[frozenset[str]] = frozenset({"actor", "critic"})
    """The networks that learn, as exchanges name them."""

    @property
    def idle(self) -> dict[str, str]:
        """Hyperparameters that change nothing as configured, each with what it takes."""
        if self.actor_learning_rate is not None:
            return super().idle
        return super().idle | {"actor_learning_rate": "an actor_learning_rate to begin with"}

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "policy_delay")
        if self.actor_learning_rate is not None and self.actor_learning_rate <= 0:
            raise ShoalError("actor_learning_rate must be positive")


class Hypers(NamedTuple):
    """What a population may evolve: data, so a change never recompiles. Every leaf is ()."""

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
    """The networks; an exchange may take some of them by name."""

    actor: Policy
    critic: tuple[ActionValue, ActionValue]
    target_actor: Policy
    target_critic: tuple[ActionValue, ActionValue]


class OptStates(NamedTuple):
    """Adam's moments, of each network that learns."""

    actor: Tree
    critic: Tree


class Private(NamedTuple):
    """What stays with the learner."""

    buffer: ReplayBuffer
    num_gradients: Array  # () int32, critic updates so far
    correlated_noise: Array  # (E, A) of deviation 1 (exploration ou)


class TD3Setup(NamedTuple):
    """What is fixed when a learner is made: the static argument of every function below."""

    config: TD3Config
    spec: EnvSpec
    num_actions: int
    axes: tuple[str, ...] = ()


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
    check_single_agent("td3", spec, context)
    bounds = bounds_of(spec, "td3")
    masks.check(spec)
    setup = TD3Setup(config, spec, prod(bounds.shape), context.axes)
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


def init(setup: TD3Setup, key: Array) -> LearnerState:
    """A learner that has seen nothing; its two critics differ from the start."""
    config, spec, num_actions = setup.config, setup.spec, setup.num_actions
    key_actor, key_noise, *keys_critic = jax.random.split(key, 4)
    actor = make_policy(key_actor, spec, num_actions, **config.layers)
    first, second = (make_action_value(key, spec, num_actions, **config.layers) for key in keys_critic)
    params = Params(actor, (first, second), actor, (first, second))
    settings = {name: get(config, name) for name in Hypers._fields}
    settings["actor_learning_rate"] = config.actor_learning_rate or config.learning_rate
    private = Private(
        buffer=empty_buffer(
            setup, config.num_envs, config.buffer_size, warming_up=config.learning_starts > 0
        ),
        num_gradients=jnp.int32(0),
        correlated_noise=jax.random.normal(key_noise, (config.num_envs, num_actions)),
    )
    start = gradients.optimiser(config.optimiser, 0.0).init
    return LearnerState(
        params=params,
        statistics=observations.empty_moments(spec.observation) if config.norm_obs else {},
        opt_state=OptStates(start(params.actor), start(params.critic)),
        hypers=Hypers(**{name: jnp.float32(x) for name, x in settings.items()}),
        private=private,
        anchor=params if config.prox_coef else (),
    )


def draw(setup: TD3Setup, key: Array, shape: tuple[int, int]) -> Array:
    """Normal noise for (T, E) actions."""
    return jax.random.normal(key, (*shape, setup.num_actions))


def act(
    setup: TD3Setup, state: LearnerState, obs: Tree, noise: Array, episode_starts: Array | None = None
) -> tuple[Array, Private]:
    """The policy's actions, with noise on them; at the start, random ones.

    Normal noise through its own distribution function is uniform: that is what random actions are made of.
    """
    private, random = state.private, jax.scipy.special.erf(noise / 2**0.5)
    if setup.config.exploration.kind == "ou":
        noise = correlated(setup.config.exploration.theta, private.correlated_noise, noise)
        private = private._replace(correlated_noise=noise)
    chosen = policy(setup, state.params.actor, standardise(setup, state, obs))
    noisy = jnp.clip(chosen + state.hypers.exploration_noise * noise, -1, 1)
    return to_bounds(setup.spec.action, jnp.where(private.buffer.warming_up, random, noisy)), private


def for_evaluation(setup: TD3Setup, state: LearnerState, num_envs: int) -> LearnerState:
    """The learner in other environments than it trains in: with nothing remembered, and nothing random."""
    correlated_noise = jnp.zeros((num_envs, setup.num_actions))
    buffer = empty_buffer(setup, num_envs, capacity=1, warming_up=False)
    return state._replace(private=state.private._replace(buffer=buffer, correlated_noise=correlated_noise))


def on_restart(state: LearnerState) -> LearnerState:
    """The learner about to begin new episodes."""
    return state._replace(private=state.private._replace(buffer=replay.on_restart(state.private.buffer)))


def empty_buffer(setup: TD3Setup, num_envs: int, capacity: int, warming_up: bool) -> ReplayBuffer:
    """Nothing remembered yet."""
    action = jax.ShapeDtypeStruct((setup.num_actions,), jnp.float32)
    return replay.empty_buffer(setup.spec, action, capacity, num_envs, setup.config.n_step, warming_up)


def update(
    setup: TD3Setup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Remember one rollout, then learn from what is remembered; the first steps are only remembered."""
    config = setup.config
    seen = rollout._replace(action=from_bounds(setup.spec.action, rollout.action))
    buffer = replay.remember(state.private.buffer, seen, config.n_step, config.learning_starts)
    moments = observations.update_moments(state.statistics, rollout.obs, rollout.valid, setup.axes)
    state = state._replace(statistics=moments, private=state.private._replace(buffer=buffer))
    key_sample, key_noise = jax.random.split(key)
    shape = (config.num_gradients, config.batch_size)
    batches = replay.sample(buffer.ring, key_sample, shape)
    batches = batches._replace(
        obs=standardise(setup, state, batches.obs), next_obs=standardise(setup, state, batches.next_obs)
    )
    noise = jax.random.normal(key_noise, (*shape, setup.num_actions))
    rollout = rollout._replace(obs=standardise(setup, state, rollout.obs))
    (params, opt_state), metrics = learn(setup, state, rollout, batches, noise)

    started = ~buffer.warming_up & (replay.size(buffer.ring) > 0)
    params, opt_state = trees.where(started, (params, opt_state), (state.params, state.opt_state))
    metrics = jax.tree.map(lambda x: jnp.where(started, x, 0.0), metrics)
    metrics["updates_per_step"] = started * jnp.float32(config.num_gradients / config.rollout_size)
    metrics["replay_size"] = replay.size(buffer.ring).astype(jnp.float32)
    done = state.private.num_gradients + started * config.num_gradients
    private = state.private._replace(num_gradients=done)
    return state._replace(params=params, opt_state=opt_state, private=private), metrics


def learn(
    setup: TD3Setup, state: LearnerState, rollout: Rollout, batches: Transition, noise: Array
) -> tuple[tuple[Params, OptStates], dict[str, Array]]:
    """Critic updates, each on its own batch; after every `policy_delay` of them the actor and the targets.

    The delay is a loop in a loop, so nothing is computed to be thrown away. Only where it does not divide
    the critic steps of an update (as when critics meet after each) is the actor's step taken and dropped.
    """
    delay = setup.config.policy_delay
    start = (state.params, state.opt_state)
    critic_step = partial(improve_critics, setup, state)
    judge = partial(targets, setup, state.hypers)

    def follow(carry, batch):
        carry, metrics = improve_actor(setup, state, rollout, carry, batch)
        return (move_targets(state.hypers.tau, carry[0]), carry[1]), metrics

    def together(carry, part):
        batches, noise = part
        aims = judge(carry[0], batches, noise)  # of all at once: target networks do not move in between
        carry, critic = jax.lax.scan(critic_step, carry, (batches, aims), unroll=min(delay, UNROLL))
        carry, actor = follow(carry, trees.take(batches, -1))
        return carry, jax.tree.map(jnp.mean, critic) | actor

    def one_by_one(carry, part):
        (batch, noise), count = part
        carry, critic = critic_step(carry, (batch, judge(carry[0], batch, noise)))
        moved, actor = follow(carry, batch)
        return trees.where(count % delay == 0, moved, carry), critic | actor

    num_gradients = setup.config.num_gradients
    if num_gradients % delay == 0:
        parts = trees.split_axis((batches, noise), num_gradients // delay)
        carry, metrics = jax.lax.scan(together, start, parts)
    else:
        counts = state.private.num_gradients + 1 + jnp.arange(num_gradients)
        carry, metrics = jax.lax.scan(one_by_one, start, ((batches, noise), counts))
    metrics = jax.tree.map(jnp.mean, metrics)
    total = sum(term for name, term in metrics.items() if name.startswith("loss/"))
    return carry, metrics | {"loss/total": jnp.asarray(total)}


def targets(setup: TD3Setup, hypers: Hypers, params: Params, batch: Transition, noise: Array) -> Array:
    """r + gamma^n min_i Q'_i(s', clip(pi'(s') + clip(noise)))."""
    bound = hypers.target_noise_clip
    smoothing = jnp.clip(hypers.target_noise * noise, -bound, bound)
    next_action = jnp.clip(policy(setup, params.target_actor, batch.next_obs) + smoothing, -1, 1)
    next_action = in_play(setup.spec.action, next_action)
    first, second = (critic(batch.next_obs, next_action) for critic in params.target_critic)
    reward, discount = replay.discounted(batch, hypers.gamma)
    return reward + discount * jnp.minimum(first, second)


def improve_critics(
    setup: TD3Setup, state: LearnerState, carry: tuple[Params, OptStates], part: tuple[Transition, Array]
) -> tuple[tuple[Params, OptStates], dict[str, Array]]:
    """One step of both critics towards what the target networks say, on one batch."""
    (params, opt_state), (batch, target), hypers = carry, part, state.hypers

    def loss(critic: tuple[ActionValue, ActionValue]) -> tuple[Array, dict[str, Array]]:
        values = [one(batch.obs, batch.action) for one in critic]
        terms = {"loss/critic": jnp.asarray(sum(jnp.mean((value - target) ** 2) for value in values))}
        if setup.config.prox_coef:
            anchor = state.anchor.critic
            theirs = [one(batch.obs, batch.action) for one in anchor]
            terms["loss/critic_prox"] = hypers.prox_coef * apart(setup, critic, anchor, values, theirs)
        return jnp.asarray(sum(terms.values())), terms | {"q_mean": jnp.mean(values[0])}

    grads, metrics = jax.grad(loss, has_aux=True)(params.critic)
    take_step = gradients.optimiser(setup.config.optimiser, hypers.learning_rate, setup.axes).update
    updates, moments = take_step(grads, opt_state.critic)
    critic = optax.apply_updates(params.critic, updates)
    return (params._replace(critic=critic), opt_state._replace(critic=moments)), metrics


def improve_actor(
    setup: TD3Setup,
    state: LearnerState,
    rollout: Rollout,
    carry: tuple[Params, OptStates],
    batch: Transition,
) -> tuple[tuple[Params, OptStates], dict[str, Array]]:
    """One step of the actor up the first critic's value."""
    (params, opt_state), hypers = carry, state.hypers

    def loss(actor: Policy) -> tuple[Array, dict[str, Array]]:
        action = policy(setup, actor, batch.obs)
        terms = {"loss/actor": -jnp.mean(params.critic[0](batch.obs, action))}
        if setup.config.prox_coef:
            anchor = state.anchor.actor
            theirs = policy(setup, anchor, batch.obs)
            terms["loss/actor_prox"] = hypers.prox_coef * apart(setup, actor, anchor, [action], [theirs])
        if rollout.peer_targets:
            own, valid = policy(setup, actor, rollout.obs), rollout.valid.astype(jnp.float32)
            theirs = sum(peers.squared_distance(own, given) for given in rollout.peer_targets)
            terms["loss/neighbours"] = hypers.comm_penalty_coeff * weighted_mean(theirs, valid)
        return jnp.asarray(sum(terms.values())), terms

    grads, metrics = jax.grad(loss, has_aux=True)(params.actor)
    follows = setup.config.actor_learning_rate is None
    rate = hypers.learning_rate if follows else hypers.actor_learning_rate
    take_step = gradients.optimiser(setup.config.optimiser, rate, setup.axes).update
    updates, moments = take_step(grads, opt_state.actor)
    actor = optax.apply_updates(params.actor, updates)
    return (params._replace(actor=actor), opt_state._replace(actor=moments)), metrics


def move_targets(tau: Array, params: Params) -> Params:
    """target <- (1 - tau) target + tau network."""
    return params._replace(
        target_actor=gradients.polyak_update(tau, params.target_actor, params.actor),
        target_critic=gradients.polyak_update(tau, params.target_critic, params.critic),
    )


def apart(setup: TD3Setup, own: Tree, anchor: Tree, outputs: list[Array], theirs: list[Array]) -> Array:
    """The squared distance to an anchor: of all parameters, or the mean one of what comes out."""
    if setup.config.prox_form == "parameters":
        return optax.tree.norm(optax.tree.sub(own, anchor), squared=True)
    return jnp.asarray(sum(jnp.mean((a - b) ** 2) for a, b in zip(outputs, theirs, strict=True)))


def policy_terms(setup: TD3Setup, state: LearnerState, obs: Tree) -> tuple[Array, Array]:
    """The policy's actions and their squared lengths: what a sum of squared distances is made of."""
    return peers.output_terms(policy(setup, state.params.actor, standardise(setup, state, obs)))


def distance(setup: TD3Setup, state: LearnerState, other: LearnerState, obs: Tree) -> Array:
    """The squared distance between two policies' actions at each observation."""
    own = policy(setup, state.params.actor, standardise(setup, state, obs))
    theirs = policy(setup, other.params.actor, standardise(setup, other, obs))
    return jnp.sum((own - theirs) ** 2, -1)


def value(setup: TD3Setup, state: LearnerState, obs: Tree) -> Array:
    """Q_1(s, pi(s))."""
    obs = standardise(setup, state, obs)
    return state.params.critic[0](obs, policy(setup, state.params.actor, obs))


def policy(setup: TD3Setup, actor: Policy, obs: Tree) -> Array:
    """Actions between -1 and 1, (..., A)."""
    return in_play(setup.spec.action, jnp.tanh(actor(obs)))


def standardise(setup: TD3Setup, state: LearnerState, obs: Tree) -> Tree:
    """Observations as the networks see them."""
    return observations.standardise(obs, state.statistics, setup.config.clip_obs)
