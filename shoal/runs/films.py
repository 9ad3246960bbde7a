"""Films of a run: an episode in pictures, and its file."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.runs.evaluation import own_world
from shoal.runs.events import record_film
from shoal.runs.learners import RunParts, choose_learner, load_learners
from shoal.runs.tracking.trackers import places, record_now
from shoal.runs.video import write_video
from shoal.training.episode import episode


class Played(NamedTuple):
    """One episode in pictures."""

    learner: int | str
    frames: list[np.ndarray]  # (H, W, 3) uint8 each; one more than there were steps
    total: float  # the raw return
    step: int  # of the checkpoint


def play(
    folder: Path,
    parts: RunParts,
    learner: int | str = "best",
    checkpoint: int | str = "latest",
    *,
    sampled: bool = False,
    seed: int = 0,
    steps: int = 1000,
) -> Played:
    """One episode of a learner in its own world, of at most so many steps, as pictures."""
    trained = load_learners(folder, checkpoint, parts)
    name, cohort = choose_learner(trained, learner)
    world = own_world(trained, name)
    played = episode(
        trained.recipe, trained.learner, cohort, seed, steps, world, sampled=sampled, pictures=True
    )
    rewards, frames = zip(*((step.reward, step.picture) for step in played), strict=True)
    return Played(name, list(frames), sum(rewards), trained.step)


def write_film(folder: Path, played: Played, path: Path, fps: int) -> Path:
    """Write an episode of a run as .gif or .mp4, a .gif also into the run's TensorBoard events."""
    written = write_video(played.frames, path, fps)
    record_film(folder, played.learner, played.step, written, played.frames[0].shape)
    if written.resolve().parent == (folder / "videos").resolve():
        record_now(folder, list(places(folder)))
    return written
