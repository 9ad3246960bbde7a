"""The trained learners of a run, from a checkpoint or a report, and how to choose some of them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.exchanges.mixing import mean_learner
from shoal.exchanges.registry import selects
from shoal.imports import import_attribute
from shoal.ops import trees
from shoal.runs import checkpoint, checkpoint_files
from shoal.runs.jax_policy import jax_policy
from shoal.runs.numpy_policy import choose
from shoal.runs.own import NO_PARTS, OwnParts, find_again
from shoal.runs.policy import Policy
from shoal.runs.trust import trusted_config
from shoal.training.config import TrainConfig
from shoal.training.loop import Report
from shoal.training.parts import make_learner
from shoal.training.scores import best_learner
from shoal.types import EnvRecipe, EnvSpec, Learner, LearnerState


class RunParts(NamedTuple):
    """What a run's checkpoints are read with."""

    config: TrainConfig
    recipe: EnvRecipe
    learner: Learner
    unstacked: EnvSpec  # of single observations, where the learner sees stacked ones


class TrainedLearners(NamedTuple):
    """A trained cohort with its environment and learner."""

    config: TrainConfig
    recipe: EnvRecipe
    learner: Learner
    cohort: LearnerState  # leading L
    best: int
    step: int
    scores: Sequence[float | None] = ()  # the mean return of each learner at the checkpoint


def find_parts(folder: Path, config: TrainConfig, own: OwnParts = NO_PARTS) -> RunParts:
    """The environment and the learner of a run; an error says which of the user's own must be given."""
    recipe = find_again(folder, "env", config.env, lambda: own.recipe(config))
    network = own.network or _find(folder, "network", config.own.network)
    maker = own.learner or _find(folder, "learner", config.own.learner)
    learner = make_learner(config, recipe.spec, network, maker=maker)
    unstacked = own.recipe(replace(config, frame_stack=1)).spec if config.frame_stack > 1 else recipe.spec
    return RunParts(config, recipe, learner, unstacked)


def _find(folder: Path, kind: str, path: str | None) -> Any:
    return path and find_again(folder, kind, path, lambda: import_attribute(path))


def load_learners(
    folder: Path, which: int | str = "latest", parts: RunParts | None = None
) -> TrainedLearners:
    """The learners of a run, from its `latest` or its `best` checkpoint, or from that at a step."""
    if parts is None:
        parts = find_parts(folder, trusted_config(folder))
    config, recipe, learner, _ = parts
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), config.learners))
    like = {"cohort": jax.eval_shape(jax.vmap(learner.init), keys)}
    load = partial(checkpoint.load, like=like)
    arrays, meta = checkpoint_files.find(Path(folder), which, load, config.algo.rollout_size)
    step = config.steps_after(meta["iteration"])
    scores = meta["scores"]
    return TrainedLearners(config, recipe, learner, arrays["cohort"], best_learner(scores), step, scores)


def load_policy(
    folder: Path,
    parts: RunParts,
    learner: int | str,
    which: int | str,
    *,
    sampled: bool = False,
    seed: int = 0,
) -> Policy:
    """A learner of a run as a policy that acts in JAX."""
    trained = load_learners(folder, which, parts)
    state = trees.take(choose_learner(trained, learner)[1], 0)
    num_frames = parts.config.frame_stack
    return jax_policy(
        parts.unstacked, parts.learner, state, num_frames=num_frames, sampled=sampled, seed=seed
    )


def load_values(folder: Path, parts: RunParts, learner: int | str, which: int | str) -> dict[str, np.ndarray]:
    """The state of a learner by paths, as `numpy_policy.read_learner` gives it; also of the mean."""
    _, cohort = choose_learner(load_learners(folder, which, parts), learner)
    return checkpoint.named_leaves(trees.take(jax.device_get(cohort), 0))


def learners_of(report: Report) -> TrainedLearners:
    """The learners as they are at a report."""
    parts, best = report.trainer.parts, best_learner(report.metrics["return_mean"])
    return TrainedLearners(parts.config, parts.recipe, parts.learner, report.state.cohort, best, report.step)


def choose_learners(trained: TrainedLearners, which: int | str) -> tuple[list[int | str], LearnerState]:
    """Names and states of some learners: `best`, `mean` (the average of all), `all`, or a number.

    All learners of a federation include their mean.
    """
    num, cohort, which = trained.config.learners, trained.cohort, str(which)
    if which == "all" and not all(map(selects, trained.config.exchanges)):
        with_mean = jax.tree.map(lambda *leaves: np.concatenate(leaves), cohort, mean_learner(cohort))
        return [*range(num), "mean"], with_mean
    if which == "all":
        return list(range(num)), cohort
    if which == "mean":
        return ["mean"], mean_learner(cohort)
    index = choose(which, trained.best, num)
    return [index], trees.take(cohort, np.array([index]))


def choose_learner(trained: TrainedLearners, which: int | str) -> tuple[int | str, LearnerState]:
    """Name and state, with a leading axis of one, of one learner."""
    name = which if which == "mean" else choose(which, trained.best, trained.config.learners)
    return name, choose_learners(trained, name)[1]
