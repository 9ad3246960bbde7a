"""What happens to a message on its way: attacks, privacy, compression."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError

Alteration: TypeAlias = Callable[[Array, Array], Array]
"""(key, delta (L, D), one row per learner: the change it wants to send) -> what arrives (L, D)"""

ATTACKS: dict[str, Callable[[Array, Array, float], Array]] = {
    "sign-flip": lambda key, delta, strength: -strength * delta,
    "noise": lambda key, delta, strength: delta + strength * _normal(key, delta),
    "zero": lambda key, delta, strength: jnp.zeros_like(delta),
    "scale": lambda key, delta, strength: strength * delta,
}
"""What a liar sends, from (key, delta, strength)."""


def attack(kind: str, bad: int, strength: float) -> Alteration:
    """The last `bad` learners lie: delta_i <- ATTACKS[kind](delta_i) for i >= L - bad.

    >>> attack("sign-flip", 1, 10.0)(jax.random.key(0), jnp.array([[1.0], [2.0], [3.0]])).tolist()
    [[1.0], [2.0], [-30.0]]
    """
    if kind not in ATTACKS:
        raise ShoalError(f"no attack {kind!r}; there are {', '.join(ATTACKS)}")
    if bad < 0:
        raise ShoalError(f"bad must be at least 0, not {bad}")
    if not math.isfinite(strength):
        raise ShoalError(f"the strength of an attack must be a finite number, not {strength}")

    def send(key: Array, delta: Array) -> Array:
        lies = jnp.arange(delta.shape[0]) >= delta.shape[0] - bad
        return jnp.where(lies[:, None], ATTACKS[kind](key, delta, strength), delta)

    return send


def privatise(clip: float, noise_multiplier: float) -> Alteration:
    """delta_i min(1, clip / ||delta_i||) + noise_multiplier clip N(0, I) (Abadi et al. 2016).

    A message whose norm is not finite is sent as 0, plus noise: clipping cannot bound it. Row i has the
    same noise however many rows there are.

    >>> privatise(1.0, 0.0)(jax.random.key(0), jnp.array([[0.25, 0.0], [0.0, 4.0]])).tolist()
    [[0.25, 0.0], [0.0, 1.0]]
    """
    if not 0 < clip < math.inf:
        raise ShoalError(f"clip must be a positive number, not {clip}")
    _check_noise(noise_multiplier)

    def send(key: Array, delta: Array) -> Array:
        norm = jnp.sqrt(jnp.sum(delta**2, 1))
        clipped = delta * (clip / jnp.maximum(norm, clip))[:, None]
        bounded = jnp.where(jnp.isfinite(norm)[:, None], clipped, 0.0)
        return bounded + noise_multiplier * clip * _normal(key, delta)

    return send


@lru_cache
def epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """The `rounds` messages of a learner, put through `privatise`, are together (epsilon, delta)-private.

    epsilon = min_a rounds a / (2 noise_multiplier^2) + log(1 - 1/a) - log(a delta) / (a - 1)

    over orders a > 1 of Renyi differential privacy (Mironov 2017), by Google's `dp_accounting`. What
    stays hidden is whether a contribution, of norm at most `clip`, was there at all.

    >>> epsilon(1.0, 0, 1e-5), epsilon(0.0, 1, 1e-5)
    (0.0, inf)
    """
    _check_noise(noise_multiplier)
    if rounds < 0:
        raise ShoalError(f"rounds must be at least 0, not {rounds}")
    if not 0 < delta < 1:
        raise ShoalError(f"delta must lie between 0 and 1, not {delta}")
    if rounds == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    try:
        from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise ShoalError('counting privacy needs dp-accounting: pip install "shoal[privacy]"') from error
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise_multiplier), rounds))
    return float(accountant.get_epsilon(delta))


class Compressor(NamedTuple):
    """How a message is made short, and how short.

    What it loses is the caller's to keep and send later: residual <- delta - apply(delta).
    """

    apply: Callable[[Array], Array]  # delta (L, D) -> what arrives (L, D)
    message_bytes: Callable[[int], int]  # D -> the bytes of one message


def none() -> Compressor:
    """delta as it is, 4 D bytes."""
    return Compressor(apply=lambda delta: delta, message_bytes=lambda size: 4 * size)


def top_k(keep: float) -> Compressor:
    """The k = ceil(keep D) coordinates largest in magnitude, the rest 0; a number and its place are 8 bytes.

    >>> half = top_k(0.5)
    >>> half.apply(jnp.array([[1.0, -3.0, 2.0, 0.5]])).tolist(), half.message_bytes(4)
    ([[0.0, -3.0, 2.0, 0.0]], 16)
    """
    if not 0 < keep <= 1:
        raise ShoalError(f"keep must be a fraction above 0 and at most 1, not {keep}")
    # The decimal as it was written: 0.07 * 100 is more than 7 in floating point.
    num_kept = lambda size: math.ceil(Fraction(str(keep)) * size)

    def apply(delta: Array) -> Array:
        _, place = jax.lax.top_k(jnp.abs(delta), num_kept(delta.shape[1]))
        values = jnp.take_along_axis(delta, place, 1)
        return jnp.put_along_axis(jnp.zeros_like(delta), place, values, 1, inplace=False)

    return Compressor(apply, message_bytes=lambda size: 8 * num_kept(size))


def int8() -> Compressor:
    """s round(delta / s), s = max|delta| / 127 of each message; a byte per coordinate and 4 for s.

    >>> int8().apply(jnp.array([[127.0, 0.4, -1.6], [0.0, 0.0, 0.0]])).tolist()
    [[127.0, 0.0, -2.0], [0.0, 0.0, 0.0]]
    """

    def apply(delta: Array) -> Array:
        scale = jnp.max(jnp.abs(delta), 1, keepdims=True) / 127
        return jnp.round(delta / jnp.where(scale > 0, scale, 1.0)) * scale

    return Compressor(apply, message_bytes=lambda size: size + 4)


COMPRESSORS: dict[str, Callable[[float], Compressor]] = {
    "none": lambda keep: none(),
    "top-k": top_k,
    "int8": lambda keep: int8(),
}
"""By their names on the command line, each made from the fraction to keep."""


def _check_noise(noise_multiplier: float) -> None:
    if not 0 <= noise_multiplier < math.inf:
        raise ShoalError(f"the noise multiplier must be at least 0 and finite, not {noise_multiplier}")


def _normal(key: Array, delta: Array) -> Array:
    """N(0, I), row i from a key of its own."""
    row = lambda i: jax.random.normal(jax.random.fold_in(key, i), delta.shape[1:], delta.dtype)
    return jax.vmap(row)(jnp.arange(delta.shape[0]))
