"""Records of Weights & Biases. WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE and its other variables hold."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import wandb  # pyright: ignore[reportMissingImports]
from wandb.errors import UsageError  # pyright: ignore[reportMissingImports]

from shoal.runs.tracking.record import PROJECT, Title


class WandbRecord:
    """A run of Weights & Biases; offline where nobody is logged in."""

    def __init__(self, title: Title):
        learner = title.whole is not None
        self.run = open_run(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=title.name,
            id=title.id or uuid4().hex[:8],
            group=title.group,
            job_type="learner" if learner else "run",
            resume="allow",
            reinit="create_new",  # several at once
            settings=wandb.Settings(console="off", x_disable_stats=learner),
        )
        self.run.config.update(dict(title.settings), allow_val_change=True)
        self.id = self.run.id
        offline_folder = Path(self.run.dir).parent.parent
        self.place = f"{offline_folder}, offline (wandb sync)" if self.run.offline else f"{self.run.url}"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers at a step."""
        self.run.log(dict(metrics), step=step)

    def add_film(self, step: int, name: str, path: Path) -> None:
        """A film among the media."""
        self.run.log({name: wandb.Video(str(path))}, step=step)

    def add_files(self, files: Mapping[str, Path], about: Mapping[str, Any]) -> None:
        """A version of the artifact of this run."""
        artifact = wandb.Artifact(f"run-{self.id}-checkpoints", type="model", metadata=dict(about))
        for name, path in files.items():
            artifact.add_file(str(path), name=name)
        self.run.log_artifact(artifact, aliases=["latest", f"step-{about['step']}"])

    def close(self, complete: bool) -> None:
        """Send what is left; a run that may be continued counts as failed."""
        self.run.finish(exit_code=0 if complete else 1)


def open_run(**how: Any) -> Any:
    """A run, offline where no key of the user's is known: asking for it would wait for ever."""
    try:
        return wandb.init(**how)
    except UsageError:
        return wandb.init(**how, mode="offline")
