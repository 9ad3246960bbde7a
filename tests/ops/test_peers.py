"""Advice: many policies as one, against sums over every action, integrals and the KLs one by one."""

from functools import cache
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import peers, trees
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
NUM_OBS = 9


@cache
def policies(kind):
    """A learner's outputs (B, n) and three advisers' (3, B, n)."""
    random, size = np.random.default_rng(4), distribution_for(SPACES[kind]).num_outputs
    spread = np.array([1.0, 0.4]) if kind == "box" else np.ones(size)
    return np.float32(random.normal(size=(NUM_OBS, size)) * spread), np.float32(
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

    def ask(outputs):
        tiled = jnp.broadcast_to(
            outputs[..., None, :], (*outputs.shape[:-1], len(actions), outputs.shape[-1])
        )
        return d.log_prob(
            tiled, jnp.broadcast_to(jnp.asarray(actions), (*tiled.shape[:-1], *actions.shape[1:]))
        )

    found = jax.jit(lambda every: jax.tree.map(ask, every))(policies(kind))
    return tuple(np.asarray(x, np.float64) for x in found)


class Forms(NamedTuple):
    """Policies in their two other forms, and what comes back from them: (..., B, n) or (..., B) each."""

    natural: np.ndarray
    moments: np.ndarray
    size: np.ndarray  # the log of the partition function
    from_natural: np.ndarray
    from_moments: np.ndarray
    moments_again: np.ndarray
    kl: np.ndarray  # to the policy with the same moments


@cache
def forms(kind):
    """Of the learner (B, ...), and of the advisers (3, B, ...)."""
    d = distribution_for(SPACES[kind])

    def of(outputs):
        natural, moments = d.natural(outputs), d.moments(outputs)
        back = d.from_moments(moments)
        size = d.log_partition(outputs)
        return Forms(
            natural, moments, size, d.from_natural(natural), back, d.moments(back), d.kl(back, outputs)
        )

    return jax.device_get(jax.jit(lambda every: [of(outputs) for outputs in every])(policies(kind)))


def given(kind, direction, form, weights, theirs):
    """What an exchange would hand on: sum_j w_j opinion_j."""
    d = distribution_for(SPACES[kind])
    opinions = peers.policy_terms(d, direction, form, theirs)  # (3, B, ...)
    total = jax.tree.map(lambda x: jnp.tensordot(weights, x, 1), opinions)
    return PeerTargets(jnp.broadcast_to(jnp.sum(weights), theirs.shape[1]), total)


@cache
def payer(kind, direction, form):
    """(own, theirs, weights (3,), advised (B,)) -> the penalties (B,), and the gradient of their sum."""
    d = distribution_for(SPACES[kind])

    def pay(own, targets):
        each = peers.penalty(d, direction, peers.aggregate(d, direction, form, targets), own)
        return jnp.sum(each), each

    @jax.jit
    def both(own, theirs, weights, advised):
        targets = given(kind, direction, form, weights, theirs)
        targets = jax.tree.map(lambda x: jnp.where(trees.align(advised, x), x, 0.0), targets)
        gradient, each = jax.grad(pay, has_aux=True)(own, targets)
        return each, gradient

    return both


def paid(kind, direction, form, weights=WEIGHTS, own=None, theirs=None, advised=True):
    """What a learner pays, and the gradient; one program for all policies and weights."""
    usual = policies(kind)
    own, theirs = (x if given is None else given for x, given in zip(usual, (own, theirs), strict=True))
    advised = np.broadcast_to(advised, NUM_OBS)
    return jax.device_get(payer(kind, direction, form)(own, theirs, np.float32(weights), advised))


@cache
def divergences(kind, weights=tuple(WEIGHTS)):
    """The closed forms, by direction: the KLs one by one (3, B), and the gradient of their weighted sum."""
    d, (own, theirs) = distribution_for(SPACES[kind]), policies(kind)

    def one_by_one(own, direction):
        own = jnp.broadcast_to(own, theirs.shape)
        each = d.kl(theirs, own) if direction == "forward" else d.kl(own, theirs)
        return jnp.sum(jnp.float32(weights) @ each), each

    both = lambda own: {way: jax.grad(one_by_one, has_aux=True)(own, way) for way in DIRECTIONS}
    found = jax.device_get(jax.jit(both)(own))
    return {way: (each, gradient) for way, (gradient, each) in found.items()}


@pytest.mark.parametrize("kind", SPACES)
def test_natural_parameters_and_moments_lead_back_to_the_same_policy(kind):
    for outputs, form in zip(policies(kind), forms(kind), strict=True):
        np.testing.assert_allclose(form.from_natural, outputs, atol=1e-5)
        np.testing.assert_allclose(form.kl, 0, atol=1e-5)
        np.testing.assert_allclose(form.moments_again, form.moments, atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_the_identities_of_an_exponential_family(kind):
    """log p(a) = eta . T(a) - A, so A = log sum_a exp(eta . T(a)); the moments are sum_a p(a) T(a)."""
    _, features, cell = every_action(kind)
    (log_p, _), (own, _) = log_probs(kind), forms(kind)
    score = np.float64(own.natural) @ features.T  # (B, A)
    np.testing.assert_allclose(log_p, score - own.size[:, None], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(own.size, np.log(np.sum(np.exp(score), 1) * cell), atol=1e-4)
    np.testing.assert_allclose(own.moments, np.exp(log_p) @ features * cell, atol=1e-4)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", SPACES)
def test_a_sum_of_kls_is_one_kl_and_a_gap(kind, direction):
    """Against the sum over advisers and actions of w_j p log(p / q), and against closed forms' gradient."""
    _, _, cell = every_action(kind)
    log_q, log_p = log_probs(kind)
    first, second = (log_p, log_q[None]) if direction == "forward" else (log_q[None], log_p)
    apart = np.sum(np.exp(first) * (first - second), -1) * cell  # (3, B)
    value, gradient = paid(kind, direction, "sum")
    np.testing.assert_allclose(value, WEIGHTS @ apart, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, divergences(kind)[direction][1], rtol=1e-4, atol=1e-5)
    assert np.abs(gradient).max() > 0.1


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SPACES)
def test_one_adviser_is_the_kl_to_it(kind, form, direction):
    """In a sum it counts by its weight; a mixture of one is that one, whatever it weighs."""
    value, _ = paid(kind, direction, form, [0.0, 3.0, 0.0])
    apart = divergences(kind)[direction][0][1]
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
    mixture = np.float32(np.tensordot(WEIGHTS / WEIGHTS.sum(), np.exp(log_p), 1) * cell)  # (B, A)

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
    d, (own, _) = distribution_for(SPACES[kind]), policies(kind)
    moments = np.float32(np.tensordot(WEIGHTS / WEIGHTS.sum(), forms(kind)[1].moments, 1))
    value, _ = paid(kind, "reverse", "mixture")
    expected = jax.jit(lambda own, moments: d.kl(own, d.from_moments(moments)))(own, moments)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_two_normals_by_hand():
    """N(-1, 1) and N(1, 1), heeded equally by N(0, 1): m = N(0, 2), each KL is 1/2, so they sum to 1."""
    theirs = np.tile(np.float32([[[-1, 0]], [[1, 0]], [[0, 0]]]), (1, NUM_OBS, 1))
    pay = lambda direction, form: paid("box", direction, form, [1, 1, 0], 0 * theirs[0], theirs)
    for direction in DIRECTIONS:
        value, gradient = pay(direction, "sum")
        np.testing.assert_allclose(value, [1.0] * NUM_OBS, rtol=1e-5)
        pull = -2.0 if direction == "forward" else 0.0  # they spread more widely than one, or as much
        np.testing.assert_allclose(gradient, [[0.0, pull]] * NUM_OBS, atol=1e-5)
    value, gradient = pay("forward", "mixture")
    np.testing.assert_allclose(value, [0.5 * (2 - 1 - np.log(2))] * NUM_OBS, rtol=1e-5)
    np.testing.assert_allclose(gradient, [[0.0, -1.0]] * NUM_OBS, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SPACES)
def test_nobodys_advice_costs_nothing(kind, form, direction):
    """Exactly 0, with a gradient of exactly 0, beside samples that somebody does advise."""
    own = policies(kind)[0].copy()
    own[0] = 40  # so far from everything that 0 * KL must not become 0 * inf
    value, gradient = paid(kind, direction, form, own=own, advised=np.arange(NUM_OBS) >= 3)
    alone, _ = paid(kind, direction, form, own=own)
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
    own = np.float32([sure, unsure, other] * 3)
    theirs = np.float32([[x] * 3 for x in (sure, unsure, other)]).reshape(9, size)
    both = np.stack([theirs, np.roll(theirs, 1, 0), 0 * theirs])
    for weights in ([2.0, 0.0, 0.0], [2.0, 2.0, 0.0]):
        value, gradient = paid(kind, direction, form, weights, own, both)
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()
        if kind != "box":  # m2 - mean^2 has few digits left where deviations are far below the means
            assert (value > -1e-3).all()


def test_only_the_sum_of_reverse_kls_averages_logarithms():
    asked = {pair: peers.averages_logarithms(*pair) for pair in product(DIRECTIONS, FORMS)}
    assert [pair for pair, yes in asked.items() if yes] == [("reverse", "sum")]
