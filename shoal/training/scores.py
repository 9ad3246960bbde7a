"""The learners' scores, and how far the learners are from each other."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.distributed.processes import fetch
from shoal.exchanges.soundness import is_sound
from shoal.ops import trees
from shoal.ops.ranking import best_learner as best_learner
from shoal.training.rollout import Episodes
from shoal.types import EnvSpec, Learner, LearnerState, Scores, Tree

PEERS = 8
"""How many others each policy is compared with in reports."""
RECENT = 20
"""The number of last episodes by which learners are ranked and weighted."""


def current_scores(spec: EnvSpec, episodes: Episodes, samples: Array) -> Scores:
    """The learners' scores for an exchange; returns are means of the last `RECENT` episodes."""
    window, scored = episodes.returns.shape[1], team_return(spec, episodes.returns)
    age = (episodes.finished[:, None] - 1 - jnp.arange(window)[None]) % window
    known = jnp.isfinite(scored) & (age < RECENT)
    total = jnp.sum(jnp.where(known, scored, 0.0), 1)
    returns = jnp.where(jnp.any(known, 1), total / jnp.maximum(jnp.sum(known, 1), 1), jnp.nan)
    present = jnp.ones(samples.shape, bool)
    return Scores(samples.astype(jnp.float32), returns, episodes.finished, present)


def disagreement(
    learner: Learner, cohort: LearnerState, obs: Tree, links: np.ndarray | None = None
) -> dict[str, Array]:
    """How far each learner's parameters are from the mean, and its policy from some others'.

    The others are up to `PEERS` learners, evenly spaced along the cohort; with `links` (L, L) also up to as
    many of those it is linked with, and of the rest. Policies are compared at the learner's observations
    (L, E, ...). Lost learners do not count.
    """
    params, _ = trees.as_matrix(cohort.params)
    sound = is_sound(cohort)
    mean = jnp.sum(jnp.where(sound[:, None], params, 0.0), 0, keepdims=True) / jnp.sum(sound)
    metrics = {"disagreement/params": jnp.linalg.norm(params - mean, axis=1)}
    if learner.distance is None:
        return metrics
    num_learners = params.shape[0]
    shifts = sorted({round(k * num_learners / (PEERS + 1)) for k in range(1, PEERS + 1)} - {0, num_learners})
    policies = LearnerState(cohort.params, cohort.statistics, (), (), ())

    def distance_to(move: Callable[[Array], Array], known: Array | bool = True):
        distance = jax.vmap(learner.distance)(policies, jax.tree.map(move, policies), obs)
        distance = jnp.mean(distance, tuple(range(1, distance.ndim)))
        counts = move(sound) & known
        return jnp.where(counts, distance, 0.0), counts

    def mean_distance(pairs: Iterable[tuple[Array, Array]]) -> Array:
        distances, counts = zip(*pairs, strict=True)
        return jnp.sum(jnp.stack(distances), 0) / jnp.sum(jnp.stack(counts), 0)

    shifted = (distance_to(lambda x, shift=shift: jnp.roll(x, shift, 0)) for shift in shifts)
    metrics["disagreement/policy"] = mean_distance(shifted)
    for name, others in linked_and_unlinked(links).items():
        chosen = (distance_to(lambda x, row=row: x[row], row >= 0) for row in others)
        metrics[f"disagreement/{name}"] = mean_distance(chosen)
    return metrics


def linked_and_unlinked(links: np.ndarray | None) -> dict[str, np.ndarray]:
    """Up to `PEERS` learners that each is linked with, in either direction, and that it is not; (K, L) each.

    -1 where there are fewer. Nothing where all pairs are linked, or none is.

    >>> {name: others.tolist() for name, others in linked_and_unlinked(np.diag([1, 0, 1], 1)).items()}
    {'linked': [[1, 0, 3, 2]], 'unlinked': [[2, 2, 0, 0], [3, 3, 1, 1]]}
    """
    if links is None:
        return {}
    pairs, other = (links != 0) | (links != 0).T, ~np.eye(len(links), dtype=bool)
    kinds = {"linked": pairs & other, "unlinked": ~pairs & other}
    return (
        {name: _some_of_each(kind) for name, kind in kinds.items()}
        if all(map(np.any, kinds.values()))
        else {}
    )


def _some_of_each(chosen: np.ndarray) -> np.ndarray:
    """Up to `PEERS` columns that are set in each row, evenly spaced among them; (K, rows), -1 where fewer."""
    most = min(PEERS, int(chosen.sum(1).max()))
    found = np.full((most, len(chosen)), -1)
    for row, columns in enumerate(map(np.flatnonzero, chosen)):
        number = min(most, len(columns))
        found[:number, row] = columns[np.arange(number) * len(columns) // max(1, number)]
    return found


def score_metrics(spec: EnvSpec, episodes: Episodes) -> dict[str, np.ndarray]:
    """Raw scores over the last finished episodes; NaN until one has finished."""
    returns, lengths, finished = fetch((episodes.returns, episodes.lengths, episodes.finished))
    total = team_return(spec, returns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of no episodes is NaN
        return {
            "return_mean": np.nanmean(total, 1),
            "return_std": np.nanstd(total, 1),
            "length_mean": np.nanmean(lengths, 1),
            "episodes": finished,
        } | {name: np.nanmean(x, 1) for name, x in by_team(spec, returns).items()}


def team_return(spec: EnvSpec, returns: Any) -> Any:
    """A learner's score: its return, or with agents (..., A) the sum of the first team's."""
    if spec.agents is None:
        return returns
    first_team = np.array(spec.teams or [0] * spec.agents) == 0
    return returns[..., first_team].sum(-1)


def by_team(spec: EnvSpec, returns: np.ndarray) -> dict[str, np.ndarray]:
    """Returns (..., A) by agent and by team, and how often each team wins, each (...).

    The team with the largest return wins; equal teams share the win. An unfinished episode (NaN)
    does not count.

    >>> from shoal.types import Box, Discrete
    >>> spec = EnvSpec("game", "jax", Box((1,)), Discrete(2), agents=3, teams=(0, 0, 1))
    >>> found = by_team(spec, np.array([[1.0, 2.0, 4.0], [1.0, 1.0, 2.0]]))
    >>> found["return_team0"].tolist(), found["win_rate_team1"].tolist()
    ([3.0, 2.0], [1.0, 0.5])
    """
    if spec.agents is None:
        return {}
    each = {f"return_agent{agent}": returns[..., agent] for agent in range(spec.agents)}
    teams = sorted(set(spec.teams))
    if len(teams) < 2:
        return each
    totals = np.stack([returns[..., np.array(spec.teams) == team].sum(-1) for team in teams])
    winners = totals == totals.max(0)
    won = np.where(np.isnan(totals), np.nan, winners / np.maximum(winners.sum(0), 1))
    each |= {f"return_team{team}": totals[i] for i, team in enumerate(teams)}
    return each | {f"win_rate_team{team}": won[i] for i, team in enumerate(teams)}
