"""Q-learning in a table by the world's own model, and finite worlds whose answers are known exactly.

Learners and worlds are those of Jin et al. 2022, "Federated reinforcement learning with environment
heterogeneity".
"""

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

    The world is data in the learner's private state, so a cohort may hold as many worlds as learners, and the
    update of one learner serves them all:

    >>> import jax, jax.numpy as jnp
    >>> from bench.tabular_q import World, tabular
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


def random_worlds(
    key: Array, kappa: float, num_worlds: int = 5, num_states: int = 5, num_actions: int = 5
) -> World:
    """P_0, and (1 - kappa) P_0 + kappa U_j for each other world, every row of U_j zero where P_0 is not.

    A fair coin says which next states belong to P_0, and at least one belongs to each side; the rest is
    uniform noise, its rows made to sum to 1. R ~ U[0, 1], the same in all worlds. Leading axis: worlds,
    the centre P_0 first. The same key gives the same P_0, U_j and R for every kappa.
    """
    key_coin, key_mend, key_weight, key_reward = jax.random.split(key, 4)
    shape = (num_states, num_actions, num_states)
    coin = jax.random.bernoulli(key_coin, 0.5, shape)
    chosen = jax.nn.one_hot(jax.random.randint(key_mend, shape[:2], 0, num_states), num_states, dtype=bool)
    one_sided = jnp.all(coin == coin[..., :1], -1, keepdims=True)
    support = coin ^ (one_sided & chosen)
    weight = 1 - jax.random.uniform(key_weight, (num_worlds, *shape))  # (0, 1], so that no row is empty
    weight = weight * jnp.concatenate([support[None], jnp.repeat(~support[None], num_worlds - 1, 0)])
    rows = weight / weight.sum(-1, keepdims=True)
    transition = jnp.concatenate([rows[:1], (1 - kappa) * rows[:1] + kappa * rows[1:]])
    reward = jax.random.uniform(key_reward, shape[:2])
    return World(transition, jnp.repeat(reward[None], num_worlds, 0))


def windy_cliff(theta: float | Array, width: int = 4, height: int = 4) -> World:
    """A grid whose bottom row is the start, a cliff and the goal; wind blows down with chance theta / 3.

    States are counted along rows from the bottom left. Actions are up, down, left, right; the wind takes
    the place of any but down. The reward is of the state one is in: 100 at the goal, -100 in the cliff,
    -1 elsewhere; from goal and cliff every action leads to the start.
    """
    x, y = jnp.arange(width * height) % width, jnp.arange(width * height) // width
    up = jnp.minimum(y + 1, height - 1) * width + x
    down = jnp.maximum(y - 1, 0) * width + x
    left = y * width + jnp.maximum(x - 1, 0)
    right = y * width + jnp.minimum(x + 1, width - 1)
    meant = jax.nn.one_hot(jnp.stack([up, down, left, right], 1), width * height)  # (S, A, S)
    blown = meant[:, 1:2]
    over = (y == 0) & (x > 0)
    start = jax.nn.one_hot(0, width * height)
    transition = jnp.where(
        over[:, None, None], start[None, None], (1 - theta / 3) * meant + theta / 3 * blown
    )
    reward = jnp.where(over, jnp.where(x == width - 1, 100.0, -100.0), -1.0)
    return World(transition, jnp.repeat(reward[:, None], 4, 1))


def value(world: World, gamma: float, policy: Array) -> Array:
    """V = (I - gamma P_pi)^-1 R_pi, the value (S,) of the action policy(s) (S,) in every state.

    By elimination: the diagonal dominates, so no pivots are sought. (With jaxlib 0.10.2 on two cores, four
    batches of `jnp.linalg.solve` in one program wait for each other forever.)
    """
    states = jnp.arange(policy.size)
    transition, reward = world.transition[states, policy], world.reward[states, policy]
    equations = jnp.concatenate([jnp.eye(policy.size) - gamma * transition, reward[:, None]], 1)

    def eliminate(state: Array, rows: Array) -> Array:
        pivot = rows[state] / rows[state, state]
        return (rows - jnp.outer(rows[:, state], pivot)).at[state].set(pivot)

    return jax.lax.fori_loop(0, policy.size, eliminate, equations)[:, -1]
