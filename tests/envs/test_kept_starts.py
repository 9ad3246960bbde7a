"""Starts of episodes that are drawn now and then: what an episode begins with, and how often that is new."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.adapters.kept_starts import from_jax_keeping_starts
from shoal.types import Box, Discrete, EnvSpec, JaxEnv

N, EVERY = 3, 4

SPEC = EnvSpec("drawn", "jax", Box((2,)), Discrete(2), max_episode_steps=2)
DRAWN = JaxEnv(
    SPEC,
    reset=lambda key, params: jnp.stack([jnp.float32(0), jax.random.uniform(key)]),
    step=lambda key, state, action, params: (state.at[0].add(1), jnp.float32(1), jnp.bool_(False)),
    observe=lambda state, params: state,
)
"""obs = [steps, a number drawn at the start]; truncated after two steps, so an episode takes three."""


def play(num_steps, parts=1, key=0):
    """Time steps (T, N) of a run whose noise is drawn in so many parts."""
    env = from_jax_keeping_starts(DRAWN, EVERY).build(np.zeros((1, N), np.uint32), False)

    @jax.jit
    def go_on(state, key):
        noise = env.draw(jax.random.split(key, N), state, num_steps // parts)
        actions = jnp.zeros((num_steps // parts, N), int)
        return jax.lax.scan(lambda state, now: env.step(state, *now), state, (actions, noise))

    state, first = jax.jit(env.reset)(jax.random.split(jax.random.key(key), N), ())
    found = []
    for part in range(parts):
        state, steps = go_on(state, jax.random.key(key + part))
        found.append(steps)
    return first, jax.tree.map(lambda *x: np.concatenate(x), *found), (env, state)


def test_episodes_end_and_begin_as_with_a_start_for_each():
    first, steps, _ = play(24)
    assert not first.valid.any()
    assert steps.obs[:, 0, 0].tolist() == [1, 2, 0] * 8
    assert steps.truncated[:, 0].tolist() == [False, True, False] * 8
    assert steps.valid[:, 0].tolist() == [True, True, False] * 8
    assert steps.reward[:, 0].tolist() == [1, 1, 0] * 8


def check_draws(steps):
    """Episodes begin at the steps 2, 5, 8 ...; starts are drawn at 0, 4, 8 ..."""
    begins = steps.obs[2::3, 0, 1]
    same = [bool(one == next_one) for one, next_one in pairwise(begins)]
    assert same == [t // EVERY == (t + 3) // EVERY for t in range(2, 23, 3)]


def test_a_start_is_new_every_so_many_steps_and_in_every_row():
    _, steps, _ = play(24)
    check_draws(steps)
    assert len(np.unique(steps.obs[2, :, 1])) == N


def test_draws_do_not_depend_on_how_rollouts_cut_the_time():
    """With parts of six steps, a draw is due in the middle of one."""
    check_draws(play(24, parts=4)[1])


def test_new_episodes_at_any_time():
    _, _, (env, state) = play(5)
    again, now = jax.jit(env.restart)(jax.random.split(jax.random.key(9), N), state)
    assert now.obs[:, 0].tolist() == [0] * N
    assert again.age.tolist() == [0] * N
    assert not np.isin(now.obs[:, 1], state.batch.state[:, 1]).any()


def test_an_abandoned_episode_begins_anew_at_the_next_step():
    _, _, (env, state) = play(4)
    state = env.abandon(state, jnp.array([True, False, False]))
    noise = env.draw(jax.random.split(jax.random.key(9), N), state, 1)
    _, now = env.step(state, jnp.zeros(N, int), jax.tree.map(lambda x: x[0], noise))
    assert now.valid.tolist() == [False, True, True]
    assert now.obs[:, 0].tolist() == [0, 2, 2]
