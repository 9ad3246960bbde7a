"""Deep Q-learning (Mnih et al. 2015) with two estimates (van Hasselt et al. 2016), for one learner."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from shoal.errors import ShoalError
from shoal.learners import gradients, observations, replay
from shoal.learners.context import ALONE, LearnerContext, check_single_agent
from shoal.learners.replay import ReplayBuffer, ReplayConfig, Transition
from shoal.nets.actor_critic import Policy, make_policy
from shoal.ops import masks, peers, trees
from shoal.ops.statistics import weighted_mean
from shoal.settings import check_at_least, get
from shoal.types import Discrete, EnvSpec, Learner, LearnerState, Rollout, Tree


@dataclass(frozen=True)
class DQNExplorationConfig:
    """The chance of random actions."""

    initial: float = 1.0
    """Chance of a random action at the start."""
    final: float = 0.05
    """Chance of one in the end."""
    fraction: float = 0.1
    """The part of the run over which it falls, linearly."""

    def __post_init__(self):
        check_at_least(self, 0, "fraction", group="exploration")
        if not 0 <= self.final <= 1 or not 0 <= self.initial <= 1:
            raise ShoalError("exploration.initial and exploration.final must be between 0 and 1")


@dataclass(frozen=True)
class DQNConfig(ReplayConfig):
    """DQN's settings.

    >>> import shoal
    >>> shoal.preset("CartPole-v1", algo="dqn").algo == shoal.DQNConfig()
    False
    """

    num_steps: int = 4
    gradient_steps: int | None = 1
    batch_size: int = 32
    buffer_size: int = 100_000
    learning_starts: int = 1_000
    learning_rate: float = 1e-4
    tau: float = 1.0
    hidden: tuple[int, ...] = (64, 64)
    double: bool = True
    """Let the network choose the next action that its target judges."""
    target_every: int = 10_000
    """Environment steps between moves of the target network."""
    exploration: DQNExplorationConfig = field(default_factory=DQNExplorationConfig)

    evolved: ClassVar[tuple[str, ...]] = ("learning_rate", "gamma")
    """What a population changes unless told."""
    learns: ClassVar[frozenset[str]] = frozenset({"critic"})
    """The networks that learn, as exchanges name them."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "target_every")


class Hypers(NamedTuple):
    """What a population may evolve: data, so a change never recompiles. Every leaf is ()."""

    learning_rate: Array
    gamma: Array
    tau: Array
    exploration_initial: Array
    exploration_final: Array
    comm_penalty_coeff: Array
    prox_coef: Array


class Params(NamedTuple):
    """The networks; an exchange may take one of them by name."""

    critic: Policy  # Q(s, .)
    target_critic: Policy


class DQNSetup(NamedTuple):
    """What is fixed when a learner is made: the static argument of every function below."""

    config: DQNConfig
    spec: EnvSpec
    num_actions: int
    num_updates: int
    axes: tuple[str, ...] = ()


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
    check_single_agent("dqn", spec, context)
    if not isinstance(spec.action, Discrete):
        raise ShoalError(f"dqn needs discrete actions, which {spec.name} does not have")
    masks.check(spec)
    setup = DQNSetup(config, spec, spec.action.num, context.num_updates, context.axes)
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
    """A learner that has seen nothing."""
    config, spec = setup.config, setup.spec
    critic = make_policy(
        key,
        spec,
        setup.num_actions,
        hidden=config.hidden,
        activation=config.activation,
        images=config.network.images,
        init=config.network.init,
    )
    params = Params(critic, critic)
    return LearnerState(
        params=params,
        statistics=observations.empty_moments(spec.observation) if config.norm_obs else {},
        opt_state=gradients.optimiser(config.optimiser, 0.0).init(critic),
        hypers=Hypers(**{name: jnp.float32(get(config, name)) for name in Hypers._fields}),
        private=empty_buffer(
            setup, config.num_envs, config.buffer_size, warming_up=config.learning_starts > 0
        ),
        anchor=params if config.prox_coef else (),
    )


def draw(setup: DQNSetup, key: Array, shape: tuple[int, int]) -> Array:
    """Two numbers in [0, 1) for each of (T, E) actions: whether it is random, and which one it then is."""
    return jax.random.uniform(key, (*shape, 2))


def act(
    setup: DQNSetup, state: LearnerState, obs: Tree, noise: Array, episode_starts: Array | None = None
) -> tuple[Array, ReplayBuffer]:
    """The action of the highest value, or now and then any; without noise never."""
    values = judge(setup, state.params.critic, standardise(setup, state, obs))
    best = jnp.argmax(values, -1).astype(jnp.int32)
    random = pick_one(masks.allowed(setup.spec.action, obs, values.shape), setup.num_actions, noise[..., 1])
    return jnp.where(noise[..., 0] > 1 - exploration(setup, state), random, best), state.private


def judge(setup: DQNSetup, critic: Policy, obs: Tree) -> Array:
    """The values of all actions; those of forbidden ones are too low to be chosen."""
    return masks.restrict(setup.spec.action, obs, critic(obs))


def pick_one(allowed: Array | None, num: int, noise: Array) -> Array:
    """Any of the actions, or of those allowed (..., num), evenly; noise is between 0 and 1.

    >>> pick_one(jnp.array([[False, True, True]] * 3), 3, jnp.array([0.0, 0.4, 0.9])).tolist()
    [1, 1, 2]
    """
    if allowed is None:
        return jnp.minimum((num * noise).astype(jnp.int32), num - 1)
    rank = jnp.cumsum(allowed, -1)  # the k-th that is allowed is the first whose rank is k
    last = rank[..., -1]
    chosen = jnp.minimum((last * noise).astype(jnp.int32) + 1, last)
    return jnp.argmax(rank >= chosen[..., None], -1).astype(jnp.int32)


def exploration(setup: DQNSetup, state: LearnerState) -> Array:
    """The chance of a random action: 1 at first, then falling linearly over a part of the run."""
    config, hypers = setup.config, state.hypers
    span = max(config.exploration.fraction * setup.num_updates * config.rollout_size, 1.0)
    done = jnp.minimum(state.private.num_steps / span, 1.0)
    chance = hypers.exploration_initial + done * (hypers.exploration_final - hypers.exploration_initial)
    return jnp.where(state.private.warming_up, 1.0, chance)


def for_evaluation(setup: DQNSetup, state: LearnerState, num_envs: int) -> LearnerState:
    """The learner in other environments than it trains in: with nothing remembered, and nothing random."""
    return state._replace(private=empty_buffer(setup, num_envs, capacity=1, warming_up=False))


def on_restart(state: LearnerState) -> LearnerState:
    """The learner about to begin new episodes."""
    return state._replace(private=replay.on_restart(state.private))


def empty_buffer(setup: DQNSetup, num_envs: int, capacity: int, warming_up: bool) -> ReplayBuffer:
    """Nothing remembered yet."""
    action = jax.ShapeDtypeStruct((), jnp.int32)
    return replay.empty_buffer(setup.spec, action, capacity, num_envs, setup.config.n_step, warming_up)


def update(
    setup: DQNSetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Remember one rollout, then learn from what is remembered; the first steps are only remembered."""
    config = setup.config
    buffer = replay.remember(state.private, rollout, config.n_step, config.learning_starts)
    moments = observations.update_moments(state.statistics, rollout.obs, rollout.valid, setup.axes)
    state = state._replace(statistics=moments, private=buffer)
    batches = replay.sample(buffer.ring, key, (config.num_gradients, config.batch_size))
    batches = batches._replace(
        obs=standardise(setup, state, batches.obs), next_obs=standardise(setup, state, batches.next_obs)
    )
    rollout = rollout._replace(obs=standardise(setup, state, rollout.obs))
    start = (state.params, state.opt_state)
    (params, opt_state), metrics = jax.lax.scan(partial(improve, setup, state, rollout), start, batches)
    before = buffer.num_steps - config.rollout_size
    due = buffer.num_steps // config.target_every > before // config.target_every
    moved = gradients.polyak_update(state.hypers.tau, params.target_critic, params.critic)
    params = params._replace(target_critic=trees.where(due, moved, params.target_critic))

    started = ~buffer.warming_up & (replay.size(buffer.ring) > 0)
    params, opt_state = trees.where(started, (params, opt_state), start)
    metrics = jax.tree.map(lambda x: jnp.where(started, jnp.mean(x), 0.0), metrics)
    metrics["loss/total"] = jnp.asarray(sum(x for name, x in metrics.items() if name.startswith("loss/")))
    metrics["exploration"] = exploration(setup, state)
    metrics["updates_per_step"] = started * jnp.float32(config.num_gradients / config.rollout_size)
    metrics["replay_size"] = replay.size(buffer.ring).astype(jnp.float32)
    return state._replace(params=params, opt_state=opt_state), metrics


def improve(
    setup: DQNSetup, state: LearnerState, rollout: Rollout, carry: tuple[Params, Tree], batch: Transition
) -> tuple[tuple[Params, Tree], dict[str, Array]]:
    """One step of Q(s, a) towards r + gamma^n Q'(s', argmax_b Q(s', b)), by Huber's loss."""
    (params, opt_state), hypers = carry, state.hypers
    judged = judge(setup, params.target_critic, batch.next_obs)
    chosen = jnp.argmax(judge(setup, params.critic, batch.next_obs) if setup.config.double else judged, -1)
    reward, discount = replay.discounted(batch, hypers.gamma)
    target = reward + discount * pick(judged, chosen)

    def loss(critic: Policy) -> tuple[Array, dict[str, Array]]:
        value = pick(critic(batch.obs), batch.action)
        terms = {"loss/critic": jnp.mean(optax.huber_loss(value, target))}
        if setup.config.prox_coef:
            apart = optax.tree.norm(optax.tree.sub(critic, state.anchor.critic), squared=True)
            terms["loss/prox"] = hypers.prox_coef * apart
        if rollout.peer_targets:
            own, valid = compared_values(setup, critic, rollout.obs), rollout.valid.astype(jnp.float32)
            theirs = sum(peers.squared_distance(own, given) for given in rollout.peer_targets)
            terms["loss/neighbours"] = hypers.comm_penalty_coeff * weighted_mean(theirs, valid)
        return jnp.asarray(sum(terms.values())), terms | {"q_mean": jnp.mean(value)}

    grads, metrics = jax.grad(loss, has_aux=True)(params.critic)
    take_step = gradients.optimiser(setup.config.optimiser, hypers.learning_rate, setup.axes).update
    updates, opt_state = take_step(grads, opt_state)
    return (params._replace(critic=optax.apply_updates(params.critic, updates)), opt_state), metrics


def policy_terms(setup: DQNSetup, state: LearnerState, obs: Tree) -> tuple[Array, Array]:
    """The values of all actions and their squared length: what a sum of squared distances is made of."""
    return peers.output_terms(compared_values(setup, state.params.critic, standardise(setup, state, obs)))


def compared_values(setup: DQNSetup, critic: Policy, obs: Tree) -> Array:
    """The values that learners compare: 0 of what is forbidden, which nobody learns."""
    values = critic(obs)
    mask = masks.allowed(setup.spec.action, obs, values.shape)
    return values if mask is None else jnp.where(mask, values, 0.0)


def distance(setup: DQNSetup, state: LearnerState, other: LearnerState, obs: Tree) -> Array:
    """Whether two learners would do different things, 0 or 1 at each observation."""
    best = lambda one: jnp.argmax(judge(setup, one.params.critic, standardise(setup, one, obs)), -1)
    return (best(state) != best(other)).astype(jnp.float32)


def value(setup: DQNSetup, state: LearnerState, obs: Tree) -> Array:
    """max_a Q(s, a)."""
    return jnp.max(judge(setup, state.params.critic, standardise(setup, state, obs)), -1)


def pick(values: Array, action: Array) -> Array:
    """values[..., action]."""
    return jnp.take_along_axis(values, action[..., None], -1)[..., 0]


def standardise(setup: DQNSetup, state: LearnerState, obs: Tree) -> Tree:
    """Observations as the network sees them."""
    return observations.standardise(obs, state.statistics, setup.config.clip_obs)
