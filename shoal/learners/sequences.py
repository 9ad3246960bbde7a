"""Sequences: a recurrent policy learns from whole rollouts, starting from the carry at their beginning.

There is no burn-in: the carry at the beginning of a rollout is kept, and every pass over the rollout starts
from it, with the current parameters.
"""

import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError
from shoal.nets.recurrent import RecurrentNetwork
from shoal.types import Rollout, Tree


def advance(network: RecurrentNetwork, carry: Tree, obs: Tree, episode_starts: Array) -> tuple[Array, Tree]:
    """One step: the policy's outputs (E, num_outputs), and the carry after it."""
    features = network.encoder(obs)
    outputs, _, carry = network.unroll(features[None], episode_starts[None], carry)
    return outputs[0], carry


def unroll_rollout(
    network: RecurrentNetwork, carry: Tree, rollout: Rollout, by_step: bool
) -> tuple[Array, Array, Array]:
    """Outputs (T, E, num_outputs) and values (T, E) of a rollout, and the values (E,) of `last_obs`.

    `by_step` encodes one step at a time, where all at once would not fit in memory.
    """
    append = lambda x, last: jnp.concatenate([x, last[None]])
    obs = jax.tree.map(append, rollout.obs, rollout.last_obs)  # (T + 1, E, ...)
    episode_starts = append(rollout.episode_starts, ~rollout.valid[-1])
    features = jax.lax.map(network.encoder, obs) if by_step else network.encoder(obs)
    outputs, value, _ = network.unroll(features, episode_starts, carry)
    return outputs[:-1], value[:-1], value[-1]


def unroll_batch(
    network: RecurrentNetwork, carry: Tree, obs: Tree, episode_starts: Array
) -> tuple[Array, Array]:
    """Outputs (B, T, num_outputs) and values (B, T) of B sequences; obs (B, T, ...), carry (B, ...)."""
    features = network.encoder(obs)
    outputs, value, _ = network.unroll(transposed(features), transposed(episode_starts), carry)
    return transposed(outputs), transposed(value)


def transposed(tree: Tree) -> Tree:
    """(T, E, ...) -> (E, T, ...) in every leaf, or the inverse."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def check_division(num_envs: int, num_parts: int, shards: int = 1) -> None:
    """Raise where minibatches of whole sequences do not divide the environments of a device."""
    if num_envs % shards or num_envs // shards % num_parts:
        where = f" of each of {shards} devices that share a learner" if shards > 1 else ""
        raise ShoalError(
            f"with memory, minibatches are whole sequences: num_minibatches x grad_accumulation = "
            f"{num_parts} does not divide the {num_envs // shards} environments{where}; "
            "leave num_minibatches out, or change it"
        )
