"""Proximal policy optimisation (PPO, Schulman et al. 2017), for one learner.

A rollout holds only what happened. Values, log-probabilities and advantages come from the parameters that
acted (`ppo_batch`); then epochs of minibatches minimise

    L = -min(r A, clip(r, 1 - c, 1 + c) A) + vf_coef (V - target)^2 / 2 - ent_coef entropy,
    r = pi(a | s) / pi_old(a | s).
"""

from functools import partial

import equinox as eqx
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
from shoal.learners.ppo_config import PPOConfig
from shoal.learners.ppo_loss import loss
from shoal.learners.ppo_optimiser import adam, init_optimiser, split, step_apart, step_critic
from shoal.learners.ppo_rewards import empty_reward_range, prepare_rewards, reward_scale
from shoal.learners.ppo_setup import (
    PPOSetup,
    Private,
    Statistics,
    initial_carry,
    initial_hypers,
    make_setup,
    restrict,
    standardise,
)
from shoal.ops import losses, peers, statistics
from shoal.types import EnvSpec, Learner, LearnerState, Rollout, Tree

MORE = 1
"""Folded into an update's key for the critic's epochs beyond the policy's."""


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
    hypers = initial_hypers(config)
    moments = empty_moments(setup.spec.observation) if config.norm_obs else {}
    num_envs = config.num_envs // setup.shards
    carry = initial_carry(setup, params, num_envs)
    return LearnerState(
        params=params,
        statistics=Statistics(moments, statistics.empty(), statistics.empty() if config.value.norm else ()),
        opt_state=init_optimiser(config, hypers, params),
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
    minibatches = make_minibatches(setup, key, state, rollout, batch, config.update_epochs)
    start, step = (state.params, state.opt_state), partial(take_step, setup, state)
    kl_limit = None if config.kl.limit is None else state.hypers.target_kl
    (params, opt_state), metrics, kl = run_epochs(step, minibatches, start, kl_limit, setup.axes)
    if more := (config.value.epochs or config.update_epochs) - config.update_epochs:
        key = jax.random.fold_in(key, MORE)
        minibatches = make_minibatches(setup, key, state, rollout, batch, more, later=True)
        step = partial(take_critic_step, setup, state)
        (params, opt_state), *_ = run_epochs(step, minibatches, (params, opt_state), None, setup.axes)
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
    if setup.config.value.apart:
        metrics["grad_norm"] = jnp.linalg.norm(grads)
        return step_apart(state.hypers, params, opt_state, unravel(grads)), metrics
    updates, opt_state = adam(state.hypers).update(grads, opt_state)
    metrics["grad_norm"] = jnp.linalg.norm(grads)
    return (optax.apply_updates(params, unravel(updates)), opt_state), metrics


def take_critic_step(
    setup: PPOSetup, state: LearnerState, carry: tuple[Tree, Tree], batch: Batch
) -> tuple[tuple[Tree, Tree], dict[str, Array]]:
    """The same for the critic's own layers alone; what only the policy's outputs need is not compiled."""
    params, opt_state = carry
    others, critic = split(params)
    whole = lambda critic, batch: loss(setup, state, eqx.combine(others, critic), batch)
    gradient = jax.grad(whole, has_aux=True)
    grads, metrics = accumulate_gradients(gradient, critic, batch, setup.config.network.grad_accumulation)
    grads = pmean(psum(grads, setup.data_axes), setup.axes)
    critic, opt_state = step_critic(state.hypers, critic, opt_state, grads)
    return (eqx.combine(others, critic), opt_state), metrics


def add_metrics(
    setup: PPOSetup, state: LearnerState, batch: Batch, metrics: dict[str, Array]
) -> dict[str, Array]:
    """The metrics of the losses, and the losses' shares, scheduled hyperparameters, explained variance."""
    config, hypers = setup.config, state.hypers
    found = losses.loss_shares({name: x for name, x in metrics.items() if name.startswith("loss/")})
    own = ["critic_learning_rate"] if config.value.learning_rate is not None else []
    scheduled = ("learning_rate", *own, *(schedule.name for schedule in config.plan))
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
