"""Replay: what is kept of an episode, what is never kept, and how it comes back."""

from collections import deque
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.learners import replay
from shoal.learners.replay import Transition
from shoal.ops import trees
from shoal.training import rollout as collection
from shoal.types import Box, Discrete, EnvSpec, Learner, LearnerState, Rollout
from tests import probes
from tests.learners.lab import twice

KEY = jax.random.key(0)
NO_ACTION = jax.ShapeDtypeStruct((), jnp.int32)
SEEN = EnvSpec("seen", "jax", {"eye": Box((2, 2, 1), 0, 255, "uint8"), "ear": Box((2,))}, Discrete(9))


def number(k):
    """Transition number k, of one step."""
    k = np.asarray(k, np.int32)
    one = np.float32(k)[..., None]
    return Transition(one, k, one, np.ones_like(k), one + np.float32(0.5), k < 0)


def kept(ring):
    """The transitions in a replay, as NumPy, oldest first."""
    ring = jax.device_get(ring)
    count, capacity = int(ring.count), ring.data.steps.shape[0]
    places = [k % capacity for k in range(max(count - capacity, 0), count)]
    return jax.tree.map(lambda x: x[places], ring.data)


def empty(spec, capacity):
    return jax.device_get(replay.empty_ring(spec, NO_ACTION, capacity))


store = jax.jit(replay.write)
sample = jax.jit(replay.sample, static_argnums=2)


# What is in it


@cache
def add(n, learning_starts=0):
    return jax.jit(partial(replay.add, n=n, learning_starts=learning_starts))


LIMIT = 5


@cache
def watched(ends, num_envs=3):
    """41 steps of a learner that does nothing."""
    idle = Learner(
        init=lambda key: None,
        draw=lambda key, shape: jnp.zeros(shape),
        act=lambda state, obs, noise, episode_starts: (jnp.zeros(noise.shape, jnp.int32), state.private),
        update=lambda key, state, rollout: None,
    )
    probe = probes.ending_counter(LIMIT) if ends else probes.counter(LIMIT)
    env = from_jax(probe).build(np.zeros((1, num_envs), np.uint32), False)

    @jax.jit
    def play(key):
        worlds = collection.reset_envs(env, jax.random.split(key, (1, num_envs)), ())
        cohort = LearnerState((), (), (), (), private=jnp.zeros(1))
        return collection.collect(env, idle, 41, key[None], cohort, worlds)[2]

    seen = jax.device_get(play(KEY))
    return probe.spec, Rollout(*(x[:, 0] for x in seen[:6]), last_obs=())


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("num_steps", [2, 13])
@pytest.mark.parametrize("ends", [False, True])
def test_no_transition_crosses_the_end_of_an_episode(n, num_steps, ends):
    """Episodes count 0 to 5. None starts at 5, and none lands in the next episode."""
    spec, steps = watched(ends)
    buffer = replay.empty_buffer(spec, NO_ACTION, 500, 3, n, warming_up=False)
    for rollout in cut(steps, num_steps)[: 40 // num_steps]:
        buffer = add(n)(buffer, rollout)
    seen = kept(buffer.ring)
    start, after = seen.obs[:, 0], seen.next_obs[:, 0]
    assert {*start} == set(range(LIMIT))
    np.testing.assert_array_equal(after, np.minimum(start + n, LIMIT))
    np.testing.assert_array_equal(seen.steps, after - start)
    np.testing.assert_array_equal(seen.terminated, (after == LIMIT) & ends)
    np.testing.assert_array_equal(seen.reward, np.arange(n)[None] < seen.steps[:, None])
    total = 40 // num_steps * num_steps - (n - 1)
    episodes, rest = divmod(total, LIMIT + 1)  # each is five steps and a reset
    assert len(start) == 3 * (LIMIT * episodes + rest)


def random_steps(rng, num_steps, num_envs):
    """Steps with ends of both kinds, also at once; rewards of resets are nonsense."""
    shape, over = (num_steps, num_envs), np.zeros(num_envs, bool)
    terminated, truncated, valid = np.zeros((3, *shape), bool)
    for t in range(num_steps):
        valid[t] = ~over
        terminated[t], truncated[t] = valid[t] & (rng.random((2, num_envs)) < 0.2)
        over = terminated[t] | truncated[t]
    eye, ear = rng.integers(0, 256, (*shape, 2, 2, 1)), rng.normal(size=(*shape, 2))
    obs = {"eye": np.uint8(eye), "ear": np.float32(ear)}
    action = rng.integers(0, 9, shape).astype(np.int32)
    reward = np.float32(np.where(valid, rng.normal(size=shape), 77.0))
    return Rollout(obs, action, reward, terminated, truncated, valid, last_obs=())


def cut(steps, length):
    """Rollouts of `length` steps; the observation after the last is the next one's first."""
    pieces = []
    for start in range(0, len(steps.reward) - length, length):
        piece = jax.tree.map(lambda x, start=start: x[start : start + length], steps)
        pieces.append(piece._replace(last_obs=trees.take(steps.obs, start + length)))
    return pieces


def one_by_one(whole, n):
    """The transitions by a plain loop; the last step is only there for its observation."""
    total, num_envs = whole.reward.shape
    found = []
    for t in range(total - n):
        for e in range(num_envs):
            if not whole.valid[t, e]:
                continue
            rewards, steps, terminated = [0.0] * n, 0, False
            for k in range(n):
                rewards[k] = whole.reward[t + k, e]
                steps, terminated = k + 1, whole.terminated[t + k, e]
                if terminated or whole.truncated[t + k, e]:
                    break
            at = lambda t, e=e: jax.tree.map(lambda x: x[t, e], whole.obs)
            found.append(
                Transition(at(t), whole.action[t, e], np.array(rewards), steps, at(t + steps), terminated)
            )
    return jax.tree.map(lambda *rows: np.stack(rows), *found)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("num_steps", [1, 3, 8])
def test_transitions_are_those_of_a_plain_loop(n, num_steps):
    """In order, whatever the length of a rollout, with pictures and vectors as they were."""
    steps = random_steps(np.random.default_rng(n), 25, 2)
    buffer = replay.empty_buffer(SEEN, NO_ACTION, 100, 2, n, warming_up=True)
    for rollout in cut(steps, num_steps):
        buffer = add(n)(buffer, rollout)
    found, expected = kept(buffer.ring), one_by_one(steps, n)
    assert (expected.steps < n).any() == (n > 1)
    assert expected.terminated.any()
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert found.obs["eye"].dtype == found.next_obs["eye"].dtype == np.uint8
    assert found.obs["ear"].dtype == np.float32


def test_steps_are_counted_with_their_resets_until_learning_starts():
    buffer = replay.empty_buffer(SEEN, NO_ACTION, 100, 2, 1, warming_up=True)
    warming_up = []
    for rollout in cut(random_steps(np.random.default_rng(0), 13, 2), 3):
        buffer = add(1, 18)(buffer, rollout)
        warming_up.append((int(buffer.num_steps), bool(buffer.warming_up)))
    assert replay.size(buffer.ring) < 24
    assert warming_up == [(6, True), (12, True), (18, False), (24, False)]


# The ring


def test_the_ring_holds_the_last_ones_in_their_order():
    """Writes of all sizes, none to more than the capacity, with holes: as a deque would."""
    rng = np.random.default_rng(0)
    ring, expected, written = empty(probes.counter().spec, 7), deque(maxlen=7), 0
    for size in [3, 3, 7, 20, 3, 1, 7] * 3:
        rows, valid = np.arange(written, written + size), rng.random(size) < 0.7
        ring = jax.device_get(store(ring, number(rows), valid))
        expected.extend(rows[valid])
        written += size
        assert replay.size(ring) == len(expected)
        found = kept(ring)
        jax.tree.map(np.testing.assert_array_equal, found, number([*expected]))
    assert len(expected) == 7


def test_nothing_is_written_where_nothing_is_valid():
    ring = store(empty(probes.counter().spec, 4), number([1, 2]), np.ones(2, bool))
    after = store(ring, number([8, 9]), np.zeros(2, bool))
    jax.tree.map(np.testing.assert_array_equal, ring, after)


@pytest.mark.parametrize("stored", [3, 10, 14])
def test_samples_are_drawn_evenly_from_what_is_stored(stored):
    rows = 100 + np.arange(stored)
    ring = store(empty(probes.counter().spec, 10), number(rows), np.ones(stored, bool))
    drawn = jax.device_get(sample(ring, KEY, (50, 200)))
    assert drawn.obs.shape == (50, 200, 1)
    values, counts = np.unique(drawn.action, return_counts=True)
    assert values.tolist() == rows[-10:].tolist()
    share = 10_000 / len(values)
    np.testing.assert_allclose(counts, share, atol=5 * share**0.5)
    np.testing.assert_array_equal(drawn.obs[..., 0], drawn.action)  # a transition stays whole
    np.testing.assert_array_equal(drawn.next_obs[..., 0], drawn.action + 0.5)
    other = sample(ring, jax.random.key(1), (50, 200))
    assert np.mean(np.asarray(other.action) == drawn.action) < 0.5


def test_learners_of_a_cohort_have_separate_rings():
    """Under `vmap`, with different numbers of valid steps."""
    rings = twice(empty(probes.counter().spec, 4))
    rows, valid = number([[1, 2, 3], [4, 5, 6]]), np.array([[True, False, True], [True, True, True]])
    rings = jax.device_get(jax.jit(jax.vmap(replay.write))(rings, rows, valid))
    assert rings.count.tolist() == [2, 3]
    assert kept(trees.take(rings, 0)).action.tolist() == [1, 3]
    assert kept(trees.take(rings, 1)).action.tolist() == [4, 5, 6]


# Discounts


def test_the_return_of_a_transition_by_hand():
    """Three steps; two, then cut off; one, then the end. The same memory, with several gammas."""
    batch = Transition(
        obs=(),
        action=(),
        reward=np.float32([[1.0, 2.0, 4.0], [1.0, 2.0, 0.0], [8.0, 0.0, 0.0]]),
        steps=np.array([3, 2, 1]),
        next_obs=(),
        terminated=np.array([False, False, True]),
    )
    discounted = jax.jit(replay.n_step_return)
    reward, discount = discounted(batch, np.float32(0.5))
    assert reward.tolist() == [3.0, 2.0, 8.0]
    assert discount.tolist() == [0.125, 0.25, 0.0]
    reward, discount = discounted(batch, np.float32(0.25))
    assert reward.tolist() == [1.75, 1.5, 8.0]
    assert discount.tolist() == [1 / 64, 1 / 16, 0.0]
    reward, discount = discounted(batch, np.float32(0.0))
    assert reward.tolist() == [1.0, 1.0, 8.0]
    assert discount.tolist() == [0.0, 0.0, 0.0]
    reward, discount = discounted(batch, np.float32(1.0))
    assert reward.tolist() == [7.0, 3.0, 8.0]
    assert discount.tolist() == [1.0, 1.0, 0.0]
