"""Proximal policy optimisation (PPO, Schulman et al. 2017), for one learner.

A rollout holds only what happened. Values, log-probabilities and advantages come from the parameters that
acted (`ppo_batch`); then epochs of minibatches minimise

    L = -min(r A, clip(r, 1 - c, 1 + c) A) + vf_coef (V - target)^2 / 2 - ent_coef entropy,
    r = pi(a | s) / pi_old(a | s).
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from shoal.distributed.mesh import psum
from shoal.learners import sequences
from shoal.learners.context import ALONE, LearnerContext
from shoal.learners.epochs import run_epochs
from shoal.learners.gradients import accumulate_gradients, pmean
from shoal.learners.hyper_schedules import apply_schedules
from shoal.learners.observations import empty_moments, update_moments
from shoal.learners.ppo_batch import (
    Batch,
    denormalise,
    make_batch,
    make_minibatches,
    normalise_targets,
    update_target_moments,
)
from shoal.learners.ppo_config import Hypers, PPOConfig
from shoal.learners.ppo_rewards import empty_reward_range, prepare_rewards, reward_scale
from shoal.learners.ppo_setup import (
    PPOSetup,
    Private,
    Statistics,
    initial_carry,
    make_setup,
    restrict,
    standardise,
)
from shoal.ops import losses, peers, statistics
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree


def ppo(config: PPOConfig, spec: EnvSpec, context: LearnerContext = ALONE) -> Learner:
    """A PPO learner for an environment.

    >>> import jax, shoal
    >>> learner = shoal.ppo(shoal.PPOConfig(), shoal.make("CartPole-v1").spec)
    >>> state = learner.init(jax.random.key(0))
    >>> action, private = learner.act(state, jax.numpy.zeros((7, 4)), noise=0.0)
    >>> action.shape
    (7,)
    """
    setup = make_setup(config, spec, context)
    recurrent = config.recurrent  # its policy at an observation depends on those before it
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
        sequence_terms=partial(sequence_terms, setup) if recurrent else None,
    )


def init(setup: PPOSetup, key: Array) -> LearnerState:
    """A new learner."""
    config = setup.config
    params = setup.make_network(key, setup.spec, setup.distribution.num_outputs)
    number = lambda x: jnp.float32(x if isinstance(x, int | float) else jnp.inf)
    hypers = Hypers(**{name: number(x) for name, x in config.hypers.items()})
    moments = empty_moments(setup.spec.observation) if config.norm_obs else {}
    num_envs = config.num_envs // setup.shards
    carry = initial_carry(setup, params, num_envs)
    return LearnerState(
        params=params,
        statistics=Statistics(moments, statistics.empty(), statistics.empty() if config.value.norm else ()),
        opt_state=optimiser(hypers).init(ravel_pytree(params)[0]),
        hypers=hypers,
        private=Private(
            num_updates=jnp.int32(0),
            kl_coef=jnp.float32(config.kl.coef),
            discounted_return=jnp.zeros(num_envs),
            carry=carry,
            start=carry,
            reward_range=empty_reward_range() if config.value.bootstrap_clip == "dynamic" else (),
        ),
        anchor=params if config.prox_coef else (),
    )


def draw(setup: PPOSetup, key: Array, shape: tuple[int, int]) -> Array:
    """The noise of a rollout's actions, for (T, E) of them."""
    return setup.distribution.draw(key, shape)


def act(
    setup: PPOSetup, state: LearnerState, obs: Tree, noise: Array, episode_starts: Array | None = None
) -> tuple[Array, Private]:
    """a ~ pi(s), one per environment; the most likely actions for zero noise."""
    obs, private = standardise(setup, state, obs), state.private
    if setup.config.recurrent:
        outputs, carry = sequences.advance(state.params, private.carry, obs, episode_starts)
        private = private._replace(carry=carry)
    else:
        outputs, _ = state.params(obs)
    return setup.distribution.sample(restrict(setup, obs, outputs), noise), private


def for_evaluation(setup: PPOSetup, state: LearnerState, num_envs: int) -> LearnerState:
    """The learner for `num_envs` other environments, whose episodes are about to start."""
    carry = initial_carry(setup, state.params, num_envs)
    return state._replace(private=state.private._replace(carry=carry, start=carry))


def on_restart(state: LearnerState) -> LearnerState:
    """The learner before new episodes: returns count from 0, and the carry is zeros."""
    private, zeros = state.private, partial(jax.tree.map, jnp.zeros_like)
    return state._replace(
        private=private._replace(
            discounted_return=zeros(private.discounted_return),
            carry=zeros(private.carry),
            start=zeros(private.start),
        )
    )


def update(
    setup: PPOSetup, key: Array, state: LearnerState, rollout: Rollout
) -> tuple[LearnerState, dict[str, Array]]:
    """Learn from one rollout, with the hyperparameters scheduled for this update.

    Observations are standardised by the moments of earlier rollouts, which are those that acted. So the
    first minibatch's ratio is 1.
    """
    hypers, num_updates, moments = state.hypers, state.private.num_updates, state.statistics.obs
    now = apply_schedules(setup.config.plan, hypers, num_updates, setup.num_updates)
    state, rollout = prepare_rewards(setup, state._replace(hypers=now), rollout)
    batch = make_batch(setup, state, rollout)
    state = update_target_moments(setup, state, batch)
    state, metrics = learn(setup, key, state, rollout, normalise_targets(setup, state, batch))
    moments = update_moments(moments, rollout.obs, rollout.valid, setup.all_axes)
    state = state._replace(
        hypers=hypers,
        statistics=state.statistics._replace(obs=moments),
        private=state.private._replace(num_updates=num_updates + 1, start=state.private.carry),
    )
    return state, metrics


def learn(
    setup: PPOSetup, key: Array, state: LearnerState, rollout: Rollout, batch: Batch
) -> tuple[LearnerState, dict[str, Array]]:
    """Epochs of shuffled minibatches, a step of the optimiser on each."""
    config = setup.config
    if config.objective == "mdpo":
        coef = losses.mirror_descent_coef(config.kl.coef, state.private.num_updates, setup.num_updates)
        state = state._replace(private=state.private._replace(kl_coef=coef))
    minibatches = make_minibatches(setup, key, state, rollout, batch)
    start, step = (state.params, state.opt_state), partial(take_step, setup, state)
    kl_limit = None if config.kl.limit is None else state.hypers.target_kl
    (params, opt_state), metrics, kl = run_epochs(step, minibatches, start, kl_limit, setup.axes)
    metrics = add_metrics(setup, state, batch, metrics)
    private = state.private
    if config.objective == "kl":
        coef = losses.adapt_kl_coef(private.kl_coef, kl, state.hypers.kl_goal)
        private = private._replace(kl_coef=coef)
    return state._replace(params=params, opt_state=opt_state, private=private), metrics


def take_step(
    setup: PPOSetup, state: LearnerState, carry: tuple[Tree, Tree], batch: Batch
) -> tuple[tuple[Tree, Tree], dict[str, Array]]:
    """One step of the optimiser on one minibatch, whose gradient may be computed in parts."""
    params, opt_state = carry
    gradient = jax.grad(partial(loss, setup, state), has_aux=True)
    grads, metrics = accumulate_gradients(gradient, params, batch, setup.config.network.grad_accumulation)
    grads, unravel = ravel_pytree(grads)  # one long vector: fewer, longer operations
    grads, metrics = psum((grads, metrics), setup.data_axes)  # a device's are of its samples alone
    grads = pmean(grads, setup.axes)
    updates, opt_state = optimiser(state.hypers).update(grads, opt_state)
    metrics["grad_norm"] = jnp.linalg.norm(grads)
    return (optax.apply_updates(params, unravel(updates)), opt_state), metrics


def loss(setup: PPOSetup, state: LearnerState, params: Tree, batch: Batch) -> tuple[Array, dict[str, Array]]:
    """L = policy + vf_coef value - ent_coef entropy + penalties, each a weighted sum over the minibatch."""
    hypers, distribution = state.hypers, setup.distribution
    if setup.config.recurrent:
        outputs, value = sequences.unroll_batch(params, batch.carry, batch.obs, batch.episode_starts)
    else:
        outputs, value = params(batch.obs)
    outputs = restrict(setup, batch.obs, outputs)
    log_ratio = distribution.log_prob(outputs, batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    total = lambda x: jnp.sum(x * batch.weight)
    entropy = total(distribution.entropy(outputs))
    terms = {
        "policy": total(policy_loss(setup, hypers, ratio, batch.advantage)),
        "value": hypers.vf_coef * total(value_loss(setup, hypers, value, batch)),
        "entropy": -hypers.ent_coef * entropy,
    }
    terms |= penalties(setup, state, params, outputs, batch)
    metrics = {f"loss/{name}": term for name, term in terms.items()} | {
        "entropy": entropy,
        "approx_kl": total(losses.approximate_kl(log_ratio)),
        "clip_fraction": total(jnp.abs(ratio - 1) > hypers.clip_coef),
    }
    return jnp.asarray(sum(terms.values())), metrics


def policy_loss(setup: PPOSetup, hypers: Hypers, ratio: Array, advantage: Array) -> Array:
    """-min(r A, clip(r, 1 - c, 1 + c) A) for the objective clip; -r A for the others."""
    if setup.config.objective == "clip":
        return losses.clipped_surrogate(ratio, advantage, hypers.clip_coef)
    return losses.surrogate(ratio, advantage)


def value_loss(setup: PPOSetup, hypers: Hypers, value: Array, batch: Batch) -> Array:
    """(V - target)^2 / 2, or Huber's; with value.clip no less than that of V clipped near its old value."""
    config, error = setup.config.value, losses.squared_error
    if config.loss == "huber":
        error = partial(losses.huber_error, delta=config.huber_delta)
    if config.clip:
        return losses.clipped_error(error, value, batch.value, batch.target, hypers.clip_coef)
    return error(value, batch.target)


def penalties(
    setup: PPOSetup, state: LearnerState, params: Tree, outputs: Array, batch: Batch
) -> dict[str, Array]:
    """What keeps the policy near others, as configured.

    kl, mdpo    kl_coef KL(old || new), kl_coef KL(new || old)
    neighbours  comm_penalty_coeff sum_j W_ij KL(pi_j || new), or in reverse
    prox        prox_coef ||theta - anchor||^2
    """
    config, hypers, kl = setup.config, state.hypers, setup.distribution.kl
    total, terms = lambda x: jnp.sum(x * batch.weight), {}
    if config.objective == "kl":
        terms["kl"] = state.private.kl_coef * total(kl(batch.outputs, outputs))
    if config.objective == "mdpo":
        terms["kl"] = state.private.kl_coef * total(kl(outputs, batch.outputs))
    for peer in batch.peers:
        divergence = peers.penalty(setup.distribution, config.peers.direction, peer, outputs)
        penalty = hypers.comm_penalty_coeff * total(divergence)
        terms["neighbours"] = terms.get("neighbours", 0.0) + penalty
    if config.prox_coef:
        distance = losses.proximal(params, state.anchor)
        terms["prox"] = hypers.prox_coef * distance * jnp.sum(batch.weight)
    return terms


def optimiser(hypers: Hypers) -> optax.GradientTransformation:
    """Adam on a gradient of bounded norm; the step size and the bound are data."""
    return optax.chain(
        optax.clip_by_global_norm(hypers.max_grad_norm),
        optax.scale_by_adam(eps=1e-5),
        optax.scale_by_learning_rate(hypers.learning_rate),
    )


def add_metrics(
    setup: PPOSetup, state: LearnerState, batch: Batch, metrics: dict[str, Array]
) -> dict[str, Array]:
    """The metrics of the losses, and the losses' shares, scheduled hyperparameters, explained variance."""
    config, hypers = setup.config, state.hypers
    found = losses.loss_shares({name: x for name, x in metrics.items() if name.startswith("loss/")})
    scheduled = ("learning_rate", *(schedule.name for schedule in config.plan))
    found |= {name: hypers._asdict()[name] for name in scheduled}
    if config.objective in ("kl", "mdpo"):
        found["kl_coef"] = state.private.kl_coef
    return (
        metrics
        | found
        | {
            "explained_variance": losses.explained_variance(
                batch.value, batch.target, batch.weight, setup.data_axes
            )
        }
    )


def policy_terms(setup: PPOSetup, state: LearnerState, obs: Tree) -> tuple[Array, Array]:
    """The policy at observations, in terms that add up over peers (`ops.peers`)."""
    outputs, _ = state.params(standardise(setup, state, obs))
    outputs = restrict(setup, obs, outputs)
    config = setup.config.peers
    return peers.policy_terms(setup.distribution, config.direction, config.form, outputs)


def sequence_terms(setup: PPOSetup, state: LearnerState, obs: Tree, episode_starts: Array) -> Tree:
    """The same of a recurrent policy along sequences, obs (T, E, ...), starting from an empty carry."""
    carry = initial_carry(setup, state.params, episode_starts.shape[1])
    features = state.params.encoder(standardise(setup, state, obs))
    outputs, _, _ = state.params.unroll(features, episode_starts, carry)
    config = setup.config.peers
    return peers.policy_terms(
        setup.distribution, config.direction, config.form, restrict(setup, obs, outputs)
    )


def distance(setup: PPOSetup, state: LearnerState, other: LearnerState, obs: Tree) -> Array:
    """KL(own policy || the other's) at each observation."""
    own, _ = state.params(standardise(setup, state, obs))
    theirs, _ = other.params(standardise(setup, other, obs))
    return setup.distribution.kl(restrict(setup, obs, own), restrict(setup, obs, theirs))


def value(setup: PPOSetup, state: LearnerState, obs: Tree) -> Array:
    """V(s), in units of the environment's own rewards."""
    _, value = state.params(standardise(setup, state, obs))
    value = denormalise(value, state.statistics.targets) if setup.config.value.norm else value
    value = value * reward_scale(state.statistics.returns) if setup.config.norm_reward else value
    return value / setup.config.inputs.reward_scale
