"""Advice: many policies as one, against sums over every action, integrals and the KLs one by one."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import peers
from shoal.ops.distributions import distribution_for
from shoal.types import Box, Discrete, MultiBinary, MultiDiscrete, PeerTargets

SPACES = {
    "discrete": Discrete(4),
    "multi-discrete": MultiDiscrete((2, 3)),
    "multi-binary": MultiBinary(3),
    "box": Box((1,)),
}
FINITE = [kind for kind in SPACES if kind != "box"]
DIRECTIONS, FORMS = ("forward", "reverse"), ("sum", "mixture")
WEIGHTS = np.array([0.5, 2.0, 1.5])  # of three advisers; they need not sum to 1
GRID = np.linspace(-25, 25, 4001)
NUM_OBS = 6


@cache
def policies(kind):
    """A learner's outputs (B, n) and three advisers' (3, B, n)."""
    random, size = np.random.default_rng(4), distribution_for(SPACES[kind]).num_outputs
    spread = np.array([1.0, 0.4]) if kind == "box" else np.ones(size)
    return jnp.float32(random.normal(size=(NUM_OBS, size)) * spread), jnp.float32(
        random.normal(size=(3, NUM_OBS, size)) * spread
    )


@cache
def every_action(kind):
    """All actions of a finite space and a fine grid of the box, T(a) of each, and the size of a cell."""
    one_hot = lambda num: np.eye(num)
    if kind == "discrete":
        return np.arange(4), one_hot(4), 1.0
    if kind == "multi-discrete":
        actions = np.array(list(product(range(2), range(3))))
        return actions, np.concatenate([one_hot(2)[actions[:, 0]], one_hot(3)[actions[:, 1]]], 1), 1.0
    if kind == "multi-binary":
        actions = np.array(list(product(range(2), repeat=3)))
        return actions, actions.astype(float), 1.0
    return np.float32(GRID[:, None]), np.stack([GRID, GRID**2], 1), GRID[1] - GRID[0]


@cache
def log_probs(kind):
    """log p(a) of every action, for the learner (B, A) and the advisers (3, B, A)."""
    d, (actions, _, _) = distribution_for(SPACES[kind]), every_action(kind)

    @jax.jit
    def ask(outputs):
        tiled = jnp.broadcast_to(
            outputs[..., None, :], (*outputs.shape[:-1], len(actions), outputs.shape[-1])
        )
        return d.log_prob(
            tiled, jnp.broadcast_to(jnp.asarray(actions), (*tiled.shape[:-1], *actions.shape[1:]))
        )

    return tuple(np.asarray(ask(outputs), np.float64) for outputs in policies(kind))


def given(kind, direction, form, weights, theirs):
    """What an exchange would hand on: sum_j w_j opinion_j."""
    d = distribution_for(SPACES[kind])
    opinions = peers.policy_terms(d, direction, form, theirs)  # (3, B, ...)
    total = jax.tree.map(lambda x: jnp.tensordot(jnp.float32(weights), x, 1), opinions)
    return PeerTargets(jnp.full(theirs.shape[1], jnp.float32(sum(weights))), total)


@cache
def payer(kind, direction, form):
    """(outputs, advice) -> the penalties (B,), and the gradient of their sum, compiled."""
    d = distribution_for(SPACES[kind])

    def pay(outputs, targets):
        each = peers.penalty(d, direction, peers.aggregate(d, direction, form, targets), outputs)
        return jnp.sum(each), each

    def both(outputs, targets):
        gradient, each = jax.grad(pay, has_aux=True)(outputs, targets)
        return each, gradient

    return jax.jit(both)


def paid(kind, direction, form, weights=WEIGHTS):
    own, theirs = policies(kind)
    return payer(kind, direction, form)(own, given(kind, direction, form, weights, theirs))


@pytest.mark.parametrize("kind", SPACES)
def test_natural_parameters_and_moments_lead_back_to_the_same_policy(kind):
    d, (own, theirs) = distribution_for(SPACES[kind]), policies(kind)
    for outputs in (own, theirs[0]):
        np.testing.assert_allclose(d.from_natural(d.natural(outputs)), outputs, atol=1e-5)
        back = d.from_moments(d.moments(outputs))
        np.testing.assert_allclose(d.kl(back, outputs), 0, atol=1e-5)
        np.testing.assert_allclose(d.moments(back), d.moments(outputs), atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_the_identities_of_an_exponential_family(kind):
    """log p(a) = eta . T(a) - A, so A = log sum_a exp(eta . T(a)); the moments are sum_a p(a) T(a)."""
    d, (own, _) = distribution_for(SPACES[kind]), policies(kind)
    _, features, cell = every_action(kind)
    log_p, _ = log_probs(kind)
    score = np.asarray(d.natural(own), np.float64) @ features.T  # (B, A)
    size = d.log_partition(own)
    np.testing.assert_allclose(log_p, score - np.asarray(size)[:, None], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(size, np.log(np.sum(np.exp(score), 1) * cell), atol=1e-4)
    np.testing.assert_allclose(d.moments(own), np.exp(log_p) @ features * cell, atol=1e-4)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", SPACES)
def test_a_sum_of_kls_is_one_kl_and_a_gap(kind, direction):
    """Against the sum over advisers and actions of w_j p log(p / q), and against closed forms' gradient."""
    d, (own, theirs) = distribution_for(SPACES[kind]), policies(kind)
    _, _, cell = every_action(kind)
    log_q, log_p = log_probs(kind)
    first, second = (log_p, log_q[None]) if direction == "forward" else (log_q[None], log_p)
    apart = np.sum(np.exp(first) * (first - second), -1) * cell  # (3, B)
    value, gradient = paid(kind, direction, "sum")
    np.testing.assert_allclose(value, WEIGHTS @ apart, rtol=1e-5, atol=1e-5)

    @jax.jit
    @jax.grad
    def one_by_one(q):
        q = jnp.broadcast_to(q, theirs.shape)
        each = d.kl(theirs, q) if direction == "forward" else d.kl(q, theirs)
        return jnp.sum(jnp.float32(WEIGHTS) @ each)

    np.testing.assert_allclose(gradient, one_by_one(own), rtol=1e-4, atol=1e-5)
    assert np.abs(gradient).max() > 0.1


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SPACES)
def test_one_adviser_is_the_kl_to_it(kind, form, direction):
    """In a sum it counts by its weight; a mixture of one is that one, whatever it weighs."""
    d, (own, theirs) = distribution_for(SPACES[kind]), policies(kind)
    value, _ = paid(kind, direction, form, [0.0, 3.0, 0.0])
    apart = d.kl(theirs[1], own) if direction == "forward" else d.kl(own, theirs[1])
    np.testing.assert_allclose(value, (3.0 if form == "sum" else 1.0) * apart, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_kl_to_a_mixture_of_discrete_policies_is_exact(direction):
    """The mixture averages probabilities, not their logarithms."""
    log_q, log_p = log_probs("discrete")
    mixture = np.tensordot(WEIGHTS / WEIGHTS.sum(), np.exp(log_p), 1)
    first, second = (mixture, np.exp(log_q)) if direction == "forward" else (np.exp(log_q), mixture)
    expected = np.sum(first * np.log(first / second), -1)
    value, gradient = paid("discrete", direction, "mixture")
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    q = np.exp(log_q)
    if direction == "forward":  # d/dq_logits of -sum m log q
        by_hand = q - mixture
    else:
        by_hand = q * (np.log(q / mixture) - expected[:, None])
    np.testing.assert_allclose(gradient, by_hand, atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_the_kl_of_a_mixture_has_the_exact_gradient(kind):
    """That of -sum_a m(a) log q(a) over every joint action, or over a fine grid."""
    d, (own, _) = distribution_for(SPACES[kind]), policies(kind)
    actions, _, cell = every_action(kind)
    _, log_p = log_probs(kind)
    mixture = jnp.float32(np.tensordot(WEIGHTS / WEIGHTS.sum(), np.exp(log_p), 1) * cell)  # (B, A)

    @jax.jit
    @jax.grad
    def cross_entropy(q):
        tiled = jnp.broadcast_to(q[:, None], (NUM_OBS, len(actions), q.shape[-1]))
        action = jnp.broadcast_to(jnp.asarray(actions), (*tiled.shape[:2], *actions.shape[1:]))
        return -jnp.sum(mixture * d.log_prob(tiled, action))

    _, gradient = paid(kind, "forward", "mixture")
    np.testing.assert_allclose(gradient, cross_entropy(own), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("kind", ["multi-discrete", "multi-binary", "box"])
def test_the_kl_to_a_mixture_is_to_the_policy_with_its_moments(kind):
    d, (own, theirs) = distribution_for(SPACES[kind]), policies(kind)
    moments = jnp.tensordot(jnp.float32(WEIGHTS / WEIGHTS.sum()), d.moments(theirs), 1)
    value, _ = paid(kind, "reverse", "mixture")
    np.testing.assert_allclose(value, d.kl(own, d.from_moments(moments)), rtol=1e-4, atol=1e-5)


def test_two_normals_by_hand():
    """N(-1, 1) and N(1, 1), heeded equally by N(0, 1): m = N(0, 2), each KL is 1/2, so they sum to 1."""
    theirs = jnp.float32([[[-1.0, 0.0]], [[1.0, 0.0]]])
    own = jnp.float32([[0.0, 0.0]])
    for direction in DIRECTIONS:
        value, gradient = payer("box", direction, "sum")(own, given("box", direction, "sum", [1, 1], theirs))
        np.testing.assert_allclose(value, [1.0], rtol=1e-5)
        pull = -2.0 if direction == "forward" else 0.0  # they spread more widely than one, or as much
        np.testing.assert_allclose(gradient, [[0.0, pull]], atol=1e-5)
    targets = given("box", "forward", "mixture", [1, 1], theirs)
    value, gradient = payer("box", "forward", "mixture")(own, targets)
    np.testing.assert_allclose(value, [0.5 * (2 - 1 - np.log(2))], rtol=1e-5)
    np.testing.assert_allclose(gradient, [[0.0, -1.0]], atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SPACES)
def test_nobodys_advice_costs_nothing(kind, form, direction):
    """Exactly 0, with a gradient of exactly 0, beside samples that somebody does advise."""
    own, theirs = policies(kind)
    own = own.at[0].set(40.0)  # so far from everything that 0 * KL must not become 0 * inf
    targets = given(kind, direction, form, WEIGHTS, theirs)
    nobody = jnp.arange(NUM_OBS) < 3
    silent = jax.tree.map(lambda x: jnp.where(nobody.reshape(-1, *[1] * (x.ndim - 1)), 0.0, x), targets)
    value, gradient = payer(kind, direction, form)(own, silent)
    alone, _ = payer(kind, direction, form)(own, targets)
    assert not value[:3].any()
    assert not gradient[:3].any()
    np.testing.assert_array_equal(value[3:], alone[3:])
    assert gradient[3:].any(-1).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SPACES)
def test_certain_policies_stay_finite(kind, form, direction):
    """Logits of +-50 on either side, of advisers that agree or not; deviations of exp(-10) and exp(5)."""
    size = distribution_for(SPACES[kind]).num_outputs
    signs = np.where(np.arange(size) % 2, -50.0, 50.0)
    sure, unsure = (np.array([2.0, -10.0]), np.array([-2.0, 5.0])) if kind == "box" else (signs, 0 * signs)
    other = np.array([-2.0, -10.0]) if kind == "box" else -signs
    own = jnp.float32([sure, unsure, other] * 3)
    theirs = jnp.float32([[x] * 3 for x in (sure, unsure, other)]).reshape(1, 9, size)
    both = jnp.concatenate([theirs, jnp.roll(theirs, 1, 1)])
    for advisers in (theirs, both):
        targets = given(kind, direction, form, [2.0] * len(advisers), advisers)
        value, gradient = payer(kind, direction, form)(own, targets)
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()
        if kind != "box":  # m2 - mean^2 has few digits left where deviations are far below the means
            assert (value > -1e-3).all()


def test_only_the_sum_of_reverse_kls_averages_logarithms():
    asked = {pair: peers.averages_logarithms(*pair) for pair in product(DIRECTIONS, FORMS)}
    assert [pair for pair, yes in asked.items() if yes] == [("reverse", "sum")]
