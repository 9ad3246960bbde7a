"""Evaluation of a run's learners: which learners, in which worlds, on which levels, against which run."""

import jax

from shoal.envs.levels import has_levels, level_options
from shoal.envs.registry import make
from shoal.envs.worlds import parameters
from shoal.errors import ShoalError
from shoal.learners.wrappers.match import join, make_match, random_player
from shoal.ops import trees
from shoal.runs.learners import TrainedLearners, choose_learner, choose_learners
from shoal.training.evaluate import (
    Evaluation,
    assign_worlds,
    evaluate_worlds,
    play_episodes,
    summarise,
)
from shoal.training.parts import worlds_of
from shoal.training.players import set_sampling
from shoal.types import Learner, LearnerState, Tree

RANDOM = "random"
"""The opponent that acts at random."""


def evaluate_learners(
    trained: TrainedLearners,
    episodes: int = 100,
    learner: int | str = "all",
    *,
    sampled: bool = False,
    seed: int = 0,
    levels: str | None = None,
    each_world: bool = False,
) -> list[Evaluation]:
    """An `Evaluation` of each learner, and in each kind of world where worlds differ."""
    if episodes < 1:
        raise ShoalError(f"episodes must be at least 1, not {episodes}")
    names, cohort = choose_learners(trained, learner)
    trained, title = choose_levels(trained, levels)
    worlds = evaluation_worlds(trained, names, episodes, each_world)
    recipe = trained.recipe
    if worlds is not None:
        return evaluate_worlds(recipe, trained.learner, cohort, names, worlds, seed=seed, sampled=sampled)
    returns, lengths = play_episodes(recipe, trained.learner, cohort, episodes, seed, sampled=sampled)
    return [summarise(*one, title, recipe.spec) for one in zip(names, returns, lengths, strict=True)]


def evaluate_match(
    own: TrainedLearners,
    other: TrainedLearners | None,
    episodes: int = 100,
    learner: int | str = "all",
    *,
    sampled: bool = False,
    seed: int = 0,
) -> list[Evaluation]:
    """Two runs' learners against each other: an `Evaluation` of each side as the first team.

    One learner of the first run, its best where `all` is asked for, plays the other's best; without another
    run, one that acts at random.
    """
    spec = own.recipe.spec
    if other and other.config.env != own.config.env:
        envs = f"{own.config.env} and {other.config.env}"
        raise ShoalError(f"a match needs two runs of one environment, not {envs}")
    name, mine = choose_learner(own, "best" if learner == "all" else learner)
    us, (rival, *them) = (set_sampling(own.learner, sampled), mine), _opponent(own, other, sampled)
    evaluations = []
    for title, first, second in (
        (f"this {name}, {rival}", us, them),
        (f"{rival}, this {name}", them, us),
    ):
        game = make_match(first[0], second[0], spec)
        cohort = join(first[1], second[1])
        returns, lengths = play_episodes(own.recipe, game, cohort, episodes, seed, sampled=True)
        evaluations.append(summarise(title, returns[0], lengths[0], "default", spec))
    return evaluations


def _opponent(
    own: TrainedLearners, other: TrainedLearners | None, sampled: bool
) -> tuple[str, Learner, LearnerState]:
    """What an opponent is called, how it acts, and its state."""
    if other is None:
        chance = random_player(own.recipe.spec)
        return RANDOM, chance, chance.init(jax.random.key(0))
    name, rival = choose_learner(other, "best")
    return f"other {name}", set_sampling(other.learner, sampled), rival


def choose_levels(trained: TrainedLearners, which: str | None) -> tuple[TrainedLearners, str]:
    """The same learners on seen, unseen or all levels of their game, and a title for these."""
    env, options = trained.config.env, trained.config.options
    if not has_levels(env, options):
        if which is not None:
            raise ShoalError(f"{env} has no levels (no option num_levels); leave the levels out")
        return trained, "default"
    title, options = level_options(env, options, which or "seen")
    return trained._replace(recipe=make(env, **options)), title


def evaluation_worlds(
    trained: TrainedLearners, names: list[int | str], episodes: int, each: bool
) -> dict[str, Tree] | None:
    """The worlds in which learners are evaluated (`assign_worlds`); None where all worlds are the same.

    Unseen worlds are drawn like the learners' own, one per episode, or from the ranges of given ones.
    """
    config, spec = trained.config, trained.recipe.spec
    if not config.env_spread and config.env_params is None:
        return None
    own = worlds_of(config, spec)
    fresh = (
        parameters.draw_unseen_worlds(spec, config.env_spread, episodes, config.seed)
        if config.env_spread
        else parameters.draw_between(own, episodes, config.seed)
    )
    return assign_worlds(names, own, episodes, fresh, each)


def own_world(trained: TrainedLearners, name: int | str) -> Tree:
    """The physical parameters of a learner's own world; the default ones for the mean of all."""
    if isinstance(name, str):
        return None
    return trees.take(worlds_of(trained.config, trained.recipe.spec), name)
