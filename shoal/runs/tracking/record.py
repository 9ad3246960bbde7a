"""What a tracker keeps of a run: the contract of a record."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

PROJECT = "shoal"
"""The project, or experiment, of a record, where the tracker's own environment variable names no other."""


class Title(NamedTuple):
    """What a record is opened with."""

    name: str
    settings: Mapping[str, Any]  # as in config.yaml
    id: str | None = None  # of the record that is continued; None for a new one
    whole: str | None = None  # of a learner's record: the id of that of all learners
    group: str | None = None  # what the records of a cohort have in common; None without a cohort


class Record(Protocol):
    """A run, or one of its learners, as a tracker keeps it. `id` finds it again; `place` is where to look."""

    id: str
    place: str

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers at a step; steps never go back."""
        ...

    def add_film(self, step: int, name: str, path: Path) -> None:
        """A film of a learner; `step` is not below that of any numbers."""
        ...

    def add_files(self, files: Mapping[str, Path], about: Mapping[str, Any]) -> None:
        """Files, by their names in the run's folder: together they are a folder that `shoal.load` opens."""
        ...

    def close(self, complete: bool) -> None:
        """Send what is left; the run is complete, or will perhaps be continued."""
        ...
