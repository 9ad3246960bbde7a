"""Evaluation: returns of every learner, greedy unless asked otherwise, one whole episode per environment."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.distributed.mesh import make_mesh
from shoal.errors import ShoalError
from shoal.training.players import make_player, ready_to_play
from shoal.training.scores import by_team, team_return
from shoal.types import EnvRecipe, EnvSpec, Learner, LearnerState, Tree

OWN = "own"
"""The name of a learner's own world."""


class Evaluation(NamedTuple):
    """Raw returns of one learner."""

    learner: int | str
    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    world: str
    agents: dict[str, float] | None = None  # means by agent and team, and win rates

    def to_dict(self) -> dict[str, Any]:
        """Its values by name, those of agents and teams among them, for JSON or a DataFrame."""
        return {name: x for name, x in self._asdict().items() if name != "agents"} | (self.agents or {})


def play_episodes(
    recipe: EnvRecipe,
    learner: Learner,
    cohort: LearnerState,
    episodes: int = 100,
    seed: int = 0,
    params: Tree | None = None,
    sampled: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns and lengths, (L, episodes) each, of a cohort's greedy policies, or of `sampled` actions.

    Every environment plays exactly one episode, so short episodes do not count more than long ones.
    `params` are the worlds, (L, episodes) per leaf; the default one unless given.
    """
    return next(_evaluations(recipe, learner, sampled, cohort, episodes, seed, [params]))


def evaluate_worlds(
    recipe: EnvRecipe,
    learner: Learner,
    cohort: LearnerState,
    names: Sequence[int | str],
    worlds: dict[str, Tree],
    seed: int = 0,
    sampled: bool = False,
) -> list[Evaluation]:
    """An `Evaluation` of each learner in each kind of world (see `assign_worlds`), from the same starts.

    `names` are the learners' numbers; one without a number, such as "mean", has no world of its own.
    """
    episodes = jax.tree.leaves(worlds)[0].shape[1]
    played = _evaluations(recipe, learner, sampled, cohort, episodes, seed, worlds.values())
    scores = dict(zip(worlds, played, strict=True))
    return [
        summarise(name, returns[i], lengths[i], world, recipe.spec)
        for i, name in enumerate(names)
        for world, (returns, lengths) in scores.items()
        if world != OWN or not isinstance(name, str)
    ]


def assign_worlds(
    names: Sequence[int | str],
    worlds: Tree,
    episodes: int,
    fresh: Tree | None = None,
    each: bool = False,
) -> dict[str, Tree]:
    """The world of every episode, (L, episodes) per leaf, for each kind of world.

    own       learner k in world k
    seen      episode e in world e mod W
    unseen    episode e in fresh world e mod F, where `fresh` worlds are given
    world k   every episode in world k, where `each` is asked for

    worlds (W,) per leaf, one for each learner that was trained; fresh (F,) per leaf. `names` are the L
    learners that play, out of those W; "mean" is the average of all and has no world of its own.
    """
    num_learners, num_worlds = len(names), len(jax.tree.leaves(worlds)[0])
    own = np.array([0 if isinstance(name, str) else name for name in names])
    turns = np.arange(episodes)
    assigned = {OWN: _select(worlds, np.repeat(own[:, None], episodes, 1))}
    assigned["seen"] = _select(worlds, np.tile(turns % num_worlds, (num_learners, 1)))
    if fresh is not None:
        num_fresh = len(jax.tree.leaves(fresh)[0])
        assigned["unseen"] = _select(fresh, np.tile(turns % num_fresh, (num_learners, 1)))
    for k in range(num_worlds if each else 0):
        assigned[f"world {k}"] = _select(worlds, np.full((num_learners, episodes), k))
    return assigned


def distances(learner: Learner, cohort: LearnerState, obs: Tree) -> np.ndarray:
    """How far the policies are apart: d_ij = mean_b distance(state_i, state_j, obs_ib), (L, L).

    obs (L, B, ...) per leaf: each learner's observations. All pairs are computed at once: for small cohorts.
    """
    distance = learner.distance
    if distance is None:
        raise ShoalError("this learner defines no `distance`, so its policies cannot be compared")
    mean_distance = lambda own, other, obs: jnp.mean(distance(own, other, obs))
    to_all = jax.vmap(mean_distance, (None, 0, None))
    cohort, obs = jax.device_get((cohort, obs))
    return np.asarray(jax.jit(jax.vmap(to_all, (0, None, 0)))(cohort, cohort, obs))


def summarise(
    name: int | str,
    returns: np.ndarray,
    lengths: np.ndarray,
    world: str = "default",
    spec: EnvSpec | None = None,
) -> Evaluation:
    """The `Evaluation` of one learner's episodes, (episodes,) each; `spec` has the agents and teams."""
    by_agent = by_team(spec, returns) if spec else {}
    returns = team_return(spec, returns) if spec else returns
    returns = np.asarray(returns, np.float64)  # so the mean of equal returns is exact
    return Evaluation(
        learner=name,
        episodes=len(returns),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        return_min=float(returns.min()),
        return_max=float(returns.max()),
        length_mean=float(lengths.mean()),
        world=world,
        agents={each: float(x.mean()) for each, x in by_agent.items()},
    )


def _evaluations(
    recipe: EnvRecipe,
    learner: Learner,
    sampled: bool,
    cohort: LearnerState,
    episodes: int,
    seed: int,
    worlds: Iterable[Tree | None],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Returns and lengths, (L, episodes) each, once for each of `worlds`; the program is compiled once."""
    num_learners = jax.tree.leaves(cohort)[0].shape[0]
    mesh = make_mesh(num_learners, parallel=recipe.spec.parallel)
    play = make_player(recipe, learner, sampled, mesh, num_learners, episodes, seed)
    ready = ready_to_play(learner.for_evaluation, episodes)(cohort)
    for params in worlds:
        yield play(ready, params)


def _select(worlds: Tree, index: np.ndarray) -> Tree:
    """The worlds at these indices, in the shape of `index`."""
    return jax.tree.map(lambda x: np.asarray(x)[index], worlds)
