"""`shoal play`: a trained learner in a GIF, an MP4 or a window."""

from dataclasses import dataclass
from pathlib import Path

from shoal.cli import show
from shoal.cli.arguments import RunFolder, choose_run, read_arguments
from shoal.cli.status import STATUS
from shoal.runs.progress import format_return
from shoal.runs.run import load, write_film


@dataclass(frozen=True)
class Play:
    """Watch a trained learner: as a GIF, an MP4 or in a window."""

    run: RunFolder = None
    """The folder of a run, or its name in runs/; the newest run unless given."""
    learner: str = "best"
    """best, mean, or a number."""
    sampled: bool = False
    """Sample actions as in training instead of taking the most likely ones."""
    gif: Path | None = None
    """Write a GIF; without any of the three, into RUN/videos."""
    mp4: Path | None = None
    """Write an MP4."""
    human: bool = False
    """Show a window."""
    steps: int = 1000
    """The most steps to show."""
    fps: int = 30
    """Frames per second."""
    seed: int = 0
    """The seed of the episode."""
    checkpoint: str = "latest"
    """Which checkpoint to load: latest, best, or a step (train --save-every N keeps one every N steps)."""
    trust: bool = False
    """Import the code that its settings name, though you did not train it here."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """Write or show one episode."""
    options = read_arguments(Play, "shoal play", arguments)
    run = choose_run(options.run)
    if options.human:
        show.display()  # before the episode is played
    STATUS.show("playing")
    played = load(run).play(
        options.learner, options.checkpoint, sampled=options.sampled, seed=options.seed, steps=options.steps
    )
    STATUS.clear()
    name, frames = played.learner, played.frames
    default = None if options.mp4 or options.human else run / "videos" / f"learner_{name}.gif"
    for path in (options.gif or default, options.mp4):
        if path is not None:
            print(f"wrote {write_film(run, played, path, options.fps)}")
    print(f"learner {name}: return {format_return(played.total)} in {len(frames) - 1} steps")
    if options.human:
        show.window(frames, options.fps)
    return 0
