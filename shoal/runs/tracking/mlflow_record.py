"""Records of MLflow. MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and its other variables hold."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlflow  # pyright: ignore[reportMissingImports]
from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

from shoal.runs.tracking.record import PROJECT, Title

LONGEST = 500
"""Characters of a parameter's value that every store takes."""
AT_ONCE = 100
"""Parameters that every store takes at once."""


class MlflowRecord:
    """A run of MLflow; a learner's is nested in that of all."""

    def __init__(self, title: Title):
        self.client = mlflow.MlflowClient()
        if title.id:
            self.client.update_run(title.id, status="RUNNING")
            self.id = title.id
        else:
            tags = {"mlflow.parentRunId": title.whole} if title.whole else {}
            self.id = self.client.create_run(experiment(), tags=tags, run_name=title.name).info.run_id
        # A parameter never changes here: where a longer run has other steps, the first ones stay.
        known = self.client.get_run(self.id).data.params
        params = [Param(k, v[:LONGEST]) for k, v in dotted(title.settings) if k not in known]
        for start in range(0, len(params), AT_ONCE):
            self.client.log_batch(self.id, params=params[start : start + AT_ONCE])
        self.place = f"{mlflow.get_tracking_uri()} run {self.id}"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers at a step."""
        now = int(1000 * time.time())
        self.client.log_batch(self.id, metrics=[Metric(k, x, now, step) for k, x in metrics.items()])

    def add_film(self, step: int, name: str, path: Path) -> None:
        """A film among the artifacts."""
        self.client.log_artifact(self.id, str(path), "videos")

    def add_files(self, files: Mapping[str, Path], about: Mapping[str, Any]) -> None:
        """Files among the artifacts, in their folders."""
        for name, path in files.items():
            self.client.log_artifact(self.id, str(path), os.path.dirname(name) or None)

    def close(self, complete: bool) -> None:
        """The end, or an interruption."""
        self.client.set_terminated(self.id, "FINISHED" if complete else "KILLED")


def experiment() -> str:
    """The id of the experiment that MLflow's variables name; it is made if it is not there."""
    if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return given
    return mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)).experiment_id


def dotted(settings: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as pairs of texts."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", str(value)
