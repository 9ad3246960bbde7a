"""From a rollout to PPO's batch: values, log-probabilities, advantages and targets, in one pass.

A rollout holds only what happened; the rest is computed here, by the parameters that acted.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.learners import sequences
from shoal.learners.epochs import Minibatches, fixed_minibatches, normalise_minibatch, recomputed_minibatches
from shoal.learners.minibatches import draw_orders
from shoal.learners.observations import named
from shoal.learners.ppo_config import Hypers, PPOConfig
from shoal.learners.ppo_setup import PPOSetup, restrict, standardise
from shoal.nets.convolutions import is_image
from shoal.ops import peers, statistics, trees
from shoal.ops.advantages import generalised_advantages, rewards_to_go, standardise_advantages
from shoal.ops.peers import PeerPolicy
from shoal.ops.statistics import Running
from shoal.types import LearnerState, Rollout, Tree


class Batch(NamedTuple):
    """Samples to learn from.

    With a recurrent policy, B counts sequences: every field but `carry` has T steps as its second axis.
    """

    obs: Tree  # (B, ...) standardised
    action: Array  # (B, ...)
    outputs: Array | tuple[()]  # (B, num_outputs) of the policy that acted, where the objective needs them
    log_prob: Array  # (B,) by the policy that acted
    value: Array  # (B,) by the critic before the update
    advantage: Array  # (B,)
    target: Array  # (B,) of the critic
    weight: Array  # (B,) 1 where valid; in a minibatch the weights sum to 1
    peers: tuple[PeerPolicy, ...] = ()  # one for each exchange that adds peer targets
    episode_starts: Array | tuple[()] = ()  # (B, T) of a recurrent policy
    carry: Tree = ()  # (B, ...) of a recurrent policy, before the first step


def make_batch(setup: PPOSetup, state: LearnerState, rollout: Rollout) -> Batch:
    """The samples of a rollout, (T * E, ...); with a recurrent policy its sequences, (E, T, ...).

    Targets are not standardised yet, so that their moments can include them.
    """
    config = setup.config
    obs, last_obs = (standardise(setup, state, x) for x in (rollout.obs, rollout.last_obs))
    seen = rollout._replace(obs=obs, last_obs=last_obs)
    outputs, value, last_value = evaluate(setup, state, seen)
    advantage, target = estimate(setup, state, rollout, value, last_value)
    weight = rollout.valid.astype(jnp.float32)
    if config.norm_adv == "batch":
        advantage = standardise_advantages(advantage, weight, setup.data_axes)
    batch = Batch(
        obs=obs,
        action=rollout.action,
        outputs=outputs if config.objective in ("kl", "mdpo") else (),
        log_prob=setup.distribution.log_prob(outputs, rollout.action),
        value=value,
        advantage=advantage,
        target=target,
        weight=weight,
        peers=peer_policies(setup, seen),
    )
    if config.recurrent:
        batch = sequences.transposed(batch._replace(episode_starts=rollout.episode_starts))
        return batch._replace(carry=state.private.start)
    return trees.merge_axes(batch)


def make_minibatches(
    setup: PPOSetup,
    key: Array,
    state: LearnerState,
    rollout: Rollout,
    batch: Batch,
    num_epochs: int,
    later: bool = False,
) -> Minibatches:
    """The shuffled minibatches of some epochs; with value.recalculate each epoch has its own estimates.

    `later` says that others were before them.
    """
    config = setup.config
    num_steps = 1 if config.recurrent else config.num_steps  # sequences stay whole
    orders = draw_orders(key, num_epochs, num_steps, config.num_envs, config.num_minibatches, setup.shards)
    normalise = partial(normalise_minibatch, config.norm_adv, setup.data_axes)
    if not config.value.recalculate or (num_epochs == 1 and not later):
        return fixed_minibatches(normalise, batch, orders)

    def recompute(params: Tree) -> Batch:
        return normalise_targets(setup, state, make_batch(setup, state._replace(params=params), rollout))

    return recomputed_minibatches(normalise, batch, orders, recompute, later)


def evaluate(setup: PPOSetup, state: LearnerState, rollout: Rollout) -> tuple[Array, Array, Array]:
    """Outputs (T, E, num_outputs) and values (T, E) of a rollout, and the values (E,) of `last_obs`.

    The rollout's observations are standardised; values are in the units of rewards.
    """
    # A whole rollout of images would not fit in memory at once.
    by_step = any(is_image(box) for box in named(setup.spec.observation).values())
    if setup.config.recurrent:
        outputs, value, last_value = sequences.unroll_rollout(
            state.params, state.private.start, rollout, by_step
        )
    else:
        outputs, value = jax.lax.map(state.params, rollout.obs) if by_step else state.params(rollout.obs)
        _, last_value = state.params(rollout.last_obs)
    if setup.config.value.norm:
        value, last_value = (denormalise(x, state.statistics.targets) for x in (value, last_value))
    return restrict(setup, rollout.obs, outputs), value, last_value


def estimate(
    setup: PPOSetup, state: LearnerState, rollout: Rollout, value: Array, last_value: Array
) -> tuple[Array, Array]:
    """Advantages, and the critic's targets A + V; with bounded bootstraps, rewards to go."""
    hypers, ends = state.hypers, (rollout.terminated, rollout.truncated, rollout.valid)
    next_value = jnp.concatenate([value[1:], last_value[None]])
    advantage = generalised_advantages(
        rollout.reward, value, next_value, *ends, hypers.gamma, hypers.gae_lambda
    )
    if not setup.config.value.clips_bootstrap:
        return advantage, advantage + value
    bootstrap = clip_bootstrap(setup.config, hypers, state.private.reward_range, next_value)
    return advantage, rewards_to_go(rollout.reward, bootstrap, *ends, hypers.gamma)


def clip_bootstrap(config: PPOConfig, hypers: Hypers, reward_range: Array, value: Array) -> Array:
    """Values bounded by `bootstrap_floor` and `bootstrap_clip`, or by the rewards so far (dynamic)."""
    if config.value.bootstrap_clip == "dynamic":
        return jnp.clip(value, reward_range[0], reward_range[1])
    low = -hypers.bootstrap_clip if config.value.bootstrap_floor is None else hypers.bootstrap_floor
    return jnp.clip(value, low, hypers.bootstrap_clip)


def peer_policies(setup: PPOSetup, rollout: Rollout) -> tuple[PeerPolicy, ...]:
    """The peers' policies at the rollout's steps, one for each exchange that adds peer targets."""
    direction, form = setup.config.peers.direction, setup.config.peers.form
    aggregate = partial(peers.aggregate, setup.distribution, direction, form)
    found = [aggregate(targets) for targets in rollout.peer_targets]
    return tuple(one._replace(outputs=restrict(setup, rollout.obs, one.outputs)) for one in found)


def update_target_moments(setup: PPOSetup, state: LearnerState, batch: Batch) -> LearnerState:
    """The learner with a batch in its moments of targets, where targets are standardised."""
    if not setup.config.value.norm:
        return state
    fresh = statistics.summarise(batch.target, batch.weight, setup.all_axes)
    moments = statistics.merge(state.statistics.targets, fresh)
    return state._replace(statistics=state.statistics._replace(targets=moments))


def normalise_targets(setup: PPOSetup, state: LearnerState, batch: Batch) -> Batch:
    """The batch with values and targets standardised, as the critic outputs them, where configured."""
    if not setup.config.value.norm:
        return batch
    value, target = (normalise(x, state.statistics.targets) for x in (batch.value, batch.target))
    return batch._replace(value=value, target=target)


def normalise(x: Array, moments: Running) -> Array:
    """(x - mean) / deviation."""
    return (x - moments.mean) / deviation(moments)


def denormalise(x: Array, moments: Running) -> Array:
    """mean + deviation x, the inverse of `normalise`."""
    return moments.mean + deviation(moments) * x


def deviation(moments: Running) -> Array:
    """The standard deviation; 1 before the second sample."""
    return jnp.sqrt(statistics.variance(moments) + 1e-8)
