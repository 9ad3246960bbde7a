"""Evaluation while training: greedy episodes of every learner in its own world."""

from collections.abc import Callable
from functools import cache

import jax
import numpy as np

from shoal.distributed.mesh import num_processes, own_part
from shoal.distributed.processes import fetch, run_on_first
from shoal.training.iteration import Parts
from shoal.training.parts import worlds_of
from shoal.training.players import Player, make_player, ready_to_play
from shoal.training.scores import by_team, team_return
from shoal.types import EnvSpec, LearnerState

SEED = 79
"""The second number of the starts' seed: training has others."""


def make_validation(parts: Parts, episodes: int) -> Callable[[LearnerState], dict[str, np.ndarray]]:
    """A function from a cohort to metrics: `episodes` whole episodes of each learner, from unseen starts.

    Programs are compiled at the first call. The starts are the same at every call where the environment's
    seeds decide them. Of several processes the first one plays, on its own devices, and tells the others.
    """
    config, learner, spec = parts.config, parts.learner, parts.recipe.spec
    worlds = jax.tree.map(lambda x: np.repeat(x[:, None], episodes, 1), worlds_of(config, spec))
    ready = ready_to_play(learner.for_evaluation, episodes)

    @cache  # environments are built when they are first needed, where they are needed
    def player() -> Player:
        seed = int(np.random.SeedSequence([config.seed, SEED]).generate_state(1)[0] >> 1)
        mesh = own_part(parts.mesh, config.learners)
        return make_player(parts.recipe, learner, False, mesh, config.learners, episodes, seed)

    def validate(cohort: LearnerState) -> dict[str, np.ndarray]:
        cohort = ready(cohort)
        cohort = fetch(cohort) if num_processes() > 1 else cohort
        play = lambda: {name: x.tolist() for name, x in summary(spec, *player()(cohort, worlds)).items()}
        return {f"eval/{name}": np.array(x, np.float32) for name, x in run_on_first(play).items()}

    return validate


def summary(spec: EnvSpec, returns: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Metrics, (L,) each, of returns (L, episodes) or (L, episodes, A) and lengths (L, episodes)."""
    total = team_return(spec, returns).astype(np.float64)  # so the mean of equal returns is exact
    return {
        "return_mean": total.mean(1),
        "return_std": total.std(1),
        "length_mean": lengths.mean(1),
    } | {name: x.mean(1) for name, x in by_team(spec, returns).items()}
