"""Records of Trackio. TRACKIO_DIR, TRACKIO_SPACE_ID, TRACKIO_PROJECT and its other variables hold."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import trackio  # pyright: ignore[reportMissingImports]

from shoal.runs.tracking.record import PROJECT, Title


class TrackioRecord:
    """A run of Trackio, which finds it by its name alone: so the name is made unique."""

    def __init__(self, title: Title):
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self.id = title.id or f"{title.name}-{uuid4().hex[:6]}"
        self.run = trackio.init(
            project=project,
            name=self.id,
            group=title.group,
            config=dict(title.settings),
            resume="allow",
            embed=False,
            auto_log_gpu=False if title.whole else None,
            auto_log_cpu=False if title.whole else None,
        )
        self.place = f"trackio show --project {project} (run {self.id})"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers at a step."""
        self.run.log(dict(metrics), step=step)

    def add_film(self, step: int, name: str, path: Path) -> None:
        """A film among the media."""
        self.run.log({name: trackio.Video(str(path))}, step=step)

    def add_files(self, files: Mapping[str, Path], about: Mapping[str, Any]) -> None:
        """A version of the artifact of this run."""
        name = f"checkpoints-{self.id.rpartition('-')[2]}"  # a run's name may have what an artifact's may not
        artifact = trackio.Artifact(name, type="model", metadata=dict(about))
        for file, path in files.items():
            artifact.add_file(path, name=file)
        self.run.log_artifact(artifact, aliases=[f"step-{about['step']}"])

    def close(self, complete: bool) -> None:
        """Send what is left."""
        self.run.finish()
