"""Robust aggregation: rules that tolerate Byzantine learners."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from shoal.errors import ShoalError

Aggregator: TypeAlias = Callable[[Array, Array], Array]
"""(messages (L, D), weight (L,)) -> one message (D,).

A learner of weight 0 is absent, and its message is not read. Robust rules use only whether a weight is above
0, and treat numbers that are not finite as extreme values. With too few present a rule tolerates fewer; with
none present the result is 0.
"""


def mean() -> Aggregator:
    """sum_i w_i x_i / sum_i w_i, which a single attacker can move anywhere.

    >>> mean()(jnp.array([[1.0], [4.0], [jnp.nan]]), jnp.array([2.0, 1.0, 0.0])).tolist()
    [2.0]
    """

    def aggregate(messages: Array, weight: Array) -> Array:
        total = jnp.sum(weight)
        share = weight / jnp.where(total > 0, total, 1.0)
        # Rounded shares do not sum to 1 exactly; over thousands of rounds the error would accumulate.
        shares = jnp.where(total > 0, jnp.sum(share), 1.0)
        present = jnp.where((weight > 0)[:, None], messages, 0.0)
        return jnp.matmul(share, present, precision="highest") / shares

    return aggregate


def median() -> Aggregator:
    """The coordinate-wise median of present learners: (x_(floor((n+1)/2)) + x_(ceil((n+1)/2))) / 2.

    >>> median()(jnp.array([[1.0], [2.0], [4.0], [jnp.inf]]), jnp.ones(4)).tolist()
    [3.0]
    """

    def aggregate(messages: Array, weight: Array) -> Array:
        return _median(messages, weight > 0)

    return aggregate


def trimmed_mean(bad: int) -> Aggregator:
    """Per coordinate, sum_{bad < i <= n - bad} x_(i) / (n - 2 bad), without the extremes (Yin et al. 2018).

    >>> trimmed_mean(1)(jnp.array([[1.0], [2.0], [6.0], [-jnp.inf]]), jnp.ones(4)).tolist()
    [1.5]
    """
    _check_count("bad", bad, 0)

    def aggregate(messages: Array, weight: Array) -> Array:
        return _trimmed_mean(messages, weight > 0, bad)

    return aggregate


def krum(bad: int) -> Aggregator:
    """The message with the smallest Krum score s_i (Blanchard et al. 2017).

    s_i = sum of ||x_i - x_j||^2 over the n - bad - 2 nearest j != i

    >>> krum(1)(jnp.array([[0.0], [1.0], [3.0], [4.5], [1e9]]), jnp.ones(5)).tolist()
    [1.0]
    """
    return multi_krum(bad, keep=1)


def multi_krum(bad: int, keep: int | None = None) -> Aggregator:
    """The mean of the `keep` messages with the smallest Krum scores s_i; n - bad of them by default.

    >>> multi_krum(1, keep=2)(jnp.array([[0.0], [1.0], [3.0], [4.5], [1e9]]), jnp.ones(5)).tolist()
    [2.0]
    """
    _check_count("bad", bad, 0)
    if keep is not None:
        _check_count("keep", keep, 1)

    def aggregate(messages: Array, weight: Array) -> Array:
        present = weight > 0
        num = jnp.sum(present)
        centre, offset, usable = _centred(messages, present)
        neighbours = jnp.clip(num - bad - 2, 1, jnp.sum(usable) - 1)
        score = jnp.where(usable, _krum_scores(offset, usable, neighbours), jnp.inf)
        rank = jnp.argsort(jnp.argsort(score))
        chosen = usable & (rank < jnp.maximum(num - bad if keep is None else keep, 1))
        return jnp.where(jnp.any(usable), mean()(messages, chosen.astype(messages.dtype)), centre)

    return aggregate


def geometric_median(iterations: int = 32) -> Aggregator:
    """argmin_z sum_i ||x_i - z||, by Weiszfeld's iteration, smoothed (Pillutla et al. 2022).

    z <- sum_i w_i x_i / sum_i w_i,  w_i = 1 / max(||x_i - z||, nu)

    It starts from the coordinate-wise median; nu is 1e-5 of the median distance from there.

    >>> messages = jnp.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [9e9, -7e9], [jnp.nan, 0.0]])
    >>> geometric_median()(messages, jnp.ones(5)).tolist()
    [1.0, 2.0]
    """
    _check_count("iterations", iterations, 1)

    def aggregate(messages: Array, weight: Array) -> Array:
        centre, offset, usable = _centred(messages, weight > 0)
        distance = lambda z: jnp.sqrt(jnp.sum((offset - z[None, :]) ** 2, 1))
        from_centre = jnp.sort(jnp.where(usable, distance(jnp.zeros_like(centre)), jnp.inf))
        nu = jnp.maximum(1e-5 * from_centre[jnp.maximum(jnp.sum(usable) - 1, 0) // 2], 1e-30)

        def step(_, z: Array) -> Array:
            w = jnp.where(usable, 1.0 / jnp.maximum(distance(z), nu), 0.0)
            share = w / jnp.maximum(jnp.sum(w), 1e-30)
            return jnp.matmul(share, offset, precision="highest")

        return centre + jax.lax.fori_loop(0, iterations, step, jnp.zeros_like(centre))

    return aggregate


RULES: dict[str, Callable[[int], Aggregator]] = {
    "median": lambda bad: median(),
    "trimmed-mean": trimmed_mean,
    "krum": krum,
    "multi-krum": multi_krum,
    "geometric-median": lambda bad: geometric_median(),
}
"""Robust rules by their names on the command line, each from the number of Byzantine learners to tolerate."""


def check_bad(rule: str, num_learners: int, bad: int) -> None:
    """Raise unless `rule` tolerates `bad` of n learners: bad < n / 2, and n >= 2 bad + 3 for Krum.

    >>> check_bad("krum", 9, 3)
    >>> check_bad("krum", 8, 3)
    Traceback (most recent call last):
    shoal.errors.ShoalError: krum tolerates at most 2 bad of 8 learners, not 3 (it needs 2 bad + 3 <= 8)
    """
    _check_count("bad", bad, 0)
    largest = largest_bad(rule, num_learners)
    if bad > largest:
        raise ShoalError(
            f"{rule} tolerates at most {largest} bad of {num_learners} learners, not {bad} "
            f"(it needs 2 bad + {_margin(rule)} <= {num_learners})"
        )


def largest_bad(rule: str, num_learners: int) -> int:
    """How many Byzantine learners of n a rule tolerates.

    >>> largest_bad("median", 9), largest_bad("krum", 9)
    (4, 3)
    """
    if rule not in RULES:
        raise ShoalError(f"unknown robust rule {rule!r}; choose from {', '.join(RULES)}")
    if num_learners < _margin(rule):
        raise ShoalError(f"{rule} needs {_margin(rule)} or more learners, not {num_learners}")
    return (num_learners - _margin(rule)) // 2


def _margin(rule: str) -> int:
    """n - 2 bad must be at least this."""
    return 3 if rule in ("krum", "multi-krum") else 1


def _check_count(name: str, value: int, least: int) -> None:
    if value < least:
        raise ShoalError(f"{name} must be at least {least}, not {value}")


def _median(messages: Array, present: Array) -> Array:
    """The trimmed mean that drops as many as it can: the middle value, or the mean of the middle two."""
    return _trimmed_mean(messages, present, len(messages))


def _trimmed_mean(messages: Array, present: Array, bad: int) -> Array:
    """The mean of ranks trim..n-trim-1 of the present, trim = min(bad, floor((n - 1) / 2)), per coordinate.

    -inf counts as the smallest finite value of the coordinate, inf and NaN as the largest: so they keep their
    rank, and the result is finite even where that rank is not trimmed. It is 0 where nothing is finite.
    """
    finite = present[:, None] & jnp.isfinite(messages)
    low = _fold(jnp.minimum, jnp.where(finite, messages, jnp.inf))
    high = _fold(jnp.maximum, jnp.where(finite, messages, -jnp.inf))
    low, high = jnp.where(low > high, 0.0, low), jnp.where(low > high, 0.0, high)
    x = jnp.where(finite, messages, jnp.where(messages == -jnp.inf, low[None, :], high[None, :]))
    num = jnp.sum(present)
    trim = jnp.minimum(bad, (num - 1) // 2)
    rank = _rank(x, present)
    kept = present[:, None] & (rank >= trim) & (rank < num - trim)
    total = _fold(jnp.add, jnp.where(kept, x, 0.0))
    return jnp.clip(
        total / jnp.maximum(num - 2 * trim, 1), low, high
    )  # rounding and overflow may exceed the bounds


def _fold(combine: Callable[[Array, Array], Array], rows: Array) -> Array:
    """combine(... combine(rows_0, rows_1) ..., rows_{L-1}).

    `jnp.sum(rows, 0)` and the like are tens of times as slow on CPUs (jax 0.10).
    """
    return jax.lax.fori_loop(1, len(rows), lambda i, folded: combine(folded, rows[i]), rows[0])


def _rank(x: Array, present: Array) -> Array:
    """The rank of x_i among the present, per coordinate: the number of x_j < x_i, or x_j = x_i and j < i.

    Comparing all pairs is 4 to 30 times as fast on CPUs as sorting along 64 to 4 learners.
    """
    if len(x) > 128:
        return jnp.argsort(jnp.argsort(jnp.where(present[:, None], x, jnp.inf), 0), 0)
    index = jnp.arange(len(x))

    def count(j: Array, rank: Array) -> Array:
        other = x[j][None, :]
        return rank + (present[j] & ((other < x) | ((other == x) & (j < index)[:, None])))

    return jax.lax.fori_loop(0, len(x), count, jnp.zeros(x.shape, jnp.int32))


def _centred(messages: Array, present: Array) -> tuple[Array, Array, Array]:
    """The median m (D,), x_i - m (L, D), and which are usable; 0 for absent and for too distant messages.

    Squared distances are accurate only for messages near 0. The median is a centre that attackers cannot move
    far; the mean is not.
    """
    centre = _median(messages, present)
    offset = messages - centre[None, :]
    farthest = jnp.finfo(messages.dtype).max / (8 * len(messages))  # no sum of L distances overflows
    usable = present & (jnp.sum(offset**2, 1) < farthest)
    return centre, jnp.where(usable[:, None], offset, 0.0), usable


def _krum_scores(offset: Array, usable: Array, neighbours: Array) -> Array:
    """s_i = sum over the nearest `neighbours` of ||x_i||^2 + ||x_j||^2 - 2 x_i . x_j, j != i."""
    gram = jnp.matmul(offset, offset.T, precision="highest")
    square = jnp.diagonal(gram)
    distance = jnp.maximum(square[:, None] + square[None, :] - 2 * gram, 0.0)
    others = usable[None, :] & ~jnp.eye(len(usable), dtype=bool)
    nearest = jnp.sort(jnp.where(others, distance, jnp.inf), 1)
    return jnp.sum(jnp.where(jnp.arange(len(usable))[None, :] < neighbours, nearest, 0.0), 1)
