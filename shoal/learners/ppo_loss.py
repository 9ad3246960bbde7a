"""PPO's loss on a minibatch: the policy's, the value's, the entropy bonus and penalties."""

from functools import partial

import jax.numpy as jnp
from jax import Array

from shoal.learners import sequences
from shoal.learners.ppo_batch import Batch
from shoal.learners.ppo_config import Hypers
from shoal.learners.ppo_setup import PPOSetup, restrict
from shoal.ops import losses, peers
from shoal.types import LearnerState, Tree


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
