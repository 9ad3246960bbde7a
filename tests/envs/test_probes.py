"""The answers the probes promise."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from tests import probes

KEY = jax.random.key(0)
ALL = [
    probes.counter,
    probes.ending_counter,
    probes.one_step,
    probes.two_choices,
    probes.observation_choice,
    probes.delayed_reward,
    probes.continuous_target,
    probes.recall,
]


@pytest.mark.parametrize("probe", ALL, ids=lambda probe: probe.__name__)
def test_every_probe_builds_and_carries_its_name(probe):
    env = from_jax(probe()).build(np.zeros((1, 2), np.uint32), False)
    assert env.spec.name == probe.__name__
    _, first = jax.jit(env.reset)(jax.random.split(KEY, 2), ())
    assert first.obs.shape == (2, *env.spec.observation.shape)


def test_counter_never_terminates_by_itself():
    env = probes.counter()
    state = env.reset(KEY, ())
    for t in range(1, 8):
        state, reward, terminated = env.step(KEY, state, 0, ())
        assert (float(env.observe(state, ())[0]), float(reward), bool(terminated)) == (t, 1, False)
    assert env.spec.max_episode_steps == 5


def test_ending_counter_terminates_after_its_length():
    env = probes.ending_counter(3)
    state, ends = env.reset(KEY, ()), []
    for _ in range(3):
        state, reward, terminated = env.step(KEY, state, 0, ())
        ends.append((float(reward), bool(terminated)))
    assert ends == [(1, False), (1, False), (1, True)]


@pytest.mark.parametrize(("probe", "rewards"), [(probes.one_step, [1, 1]), (probes.two_choices, [0, 1])])
def test_one_step_probes_pay_by_action_alone(probe, rewards):
    env = probe()
    state = env.reset(KEY, ())
    for action in (0, 1):
        _, reward, terminated = env.step(KEY, state, jnp.int32(action), ())
        assert (float(reward), bool(terminated)) == (rewards[action], True)


def test_observation_choice_pays_for_the_sign_of_the_observation():
    env = probes.observation_choice()
    states = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(KEY, 64), ())
    assert set(states.tolist()) == {-1.0, 1.0}
    assert env.observe(states[0], ()).tolist() == [states[0]]
    for coin, action, expected in [(-1, 0, 1), (-1, 1, 0), (1, 0, 0), (1, 1, 1)]:
        _, reward, terminated = env.step(KEY, jnp.float32(coin), jnp.int32(action), ())
        assert (float(reward), bool(terminated)) == (expected, True)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("key", range(4))
def test_delayed_reward_pays_at_the_end_for_the_first_action(first, second, key):
    env = probes.delayed_reward()
    state = env.reset(jax.random.key(key), ())
    coin = float(state.coin)
    assert env.observe(state, ()).tolist() == [coin, 0]
    state, reward, terminated = env.step(KEY, state, jnp.int32(first), ())
    assert env.observe(state, ()).tolist() == [0, 1]
    assert (float(reward), bool(terminated)) == (0, False)
    _, reward, terminated = env.step(KEY, state, jnp.int32(second), ())
    assert (float(reward), bool(terminated)) == (float(first == (coin > 0)), True)


def test_continuous_target_is_half_the_observation():
    env = probes.continuous_target()
    for o, a, expected in [(0.5, 0.25, 0.0), (0.5, 0.75, -0.25), (-1.0, 0.5, -1.0)]:
        _, reward, terminated = env.step(KEY, jnp.float32(o), jnp.array([a]), ())
        assert (float(reward), bool(terminated)) == (expected, True)


def test_the_core_and_the_builtins_import_without_gymnasium():
    program = """if True:
        import sys
        sys.modules["gymnasium"] = sys.modules["pygame"] = None
        import shoal.envs.classic, shoal.envs.adapters.jax_env
    """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_recall_shows_the_coin_first_and_asks_for_it_at_the_end():
    env, lengths = probes.recall(longest=5, shortest=3), set()
    for key in jax.random.split(KEY, 20):
        state, shown, terminated = env.reset(key, ()), [], False
        while not terminated:
            shown.append(env.observe(state, ()).tolist())
            answers = [env.step(key, state, jnp.int32(action), ()) for action in (0, 1)]
            pays, (state, _, terminated) = [float(reward) for _, reward, _ in answers], answers[0]
            assert pays == ([0, 0] if not terminated else [float(shown[0][0] < 0), float(shown[0][0] > 0)])
        assert shown == [shown[0], *[[0, 0]] * (len(shown) - 2), [0, 1]]
        assert abs(shown[0][0]) == 1
        lengths.add(len(shown))
    assert lengths == {3, 4, 5}
