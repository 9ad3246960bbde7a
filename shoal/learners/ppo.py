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

from shoal import trees
from shoal.learners import observations, sequences
from shoal.learners.gradients import in_pieces
from shoal.learners.minibatches import arrange, shuffles, stratify
from shoal.learners.observations import named, no_moments, take_in
from shoal.learners.ppo_config import PPOConfig
from shoal.mesh import DATA, add_up
from shoal.networks import NetworkMaker, actor_critic, is_image
from shoal.ops import advice, losses, statistics
from shoal.ops.advantages import discounted_returns, generalised_advantages
from shoal.ops.advice import Advised
from shoal.ops.distributions import Distribution, distribution_for
from shoal.ops.statistics import Running, weighted_mean
from shoal.recurrent import RecurrentNetworkMaker, recurrent_actor_critic
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree


class Hypers(NamedTuple):
    """What a population may evolve: data, so a change never recompiles. Every leaf is ()."""

    learning_rate: Array
    gamma: Array
    gae_lambda: Array
    clip_coef: Array
    ent_coef: Array
    vf_coef: Array
    max_grad_norm: Array
    target_kl: Array
    kl_goal: Array
    comm_penalty_coeff: Array
    prox_coef: Array
    intrinsic_coef: Array
    extrinsic_coef: Array


class Statistics(NamedTuple):
    """Running moments of each named observation that is standardised, and of discounted returns."""

    obs: dict[str, Running]
    returns: Running


class Memory(NamedTuple):
    """What stays with the learner."""

    num_updates: Array  # () int32, so far
    kl_coef: Array  # () the adaptive penalty's weight
    discounted_return: Array  # (E,) so far in each environment's episode
    carry: Tree = ()  # (E, ...) what a policy with memory remembers of its episodes
    start: Tree = ()  # (E, ...) what it remembered when the rollout under way began


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
    advised: tuple[Advised, ...] = ()  # one per exchange that gives advice
    begins: Array | tuple[()] = ()  # (B, T) where an episode begins
    start: Tree = ()  # (B, ...) what was remembered before the first step


class Setup(NamedTuple):
    """What is fixed when a learner is made: the static argument of every function below."""

    config: PPOConfig
    spec: EnvSpec
    distribution: Distribution
    make_network: NetworkMaker | RecurrentNetworkMaker
    num_updates: int
    across: tuple[str, ...] = ()
    shards: int = 1

    @property
    def data(self) -> tuple[str, ...]:
        """The mapped axes over which a learner's environments are divided."""
        return (DATA,) if self.shards > 1 else ()


def ppo(
    config: PPOConfig,
    spec: EnvSpec,
    num_updates: int,
    network: NetworkMaker | RecurrentNetworkMaker | None = None,
    across: tuple[str, ...] = (),
    shards: int = 1,
) -> Learner:
    """A PPO learner for an environment, its annealed settings reaching 0 after `num_updates` updates.

    `across` names the mapped axes over which gradients are averaged: learners that share every step.
    `shards` devices hold the same learner, each with its share of the environments.

    >>> import jax, shoal
    >>> learner = shoal.ppo(shoal.PPOConfig(), shoal.make("CartPole-v1").spec, num_updates=10)
    >>> state = learner.init(jax.random.key(0))
    >>> action, memory = learner.act(state, jax.numpy.zeros((7, 4)), noise=0.0)
    >>> action.shape
    (7,)
    """
    if config.remembers:
        sequences.check_division(config.num_envs, config.num_minibatches * config.grad_accumulation, shards)
    made = network or default_network(config)
    setup = Setup(config, spec, distribution_for(spec.action), made, num_updates, across, shards)
    # What a policy with memory thinks of an observation depends on those before it.
    judging = () if config.remembers else (opinion, distance, value)
    functions = (init, draw, act, update, visit, *judging)
    bound = {function.__name__: partial(function, setup) for function in functions}
    return Learner(**bound, abandon=abandon, by_env=Memory(False, False, True, carry=True, start=True))


def default_network(config: PPOConfig) -> NetworkMaker | RecurrentNetworkMaker:
    """The network that the settings describe."""
    layers = {
        "hidden": config.hidden,
        "activation": config.activation,
        "images": config.network,
        "init": config.init,
        "init_log_std": config.init_log_std,
    }
    if config.memory == "none":
        return actor_critic(**layers)
    return recurrent_actor_critic(config.memory, config.memory_size, **layers)


def init(setup: Setup, key: Array) -> LearnerState:
    """A learner that has seen nothing."""
    config = setup.config
    params = setup.make_network(key, setup.spec, setup.distribution.num_outputs)
    settings = {name: getattr(config, name) for name in Hypers._fields}
    hypers = Hypers(**{name: jnp.float32(jnp.inf if x is None else x) for name, x in settings.items()})
    moments = no_moments(setup.spec.observation) if config.norm_obs else {}
    num_envs = config.num_envs // setup.shards
    rest = nothing(setup, params, num_envs)
    memory = Memory(
        num_updates=jnp.int32(0),
        kl_coef=jnp.float32(config.kl_coef),
        discounted_return=jnp.zeros(num_envs),
        carry=rest,
        start=rest,
    )
    opt_state = optimiser(hypers, hypers.learning_rate).init(params)
    return LearnerState(
        params=params,
        statistics=Statistics(moments, statistics.empty()),
        opt_state=opt_state,
        hypers=hypers,
        memory=memory,
        anchor=params if config.prox_coef else (),
    )


def draw(setup: Setup, key: Array, shape: tuple[int, int]) -> Array:
    """The noise of a rollout's actions, for (T, E) of them."""
    return setup.distribution.draw(key, shape)


def act(
    setup: Setup, state: LearnerState, obs: Tree, noise: Array, begins: Array | None = None
) -> tuple[Array, Memory]:
    """Actions drawn from the policy, one per environment; without noise the most likely ones."""
    obs, memory = standardise(setup, state, obs), state.memory
    if setup.config.remembers:
        outputs, carry = sequences.look(state.params, memory.carry, obs, begins)
        memory = memory._replace(carry=carry)
    else:
        outputs, _ = state.params(obs)
    return setup.distribution.sample(outputs, noise), memory


def visit(setup: Setup, state: LearnerState, num_envs: int) -> LearnerState:
    """The learner in other environments than it trains in, of which it remembers nothing."""
    rest = nothing(setup, state.params, num_envs)
    return state._replace(memory=state.memory._replace(carry=rest, start=rest))


def nothing(setup: Setup, params: Tree, num_envs: int) -> Tree:
    """What a policy remembers of episodes that have not begun."""
    return params.rest(num_envs) if setup.config.remembers else ()


def abandon(state: LearnerState) -> LearnerState:
    """The learner about to begin new episodes: their returns count from 0, and nothing is remembered."""
    memory = state.memory
    episodes = jax.tree.map(jnp.zeros_like, (memory.discounted_return, memory.carry, memory.start))
    return state._replace(memory=Memory(memory.num_updates, memory.kl_coef, *episodes))


def update(
    setup: Setup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Learn from one rollout.

    Observations are standardised by the moments that acted, and the moments take in this rollout
    only afterwards: the first minibatch's ratio is 1.
    """
    moments = take_in(state.statistics.obs, rollout.obs, rollout.valid, setup.data)
    state, rollout = scale_rewards(setup, state, rollout)
    batch = assess(setup, state, rollout)
    state, metrics = learn(setup, key, state, batch)
    memory = state.memory._replace(num_updates=state.memory.num_updates + 1, start=state.memory.carry)
    return state._replace(statistics=state.statistics._replace(obs=moments), memory=memory), metrics


def scale_rewards(setup: Setup, state: LearnerState, rollout: Rollout) -> tuple[LearnerState, Rollout]:
    """Divide rewards by the running spread of their discounted sum, and clip them, as configured."""
    config, reward = setup.config, rewards(state.hypers, rollout)
    if config.norm_reward:
        ended = rollout.terminated | rollout.truncated
        start = state.memory.discounted_return
        start, returns = discounted_returns(start, reward, ended, state.hypers.gamma)
        fresh = statistics.summarise(returns, rollout.valid, setup.data)
        moments = statistics.merge(state.statistics.returns, fresh)
        reward = reward / reward_scale(moments)
        state = state._replace(
            statistics=state.statistics._replace(returns=moments),
            memory=state.memory._replace(discounted_return=start),
        )
    if config.clip_reward is not None:
        reward = jnp.clip(reward, -config.clip_reward, config.clip_reward)
    return state, rollout._replace(reward=reward)


def rewards(hypers: Hypers, rollout: Rollout) -> Array:
    """What is to be earned: the environment's rewards, and where there is a bonus, a sum of both."""
    if isinstance(rollout.bonus, tuple):
        return rollout.reward
    return hypers.extrinsic_coef * rollout.reward + hypers.intrinsic_coef * rollout.bonus


def reward_scale(returns: Running) -> Array:
    """What rewards are divided by where they are standardised."""
    return jnp.sqrt(statistics.variance(returns) + 1e-8)


def assess(setup: Setup, state: LearnerState, rollout: Rollout) -> Batch:
    """Values, log-probabilities, advantages and targets of a rollout.

    Flattened to (T * E, ...); with memory, the sequences of its environments, (E, T, ...).
    """
    obs, last_obs = (standardise(setup, state, x) for x in (rollout.obs, rollout.last_obs))
    pictures = any(is_image(box) for box in named(setup.spec.observation).values())
    # A whole rollout of pictures would not fit in memory at once.
    if setup.config.remembers:
        seen = rollout._replace(obs=obs, last_obs=last_obs)
        outputs, value, last_value = sequences.replay(state.params, state.memory.start, seen, pictures)
    else:
        outputs, value = jax.lax.map(state.params, obs) if pictures else state.params(obs)
        _, last_value = state.params(last_obs)
    advantage = generalised_advantages(
        rollout.reward,
        value,
        jnp.concatenate([value[1:], last_value[None]]),
        rollout.terminated,
        rollout.truncated,
        rollout.valid,
        state.hypers.gamma,
        state.hypers.gae_lambda,
    )
    weight = rollout.valid.astype(jnp.float32)
    target = advantage + value
    if setup.config.norm_adv == "batch":
        advantage = standardise_advantages(advantage, weight, setup.data)
    log_prob = setup.distribution.log_prob(outputs, rollout.action)
    outputs = outputs if setup.config.objective in ("kl", "mdpo") else ()
    heed = partial(advice.heed, setup.distribution, setup.config.comm_direction, setup.config.comm_form)
    advised = tuple(heed(given) for given in rollout.advice)
    batch = Batch(obs, rollout.action, outputs, log_prob, value, advantage, target, weight, advised)
    if setup.config.remembers:
        return sequences.turned(batch._replace(begins=rollout.begins))._replace(start=state.memory.start)
    return trees.merge_axes(batch)


def opinion(setup: Setup, state: LearnerState, obs: Tree) -> tuple[Array, Array]:
    """What the policy says of observations, as `ops.advice` adds it up."""
    config = setup.config
    outputs, _ = state.params(standardise(setup, state, obs))
    return advice.opinion(setup.distribution, config.comm_direction, config.comm_form, outputs)


def distance(setup: Setup, state: LearnerState, other: LearnerState, obs: Tree) -> Array:
    """KL(own policy || the other's) at each observation."""
    own, _ = state.params(standardise(setup, state, obs))
    theirs, _ = other.params(standardise(setup, other, obs))
    return setup.distribution.kl(own, theirs)


def value(setup: Setup, state: LearnerState, obs: Tree) -> Array:
    """What the critic says of each observation, in the environment's own rewards."""
    _, value = state.params(standardise(setup, state, obs))
    return value * reward_scale(state.statistics.returns) if setup.config.norm_reward else value


def learn(
    setup: Setup, key: Array, state: LearnerState, batch: Batch
) -> tuple[LearnerState, dict[str, Array]]:
    """Epochs of shuffled minibatches; a learner past `target_kl` sits the remaining epochs out."""
    config = setup.config
    remaining = jnp.maximum(1.0 - state.memory.num_updates / setup.num_updates, 0.0)
    rate = state.hypers.learning_rate * (remaining if config.anneal_lr else 1.0)
    if config.objective == "mdpo":
        kl_coef = config.kl_coef / jnp.maximum(remaining, 1 / setup.num_updates)
        state = state._replace(memory=state.memory._replace(kl_coef=kl_coef))
    hypers = state.hypers._replace(
        clip_coef=state.hypers.clip_coef * (remaining if config.anneal_clip else 1.0),
        ent_coef=state.hypers.ent_coef * (remaining if config.anneal_ent else 1.0),
    )
    step = partial(improve, setup, state._replace(hypers=hypers), rate)
    pieces = 1 if config.remembers else config.num_steps  # that an environment's part is cut into
    strata = stratify(pieces, config.num_envs, config.num_minibatches, setup.shards)
    orders = shuffles(key, config.update_epochs, pieces, strata, config.num_minibatches, setup.shards)
    # For all epochs at once: where devices share a learner, they meet for it once and not each time.
    weighed = jax.vmap(jax.vmap(partial(weigh, setup)))(
        *jax.vmap(partial(arrange, (batch.advantage, batch.weight)))(orders)
    )
    rest = batch._replace(advantage=(), weight=())

    def epoch(carry, given):
        (before, running), (blocks, (advantage, weight)) = carry, given
        parts = arrange(rest, blocks)._replace(advantage=advantage, weight=weight)
        after, metrics = jax.lax.scan(step, before, parts)
        metrics = jax.tree.map(jnp.mean, metrics)
        if config.target_kl is None:
            return (after, running), (metrics, running)
        after = trees.where(running, after, before)
        kl = jax.lax.pmean(metrics["approx_kl"], setup.across) if setup.across else metrics["approx_kl"]
        return (after, running & (kl <= state.hypers.target_kl)), (metrics, running)

    start = ((state.params, state.opt_state), jnp.bool_(True))
    ((params, opt_state), _), (metrics, ran) = jax.lax.scan(epoch, start, (orders, weighed))
    last_kl = metrics["approx_kl"][jnp.sum(ran) - 1]
    metrics = jax.tree.map(lambda x: jnp.mean(x, where=ran), metrics)
    metrics |= shares({name: x for name, x in metrics.items() if name.startswith("loss/")})
    metrics["learning_rate"] = rate
    metrics["explained_variance"] = losses.explained_variance(
        batch.value, batch.target, batch.weight, setup.data
    )
    memory = state.memory
    if config.objective in ("kl", "mdpo"):
        metrics["kl_coef"] = memory.kl_coef
    if config.objective == "kl":
        memory = memory._replace(kl_coef=steer(memory.kl_coef, last_kl, state.hypers.kl_goal))
    return state._replace(params=params, opt_state=opt_state, memory=memory), metrics


def weigh(setup: Setup, advantage: Array, weight: Array) -> tuple[Array, Array]:
    """A minibatch's advantages, standardised as configured, and its weights, adding up to 1."""
    if setup.config.norm_adv == "minibatch":
        advantage = standardise_advantages(advantage, weight, setup.data)
    num_valid = add_up(jnp.sum(weight), setup.data)
    return advantage, weight / jnp.maximum(num_valid, 1.0)


def improve(
    setup: Setup, state: LearnerState, rate: Array, carry: tuple[Tree, Tree], batch: Batch
) -> tuple[tuple[Tree, Tree], dict[str, Array]]:
    """One step of the optimiser on one minibatch, whose gradient may be computed in pieces."""
    params, opt_state = carry
    gradient = jax.grad(partial(loss, setup, state), has_aux=True)
    grads, metrics = in_pieces(gradient, params, batch, setup.config.grad_accumulation)
    grads, metrics = add_up((grads, metrics), setup.data)  # each device's is its samples' part of the sum
    grads = jax.lax.pmean(grads, setup.across) if setup.across else grads
    updates, opt_state = optimiser(state.hypers, rate).update(grads, opt_state, params)
    metrics["grad_norm"] = optax.tree.norm(grads)
    return (optax.apply_updates(params, updates), opt_state), metrics


def loss(setup: Setup, state: LearnerState, params: Tree, batch: Batch) -> tuple[Array, dict[str, Array]]:
    """L = policy + vf_coef value - ent_coef entropy, and penalties, each a weighted sum over the batch.

    kl, mdpo    kl_coef KL(old || new), kl_coef KL(new || old)
    neighbours  comm_penalty_coeff sum_j W_ij KL(pi_j || new), or the other way round
    prox        prox_coef ||theta - anchor||^2
    """
    hypers, distribution = state.hypers, setup.distribution
    if setup.config.remembers:
        outputs, value = sequences.read(params, batch.start, batch.obs, batch.begins)
    else:
        outputs, value = params(batch.obs)
    log_ratio = distribution.log_prob(outputs, batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    total = lambda x: jnp.sum(x * batch.weight)

    if setup.config.objective == "clip":
        policy = losses.clipped_surrogate(ratio, batch.advantage, hypers.clip_coef)
    else:
        policy = losses.surrogate(ratio, batch.advantage)
    if setup.config.clip_vloss:
        error = losses.clipped_squared_error(value, batch.value, batch.target, hypers.clip_coef)
    else:
        error = losses.squared_error(value, batch.target)
    entropy = total(distribution.entropy(outputs))
    terms = {
        "policy": total(policy),
        "value": hypers.vf_coef * total(error),
        "entropy": -hypers.ent_coef * entropy,
    }
    if setup.config.objective == "kl":
        terms["kl"] = state.memory.kl_coef * total(distribution.kl(batch.outputs, outputs))
    if setup.config.objective == "mdpo":
        terms["kl"] = state.memory.kl_coef * total(distribution.kl(outputs, batch.outputs))
    for advised in batch.advised:
        apart = advice.penalty(distribution, setup.config.comm_direction, advised, outputs)
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


def shares(terms: dict[str, Array]) -> dict[str, Array]:
    """The loss as a whole, and how much of its size each term makes up."""
    size = sum(jnp.abs(term) for term in terms.values()) + 1e-12
    parts = {name.replace("loss/", "loss_share/"): jnp.abs(term) / size for name, term in terms.items()}
    return parts | {"loss/total": jnp.asarray(sum(terms.values()))}


def optimiser(hypers: Hypers, rate: Array) -> optax.GradientTransformation:
    """Adam on a gradient of bounded norm; the step size and the bound are data."""
    return optax.flatten(
        optax.chain(
            optax.clip_by_global_norm(hypers.max_grad_norm),
            optax.scale_by_adam(eps=1e-5),
            optax.scale_by_learning_rate(rate),
        )
    )


def steer(kl_coef: Array, kl: Array, goal: Array) -> Array:
    """Double the penalty's weight after too large a step, halve it after too small a one.

    >>> [steer(1.0, kl, 0.01).item() for kl in (0.1, 0.01, 0.001)]
    [2.0, 1.0, 0.5]
    """
    factor = jnp.where(kl > 1.5 * goal, 2.0, jnp.where(kl < goal / 1.5, 0.5, 1.0))
    return jnp.clip(kl_coef * factor, 1e-4, 1e4)


def standardise_advantages(advantage: Array, weight: Array, across: tuple[str, ...] = ()) -> Array:
    """Mean 0 and deviation 1 over the valid samples; a lone sample stays finite."""
    centred = advantage - weighted_mean(advantage, weight, across)
    return centred / (jnp.sqrt(weighted_mean(centred**2, weight, across)) + 1e-8)


def standardise(setup: Setup, state: LearnerState, obs: Tree) -> Tree:
    """Observations as the network sees them."""
    return observations.standardise(obs, state.statistics.obs, setup.config.clip_obs)
