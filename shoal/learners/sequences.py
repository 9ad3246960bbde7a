"""Sequences: a policy with memory learns from whole rollouts, from what it remembered when they began.

Nothing is burned in: the carry that a rollout began with is kept, and every replay starts from it, with the
parameters of the moment.
"""

import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError
from shoal.nets.recurrent import RecurrentNetwork
from shoal.types import Rollout, Tree


def advance(network: RecurrentNetwork, carry: Tree, obs: Tree, episode_starts: Array) -> tuple[Array, Tree]:
    """The policy's outputs (E, num_outputs) at one moment, and what is remembered after it."""
    features = network.encoder(obs)
    outputs, _, carry = network.unroll(features[None], episode_starts[None], carry)
    return outputs[0], carry


def unroll_rollout(
    network: RecurrentNetwork, start: Tree, rollout: Rollout, by_step: bool
) -> tuple[Array, Array, Array]:
    """Outputs (T, E, num_outputs) and values (T, E) of a rollout, and the value (E,) of its last observation.

    `by_step` encodes one moment at a time, where all at once would not fit in memory.
    """
    append = lambda x, last: jnp.concatenate([x, last[None]])
    obs = jax.tree.map(append, rollout.obs, rollout.last_obs)  # (T + 1, E, ...)
    episode_starts = append(rollout.episode_starts, ~rollout.valid[-1])
    features = jax.lax.map(network.encoder, obs) if by_step else network.encoder(obs)
    outputs, value, _ = network.unroll(features, episode_starts, start)
    return outputs[:-1], value[:-1], value[-1]


def unroll_batch(
    network: RecurrentNetwork, start: Tree, obs: Tree, episode_starts: Array
) -> tuple[Array, Array]:
    """Outputs (B, T, num_outputs) and values (B, T) of B sequences, obs (B, T, ...) and start (B, ...)."""
    features = network.encoder(obs)
    outputs, value, _ = network.unroll(transposed(features), transposed(episode_starts), start)
    return transposed(outputs), transposed(value)


def transposed(tree: Tree) -> Tree:
    """(T, E, ...) -> (E, T, ...) in every leaf, and back."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def check_division(num_envs: int, num_pieces: int, shards: int = 1) -> None:
    """Raise where the environments of a device cannot be divided evenly into pieces of whole sequences."""
    if num_envs % shards or num_envs // shards % num_pieces:
        where = f" of each of {shards} devices that share a learner" if shards > 1 else ""
        raise ShoalError(
            f"with memory, minibatches are of whole environments: num_minibatches x grad_accumulation = "
            f"{num_pieces} does not divide the {num_envs // shards} environments{where}"
        )
