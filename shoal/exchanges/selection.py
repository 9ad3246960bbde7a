"""Selection: which learners become copies of which, and whose hyperparameters are perturbed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges.routing import ONE_DEVICE, Transport, take_dynamic
from shoal.types import LearnerState


class Selected(NamedTuple):
    """The result of a selection, (L,) each."""

    parent: Array  # int32: the learner that each becomes a copy of; itself if it is not replaced
    mutate: Array  # bool: whose hyperparameters are perturbed


class Migrated(NamedTuple):
    """The result of a selection with migration, (L,) each."""

    parent: Array  # int32: the learner that each becomes a copy of; itself if it is not replaced
    mutate: Array  # bool: whose hyperparameters are perturbed
    hypers_parent: Array  # int32: the learner whose hyperparameters each gets; `parent` but for some migrants


@dataclass(frozen=True)
class SelectionRule:
    """(key, score (L,), eligible (L,) bool) -> Selected.

    A higher score is better; of equal scores, the lower index. Learners that are not eligible, or whose score
    is not finite, are neither copied nor replaced nor perturbed. The best eligible learner is neither
    replaced nor perturbed. So with fewer than two eligible learners nothing happens.
    """

    select: Callable[[Array, Array, Array], Selected]
    donors: Callable[[int], int]
    """(number of learners) -> the largest number of them that others copy"""

    def __call__(self, key: Array, score: Array, eligible: Array) -> Selected:
        return self.select(key, score, eligible)


def truncation(fraction: float = 0.25, middle: bool = False) -> SelectionRule:
    """The k worst of n copy the k best, matched at random, and are perturbed (Jaderberg et al. 2017).

    parent(x_(n-k+j)) = x_(s_j), j = 1..k,  s a permutation of 1..k,
    k = min(max(floor(fraction n), 1), floor(n / 2)),  x_(1) the best

    With `middle`, learners between the best and the worst are perturbed too (Sample-Factory).

    >>> rule = truncation(0.5)
    >>> parent, mutate = rule(jax.random.key(0), jnp.array([15.0, 10.0, 2.0, 8.0]), jnp.ones(4, bool))
    >>> sorted(parent.tolist()), mutate.tolist()
    ([0, 0, 1, 1], [False, False, True, True])
    """
    if not 0 < fraction <= 1:
        raise ShoalError(f"fraction must be above 0 and at most 1, not {fraction}")

    def replaced(num: np.ndarray) -> np.ndarray:
        """k for every n, in double precision plus a tolerance: 0.29 * 100 is 28.999999999999996."""
        wanted = np.clip(np.floor(fraction * num + 1e-9), 1, None).astype(np.int32)
        return np.minimum(wanted, num // 2)

    def select(key: Array, score: Array, eligible: Array) -> Selected:
        eligible = eligible & jnp.isfinite(score)
        order, rank = _order(score, eligible)
        num = jnp.sum(eligible)
        counts = np.arange(len(score) + 1)
        k = jnp.asarray(replaced(counts))[num]
        draw = jax.random.uniform(key, score.shape)
        shuffled = jnp.argsort(jnp.where(counts[:-1] < k, draw, 2.0))  # a permutation of the first k
        worst = eligible & (rank >= num - k)
        parent = jnp.where(worst, order[shuffled[rank - (num - k)]], jnp.arange(len(score)))
        mutate = eligible & (rank >= jnp.maximum(k, 1)) if middle else worst
        return Selected(parent.astype(jnp.int32), mutate)

    return SelectionRule(select, donors=lambda num_learners: int(replaced(np.array(num_learners))))


def winner() -> SelectionRule:
    """parent(i) = argmax_j score_j: all learners copy the best, and all others are perturbed.

    >>> parent, mutate = winner()(jax.random.key(0), jnp.array([1.0, 3.0, 2.0]), jnp.ones(3, bool))
    >>> parent.tolist(), mutate.tolist()
    ([1, 1, 1], [True, False, True])
    """

    def select(key: Array, score: Array, eligible: Array) -> Selected:
        eligible = eligible & jnp.isfinite(score)
        index = jnp.arange(len(score))
        champion = jnp.argmax(jnp.where(eligible, score, -jnp.inf))
        parent = jnp.where(eligible, champion, index)
        return Selected(parent.astype(jnp.int32), eligible & (index != champion))

    return SelectionRule(select, donors=lambda num_learners: 1)


def tournament(size: int = 2) -> SelectionRule:
    """Each learner copies the best of itself and `size` random rivals; those that copy another are perturbed.

    parent(i) = argmax of score over {i, j_1, ..., j_size},  j ~ U(eligible) with replacement
    """
    if size < 1:
        raise ShoalError(f"size must be at least 1, not {size}")

    def select(key: Array, score: Array, eligible: Array) -> Selected:
        eligible = eligible & jnp.isfinite(score)
        order, rank = _order(score, eligible)
        num = jnp.maximum(jnp.sum(eligible), 1)
        rivals = jax.random.randint(key, (len(score), size), 0, num)  # by rank: the best is the smallest
        best = order[jnp.min(rivals, 1)[rank]]
        beaten = eligible & (score[best] > score)
        parent = jnp.where(beaten, best, jnp.arange(len(score)))
        return Selected(parent.astype(jnp.int32), beaten)

    return SelectionRule(select, donors=lambda num_learners: num_learners)


def subpopulations(
    groups: int, rule: SelectionRule, migrate_every: int = 1, ratios: Sequence[int] = (1, 5, 10, 25)
) -> Callable[[Array, Array, Array, Array], Migrated]:
    """Groups that select at different frequencies, with migration (after Doulazmi et al. 2025, MF-PBT).

    (key, score (L,), eligible (L,), call) -> Migrated; call counts from 1.

    The learners are divided into `groups` equal groups by index. Group g selects at the calls that ratios[g]
    divides: `rule` is applied within it. At every `migrate_every`-th of these calls one learner may come from
    another group: let w be the worst eligible learner of the group, p its parent by the rule, and m the best
    eligible learner of all other groups. If w is not the best of its group and score_m > score_p, then w
    becomes a copy of m and is not perturbed. If m's group selects as often as w's or less often, w gets m's
    hyperparameters. If it selects more often, w gets those of the best of its own group, so that
    hyperparameters that pay off only in the short term do not spread. The best of each group is neither
    replaced nor perturbed. One group is the rule itself.
    """
    if groups < 1:
        raise ShoalError(f"groups must be at least 1, not {groups}")
    if migrate_every < 1:
        raise ShoalError(f"migrate_every must be at least 1, not {migrate_every}")
    if len(ratios) < groups or min(ratios) < 1:
        raise ShoalError(f"ratios must be {groups} numbers of at least 1, one per group, not {tuple(ratios)}")
    if groups == 1:

        def alone(key: Array, score: Array, eligible: Array, call: Array) -> Migrated:
            parent, mutate = rule(key, score, eligible)
            return Migrated(parent, mutate, parent)

        return alone

    ratio = np.array(ratios[:groups], np.int32)

    def select(key: Array, score: Array, eligible: Array, call: Array) -> Migrated:
        if len(score) % groups:
            raise ShoalError(f"{groups} groups do not divide {len(score)} learners")
        size = len(score) // groups
        eligible = eligible & jnp.isfinite(score)
        acting = call % ratio == 0  # (G,)
        apart = lambda x: x.reshape(groups, size)
        own = jax.vmap(rule)(jax.random.split(key, groups), apart(score), apart(eligible))
        first = size * jnp.arange(groups)[:, None]
        parent = jnp.where(acting[:, None], own.parent + first, apart(jnp.arange(len(score)))).reshape(-1)
        mutate = (own.mutate & acting[:, None]).reshape(-1)

        value = apart(jnp.where(eligible, score, -jnp.inf))
        champion = jnp.argmax(value, 1) + first[:, 0]  # (G,)
        worst = size - 1 - jnp.argmin(apart(jnp.where(eligible, score, jnp.inf))[:, ::-1], 1) + first[:, 0]
        best = jnp.max(value, 1)
        elsewhere = jnp.where(jnp.eye(groups, dtype=bool), -jnp.inf, best[None, :])  # (G, G)
        source = jnp.argmax(elsewhere, 1)
        better = jnp.max(elsewhere, 1) > score[parent[worst]]
        due = acting & ((call // ratio) % migrate_every == 0)
        comes = due & eligible[worst] & (worst != champion) & better
        index = jnp.where(comes, worst, len(score))  # out of range: dropped
        hypers = jnp.where(jnp.asarray(ratio)[source] >= ratio, champion[source], champion)
        put = lambda x, new: x.at[index].set(new, mode="drop")
        return Migrated(
            put(parent, champion[source]).astype(jnp.int32),
            put(mutate, False),
            put(parent, hypers).astype(jnp.int32),
        )

    return select


def replace_lost(selected: Migrated, score: Array, eligible: Array, lost: Array) -> Migrated:
    """The selection in which lost learners are copies of the best eligible one, if there is any, perturbed.

    >>> none = Migrated(jnp.arange(3), jnp.zeros(3, bool), jnp.arange(3))
    >>> score, everyone = jnp.array([1.0, 2.0, 9.0]), jnp.ones(3, bool)
    >>> replace_lost(none, score, everyone, jnp.array([False, False, True])).parent.tolist()
    [0, 1, 1]
    """
    donor = eligible & ~lost & jnp.isfinite(score)
    replaced = lost & jnp.any(donor)
    best = jnp.argmax(jnp.where(donor, score, -jnp.inf)).astype(jnp.int32)
    put = lambda index: jnp.where(replaced, best, index)
    return Migrated(put(selected.parent), selected.mutate | replaced, put(selected.hypers_parent))


def num_donors(groups: int, rule: SelectionRule, num_learners: int) -> int:
    """The largest number of learners that others copy, for `subpopulations` of a rule.

    Migrants are copies of the best of all groups or, in its own group, of the best of the others.

    >>> num_donors(1, truncation(0.25), 64), num_donors(4, truncation(0.25), 64)
    (16, 18)
    """
    migrants = 0 if groups == 1 else 2
    return min(num_learners, groups * rule.donors(num_learners // groups) + migrants)


RULES: dict[str, Callable[[], SelectionRule]] = {
    "truncation": truncation,
    "winner": winner,
    "tournament": tournament,
}
"""Selection rules by their names on the command line, each with its default settings."""


def copy_parents(
    cohort: LearnerState,
    parent: Array,
    hypers_parent: Array | None = None,
    most: int | None = None,
    transport: Transport = ONE_DEVICE,
) -> LearnerState:
    """x_i <- x_parent(i): parameters, statistics, optimiser, hyperparameters, anchor; `private` stays.

    Hyperparameters come from `hypers_parent` if it is given. A learner that is its own parent keeps the same
    bits. At most `most` learners are copied by others.
    """
    num_learners = parent.shape[0]
    hypers_parent = parent if hypers_parent is None else hypers_parent
    models = cohort._replace(hypers=(), private=())
    models = take_dynamic(models, parent, num_learners if most is None else most, transport)
    hypers = take_dynamic(cohort.hypers, hypers_parent, num_learners, transport)
    return models._replace(hypers=hypers, private=cohort.private)


def _order(score: Array, eligible: Array) -> tuple[Array, Array]:
    """The learners from best to worst, the ineligible last, and the rank of each."""
    order = jnp.argsort(jnp.where(eligible, -score, jnp.inf), stable=True)
    return order, jnp.zeros_like(order).at[order].set(jnp.arange(len(score), dtype=order.dtype))
