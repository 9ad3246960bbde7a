"""Distributions over actions, as pure functions of a network's raw outputs."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.types import ActionSpace, Box, Discrete, MultiBinary, MultiDiscrete

TINY = 1e-12
"""The smallest probability or variance that a logarithm is taken of."""


class Distribution(NamedTuple):
    """A family of distributions, its parameters the last axis of `outputs` (..., num_outputs).

    draw(key, shape) -> noise           what `sample` turns into an action; shape is the batch's
    sample(outputs, noise) -> action
    mode(outputs) -> action
    log_prob(outputs, action) -> (...)  summed over the parts of an action
    entropy(outputs) -> (...)
    kl(p, q) -> (...)                   KL(p || q), in closed form

    All are exponential families, p(a) = exp(eta . T(a) - A), which gives averages of policies:

    natural(outputs) -> eta             from_natural(eta) -> outputs
    log_partition(outputs) -> A (...)
    moments(outputs) -> E[T(a)]         from_moments(moments) -> outputs
    """

    num_outputs: int
    draw: Callable[[Array, tuple[int, ...]], Array]
    sample: Callable[[Array, Array], Array]
    mode: Callable[[Array], Array]
    log_prob: Callable[[Array, Array], Array]
    entropy: Callable[[Array], Array]
    kl: Callable[[Array, Array], Array]
    natural: Callable[[Array], Array]
    from_natural: Callable[[Array], Array]
    log_partition: Callable[[Array], Array]
    moments: Callable[[Array], Array]
    from_moments: Callable[[Array], Array]


def distribution_for(space: ActionSpace) -> Distribution:
    """The distribution a policy needs for an action space.

    >>> from shoal.types import Discrete
    >>> distribution_for(Discrete(3)).num_outputs
    3
    """
    match space:
        case Discrete(num):
            return categorical(num)
        case MultiDiscrete(nums):
            return independent_categoricals(nums)
        case MultiBinary(num):
            return bernoulli(num)
        case Box(shape):
            return gaussian(shape)


def categorical(num: int) -> Distribution:
    """One of `num` choices with probabilities softmax(outputs)."""

    def log_prob(outputs, action):
        # A comparison and a sum rather than an index: its gradient is not a scatter.
        choices = jax.lax.broadcasted_iota(action.dtype, outputs.shape, outputs.ndim - 1)
        return jnp.sum(jnp.where(choices == action[..., None], jax.nn.log_softmax(outputs), 0.0), -1)

    def entropy(outputs):
        log_p = jax.nn.log_softmax(outputs)
        return -jnp.sum(jnp.exp(log_p) * log_p, -1)

    def kl(p, q):
        log_p, log_q = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)

    return softmax_family(
        num_outputs=num,
        choose=_argmax,
        log_prob=log_prob,
        entropy=entropy,
        kl=kl,
        log_partition=lambda outputs: jax.nn.logsumexp(outputs, -1),
        moments=lambda outputs: jax.nn.softmax(outputs),
    )


def independent_categoricals(nums: tuple[int, ...]) -> Distribution:
    """Several independent choices, their logits concatenated."""
    parts = [categorical(num) for num in nums]
    cuts = [int(cut) for cut in np.cumsum(nums)[:-1]]

    def split(x):
        return jnp.split(x, cuts, axis=-1)

    def choose(scores):
        return jnp.stack([_argmax(part) for part in split(scores)], -1)

    def log_prob(outputs, action):
        choices = jnp.moveaxis(action, -1, 0)
        return sum(d.log_prob(o, a) for d, o, a in zip(parts, split(outputs), choices, strict=True))

    def entropy(outputs):
        return sum(d.entropy(o) for d, o in zip(parts, split(outputs), strict=True))

    def kl(p, q):
        return sum(d.kl(a, b) for d, a, b in zip(parts, split(p), split(q), strict=True))

    return softmax_family(
        num_outputs=sum(nums),
        choose=choose,
        log_prob=log_prob,
        entropy=entropy,
        kl=kl,
        log_partition=lambda outputs: sum(jax.nn.logsumexp(part, -1) for part in split(outputs)),
        moments=lambda outputs: jnp.concatenate([jax.nn.softmax(part) for part in split(outputs)], -1),
    )


def softmax_family(
    *, num_outputs: int, choose: Callable[[Array], Array], **functions: Callable
) -> Distribution:
    """Distributions over choices whose natural parameters are logits.

    `choose(scores)` is the choice with the highest score; with logits plus Gumbel noise as scores, a sample.
    """
    return Distribution(
        num_outputs=num_outputs,
        draw=lambda key, shape: jax.random.gumbel(key, (*shape, num_outputs)),
        sample=lambda outputs, noise: choose(outputs + noise),
        mode=choose,
        natural=lambda outputs: outputs,
        from_natural=lambda eta: eta,
        from_moments=_log,
        **functions,
    )


def bernoulli(num: int) -> Distribution:
    """`num` independent switches, on with probability sigmoid(outputs)."""
    on, off = jax.nn.log_sigmoid, lambda logits: jax.nn.log_sigmoid(-logits)

    def kl(p, q):
        return jnp.sum(jax.nn.sigmoid(p) * (on(p) - on(q)) + jax.nn.sigmoid(-p) * (off(p) - off(q)), -1)

    return Distribution(
        num_outputs=num,
        draw=lambda key, shape: jax.random.logistic(key, (*shape, num)),
        sample=lambda outputs, noise: (outputs + noise > 0).astype(jnp.int32),
        mode=lambda outputs: (outputs > 0).astype(jnp.int32),
        log_prob=lambda outputs, action: jnp.sum(jnp.where(action > 0, on(outputs), off(outputs)), -1),
        entropy=lambda logits: (
            -jnp.sum(jax.nn.sigmoid(logits) * on(logits) + jax.nn.sigmoid(-logits) * off(logits), -1)
        ),
        kl=kl,
        natural=lambda outputs: outputs,
        from_natural=lambda eta: eta,
        log_partition=lambda outputs: jnp.sum(jax.nn.softplus(outputs), -1),
        moments=jax.nn.sigmoid,
        from_moments=lambda p: _log(p) - _log(1 - p),
    )


def gaussian(shape: tuple[int, ...]) -> Distribution:
    """Independent normals; outputs are the means, then the logarithms of the standard deviations.

    Actions are not squashed: rollouts hold them as drawn, and environments clip them.
    """
    size = int(np.prod(shape))
    half_log_tau = 0.5 * float(np.log(2 * np.pi))

    def flat(action):
        return action.reshape(*action.shape[: action.ndim - len(shape)], size)

    def full(flat_action):
        return flat_action.reshape(flat_action.shape[:-1] + shape)

    def log_prob(outputs, action):
        mean, log_std = jnp.split(outputs, 2, -1)
        scaled = (flat(action) - mean) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * scaled**2 - log_std - half_log_tau, -1)

    def kl(p, q):
        (mean_p, log_p), (mean_q, log_q) = jnp.split(p, 2, -1), jnp.split(q, 2, -1)
        ratio, shift = jnp.exp(2 * (log_p - log_q)), (mean_p - mean_q) * jnp.exp(-log_q)
        return jnp.sum(0.5 * (ratio + shift**2 - 1) - (log_p - log_q), -1)

    def sample(outputs, noise):
        mean, log_std = jnp.split(outputs, 2, -1)
        return full(mean + jnp.exp(log_std) * noise)

    def natural(outputs):  # T(a) = [a, a^2], eta = [mean / var, -1 / (2 var)]
        mean, log_std = jnp.split(outputs, 2, -1)
        precision = jnp.exp(-2 * log_std)
        return jnp.concatenate([mean * precision, -0.5 * precision], -1)

    def from_natural(eta):
        first, second = jnp.split(eta, 2, -1)
        var = -0.5 / jnp.minimum(second, -TINY)
        return jnp.concatenate([first * var, 0.5 * jnp.log(var)], -1)

    def log_partition(outputs):
        mean, log_std = jnp.split(outputs, 2, -1)
        return jnp.sum(0.5 * (mean * jnp.exp(-log_std)) ** 2 + log_std + half_log_tau, -1)

    def moments(outputs):
        mean, log_std = jnp.split(outputs, 2, -1)
        return jnp.concatenate([mean, mean**2 + jnp.exp(2 * log_std)], -1)

    def from_moments(moments):
        mean, square = jnp.split(moments, 2, -1)
        return jnp.concatenate([mean, 0.5 * _log(square - mean**2)], -1)

    return Distribution(
        num_outputs=2 * size,
        draw=lambda key, batch: jax.random.normal(key, (*batch, size)),
        sample=sample,
        mode=lambda outputs: full(outputs[..., :size]),
        log_prob=log_prob,
        entropy=lambda outputs: jnp.sum(outputs[..., size:] + 0.5 + half_log_tau, -1),
        kl=kl,
        natural=natural,
        from_natural=from_natural,
        log_partition=log_partition,
        moments=moments,
        from_moments=from_moments,
    )


def _log(x: Array) -> Array:
    return jnp.log(jnp.maximum(x, TINY))


def _argmax(scores: Array) -> Array:
    return jnp.argmax(scores, -1).astype(jnp.int32)
