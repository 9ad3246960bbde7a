"""Advantages and running returns, against sums written out in NumPy."""

import jax
import numpy as np
import pytest

from shoal.ops import advantages as formulas

advantages = jax.jit(formulas.generalised_advantages)
rewards_to_go, discounted_returns = jax.jit(formulas.rewards_to_go), jax.jit(formulas.discounted_returns)


def episode_flags(rng, num_steps, num_envs):
    """Random ends of both kinds, and the resets that must follow them; some columns begin with a reset."""
    terminated, truncated, valid = np.zeros((3, num_steps, num_envs), bool)
    over = rng.random(num_envs) < 0.5
    for t in range(num_steps):
        valid[t] = ~over
        terminated[t] = valid[t] & (rng.random(num_envs) < 0.2)
        truncated[t] = valid[t] & (rng.random(num_envs) < 0.2)
        over = terminated[t] | truncated[t]
    return terminated, truncated, valid


def mixture_of_returns(reward, values, terminated, truncated, valid, gamma, lam):
    """One column of A_t as (1 - lambda) sum_n lambda^(n-1) G_n - V_t, every G_n summed afresh.

    values has one more entry than the rest: values[t] is V(o_t).
    """
    advantage = np.zeros(len(reward))
    for t in np.flatnonzero(valid):
        ends = [k for k in range(t, len(reward)) if terminated[k] or truncated[k]]
        horizon = (ends[0] if ends else len(reward) - 1) - t + 1
        returns = []
        for n in range(1, horizon + 1):
            bootstrap = 0.0 if terminated[t + n - 1] else values[t + n]
            returns.append(sum(gamma**i * reward[t + i] for i in range(n)) + gamma**n * bootstrap)
        weights = [(1 - lam) * lam ** (n - 1) for n in range(1, horizon)] + [lam ** (horizon - 1)]
        advantage[t] = np.dot(weights, returns) - values[t]
    return advantage


@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.8), (0.99, 0.95), (0.7, 0.0), (1.0, 1.0)])
def test_the_recursion_is_the_mixture_of_n_step_returns(gamma, lam):
    rng = np.random.default_rng(3)
    terminated, truncated, valid = flags = episode_flags(rng, 24, 40)
    for seen in (terminated & truncated, terminated & ~truncated, truncated & ~terminated, ~valid[0]):
        assert seen.any()
    reward = np.where(valid, rng.normal(size=valid.shape), 0.0)
    values = rng.normal(size=(25, 40))
    expected = np.stack(
        [
            mixture_of_returns(reward[:, e], values[:, e], *(flag[:, e] for flag in flags), gamma, lam)
            for e in range(40)
        ],
        1,
    )
    found = advantages(*map(np.float32, (reward, values[:-1], values[1:])), *flags, gamma, lam)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not np.any(np.asarray(found)[~valid])


def test_termination_and_truncation_by_hand():
    """gamma = lambda = 1/2, four steps; column 0 terminates at t = 1, column 1 is truncated there.

    V = 2, 4, 6, 8 then 10; rewards 1; step 2 is the reset.
    t = 3, both:    d = 1 + 10/2 - 8 = -2                                   A = -2
    t = 1, column 0: d = 1 - 4 = -3                                         A = -3
    t = 1, column 1: d = 1 + 6/2 - 4 = 0                                    A = 0
    t = 0, both:    d = 1 + 4/2 - 2 = 1, A = 1 + A_1 / 4                    A = 1/4 and 1
    """
    value = np.array([[2.0, 2.0], [4.0, 4.0], [6.0, 6.0], [8.0, 8.0]])
    next_value = np.array([[4.0, 4.0], [6.0, 6.0], [8.0, 8.0], [10.0, 10.0]])
    reward = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    nobody = [False, False]
    terminated = np.array([nobody, [True, False], nobody, nobody])
    truncated = np.array([nobody, [False, True], nobody, nobody])
    valid = np.array([[True, True], [True, True], nobody, [True, True]])
    found = advantages(reward, value, next_value, terminated, truncated, valid, 0.5, 0.5)
    assert found.tolist() == [[0.25, 1.0], [-3.0, 0.0], [0.0, 0.0], [-2.0, -2.0]]


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
def test_a_truncated_constant_stream_has_no_advantage(gamma):
    """Reward 1, limit 5 and the true V = 1 / (1 - gamma): nothing is better or worse than expected."""
    t = np.arange(24)[:, None]
    valid, truncated = t % 6 != 5, t % 6 == 4
    value = np.full((24, 1), 1 / (1 - gamma), np.float32)
    found = advantages(np.float32(valid), value, value, np.zeros_like(valid), truncated, valid, gamma, 0.95)
    np.testing.assert_allclose(np.asarray(found) * (1 - gamma), 0.0, atol=1e-6)


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
@pytest.mark.parametrize("reset_is_valid", [False, True])
def test_nothing_leaks_into_the_episode_before(kind, reset_is_valid):
    over, valid = np.zeros((8, 1), bool), np.ones((8, 1), bool)
    over[3], valid[4] = True, reset_is_valid
    ends = (over, ~valid & over) if kind == "terminated" else (~valid & over, over)
    value = np.arange(8, dtype=np.float32)[:, None]

    def first_episode(later_reward):
        reward = np.float32(np.arange(8) >= 5)[:, None] * np.float32(later_reward)
        found = advantages(reward, value, value + 1, *ends, valid, 0.99, 0.95)
        return np.asarray(found)[:4].tolist()

    assert first_episode(1000.0) == first_episode(0.0)


def test_both_flags_do_not_bootstrap():
    one, yes = np.ones((1, 1), np.float32), np.ones((1, 1), bool)
    found = advantages(2 * one, 3 * one, 1000 * one, yes, yes, yes, 0.9, 0.95)
    assert found.tolist() == [[-1.0]]


def split_in_two(lam):
    """Advantages of eight steps at once, and of the two halves apart.

    Of small integers and a discount of 1/2, so that no sum is rounded, in whatever way it is compiled.
    """
    rng = np.random.default_rng(5)
    terminated, truncated, valid = episode_flags(rng, 8, 30)
    reward, values = rng.integers(-8, 9, (8, 30)), rng.integers(-8, 9, (9, 30))
    data = [reward * valid, values[:-1], values[1:], terminated, truncated, valid]
    data = [x if x.dtype == bool else np.float32(x) for x in data]
    whole = advantages(*data, 0.5, lam)
    halves = [advantages(*(x[half] for x in data), 0.5, lam) for half in (slice(0, 4), slice(4, 8))]
    return np.asarray(whole), np.concatenate(halves)


def test_one_rollout_is_two_halves_when_lambda_is_zero():
    whole, halves = split_in_two(0.0)
    np.testing.assert_array_equal(whole, halves)


def test_a_later_rollout_is_seen_only_through_the_bootstrap():
    whole, halves = split_in_two(0.5)
    np.testing.assert_array_equal(whole[4:], halves[4:])
    assert np.abs(whole[:4] - halves[:4]).max() > 0.1


def test_rewards_to_go_by_hand():
    """gamma 1/2, rewards 1, bootstraps 8; column 0 terminates at t = 1, column 1 is truncated there.

    t = 3, both: 1 + 8/2 = 5;  t = 1: 1 and 1 + 8/2 = 5;  t = 0: 1 + 1/2 = 1.5 and 1 + 5/2 = 3.5.
    """
    reward = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    nobody = [False, False]
    terminated = np.array([nobody, [True, False], nobody, nobody])
    truncated = np.array([nobody, [False, True], nobody, nobody])
    valid = np.array([[True, True], [True, True], nobody, [True, True]])
    found = rewards_to_go(reward, np.full((4, 2), 8.0), terminated, truncated, valid, 0.5)
    assert found.tolist() == [[1.5, 3.5], [1.0, 5.0], [0.0, 0.0], [5.0, 5.0]]


def test_rewards_to_go_are_advantages_that_look_to_the_end_plus_values():
    rng = np.random.default_rng(4)
    flags = episode_flags(rng, 24, 40)
    values, reward = np.float32(rng.normal(size=(25, 40))), np.float32(rng.normal(size=(24, 40)))
    found = rewards_to_go(reward, values[1:], *flags, 0.9)
    expected = advantages(reward, values[:-1], values[1:], *flags, 0.9, 1.0) + values[:-1]
    np.testing.assert_allclose(found, np.where(flags[2], expected, 0.0), atol=1e-5)


def test_running_returns_begin_anew_after_an_end_and_go_on_across_rollouts():
    """gamma = 1/2; rewards 1, 2, 4, 8 with an end at the second: 1, 2.5 | 4, 10."""
    reward = np.array([[1.0], [2.0], [4.0], [8.0]])
    over = np.array([[False], [True], [False], [False]])
    start = np.array([0.0])
    last, returns = discounted_returns(start, reward, over, 0.5)
    assert returns[:, 0].tolist() == [1.0, 2.5, 4.0, 10.0]
    assert last.tolist() == [10.0]
    middle, first = discounted_returns(start, reward[:1], over[:1], 0.5)
    end, second = discounted_returns(middle, reward[1:], over[1:], 0.5)
    assert np.concatenate([first, second]).tolist() == returns.tolist()
    assert end.tolist() == last.tolist()
    ended, _ = discounted_returns(start, reward[:2], over[:2], 0.5)
    assert ended.tolist() == [0.0]
