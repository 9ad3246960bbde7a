"""Masked policies against sums over what is allowed, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.ops.distributions import distribution_for
from shoal.ops.masks import check, restrict
from shoal.types import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete

rng = np.random.default_rng(0)
LOGITS, OTHERS = rng.normal(size=(2, 3, 4)).astype(np.float32) * 2
MASK = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]])
"""All, two and none of four choices; none counts as all."""
FREE = [[0, 1, 2, 3], [1, 3], [0, 1, 2, 3]]


def masked(space, logits, mask):
    return restrict(space, {"action_mask": mask}, logits)


def probabilities(logits):
    return np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum()


@pytest.mark.parametrize("dtype", ["bool", "float32", "int8"])
def test_one_choice_by_hand(dtype):
    space = Discrete(4)
    categorical = distribution_for(space)

    @jax.jit
    def found(logits, others, mask, action):
        p, q = (masked(space, x, mask) for x in (logits, others))
        return categorical.entropy(p), categorical.kl(p, q), categorical.log_prob(p[:, None], action)

    every = np.tile(np.arange(4), (3, 1))
    entropy, kl, log_prob = found(LOGITS, OTHERS, MASK.astype(dtype), every)
    for row, free in enumerate(FREE):
        ours, theirs = (probabilities(x[row][free]) for x in (LOGITS, OTHERS))
        np.testing.assert_allclose(entropy[row], -(ours * np.log(ours)).sum(), rtol=1e-5)
        np.testing.assert_allclose(kl[row], (ours * np.log(ours / theirs)).sum(), rtol=1e-4)
        np.testing.assert_allclose(np.asarray(log_prob)[row, free], np.log(ours), rtol=1e-5)


def test_several_choices_by_hand():
    """Of two choices of two, the first is bound and the second, of which nothing is allowed, free."""
    space = MultiDiscrete((2, 2))
    several = distribution_for(space)

    @jax.jit
    def found(logits, mask):
        p = masked(space, logits, mask)
        return several.entropy(p), several.log_prob(p, jnp.array([[1, 0]]))

    entropy, log_prob = found(LOGITS[:1], np.array([[0, 1, 0, 0]]))
    ours = probabilities(LOGITS[0, 2:])
    np.testing.assert_allclose(entropy[0], -(ours * np.log(ours)).sum(), rtol=1e-5)
    np.testing.assert_allclose(log_prob[0], np.log(ours[0]), rtol=1e-5)


def test_switches_that_stay_off():
    space = MultiBinary(4)
    switches = distribution_for(space)

    @jax.jit
    def found(logits, mask, key):
        p = masked(space, logits, mask)
        return switches.sample(p[:, None].repeat(1000, 1), switches.draw(key, (3, 1000))), switches.entropy(p)

    drawn, entropy = jax.device_get(found(LOGITS, MASK, jax.random.key(0)))
    assert not drawn[1:, :, 0].any()
    assert not drawn[2].any()
    np.testing.assert_allclose(entropy[2], 0.0)
    on = 1 / (1 + np.exp(-LOGITS[1, [1, 3]]))
    np.testing.assert_allclose(entropy[1], -(on * np.log(on) + (1 - on) * np.log(1 - on)).sum(), rtol=1e-5)


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete((2, 2))])
def test_what_is_forbidden_is_never_chosen(space):
    distribution, bad = distribution_for(space), np.array([9.0, 0.0, 9.0, 0.0], np.float32)

    @jax.jit
    def found(logits, mask, key):
        p = masked(space, logits, mask)
        return distribution.sample(p, distribution.draw(key, (10_000,))), distribution.mode(p[0])

    mask = np.tile([0, 1, 0, 1], (10_000, 1))
    drawn, mode = found(np.tile(bad, (10_000, 1)), mask, jax.random.key(0))
    assert set(np.unique(drawn)) == ({1, 3} if space == Discrete(4) else {1})
    assert mode.tolist() == (1 if space == Discrete(4) else [1, 1])


@pytest.mark.parametrize("what", ["log_prob", "entropy", "kl", "kl_reversed"])
def test_forbidden_logits_get_no_gradient_and_all_is_finite(what):
    space = Discrete(4)
    categorical = distribution_for(space)
    action = np.int32([0, 1, 2])
    functions = {
        "log_prob": lambda p, q: categorical.log_prob(p, action),
        "entropy": lambda p, q: categorical.entropy(p),
        "kl": categorical.kl,
        "kl_reversed": lambda p, q: categorical.kl(q, p),
    }
    total = lambda logits: functions[what](masked(space, logits, MASK), masked(space, OTHERS, MASK)).sum()
    gradient = np.asarray(jax.jit(jax.grad(total))(LOGITS))
    assert np.isfinite(gradient).all()
    assert (gradient[1, [0, 2]] == 0).all()
    assert (np.abs(gradient[1, [1, 3]]) > 0).all()


@pytest.mark.parametrize(
    ("action", "shape", "complaint"),
    [
        (Box((2,)), (2,), r"^Test: an action_mask is for discrete actions, not for continuous ones"),
        (Discrete(3), (4,), r"^Test: its action_mask has 4 entries, its actions 3 choices; each choice"),
        (MultiDiscrete((3, 4)), (3, 4), r"^Test: its action_mask has 12 entries, its actions 7 choices"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(action, shape, complaint):
    with pytest.raises(ShoalError, match=complaint):
        check(EnvSpec("Test", "jax", {"obs": Box((1,)), "action_mask": Box(shape)}, action))
