"""Proximal policy optimisation (Schulman et al. 2017), for one learner.

The rollout holds only what happened. Values, log-probabilities and advantages are computed here, in
one batch, from the parameters that acted.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from shoal.distributed.mesh import DATA, psum
from shoal.learners import hyper_schedules, observations, sequences, targets
from shoal.learners.context import ALONE, LearnerContext
from shoal.learners.epochs import minibatches_once, minibatches_recomputed, weigh
from shoal.learners.gradients import accumulate_gradients, pmean
from shoal.learners.minibatches import shuffles, stratify
from shoal.learners.observations import empty_moments, named, update_moments
from shoal.learners.ppo_config import Hypers, PPOConfig
from shoal.nets.actor_critic import NetworkMaker, Split, actor_critic
from shoal.nets.convolutions import is_image
from shoal.nets.recurrent import RecurrentNetworkMaker, recurrent_actor_critic
from shoal.ops import losses, masks, peers, statistics, trees
from shoal.ops.advantages import (
    discounted_returns,
    generalised_advantages,
    rewards_to_go,
    standardise_advantages,
)
from shoal.ops.distributions import Distribution, distribution_for
from shoal.ops.peers import PeerPolicy
from shoal.ops.statistics import Running
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree


class Statistics(NamedTuple):
    """Running moments of each named observation that is standardised, of returns, of the critic's targets."""

    obs: dict[str, Running]
    returns: Running
    targets: Running | tuple[()] = ()  # where they are standardised


class Private(NamedTuple):
    """What stays with the learner."""

    num_updates: Array  # () int32, so far
    kl_coef: Array  # () the adaptive penalty's weight
    discounted_return: Array  # (E,) so far in each environment's episode
    carry: Tree = ()  # (E, ...) what a policy with memory remembers of its episodes
    start: Tree = ()  # (E, ...) what it remembered when the rollout under way began
    reward_range: Array | tuple[()] = ()  # (2,) the least and the largest so far, where asked for


class Batch(NamedTuple):
    """Samples to learn from, with what the policy that acted thought of them.

    With memory, B are sequences: every field but `start` has their T steps as its second axis.
    """

    obs: Tree  # (B, ...)
    action: Array  # (B, ...)
    outputs: Array | tuple[()]  # (B, num_outputs), where the objective asks for them
    log_prob: Array  # (B,)
    value: Array  # (B,)
    advantage: Array  # (B,)
    target: Array  # (B,)
    weight: Array  # (B,) 1 where valid, later each sample's share of its minibatch
    peers: tuple[PeerPolicy, ...] = ()  # one per exchange that gives advice
    episode_starts: Array | tuple[()] = ()  # (B, T) where an episode begins
    start: Tree = ()  # (B, ...) what was remembered before the first step


class PPOSetup(NamedTuple):
    """What is fixed when a learner is made: the static argument of every function below."""

    config: PPOConfig
    spec: EnvSpec
    distribution: Distribution
    make_network: NetworkMaker | RecurrentNetworkMaker
    num_updates: int
    axes: tuple[str, ...] = ()
    shards: int = 1

    @property
    def data(self) -> tuple[str, ...]:
        """The mapped axes over which a learner's environments are divided."""
        return (DATA,) if self.shards > 1 else ()

    @property
    def everyone(self) -> tuple[str, ...]:
        """Those, and the ones of learners that share every step: they have what they have seen in common."""
        return *self.axes, *self.data


def ppo(config: PPOConfig, spec: EnvSpec, context: LearnerContext = ALONE) -> Learner:
    """A PPO learner for an environment.

    >>> import jax, shoal
    >>> learner = shoal.ppo(shoal.PPOConfig(), shoal.make("CartPole-v1").spec)
    >>> state = learner.init(jax.random.key(0))
    >>> action, private = learner.act(state, jax.numpy.zeros((7, 4)), noise=0.0)
    >>> action.shape
    (7,)
    """
    masks.check(spec)
    num_updates, axes, shards, network = context
    if config.remembers:
        sequences.check_division(
            config.num_envs, config.num_minibatches * config.network.grad_accumulation, shards
        )
    network = network or default_network(config)
    setup = PPOSetup(config, spec, distribution_for(spec.action), network, num_updates, axes, shards)
    recurrent = config.remembers  # its policy at an observation depends on those before it
    return Learner(
        init=partial(init, setup),
        draw=partial(draw, setup),
        act=partial(act, setup),
        update=partial(update, setup),
        policy_terms=None if recurrent else partial(policy_terms, setup),
        distance=None if recurrent else partial(distance, setup),
        value=None if recurrent else partial(value, setup),
        for_evaluation=partial(for_evaluation, setup),
        on_restart=on_restart,
        by_env=Private(False, False, discounted_return=True, carry=True, start=True, reward_range=False),
    )


def default_network(config: PPOConfig) -> NetworkMaker | RecurrentNetworkMaker:
    """The network that the settings describe."""
    network, memory = config.network, config.memory
    layers = {
        "hidden": config.hidden,
        "critic_hidden": network.critic_hidden,
        "activation": config.activation,
        "images": network.images,
        "init": network.init,
        "init_log_std": network.init_log_std,
        "split": Split(network.split_start, network.split_keys, network.split_hidden),
    }
    if memory.kind == "none":
        return actor_critic(**layers)
    return recurrent_actor_critic(memory.kind, memory.size, **layers)


def init(setup: PPOSetup, key: Array) -> LearnerState:
    """A learner that has seen nothing."""
    config = setup.config
    params = setup.make_network(key, setup.spec, setup.distribution.num_outputs)
    number = lambda x: jnp.float32(x if isinstance(x, int | float) else jnp.inf)
    hypers = Hypers(**{name: number(x) for name, x in config.hypers.items()})
    moments = empty_moments(setup.spec.observation) if config.norm_obs else {}
    num_envs = config.num_envs // setup.shards
    carry = initial_carry(setup, params, num_envs)
    private = Private(
        num_updates=jnp.int32(0),
        kl_coef=jnp.float32(config.kl.coef),
        discounted_return=jnp.zeros(num_envs),
        carry=carry,
        start=carry,
        reward_range=targets.empty_reward_range() if config.value.bootstrap_clip == "dynamic" else (),
    )
    opt_state = optimiser(hypers).init(ravel_pytree(params)[0])
    return LearnerState(
        params=params,
        statistics=Statistics(moments, statistics.empty(), statistics.empty() if config.value.norm else ()),
        opt_state=opt_state,
        hypers=hypers,
        private=private,
        anchor=params if config.prox_coef else (),
    )


def draw(setup: PPOSetup, key: Array, shape: tuple[int, int]) -> Array:
    """The noise of a rollout's actions, for (T, E) of them."""
    return setup.distribution.draw(key, shape)


def act(
    setup: PPOSetup, state: LearnerState, obs: Tree, noise: Array, episode_starts: Array | None = None
) -> tuple[Array, Private]:
    """Actions drawn from the policy, one per environment; without noise the most likely ones."""
    obs, private = standardise(setup, state, obs), state.private
    if setup.config.remembers:
        outputs, carry = sequences.look(state.params, private.carry, obs, episode_starts)
        private = private._replace(carry=carry)
    else:
        outputs, _ = state.params(obs)
    return setup.distribution.sample(restrict(setup, obs, outputs), noise), private


def for_evaluation(setup: PPOSetup, state: LearnerState, num_envs: int) -> LearnerState:
    """The learner in other environments than it trains in, of which it remembers nothing."""
    carry = initial_carry(setup, state.params, num_envs)
    return state._replace(private=state.private._replace(carry=carry, start=carry))


def initial_carry(setup: PPOSetup, params: Tree, num_envs: int) -> Tree:
    """What a policy remembers of episodes that have not begun."""
    return params.initial_carry(num_envs) if setup.config.remembers else ()


def on_restart(state: LearnerState) -> LearnerState:
    """The learner about to begin new episodes: their returns count from 0, and nothing is remembered."""
    names = ("discounted_return", "carry", "start")
    cleared = {name: jax.tree.map(jnp.zeros_like, getattr(state.private, name)) for name in names}
    return state._replace(private=state.private._replace(**cleared))


def update(
    setup: PPOSetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Learn from one rollout.

    Observations are standardised by the moments that acted, and the moments take in this rollout
    only afterwards: the first minibatch's ratio is 1. Hyperparameters are those of the moment.
    """
    moments, hypers = (
        update_moments(state.statistics.obs, rollout.obs, rollout.valid, setup.everyone),
        state.hypers,
    )
    now = hyper_schedules.at(setup.config.plan, hypers, state.private.num_updates, setup.num_updates)
    state, rollout = scale_rewards(setup, state._replace(hypers=now), rollout)
    batch = assess(setup, state, rollout)
    state = update_target_moments(setup, state, batch)
    state, metrics = learn(setup, key, state, rollout, normalise_targets(setup, state, batch))
    private = state.private._replace(num_updates=state.private.num_updates + 1, start=state.private.carry)
    state = state._replace(statistics=state.statistics._replace(obs=moments), hypers=hypers, private=private)
    return state, metrics


def scale_rewards(setup: PPOSetup, state: LearnerState, rollout: Rollout) -> tuple[LearnerState, Rollout]:
    """Divide rewards by the running spread of their discounted sum, and clip them, as configured."""
    config, reward = setup.config, rewards(state.hypers, rollout)
    if config.norm_reward:
        ended = rollout.terminated | rollout.truncated
        start = state.private.discounted_return
        start, returns = discounted_returns(start, reward, ended, state.hypers.gamma)
        fresh = statistics.summarise(returns, rollout.valid, setup.everyone)
        moments = statistics.merge(state.statistics.returns, fresh)
        reward = reward / reward_scale(moments)
        state = state._replace(
            statistics=state.statistics._replace(returns=moments),
            private=state.private._replace(discounted_return=start),
        )
    reward = targets.clip_rewards(config, state.hypers, reward)
    if config.value.bootstrap_clip == "dynamic":
        seen = targets.update_reward_range(state.private.reward_range, reward, rollout.valid, setup.everyone)
        state = state._replace(private=state.private._replace(reward_range=seen))
    return state, rollout._replace(reward=reward)


def rewards(hypers: Hypers, rollout: Rollout) -> Array:
    """What is to be earned: the environment's rewards, and where there is a bonus, a sum of both."""
    if isinstance(rollout.bonus, tuple):
        return rollout.reward
    return hypers.extrinsic_coef * rollout.reward + hypers.intrinsic_coef * rollout.bonus


def reward_scale(returns: Running) -> Array:
    """What rewards are divided by where they are standardised."""
    return jnp.sqrt(statistics.variance(returns) + 1e-8)


def assess(setup: PPOSetup, state: LearnerState, rollout: Rollout) -> Batch:
    """Values, log-probabilities, advantages and targets of a rollout.

    Flattened to (T * E, ...); with memory, the sequences of its environments, (E, T, ...).
    """
    obs, last_obs = (standardise(setup, state, x) for x in (rollout.obs, rollout.last_obs))
    pictures = any(is_image(box) for box in named(setup.spec.observation).values())
    # A whole rollout of pictures would not fit in memory at once.
    if setup.config.remembers:
        seen = rollout._replace(obs=obs, last_obs=last_obs)
        outputs, value, last_value = sequences.replay(state.params, state.private.start, seen, pictures)
    else:
        outputs, value = jax.lax.map(state.params, obs) if pictures else state.params(obs)
        _, last_value = state.params(last_obs)
    outputs = restrict(setup, obs, outputs)
    if setup.config.value.norm:
        value, last_value = (targets.denormalise(x, state.statistics.targets) for x in (value, last_value))
    next_value = jnp.concatenate([value[1:], last_value[None]])
    ends, hypers = (rollout.terminated, rollout.truncated, rollout.valid), state.hypers
    advantage = generalised_advantages(
        rollout.reward, value, next_value, *ends, hypers.gamma, hypers.gae_lambda
    )
    weight = rollout.valid.astype(jnp.float32)
    target = advantage + value
    if setup.config.value.clips_bootstrap:
        bootstrap = targets.clip_bootstrap(setup.config, hypers, state.private.reward_range, next_value)
        target = rewards_to_go(rollout.reward, bootstrap, *ends, hypers.gamma)
    if setup.config.norm_adv == "batch":
        advantage = standardise_advantages(advantage, weight, setup.data)
    log_prob = setup.distribution.log_prob(outputs, rollout.action)
    outputs = outputs if setup.config.objective in ("kl", "mdpo") else ()
    aggregate = partial(
        peers.aggregate, setup.distribution, setup.config.peers.direction, setup.config.peers.form
    )
    heard = tuple(aggregate(given) for given in rollout.peer_targets)
    heard = tuple(one._replace(outputs=restrict(setup, obs, one.outputs)) for one in heard)
    batch = Batch(obs, rollout.action, outputs, log_prob, value, advantage, target, weight, heard)
    if setup.config.remembers:
        return sequences.transposed(batch._replace(episode_starts=rollout.episode_starts))._replace(
            start=state.private.start
        )
    return trees.merge_axes(batch)


def update_target_moments(setup: PPOSetup, state: LearnerState, batch: Batch) -> LearnerState:
    """The learner whose moments of targets have a rollout's in them, where targets are standardised."""
    if not setup.config.value.norm:
        return state
    fresh = statistics.summarise(batch.target, batch.weight, setup.everyone)
    moments = statistics.merge(state.statistics.targets, fresh)
    return state._replace(statistics=state.statistics._replace(targets=moments))


def normalise_targets(setup: PPOSetup, state: LearnerState, batch: Batch) -> Batch:
    """The batch with values and targets in the units that the critic speaks in."""
    if not setup.config.value.norm:
        return batch
    value, target = (targets.normalise(x, state.statistics.targets) for x in (batch.value, batch.target))
    return batch._replace(value=value, target=target)


def policy_terms(setup: PPOSetup, state: LearnerState, obs: Tree) -> tuple[Array, Array]:
    """What the policy says of observations, as `ops.peer_targets` adds it up."""
    config = setup.config
    outputs, _ = state.params(standardise(setup, state, obs))
    outputs = restrict(setup, obs, outputs)
    return peers.policy_terms(setup.distribution, config.peers.direction, config.peers.form, outputs)


def distance(setup: PPOSetup, state: LearnerState, other: LearnerState, obs: Tree) -> Array:
    """KL(own policy || the other's) at each observation."""
    own, _ = state.params(standardise(setup, state, obs))
    theirs, _ = other.params(standardise(setup, other, obs))
    return setup.distribution.kl(restrict(setup, obs, own), restrict(setup, obs, theirs))


def value(setup: PPOSetup, state: LearnerState, obs: Tree) -> Array:
    """What the critic says of each observation, in the environment's own rewards."""
    _, value = state.params(standardise(setup, state, obs))
    value = targets.denormalise(value, state.statistics.targets) if setup.config.value.norm else value
    return value * reward_scale(state.statistics.returns) if setup.config.norm_reward else value


def learn(
    setup: PPOSetup, key: Array, state: LearnerState, rollout: Rollout, batch: Batch
) -> tuple[LearnerState, dict[str, Array]]:
    """Epochs of shuffled minibatches; a learner past `target_kl` sits the remaining epochs out."""
    config = setup.config
    if config.objective == "mdpo":
        remaining = jnp.maximum(1.0 - state.private.num_updates / setup.num_updates, 0.0)
        kl_coef = config.kl.coef / jnp.maximum(remaining, 1 / setup.num_updates)
        state = state._replace(private=state.private._replace(kl_coef=kl_coef))
    step = partial(improve, setup, state)
    pieces = 1 if config.remembers else config.num_steps  # that an environment's part is cut into
    strata = stratify(pieces, config.num_envs, config.num_minibatches, setup.shards)
    orders = shuffles(key, config.update_epochs, pieces, strata, config.num_minibatches, setup.shards)
    weighing = partial(weigh, config.norm_adv, setup.data)
    if config.value.recalculate and config.update_epochs > 1:
        again = lambda params: normalise_targets(
            setup, state, assess(setup, state._replace(params=params), rollout)
        )
        cut, given = minibatches_recomputed(weighing, batch, orders, again)
    else:
        cut, given = minibatches_once(weighing, batch, orders)

    def epoch(carry, given):
        before, running = carry
        after, metrics = jax.lax.scan(step, before, cut(before[0], given))
        metrics = jax.tree.map(jnp.mean, metrics)
        if config.kl.limit is None:
            return (after, running), (metrics, running)
        after = trees.where(running, after, before)
        kl = pmean(metrics["approx_kl"], setup.axes)
        return (after, running & (kl <= state.hypers.target_kl)), (metrics, running)

    start = ((state.params, state.opt_state), jnp.bool_(True))
    ((params, opt_state), _), (metrics, ran) = jax.lax.scan(epoch, start, given)
    last_kl = pmean(metrics["approx_kl"][jnp.sum(ran) - 1], setup.axes)
    metrics = jax.tree.map(lambda x: jnp.mean(x, where=ran), metrics)
    metrics |= losses.shares({name: x for name, x in metrics.items() if name.startswith("loss/")})
    moving = ("learning_rate", *(schedule.name for schedule in config.plan))
    metrics |= {name: getattr(state.hypers, name) for name in moving}
    metrics["explained_variance"] = losses.explained_variance(
        batch.value, batch.target, batch.weight, setup.data
    )
    private = state.private
    if config.objective in ("kl", "mdpo"):
        metrics["kl_coef"] = private.kl_coef
    if config.objective == "kl":
        private = private._replace(
            kl_coef=losses.adapt_kl_coef(private.kl_coef, last_kl, state.hypers.kl_goal)
        )
    return state._replace(params=params, opt_state=opt_state, private=private), metrics


def improve(
    setup: PPOSetup, state: LearnerState, carry: tuple[Tree, Tree], batch: Batch
) -> tuple[tuple[Tree, Tree], dict[str, Array]]:
    """One step of the optimiser on one minibatch, whose gradient may be computed in pieces."""
    params, opt_state = carry
    gradient = jax.grad(partial(loss, setup, state), has_aux=True)
    grads, metrics = accumulate_gradients(gradient, params, batch, setup.config.network.grad_accumulation)
    grads, unravel = ravel_pytree(grads)  # one long vector: fewer, longer operations
    grads, metrics = psum((grads, metrics), setup.data)  # each device's is its samples' part of the sum
    grads = pmean(grads, setup.axes)
    updates, opt_state = optimiser(state.hypers).update(grads, opt_state)
    metrics["grad_norm"] = jnp.linalg.norm(grads)
    return (optax.apply_updates(params, unravel(updates)), opt_state), metrics


def loss(setup: PPOSetup, state: LearnerState, params: Tree, batch: Batch) -> tuple[Array, dict[str, Array]]:
    """L = policy + vf_coef value - ent_coef entropy, and penalties, each a weighted sum over the batch.

    kl, mdpo    kl_coef KL(old || new), kl_coef KL(new || old)
    neighbours  comm_penalty_coeff sum_j W_ij KL(pi_j || new), or the other way round
    prox        prox_coef ||theta - anchor||^2
    """
    hypers, distribution = state.hypers, setup.distribution
    if setup.config.remembers:
        outputs, value = sequences.read(params, batch.start, batch.obs, batch.episode_starts)
    else:
        outputs, value = params(batch.obs)
    outputs = restrict(setup, batch.obs, outputs)
    log_ratio = distribution.log_prob(outputs, batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    total = lambda x: jnp.sum(x * batch.weight)

    if setup.config.objective == "clip":
        policy = losses.clipped_surrogate(ratio, batch.advantage, hypers.clip_coef)
    else:
        policy = losses.surrogate(ratio, batch.advantage)
    error = losses.squared_error
    if setup.config.value.loss == "huber":
        error = partial(losses.huber_error, delta=setup.config.value.huber_delta)
    if setup.config.value.clip:
        wrong = losses.clipped_error(error, value, batch.value, batch.target, hypers.clip_coef)
    else:
        wrong = error(value, batch.target)
    entropy = total(distribution.entropy(outputs))
    terms = {
        "policy": total(policy),
        "value": hypers.vf_coef * total(wrong),
        "entropy": -hypers.ent_coef * entropy,
    }
    if setup.config.objective == "kl":
        terms["kl"] = state.private.kl_coef * total(distribution.kl(batch.outputs, outputs))
    if setup.config.objective == "mdpo":
        terms["kl"] = state.private.kl_coef * total(distribution.kl(outputs, batch.outputs))
    for peer in batch.peers:
        apart = peers.penalty(distribution, setup.config.peers.direction, peer, outputs)
        penalty = hypers.comm_penalty_coeff * total(apart)
        terms["neighbours"] = terms.get("neighbours", 0.0) + penalty
    if setup.config.prox_coef:
        apart = optax.tree.norm(optax.tree.sub(params, state.anchor), squared=True)
        terms["prox"] = hypers.prox_coef * apart * jnp.sum(batch.weight)

    metrics = {f"loss/{name}": term for name, term in terms.items()} | {
        "entropy": entropy,
        "approx_kl": total(losses.approximate_kl(log_ratio)),
        "clip_fraction": total(jnp.abs(ratio - 1) > hypers.clip_coef),
    }
    return jnp.asarray(sum(terms.values())), metrics


def optimiser(hypers: Hypers) -> optax.GradientTransformation:
    """Adam on a gradient of bounded norm; the step size and the bound are data."""
    return optax.chain(
        optax.clip_by_global_norm(hypers.max_grad_norm),
        optax.scale_by_adam(eps=1e-5),
        optax.scale_by_learning_rate(hypers.learning_rate),
    )


def standardise(setup: PPOSetup, state: LearnerState, obs: Tree) -> Tree:
    """Observations as the network sees them."""
    return observations.standardise(obs, state.statistics.obs, setup.config.inputs.clip_obs)


def restrict(setup: PPOSetup, obs: Tree, outputs: Array) -> Array:
    """The policy's outputs where what the environment forbids cannot be chosen."""
    return masks.restrict(setup.spec.action, obs, outputs)
