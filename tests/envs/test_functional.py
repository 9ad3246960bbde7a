"""The batch, the time limit and the automatic reset, on environments whose every step is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.errors import ShoalError
from shoal.types import Box, Discrete, EnvSpec, JaxEnv
from tests.probes import continuous_target, counter, ending_counter, observation_choice

N = 3


def build(one_row):
    return from_jax(one_row).build(np.zeros((1, N), np.uint32), True)


def player(one_row):
    """A compiled function from actions (T, N, ...) to time steps (T + 1, N), the reset's first."""
    env = build(one_row)

    @jax.jit
    def play(actions, key=0):
        key_reset, key_draw = jax.random.split(jax.random.key(key), (2, N))
        state, first = env.reset(key_reset, ())
        noise = env.draw(key_draw, state, len(actions))
        _, rest = jax.lax.scan(lambda state, now: env.step(state, *now), state, (actions, noise))
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)

    return lambda actions, key=0: jax.device_get(play(actions, key))


def begin(env, params=()):
    """The first state and time step, compiled."""
    return jax.device_get(jax.jit(env.reset)(jax.random.split(jax.random.key(0), N), params))


def rows(*values):
    """The same sequence in each of the N rows."""
    return [[value] * N for value in values]


NOOP = np.zeros((7, N), np.int32)


def test_a_truncated_episode_ends_at_its_limit_and_the_next_step_is_the_reset():
    steps = player(counter(limit=3))(NOOP)
    assert steps.obs[..., 0].tolist() == rows(0, 1, 2, 3, 0, 1, 2, 3)
    assert steps.reward.tolist() == rows(0, 1, 1, 1, 0, 1, 1, 1)
    assert steps.truncated.tolist() == rows(*map(bool, [0, 0, 0, 1, 0, 0, 0, 1]))
    assert steps.valid.tolist() == rows(*map(bool, [0, 1, 1, 1, 0, 1, 1, 1]))
    assert not steps.terminated.any()


def test_a_terminated_episode_is_not_truncated_even_at_its_limit():
    ending = ending_counter(length=2)
    limited = ending._replace(spec=EnvSpec("both", "jax", Box((1,)), Discrete(2), max_episode_steps=2))
    for one_row in (ending, limited):
        steps = player(one_row)(NOOP)
        assert steps.obs[..., 0].tolist() == rows(0, 1, 2, 0, 1, 2, 0, 1)
        assert steps.terminated.tolist() == rows(*map(bool, [0, 0, 1, 0, 0, 1, 0, 0]))
        assert not steps.truncated.any()
        assert steps.valid.tolist() == rows(*map(bool, [0, 1, 1, 0, 1, 1, 0, 1]))


def test_an_environment_may_truncate_by_a_rule_of_its_own():
    by_itself = counter(limit=None)._replace(truncated=lambda count, params: count >= 3)
    found, expected = player(by_itself)(NOOP), player(counter(limit=3))(NOOP)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_terminated_episode_is_not_truncated_by_its_own_rule_either():
    ending = ending_counter(length=2)._replace(truncated=lambda state, params: jnp.bool_(True))
    steps = player(ending)(NOOP)
    assert steps.truncated[:4].tolist() == rows(*map(bool, [0, 1, 0, 1]))
    assert not (steps.truncated & steps.terminated).any()


def test_without_a_limit_nothing_is_truncated():
    steps = player(counter(limit=None))(np.zeros((300, N), np.int32))
    assert steps.obs[-1, 0, 0] == 300


def test_the_reset_ignores_its_action_and_shows_the_new_episode():
    actions = np.random.default_rng(1).integers(0, 2, (40, N), np.int32)
    play = player(observation_choice())
    steps, other = play(actions), play(1 - actions)
    reset = ~steps.valid
    assert reset.tolist() == [[t % 2 == 0] * N for t in range(41)]
    assert not steps.reward[reset].any()
    assert set(steps.obs[reset].ravel().tolist()) == {-1.0, 1.0}
    assert steps.obs.tolist() == other.obs.tolist()  # the coin does not see the action
    assert (steps.reward + other.reward).tolist() == steps.valid.astype(float).tolist()


def test_every_reset_and_every_row_has_its_own_draw():
    steps = player(continuous_target())(np.zeros((41, N, 1), np.float32))
    starts = steps.obs[~steps.valid]
    assert starts.size == 21 * N
    assert np.unique(starts).size == starts.size


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_chance_has_one_slice_per_step(num_steps):
    env = build(continuous_target())
    keys = jax.random.split(jax.random.key(0), N)
    chance = jax.eval_shape(lambda: env.draw(keys, env.reset(keys, ())[0], num_steps))
    assert {leaf.shape for leaf in jax.tree.leaves(chance)} == {(num_steps, N)}


def test_the_key_of_a_step_reaches_it_and_differs_by_step_and_row():
    noisy = counter(limit=None)._replace(
        step=lambda key, state, action, params: (state, jax.random.uniform(key), jnp.bool_(False))
    )
    steps = player(noisy)(NOOP)
    assert np.unique(steps.reward[1:]).size == NOOP.size


def test_equal_keys_give_equal_episodes():
    actions = np.zeros((9, N, 1), np.float32)
    play = player(continuous_target())
    steps, again, other = play(actions), play(actions), play(actions, 1)
    assert steps.obs.tolist() == again.obs.tolist()
    assert steps.obs.tolist() != other.obs.tolist()


def test_actions_are_clipped_to_their_box():
    play = player(continuous_target())
    far, edge = play(np.full((6, N, 1), 9, np.float32)), play(np.ones((6, N, 1), np.float32))
    assert far.reward.tolist() == edge.reward.tolist()


def test_bounds_may_differ_along_the_box():
    space = Box((2,), np.array([-1.0, -2.0]), np.array([1.0, 3.0]))
    echo = JaxEnv(
        EnvSpec("echo", "jax", Box((2,)), space),
        reset=lambda key, params: jnp.zeros(2),
        step=lambda key, state, action, params: (action, 0.0, False),
        observe=lambda state, params: state,
    )
    steps = player(echo)(np.float32([[[9, 9]] * N, [[-9, -9]] * N]))
    assert steps.obs[1:, 0].tolist() == [[1.0, 3.0], [-1.0, -2.0]]


def test_plain_python_numbers_become_arrays_of_a_fixed_type():
    plain = JaxEnv(
        EnvSpec("plain", "jax", Box((1,)), Discrete(2), params=1.0),
        reset=lambda key, params: {"t": 0, "x": 0.0},
        step=lambda key, state, action, params: ({"t": state["t"] + 1, "x": state["x"] + params}, 1, False),
        observe=lambda state, params: state["x"][None],
    )
    env = build(plain)
    types = lambda tree: [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]

    @jax.jit
    def play(keys):
        state, first = env.reset(keys, jnp.full(N, 1.0))
        chance = jax.tree.map(lambda x: x[0], env.draw(keys, state, 1))
        return (state, first), env.step(state, jnp.zeros(N, int), chance)

    (state, first), (after, second) = play(jax.random.split(jax.random.key(0), N))
    assert types((state, first)) == types((after, second))
    assert not any(weak for _, _, weak in types((state, first)))
    assert first.reward.dtype == jnp.float32
    assert {x.dtype for x in (first.terminated, first.truncated, first.valid)} == {jnp.dtype(bool)}


def test_an_environment_without_a_picture_says_so():
    env = build(counter())
    state, _ = begin(env)
    with pytest.raises(ShoalError, match="counter has no pictures; give its JaxEnv a `render`"):
        env.render(state, 0)


def test_render_gets_the_row_it_was_asked_for():
    seen = lambda state, params: np.full((2, 2, 3), state, np.uint8)
    env = build(counter()._replace(render=seen))
    state, _ = begin(env)
    state = state._replace(state=np.float32([1, 2, 3]))
    assert env.render(state, 1).tolist() == np.full((2, 2, 3), 2).tolist()


def test_functions_that_do_not_fit_each_other_are_refused():
    good = counter()
    drifting = good._replace(step=lambda key, state, action, params: (state.astype(int), 1.0, False))
    with pytest.raises(ShoalError, match=r"counter: `step`.*float32\[\], not int32\[\]"):
        build(drifting)
    flat = good._replace(observe=lambda state, params: state)
    with pytest.raises(ShoalError, match=r"counter: `observe`.*float32\[1\], not float32\[\]"):
        build(flat)


def test_a_row_with_agents_has_an_axis_of_them():
    axis = (3,)

    def step(key, state, action, params):
        return state + action, action.astype(jnp.float32), jnp.bool_(False)

    spec = EnvSpec("three", "jax", Box((2,)), Discrete(4), max_episode_steps=5, agents=3)
    observe = lambda state, params: jnp.stack([state, 2 * state], -1).astype(jnp.float32)
    three = JaxEnv(spec, lambda key, params: jnp.zeros(axis, jnp.int32), step, observe)
    env = from_jax(three).build(np.zeros((1, 2), np.uint32), False)

    @jax.jit
    def play(keys, action):
        state, first = env.reset(keys, ())
        chance = jax.tree.map(lambda x: x[0], env.draw(keys, state, 1))
        return first, env.step(state, action, chance)[1]

    keys = jax.random.split(jax.random.key(0), 2)
    first, now = jax.device_get(play(keys, np.int32([[0, 1, 2], [3, 0, 1]])))
    assert first.obs.shape == (2, 3, 2)
    assert first.reward.shape == (2, 3)
    assert first.valid.shape == (2,)
    np.testing.assert_array_equal(now.reward, [[0, 1, 2], [3, 0, 1]])
    np.testing.assert_array_equal(now.obs[1], [[3, 6], [0, 0], [1, 2]])
    alone = three._replace(step=lambda *args: (step(*args)[0], jnp.float32(0), jnp.bool_(False)))
    with pytest.raises(ShoalError, match="rewards of shape"):
        from_jax(alone).build(np.zeros((1, 2), np.uint32), False)


def test_where_no_episode_is_short_fewer_beginnings_are_drawn():
    """Every reset still finds a beginning nobody used, and they are as many as can be needed."""
    limit, num_steps = 4, 21
    spec = EnvSpec("long", "jax", Box((1,)), Discrete(2), max_episode_steps=limit, shortest=limit)
    step = lambda key, state, action, params: (state, jnp.float32(0), jnp.bool_(False))
    drawn = JaxEnv(spec, lambda key, params: jax.random.uniform(key, (1,)), step, lambda state, params: state)
    env = from_jax(drawn).build(np.zeros((1, 1), np.uint32), False)

    @jax.jit
    def play(keys):
        state, _ = env.reset(keys, ())
        chance = env.draw(keys, state, num_steps)
        step = lambda state, chance: env.step(state, jnp.zeros(1, int), chance)
        return chance.fresh, jax.lax.scan(step, state, chance)[1]

    fresh, steps = jax.device_get(play(jax.random.split(jax.random.key(0), 1)))
    assert len(np.unique(fresh)) == -(-num_steps // (limit + 1))
    begun = steps.obs[:, 0, 0][~steps.valid[:, 0]]
    assert len(begun) == 4
    assert len(np.unique(begun)) == 4
