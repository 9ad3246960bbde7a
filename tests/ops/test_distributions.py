"""Distributions, against sums over every action, integrals and frequencies."""

from functools import cache
from itertools import product
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops.distributions import distribution_for
from shoal.types import Box, Discrete, MultiBinary, MultiDiscrete

SPACES = {
    "discrete": Discrete(4),
    "multi-discrete": MultiDiscrete((2, 3)),
    "multi-binary": MultiBinary(3),
    "box": Box((2,)),
}
P = {  # the parameters of one distribution of each kind, and of another of the same
    "discrete": [0.5, -1.0, 1.5, 0.0],
    "multi-discrete": [0.5, -0.5, 1.0, 0.0, -2.0],
    "multi-binary": [0.5, -2.0, 1.0],
    "box": [0.5, -1.0, -0.5, 0.3],  # means, then logarithms of deviations
}
Q = {
    "discrete": [-0.5, 0.0, 0.5, 1.0],
    "multi-discrete": [-0.5, 1.0, 0.0, 1.0, -1.0],
    "multi-binary": [-1.0, -0.5, 4.0],
    "box": [0.0, 0.0, 0.2, 0.1],
}
FINITE = [kind for kind in SPACES if kind != "box"]
GRID = np.linspace(-9, 9, 361)
NUM_SAMPLES = 20_000


@cache
def every_action(kind):
    """All actions of a finite space; for the box a fine grid. And the size of a cell."""
    if kind == "discrete":
        return np.arange(4), 1.0
    if kind == "multi-discrete":
        return np.array(list(product(range(2), range(3)))), 1.0
    if kind == "multi-binary":
        return np.array(list(product(range(2), repeat=3))), 1.0
    return np.array(list(product(GRID, GRID)), np.float32), (GRID[1] - GRID[0]) ** 2


@cache
def answers(kind):
    """Everything the library says of P and Q, compiled at once."""
    d = distribution_for(SPACES[kind])
    actions, cell = every_action(kind)

    @jax.jit
    def ask(key, p, q, many, actions):
        tiled = lambda outputs, num: jnp.broadcast_to(outputs, (num, *outputs.shape))
        key_draw, key_noise = jax.random.split(key)
        samples = d.sample(tiled(p, NUM_SAMPLES), d.draw(key_draw, (NUM_SAMPLES,)))
        noise = d.draw(key_noise, many.shape[:-1])
        log_prob = lambda outputs, actions: d.log_prob(tiled(outputs, len(actions)), actions)
        return {
            "log_p": log_prob(p, actions),
            "log_q": log_prob(q, actions),
            "entropy": d.entropy(p),
            "kl": jnp.stack([d.kl(p, q), d.kl(q, p), d.kl(p, p)]),
            "samples": samples,
            "sample_log_p": log_prob(p, samples),
            "sample_log_q": log_prob(q, samples),
            "many_kl": d.kl(many, many[::-1]),
            "mode": d.mode(many),
            "silent": d.sample(many, 0 * noise),
            "noisy": d.sample(many, noise),
            "mode_log_p": d.log_prob(p, d.mode(p)),
        }

    many = np.random.default_rng(3).normal(size=(40, 5, len(P[kind])))
    outputs = map(jnp.float32, (P[kind], Q[kind], many))
    found = jax.device_get(ask(jax.random.key(0), *outputs, jnp.asarray(actions)))
    return SimpleNamespace(**found, many=many, cell=cell)


def by_hand(kind, outputs, action):
    """The log-probability of one action, part by part in plain Python."""
    outputs = np.asarray(outputs, float)
    if kind == "discrete":
        return outputs[action] - np.log(np.sum(np.exp(outputs)))
    if kind == "multi-discrete":
        first, second = outputs[:2], outputs[2:]
        total = first[action[0]] - np.log(np.sum(np.exp(first)))
        return total + second[action[1]] - np.log(np.sum(np.exp(second)))
    if kind == "multi-binary":
        on = 1 / (1 + np.exp(-outputs))
        return sum(np.log(p if a else 1 - p) for p, a in zip(on, action, strict=True))
    density = lambda x, mean, std: np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    return sum(np.log(density(action[i], outputs[i], np.exp(outputs[2 + i]))) for i in range(2))


@pytest.mark.parametrize("kind", SPACES)
def test_log_prob_sums_over_the_parts_of_an_action(kind):
    actions, _ = every_action(kind)
    some = slice(None) if kind in FINITE else slice(60_000, 70_000, 100)
    expected = [by_hand(kind, P[kind], action) for action in actions[some]]
    assert answers(kind).log_p.shape == (len(actions),)
    np.testing.assert_allclose(answers(kind).log_p[some], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_probabilities_add_up_to_one(kind):
    total = np.sum(np.exp(np.float64(answers(kind).log_p))) * answers(kind).cell
    np.testing.assert_allclose(total, 1, rtol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_entropy_is_the_mean_negative_log_probability(kind):
    log_p = np.float64(answers(kind).log_p)
    expected = -np.sum(np.exp(log_p) * log_p) * answers(kind).cell
    np.testing.assert_allclose(answers(kind).entropy, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_kl_is_the_mean_log_ratio_and_its_order_matters(kind):
    log_p, log_q = np.float64(answers(kind).log_p), np.float64(answers(kind).log_q)
    mean = lambda log_p, log_q: np.sum(np.exp(log_p) * (log_p - log_q)) * answers(kind).cell
    expected = [mean(log_p, log_q), mean(log_q, log_p)]
    assert abs(expected[0] - expected[1]) > 0.02
    np.testing.assert_allclose(answers(kind).kl[:2], expected, rtol=1e-4)
    np.testing.assert_allclose(answers(kind).kl[2], 0, atol=1e-6)


@pytest.mark.parametrize("kind", SPACES)
def test_kl_is_never_negative(kind):
    assert answers(kind).many_kl.shape == (40, 5)
    assert answers(kind).many_kl.min() >= 0


@pytest.mark.parametrize("kind", SPACES)
def test_samples_have_the_entropy_and_the_kl_they_should(kind):
    """Monte Carlo, wide of the error: 5 standard deviations of the mean."""
    a = answers(kind)
    for samples, exact in ((-a.sample_log_p, a.entropy), (a.sample_log_p - a.sample_log_q, a.kl[0])):
        error = 5 * np.std(samples) / np.sqrt(NUM_SAMPLES)
        assert error < 0.1
        np.testing.assert_allclose(np.mean(samples), exact, atol=error)


@pytest.mark.parametrize("kind", FINITE)
def test_frequencies_are_probabilities(kind):
    samples, (actions, _) = answers(kind).samples, every_action(kind)
    assert samples.dtype == np.int32
    matches = samples[:, None] == actions[None]
    frequency = matches.reshape(NUM_SAMPLES, len(actions), -1).all(-1).mean(0)
    probability = np.exp([by_hand(kind, P[kind], action) for action in actions])
    error = 5 * np.sqrt(probability * (1 - probability) / NUM_SAMPLES)
    assert (np.abs(frequency - probability) < error).all()


def test_gaussian_samples_have_the_mean_and_deviation_of_their_outputs():
    samples = answers("box").samples
    np.testing.assert_allclose(samples.mean(0), P["box"][:2], atol=0.05)
    np.testing.assert_allclose(samples.std(0), np.exp(P["box"][2:]), rtol=0.03)
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.05


@pytest.mark.parametrize("kind", SPACES)
def test_without_noise_a_sample_is_the_mode(kind):
    a = answers(kind)
    np.testing.assert_array_equal(a.silent, a.mode)
    assert np.any(a.noisy != a.mode)
    np.testing.assert_allclose(a.mode_log_p, max(a.log_p), atol=1e-3)  # no action is likelier
    if kind == "box":
        np.testing.assert_array_equal(a.mode, np.float32(a.many[..., :2]))


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_box_of_any_shape(shape):
    d, size = distribution_for(Box(shape)), int(np.prod(shape))
    assert d.num_outputs == 2 * size

    @jax.jit
    def ask(key):
        outputs = jnp.zeros((4, 5, d.num_outputs))
        action = d.sample(outputs, d.draw(key, (4, 5)))
        return action, d.log_prob(outputs, action), d.entropy(outputs)

    action, log_prob, entropy = ask(jax.random.key(0))
    assert action.shape == (4, 5, *shape)
    expected = -0.5 * np.sum(np.asarray(action).reshape(4, 5, size) ** 2 + np.log(2 * np.pi), -1)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
    np.testing.assert_allclose(entropy, size * 0.5 * np.log(2 * np.pi * np.e), rtol=1e-6)


@pytest.mark.parametrize("kind", FINITE)
def test_certain_policies_stay_finite(kind):
    """Logits of a thousand: log-probability, entropy and KL have values and slopes that are numbers."""
    d = distribution_for(SPACES[kind])

    @jax.jit
    def ask(outputs):
        functions = (lambda o: d.log_prob(o, d.mode(outputs)), d.entropy, lambda o: d.kl(o, outputs))
        return [jax.value_and_grad(function)(outputs) for function in functions]

    results = ask(1000.0 * jnp.sign(jnp.float32(Q[kind])))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
    assert results[2][0] == 0
