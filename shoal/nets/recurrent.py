"""Recurrent networks: LSTM and GRU cores between the layers and the heads of an actor-critic.

A core's carry is its state within each environment's episode, (E, ...) per leaf. It is zeros where an episode
starts, so no information crosses episodes.
"""

from typing import Literal, Protocol, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from shoal.nets.actor_critic import DEFAULT_LAYERS, Layers, append_log_std, make_network_maker
from shoal.nets.encoders import Encoder, actor_and_critic_inputs
from shoal.nets.layers import ACTIVATIONS, INITIALIZERS, Dense, SplitLayer, affine, orthogonal
from shoal.types import EnvSpec, Tree

Kind: TypeAlias = Literal["lstm", "gru"]


class RecurrentNetwork(Protocol):
    """What PPO needs of a recurrent network.

    encoder(obs) -> features                   (..., F), of observations with any leading shape
    initial_carry(num_envs) -> carry           the carry at the start of an episode
    unroll(features, episode_starts, carry)    features (T, E, F), starts (T, E), carry before the first
        -> (outputs, value, carry)             outputs (T, E, num_outputs), value (T, E), carry after the last
    """

    encoder: Encoder

    def initial_carry(self, num_envs: int) -> Tree: ...

    def unroll(self, features: Array, episode_starts: Array, carry: Tree) -> tuple[Array, Array, Tree]: ...


class RecurrentNetworkMaker(Protocol):
    """Builds a `RecurrentNetwork` for an environment."""

    def __call__(self, key: Array, spec: EnvSpec, num_outputs: int) -> RecurrentNetwork: ...


class LSTM(eqx.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    i, f, g, o = x W + h U + b
    c' = sigmoid(f) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')

    The bias of f is initialised to 1 (Jozefowicz et al. 2015).
    """

    weight: Array  # (in, 4 size): W
    recurrent: Array  # (size, 4 size): U
    bias: Array  # (4 size,)

    def __init__(self, key: Array, num_in: int, size: int):
        key_weight, key_recurrent = jax.random.split(key)
        self.weight = uniform_by_size(key_weight, (num_in, 4 * size), size)
        self.recurrent = uniform_by_size(key_recurrent, (size, 4 * size), size)
        self.bias = jnp.repeat(jnp.array([0.0, 1.0, 0.0, 0.0]), size)

    def initial_carry(self, num_envs: int) -> tuple[Array, Array]:
        zeros = jnp.zeros((num_envs, self.recurrent.shape[0]))
        return zeros, zeros

    def project(self, x: Array) -> Array:
        """x W + b, which does not depend on the carry: for a whole sequence at once."""
        return affine(x, self.weight, self.bias)

    def advance(self, carry: tuple[Array, Array], projected: Array) -> tuple[tuple[Array, Array], Array]:
        """One step: the new carry (h, c), and the output h."""
        h, c = carry
        i, f, g, o = jnp.split(projected + h @ self.recurrent, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h


class GRU(eqx.Module):
    """Gated recurrent unit (Cho et al. 2014), reset after the product as cuDNN and PyTorch do.

    r, z = sigmoid(x W + h U + b)
    n = tanh(x W_n + b_n + r (h U_n + d))
    h' = (1 - z) n + z h
    """

    weight: Array  # (in, 3 size): W and W_n
    recurrent: Array  # (size, 3 size): U and U_n
    bias: Array  # (3 size,)
    inner: Array  # (size,): d

    def __init__(self, key: Array, num_in: int, size: int):
        key_weight, key_recurrent = jax.random.split(key)
        self.weight = uniform_by_size(key_weight, (num_in, 3 * size), size)
        self.recurrent = uniform_by_size(key_recurrent, (size, 3 * size), size)
        self.bias = jnp.zeros(3 * size)
        self.inner = jnp.zeros(size)

    def initial_carry(self, num_envs: int) -> Array:
        return jnp.zeros((num_envs, self.recurrent.shape[0]))

    def project(self, x: Array) -> Array:
        """x W + b, which does not depend on the carry: for a whole sequence at once."""
        return affine(x, self.weight, self.bias)

    def advance(self, carry: Array, projected: Array) -> tuple[Array, Array]:
        """One step: the new carry h, and the output h."""
        h, size = carry, carry.shape[-1]
        from_carry = h @ self.recurrent
        r, z = jnp.split(jax.nn.sigmoid(projected[..., : 2 * size] + from_carry[..., : 2 * size]), 2, -1)
        inner = from_carry[..., 2 * size :] + jnp.broadcast_to(self.inner, h.shape)
        n = jnp.tanh(projected[..., 2 * size :] + r * inner)
        h = (1 - z) * n + z * h
        return h, h


CORES: dict[str, type[LSTM] | type[GRU]] = {"lstm": LSTM, "gru": GRU}


class RecurrentHead(eqx.Module):
    """Dense layers, of which the first may be split, a recurrent core, and an output layer."""

    layers: list[Dense | SplitLayer]
    core: LSTM | GRU
    head: Dense
    activation: str = eqx.field(static=True)

    def project(self, features: Array) -> Array:
        """The input of the core: all that does not depend on the carry."""
        for layer in self.layers:
            features = ACTIVATIONS[self.activation](layer(features))
        return self.core.project(features)


class RecurrentActorCritic(eqx.Module):
    """A policy and a value on one encoder, each with its own core."""

    encoder: Encoder
    actor: RecurrentHead
    critic: RecurrentHead
    log_std: Array | None  # (A,) for continuous actions

    def initial_carry(self, num_envs: int) -> tuple[Tree, Tree]:
        """The actor's carry and the critic's."""
        return self.actor.core.initial_carry(num_envs), self.critic.core.initial_carry(num_envs)

    def unroll(
        self, features: Array, episode_starts: Array, carry: tuple[Tree, Tree]
    ) -> tuple[Array, Array, tuple[Tree, Tree]]:
        """T steps; the carry is zeros wherever an episode starts."""

        def advance(carry, now):
            (for_actor, for_critic), episode_starts = now
            actor, critic = reset_carry(episode_starts, carry)
            actor, actor_out = self.actor.core.advance(actor, for_actor)
            critic, critic_out = self.critic.core.advance(critic, for_critic)
            return (actor, critic), (actor_out, critic_out)

        actor_input, critic_input = actor_and_critic_inputs(self.encoder)
        projected = (
            self.actor.project(features[..., actor_input]),
            self.critic.project(features[..., critic_input]),
        )
        carry, (actor_out, critic_out) = jax.lax.scan(advance, carry, (projected, episode_starts))
        outputs = append_log_std(self.actor.head(actor_out), self.log_std)
        return outputs, self.critic.head(critic_out)[..., 0], carry


def uniform_by_size(key: Array, shape: tuple[int, ...], size: int) -> Array:
    """Uniform in [-1, 1] / sqrt(size), PyTorch's default for recurrent cores."""
    return jax.random.uniform(key, shape, minval=-(size**-0.5), maxval=size**-0.5)


def reset_carry(episode_starts: Array, carry: Tree) -> Tree:
    """Zeros where an episode starts; carry (E, ...) per leaf, episode_starts (E,).

    >>> reset_carry(jnp.array([True, False]), jnp.ones((2, 3))).tolist()
    [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    return jax.tree.map(lambda x: jnp.where(episode_starts.reshape(-1, *[1] * (x.ndim - 1)), 0.0, x), carry)


def recurrent_actor_critic(kind: Kind, size: int, layers: Layers = DEFAULT_LAYERS) -> RecurrentNetworkMaker:
    """The usual actor-critic (`nets.actor_critic`) with cores of `size` before its heads.

    Vectors go through separate hidden layers to the actor's core and the critic's; images go through a
    shared convolutional encoder to the cores.

    >>> import shoal
    >>> spec = shoal.make("CartPole-v1").spec
    >>> make = recurrent_actor_critic("gru", 16, Layers(hidden=()))
    >>> network = make(jax.random.key(0), spec, num_outputs=2)
    >>> features, episode_starts = network.encoder(jnp.zeros((5, 3, 4))), jnp.zeros((5, 3), bool)
    >>> outputs, value, carry = network.unroll(features, episode_starts, network.initial_carry(3))
    >>> outputs.shape, value.shape
    ((5, 3, 2), (5, 3))
    """

    def make_head(key: Array, sizes: tuple[int, ...], num_out: int, gain: float) -> RecurrentHead:
        key_core, key_head, *keys = jax.random.split(key, len(sizes) + 1)
        ends = zip(keys, sizes[:-1], sizes[1:], strict=True)
        dense = [Dense(*end, INITIALIZERS[layers.init]) for end in ends]
        core = CORES[kind](key_core, sizes[-1], size)
        return RecurrentHead(dense, core, Dense(key_head, size, num_out, orthogonal(gain)), layers.activation)

    return make_network_maker(RecurrentActorCritic, make_head, layers)
