"""Describes the policies of a run in its folder, for processes that act without JAX."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from shoal.errors import ShoalError
from shoal.runs.export.policies import describe_policies
from shoal.runs.files import disk_errors
from shoal.runs.numpy_policy import DESCRIPTION, write_description
from shoal.runs.own import NO_PARTS, OwnParts
from shoal.training.config import TrainConfig
from shoal.types import EnvRecipe, LearnerState


class Described(Protocol):
    """What is read of a run's parts."""

    @property
    def config(self) -> TrainConfig: ...

    @property
    def recipe(self) -> EnvRecipe: ...


def describe_run(folder: Path, parts: Described, cohort: LearnerState, own: OwnParts = NO_PARTS) -> None:
    """Write the description; none where the learner is the user's own, or the network has no form in ONNX."""
    config, spec = parts.config, parts.recipe.spec
    with disk_errors("replace", folder / DESCRIPTION):
        (folder / DESCRIPTION).unlink(missing_ok=True)
    if config.own.learner:
        return
    with suppress(ShoalError):
        frame = spec if config.frame_stack == 1 else own.recipe(replace(config, frame_stack=1)).spec
        write_description(folder, describe_policies(config, spec, frame.observation, cohort))
