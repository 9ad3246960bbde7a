"""Deep Q-learning (DQN, Mnih et al. 2015) with double estimates (van Hasselt et al. 2016), for one learner.

y = r + gamma^n Q'(s', argmax_b Q(s', b))        critic: Huber's loss of Q(s, a) - y
"""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from annotated_types import Interval
from jax import Array

from shoal.errors import ShoalError
from shoal.learners import gradients, off_policy, replay
from shoal.learners.context import ALONE, LearnerContext
from shoal.learners.off_policy import OffPolicySetup, standardise
from shoal.learners.off_policy_config import OffPolicyConfig
from shoal.learners.replay import ReplayBuffer, Transition
from shoal.nets.single_head import VectorNetwork, make_vector_network
from shoal.ops import losses, masks, peers, trees
from shoal.ranges import Count, Layers, NonNegative, Positive, Share, Steps, ZeroToOne
from shoal.settings import check
from shoal.types import Discrete, EnvSpec, Learner, LearnerState, Rollout, Tree


@dataclass(frozen=True)
class DQNExplorationConfig:
    """The probability of a random action (epsilon-greedy)."""

    initial: ZeroToOne = 1.0
    """Probability of a random action at the start."""
    final: ZeroToOne = 0.05
    """Probability of a random action at the end."""
    fraction: NonNegative = 0.1
    """Fraction of the run (of anneal_to, where it is given) over which the probability falls linearly from
    initial to final."""

    def __post_init__(self):
        check(self, "exploration")


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """DQN's settings.

    >>> import shoal
    >>> shoal.preset("CartPole-v1", algo="dqn").algo == shoal.DQNConfig()
    False
    """

    num_steps: Count = 4
    gradient_steps: Count | None = 1
    batch_size: Count = 32
    buffer_size: Annotated[int, Interval(ge=1, le=10**9)] = 100_000
    learning_starts: Annotated[int, Interval(ge=0, le=10**12)] = 1_000
    learning_rate: Positive = 1e-4
    tau: Share = 1.0
    hidden: Layers = (64, 64)
    double: bool = True
    """Double DQN: the network chooses the next action, the target network gives its value."""
    target_every: Steps = 10_000
    """Environment steps between updates of the target network."""
    exploration: DQNExplorationConfig = field(default_factory=DQNExplorationConfig)

    evolved: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma")
    """Hyperparameters that a population changes by default."""
    learns: ClassVar[frozenset[str]] = frozenset({"critic"})
    """The networks that learn, as exchanges name them."""


class Hypers(NamedTuple):
    """Hyperparameters that are data: a change never recompiles. Every leaf is ()."""

    learning_rate: Array
    gamma: Array
    tau: Array
    exploration_initial: Array
    exploration_final: Array
    comm_penalty_coeff: Array
    prox_coef: Array


class Params(NamedTuple):
    """The networks; exchanges select them by these names."""

    critic: VectorNetwork  # Q(s, .)
    target_critic: VectorNetwork


DQNSetup: TypeAlias = OffPolicySetup[DQNConfig]


def dqn(config: DQNConfig, spec: EnvSpec, context: LearnerContext = ALONE) -> Learner:
    """A DQN learner for an environment with discrete actions.

    >>> import jax, shoal
    >>> learner = shoal.dqn(shoal.DQNConfig(buffer_size=100), shoal.make("CartPole-v1").spec)
    >>> state = learner.for_evaluation(learner.init(jax.random.key(0)), 7)
    >>> noise = jax.numpy.zeros((7, 3))
    >>> action, private = learner.act(state, jax.numpy.zeros((7, 4)), noise)
    >>> action.shape
    (7,)
    """
    if not isinstance(spec.action, Discrete):
        raise ShoalError(f"dqn needs discrete actions, which {spec.name} does not have")
    setup = off_policy.make_setup("dqn", config, spec, context, spec.action.num)
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


def init(setup: DQNSetup, key: Array) -> LearnerState:
    """A new learner."""
    config = setup.config
    critic = make_vector_network(key, setup.spec, setup.num_actions, **config.layers)
    return off_policy.initial_state(
        setup,
        params=Params(critic, critic),
        opt_state=off_policy.init_optimiser(setup, critic),
        hypers=Hypers(**off_policy.hyper_values(config, Hypers._fields)),
        private=empty_buffer(
            setup, config.num_envs, config.buffer_size, warming_up=config.learning_starts > 0
        ),
    )


def empty_buffer(setup: DQNSetup, num_envs: int, capacity: int, warming_up: bool) -> ReplayBuffer:
    """A buffer without transitions."""
    action = jax.ShapeDtypeStruct((), jnp.int32)
    return replay.empty_buffer(setup.spec, action, capacity, num_envs, setup.config.n_step, warming_up)


def for_evaluation(setup: DQNSetup, state: LearnerState, num_envs: int) -> LearnerState:
    """The learner for `num_envs` other environments: an empty buffer, random actions as often as now."""
    buffer = empty_buffer(setup, num_envs, capacity=1, warming_up=False)
    return state._replace(private=buffer._replace(num_steps=state.private.num_steps))


def on_restart(state: LearnerState) -> LearnerState:
    """The learner before new episodes."""
    return state._replace(private=replay.on_restart(state.private))


def draw(setup: DQNSetup, key: Array, shape: tuple[int, int]) -> Array:
    """Two numbers in [0, 1) for each of (T, E) actions: whether it is random, and which one it then is."""
    return jax.random.uniform(key, (*shape, 2))


def act(
    setup: DQNSetup, state: LearnerState, obs: Tree, noise: Array, episode_starts: Array | None = None
) -> tuple[Array, ReplayBuffer]:
    """argmax_a Q(s, a), or with probability epsilon a random action; the former for zero noise."""
    values = action_values(setup, state.params.critic, standardise(setup, state, obs))
    best = jnp.argmax(values, -1).astype(jnp.int32)
    allowed = masks.allowed(setup.spec.action, obs, values.shape)
    random = random_action(allowed, setup.num_actions, noise[..., 1])
    return jnp.where(noise[..., 0] > 1 - epsilon(setup, state), random, best), state.private


def action_values(setup: DQNSetup, critic: VectorNetwork, obs: Tree) -> Array:
    """Q(s, .); forbidden actions have values too low to be chosen."""
    return masks.restrict(setup.spec.action, obs, critic(obs))


def random_action(allowed: Array | None, num: int, noise: Array) -> Array:
    """An action drawn uniformly from all, or from those allowed (..., num); noise is in [0, 1).

    >>> random_action(jnp.array([[False, True, True]] * 3), 3, jnp.array([0.0, 0.4, 0.9])).tolist()
    [1, 1, 2]
    """
    if allowed is None:
        return jnp.minimum((num * noise).astype(jnp.int32), num - 1)
    rank = jnp.cumsum(allowed, -1)  # the k-th that is allowed is the first whose rank is k
    last = rank[..., -1]
    chosen = jnp.minimum((last * noise).astype(jnp.int32) + 1, last)
    return jnp.argmax(rank >= chosen[..., None], -1).astype(jnp.int32)


def epsilon(setup: DQNSetup, state: LearnerState) -> Array:
    """The probability of a random action: 1 before learning starts, then falling linearly."""
    config, hypers = setup.config, state.hypers
    fraction = Fraction(str(config.exploration.fraction))  # 0.1 is 1 / 10: the quotient is rounded once
    num_steps = jnp.float32(setup.num_updates) * config.rollout_size
    span = jnp.maximum(num_steps * fraction.numerator / fraction.denominator, 1.0)
    done = jnp.minimum(state.private.num_steps / span, 1.0)
    chance = hypers.exploration_initial + done * (hypers.exploration_final - hypers.exploration_initial)
    return jnp.where(state.private.warming_up, 1.0, chance)


def update(
    setup: DQNSetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Store one rollout, then take gradient steps on batches from the buffer; none before learning starts."""
    buffer = off_policy.store(setup, state.private, rollout)
    state = off_policy.update_moments(setup, state._replace(private=buffer), rollout)
    batches = off_policy.sample_batches(setup, key, state, buffer)
    rollout = rollout._replace(obs=standardise(setup, state, rollout.obs))
    step = partial(update_critic, setup, state, rollout)
    (params, opt_state), metrics = jax.lax.scan(step, (state.params, state.opt_state), batches)
    learned = (update_target(setup, state, params), opt_state)
    state, metrics = off_policy.keep_if_started(
        setup, state, buffer, learned, off_policy.mean_metrics(metrics)
    )
    return state, metrics | {"exploration": epsilon(setup, state)}


def update_critic(
    setup: DQNSetup, state: LearnerState, rollout: Rollout, carry: tuple[Params, Tree], batch: Transition
) -> tuple[tuple[Params, Tree], dict[str, Array]]:
    """One gradient step of the critic."""
    params, opt_state = carry
    loss = partial(critic_loss, setup, state, rollout, batch, targets(setup, state.hypers, params, batch))
    grads, metrics = jax.grad(loss, has_aux=True)(params.critic)
    critic, opt_state = off_policy.apply_gradients(
        setup, state.hypers.learning_rate, params.critic, opt_state, grads
    )
    return (params._replace(critic=critic), opt_state), metrics


def targets(setup: DQNSetup, hypers: Hypers, params: Params, batch: Transition) -> Array:
    """y = r + gamma^n Q'(s', argmax_b Q(s', b)); not double: r + gamma^n max_b Q'(s', b)."""
    values = action_values(setup, params.target_critic, batch.next_obs)
    by = action_values(setup, params.critic, batch.next_obs) if setup.config.double else values
    reward, discount = replay.n_step_return(batch, hypers.gamma)
    return reward + discount * gather_values(values, jnp.argmax(by, -1))


def critic_loss(
    setup: DQNSetup,
    state: LearnerState,
    rollout: Rollout,
    batch: Transition,
    target: Array,
    critic: VectorNetwork,
) -> tuple[Array, dict[str, Array]]:
    """mean Huber(Q(s, a) - y), and the distances to the anchor and to neighbours."""
    hypers = state.hypers
    value = gather_values(critic(batch.obs), batch.action)
    terms = {"loss/critic": jnp.mean(optax.huber_loss(value, target))}
    if setup.config.prox_coef:
        terms["loss/prox"] = hypers.prox_coef * losses.proximal(critic, state.anchor.critic)
    if rollout.peer_targets:
        own = compared_values(setup, critic, rollout.obs)
        terms["loss/neighbours"] = off_policy.neighbours_penalty(hypers.comm_penalty_coeff, own, rollout)
    return jnp.asarray(sum(terms.values())), terms | {"q_mean": jnp.mean(value)}


def update_target(setup: DQNSetup, state: LearnerState, params: Params) -> Params:
    """target <- (1 - tau) target + tau network, where `target_every` steps have passed in this rollout."""
    config, num_steps = setup.config, state.private.num_steps
    due = num_steps // config.target_every > (num_steps - config.rollout_size) // config.target_every
    moved = gradients.polyak_update(state.hypers.tau, params.target_critic, params.critic)
    return params._replace(target_critic=trees.where(due, moved, params.target_critic))


def gather_values(values: Array, action: Array) -> Array:
    """values[..., action]."""
    return jnp.take_along_axis(values, action[..., None], -1)[..., 0]


def policy_terms(setup: DQNSetup, state: LearnerState, obs: Tree) -> tuple[Array, Array]:
    """The values of all actions and their squared length: the terms of a sum of squared distances."""
    return peers.output_terms(compared_values(setup, state.params.critic, standardise(setup, state, obs)))


def compared_values(setup: DQNSetup, critic: VectorNetwork, obs: Tree) -> Array:
    """The values that neighbours compare: 0 for forbidden actions, which nobody learns."""
    values = critic(obs)
    mask = masks.allowed(setup.spec.action, obs, values.shape)
    return values if mask is None else jnp.where(mask, values, 0.0)


def distance(setup: DQNSetup, state: LearnerState, other: LearnerState, obs: Tree) -> Array:
    """1 where two learners' greedy actions differ, 0 where they agree, at each observation."""
    best = lambda one: jnp.argmax(action_values(setup, one.params.critic, standardise(setup, one, obs)), -1)
    return (best(state) != best(other)).astype(jnp.float32)


def value(setup: DQNSetup, state: LearnerState, obs: Tree) -> Array:
    """max_a Q(s, a)."""
    return jnp.max(action_values(setup, state.params.critic, standardise(setup, state, obs)), -1)
