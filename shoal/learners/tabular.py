"""Q-learning in a table, the world's model known: the smallest learner, with answers known exactly."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shoal.types import Learner, LearnerState, Rollout


class World(NamedTuple):
    """A finite Markov decision process: all there is to know."""

    transition: Array  # (S, A, S): P(next state | state, action)
    reward: Array  # (S, A)


class Private(NamedTuple):
    """What stays with the learner: models are exchanged, worlds are not."""

    world: World
    num_updates: Array  # () int32, so far


def tabular(world: World, gamma: float, step_size: Callable[[Array], Array | float]) -> Learner:
    """A learner whose parameters are the table Q (S, A), and whose n-th update has size step_size(n).

    The world is data, kept in the state's memory, so a cohort may hold as many worlds as learners and
    the update of one learner serves them all:

    >>> import jax, jax.numpy as jnp
    >>> from shoal.learners.tabular import World, tabular
    >>> worlds = World(jnp.ones((2, 1, 1, 1)), jnp.array([1.0, 3.0]).reshape(2, 1, 1))  # of one state each
    >>> make = lambda world: tabular(world, gamma=0.5, step_size=lambda n: 1.0)
    >>> cohort = jax.vmap(lambda world: make(world).init(jax.random.key(0)))(worlds)
    >>> update = jax.vmap(make(worlds).update, in_axes=(None, 0, None))
    >>> for _ in range(30):
    ...     cohort, metrics = update(None, cohort, None)
    >>> cohort.params.ravel().tolist()
    [2.0, 6.0]
    """
    return Learner(partial(init, world), partial(draw, world), act, partial(update, gamma, step_size))


def init(world: World, key: Array) -> LearnerState:
    """Q(s, a) uniform in [0, 1]."""
    table = jax.random.uniform(key, world.reward.shape)
    return LearnerState(table, statistics=(), opt_state=(), hypers=(), private=Private(world, jnp.int32(0)))


def draw(world: World, key: Array, shape: tuple[int, int]) -> Array:
    """Gumbel noise (T, E, A), with which the action of the largest sum is drawn from softmax Q."""
    return jax.random.gumbel(key, (*shape, world.reward.shape[-1]))


def act(
    state: LearnerState, obs: Array, noise: Array, episode_starts: Array | None = None
) -> tuple[Array, Private]:
    """argmax_a Q(s, a) + noise, the state s one-hot in obs (E, S)."""
    return jnp.argmax(obs @ state.params + noise, -1), state.private


def update(
    gamma: float,
    step_size: Callable[[Array], Array | float],
    key: Array,
    state: LearnerState,
    rollout: Rollout,
) -> tuple[LearnerState, dict[str, Array]]:
    """Q <- Q + eta (T Q - Q), a step towards what the world says; what was seen adds nothing."""
    world, num_updates = state.private
    error = bellman(world, gamma, state.params) - state.params
    params = state.params + step_size(num_updates) * error
    private = Private(world, num_updates + 1)
    return state._replace(params=params, private=private), {"bellman_error": jnp.max(jnp.abs(error))}


def bellman(world: World, gamma: float, table: Array) -> Array:
    """T Q (s, a) = R(s, a) + gamma sum_t P(t | s, a) max_b Q(t, b)."""
    return world.reward + gamma * world.transition @ jnp.max(table, -1)
