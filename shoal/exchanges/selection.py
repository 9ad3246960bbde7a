"""Selection: who is copied by whom, and who is changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.errors import ShoalError
from shoal.exchanges.routing import HERE, Transport, take_drawn
from shoal.types import LearnerState


class Selected(NamedTuple):
    """What a selection decides, (L,) each."""

    parent: Array  # int32: whom each learner becomes; itself, if it stays
    mutate: Array  # bool: whose hyperparameters are to be changed


class Migrated(NamedTuple):
    """What a selection with migration decides, (L,) each."""

    parent: Array  # int32: whom each learner becomes; itself, if it stays
    mutate: Array  # bool: whose hyperparameters are to be changed
    hypers_parent: Array  # int32: whose hyperparameters it gets; the parent's but for some migrants


@dataclass(frozen=True)
class SelectionRule:
    """(key, score (L,), eligible (L,) bool) -> Selected.

    The higher score is the better; of equals, the lower index. Who is not eligible, or whose score is not a
    finite number, is neither copied nor replaced nor changed. The champion, the best of the eligible, is
    neither replaced nor changed. So with fewer than two eligible nothing happens.
    """

    select: Callable[[Array, Array, Array], Selected]
    donors: Callable[[int], int]
    """Of so many learners, how many are copied by others at most."""

    def __call__(self, key: Array, score: Array, eligible: Array) -> Selected:
        return self.select(key, score, eligible)


def truncation(fraction: float = 0.25, middle: bool = False) -> SelectionRule:
    """The k worst of n copy the k best, one each, matched at random, and are changed (Jaderberg et al. 2017).

    parent(x_(n-k+j)) = x_(s_j), j = 1..k,  s a permutation of 1..k,
    k = min(max(floor(fraction n), 1), floor(n / 2)),  x_(1) the best

    With `middle`, those who are neither among the best nor the worst are changed as well (Sample-Factory).

    >>> rule = truncation(0.5)
    >>> parent, mutate = rule(jax.random.key(0), jnp.array([15.0, 10.0, 2.0, 8.0]), jnp.ones(4, bool))
    >>> sorted(parent.tolist()), mutate.tolist()
    ([0, 0, 1, 1], [False, False, True, True])
    """
    if not 0 < fraction <= 1:
        raise ShoalError(f"fraction must be above 0 and at most 1, not {fraction}")

    def replaced(num: np.ndarray) -> np.ndarray:
        """k for every n, counted in double precision, and a little more: 0.29 * 100 is 28.999999999999996."""
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
    """parent(i) = argmax_j score_j for all: everyone copies the champion, and all others are changed.

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
    """Each meets rivals drawn from the eligible, with replacement; who copied another is changed.

    parent(i) = argmax of score over {i, j_1, ..., j_size},  j ~ U(eligible);  i itself unless beaten
    """
    if size < 1:
        raise ShoalError(f"size must be at least 1, not {size}")

    def select(key: Array, score: Array, eligible: Array) -> Selected:
        eligible = eligible & jnp.isfinite(score)
        order, rank = _order(score, eligible)
        num = jnp.maximum(jnp.sum(eligible), 1)
        rivals = jax.random.randint(key, (len(score), size), 0, num)  # by rank, so the best is the least
        best = order[jnp.min(rivals, 1)[rank]]
        beaten = eligible & (score[best] > score)
        parent = jnp.where(beaten, best, jnp.arange(len(score)))
        return Selected(parent.astype(jnp.int32), beaten)

    return SelectionRule(select, donors=lambda num_learners: num_learners)


def subpopulations(
    groups: int, rule: SelectionRule, migrate_every: int = 1, ratios: Sequence[int] = (1, 5, 10, 25)
) -> Callable[[Array, Array, Array, Array], Migrated]:
    """Groups that select at different frequencies, and a few migrants (after Doulazmi et al. 2025, MF-PBT).

    (key, score (L,), eligible (L,), call) -> Migrated; call counts from 1.

    The learners fall into `groups` equal neighbouring groups. Group g acts at the calls that ratios[g]
    divides: `rule` selects within it. At every `migrate_every`-th of its acts one learner may come from
    elsewhere: let w be the worst of the group's eligible, p whom w was to become, and m the best eligible
    learner of all other groups. If w is not the group's champion and score_m > score_p, then w becomes m,
    unchanged. If m's group acts as often or more seldom, m's hyperparameters come along; if it acts more
    often, w gets those of its own group's champion, lest short-sighted ones spread to those who look far.
    The champion of every group is neither replaced nor changed. One group is the rule itself.
    """
    if groups < 1:
        raise ShoalError(f"groups must be at least 1, not {groups}")
    if migrate_every < 1:
        raise ShoalError(f"migrate_every must be at least 1, not {migrate_every}")
    if len(ratios) < groups or min(ratios) < 1:
        raise ShoalError(f"ratios must be {groups} numbers of at least 1, one a group, not {tuple(ratios)}")
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
        place = jnp.where(comes, worst, len(score))  # beyond the end: dropped
        hypers = jnp.where(jnp.asarray(ratio)[source] >= ratio, champion[source], champion)
        put = lambda x, new: x.at[place].set(new, mode="drop")
        return Migrated(
            put(parent, champion[source]).astype(jnp.int32),
            put(mutate, False),
            put(parent, hypers).astype(jnp.int32),
        )

    return select


def num_donors(groups: int, rule: SelectionRule, num_learners: int) -> int:
    """How many learners are copied by others at most, by `subpopulations` of a rule.

    Migrants are copies of the best of all or, in its own group, of the best of all others.

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
"""By their names on the command line, each made with its default settings."""


def copy_parents(
    cohort: LearnerState,
    parent: Array,
    hypers_parent: Array | None = None,
    most: int | None = None,
    transport: Transport = HERE,
) -> LearnerState:
    """x_i <- x_parent(i): parameters, statistics, optimiser, hyperparameters, anchor; memory stays.

    Hyperparameters come from `hypers_parent` where that is given. Who keeps itself is the same to the bit. At
    most `most` learners are copied by others.
    """
    num_learners = parent.shape[0]
    hypers_parent = parent if hypers_parent is None else hypers_parent
    models = cohort._replace(hypers=(), private=())
    models = take_drawn(models, parent, num_learners if most is None else most, transport)
    hypers = take_drawn(cohort.hypers, hypers_parent, num_learners, transport)
    return models._replace(hypers=hypers, private=cohort.private)


def _order(score: Array, eligible: Array) -> tuple[Array, Array]:
    """Learners from best to worst, the ineligible last, and everyone's place in that line."""
    order = jnp.argsort(jnp.where(eligible, -score, jnp.inf), stable=True)
    return order, jnp.zeros_like(order).at[order].set(jnp.arange(len(score), dtype=order.dtype))
