"""Channels: how attacks, privacy and compression change a message on its way."""

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
"""(key, delta (L, D)) -> (L, D): the changes that learners send, and what the receivers get"""

ATTACKS: dict[str, Callable[[Array, Array, float], Array]] = {
    "sign-flip": lambda key, delta, strength: -strength * delta,
    "noise": lambda key, delta, strength: delta + strength * _normal(key, delta),
    "zero": lambda key, delta, strength: jnp.zeros_like(delta),
    "scale": lambda key, delta, strength: strength * delta,
}
"""What an attacker sends, from (key, delta, strength)."""


def attack(kind: str, bad: int, strength: float) -> Alteration:
    """The last `bad` learners are attackers: delta_i <- ATTACKS[kind](delta_i) for i >= L - bad.

    >>> attack("sign-flip", 1, 10.0)(jax.random.key(0), jnp.array([[1.0], [2.0], [3.0]])).tolist()
    [[1.0], [2.0], [-30.0]]
    """
    if kind not in ATTACKS:
        raise ShoalError(f"unknown attack {kind!r}; choose from {', '.join(ATTACKS)}")
    if bad < 0:
        raise ShoalError(f"bad must be at least 0, not {bad}")
    if not math.isfinite(strength):
        raise ShoalError(f"the strength of an attack must be a finite number, not {strength}")

    def send(key: Array, delta: Array) -> Array:
        attacks = jnp.arange(delta.shape[0]) >= delta.shape[0] - bad
        return jnp.where(attacks[:, None], ATTACKS[kind](key, delta, strength), delta)

    return send


def privatise(clip: float, noise_multiplier: float) -> Alteration:
    """delta_i min(1, clip / ||delta_i||) + noise_multiplier clip N(0, I) (Abadi et al. 2016).

    A message whose norm is not finite is replaced by 0, because clipping cannot bound it. The noise of
    learner i does not depend on the number of learners.

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
    """The epsilon for which `rounds` messages through `privatise` are together (epsilon, delta)-private.

    epsilon = min_a rounds a / (2 noise_multiplier^2) + log(1 - 1/a) - log(a delta) / (a - 1)

    over orders a > 1 of Renyi differential privacy (Mironov 2017), computed by Google's `dp_accounting`.
    Neighbouring data sets differ by one contribution of norm at most `clip`.

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
        raise ShoalError('privacy/epsilon needs dp-accounting: pip install "shoal[privacy]"') from error
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise_multiplier), rounds))
    return float(accountant.get_epsilon(delta))


class Compressor(NamedTuple):
    """A compression of messages.

    The caller keeps what is lost, to send it later: residual <- delta - apply(delta).
    """

    apply: Callable[[Array], Array]  # delta (L, D) -> (L, D): what the receiver decompresses
    message_bytes: Callable[[int], int]  # D -> bytes of one message


def none() -> Compressor:
    """No compression: 4 D bytes."""
    return Compressor(apply=lambda delta: delta, message_bytes=lambda size: 4 * size)


def top_k(keep: float) -> Compressor:
    """The k = ceil(keep D) coordinates of largest magnitude, the rest 0; a value and its index take 8 bytes.

    >>> half = top_k(0.5)
    >>> half.apply(jnp.array([[1.0, -3.0, 2.0, 0.5]])).tolist(), half.message_bytes(4)
    ([[0.0, -3.0, 2.0, 0.0]], 16)
    """
    if not 0 < keep <= 1:
        raise ShoalError(f"keep must be a fraction above 0 and at most 1, not {keep}")
    # Fraction takes the decimal as written: 0.07 * 100 is more than 7 in floating point.
    num_kept = lambda size: math.ceil(Fraction(str(keep)) * size)

    def apply(delta: Array) -> Array:
        _, index = jax.lax.top_k(jnp.abs(delta), num_kept(delta.shape[1]))
        values = jnp.take_along_axis(delta, index, 1)
        return jnp.put_along_axis(jnp.zeros_like(delta), index, values, 1, inplace=False)

    return Compressor(apply, message_bytes=lambda size: 8 * num_kept(size))


def int8() -> Compressor:
    """s round(delta / s), s = max|delta| / 127 of each message; one byte per coordinate and 4 for s.

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
"""Compressors by their names on the command line, each from the fraction to keep."""


class Channel(NamedTuple):
    """How a message changes on its way: privacy, then compression, then attack.

    With any of these, learners send their change since the last message instead of their parameters. What
    compression loses is sent later (error feedback, Seide et al. 2014; in gossip the receivers' copies have
    the same effect, Koloskova et al. 2019). An attacker sends a false message, but its `FeedbackState` is
    that of the true one.
    """

    privacy: Alteration | None = None
    compressor: Compressor | None = None
    attack: Alteration | None = None

    @property
    def is_plain(self) -> bool:
        """Whether messages are the parameters, unchanged."""
        return self == (None, None, None)

    def message_bytes(self, size: int) -> int:
        """The bytes of a message of so many numbers."""
        return (self.compressor or none()).message_bytes(size)


class FeedbackState(NamedTuple):
    """Error feedback, (L, D) each."""

    public: Array  # the receivers' copy of each learner's parameters
    residual: Array  # what compression has lost and a later message will add


PLAIN = Channel()
"""Messages are the parameters, unchanged."""


def send(channel: Channel, key: Array, own: Array, feedback: FeedbackState) -> tuple[Array, FeedbackState]:
    """The parameters as receivers see them, (L, D), and the feedback as the senders keep it."""
    key_privacy, key_attack = jax.random.split(key)
    delta = own - feedback.public
    delta = channel.privacy(key_privacy, delta) if channel.privacy else delta
    delta = delta + feedback.residual
    sent = channel.compressor.apply(delta) if channel.compressor else delta
    arrived = channel.attack(key_attack, sent) if channel.attack else sent
    return feedback.public + arrived, FeedbackState(feedback.public + sent, delta - sent)


def _check_noise(noise_multiplier: float) -> None:
    if not 0 <= noise_multiplier < math.inf:
        raise ShoalError(f"the noise multiplier must be at least 0 and finite, not {noise_multiplier}")


def _normal(key: Array, delta: Array) -> Array:
    """N(0, I), a key for each learner."""
    draw = lambda i: jax.random.normal(jax.random.fold_in(key, i), delta.shape[1:], delta.dtype)
    return jax.vmap(draw)(jnp.arange(delta.shape[0]))
