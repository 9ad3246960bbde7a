"""`shoal plot`: learning curves, and what was learned."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from shoal.cli import cache
from shoal.errors import ShoalError
from shoal.runs.plots import destinations, plot
from shoal.runs.portrait import portrait


@dataclass(frozen=True)
class Plot:
    """Draw learning curves, what was learned and one episode; several runs make one comparison."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""
    out: Path | None = None
    """Where to put the pictures; each run's plots/ unless given."""
    episode: bool = True
    """Let the best learner play an episode, and draw it, and its policy and value over the state space."""
    seed: int = 0
    """Decides the episode's start."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """Draw learning curves, and what was learned."""
    options = tyro.cli(Plot, prog="shoal plot", args=arguments)
    if not options.runs:
        raise ShoalError("which run? e.g. shoal plot runs/CartPole-v1__ppo__s1")
    cache.remember_compilations()
    for path in plot(options.runs, options.out):
        print(path)
    if options.episode:
        for run, folder in destinations(options.runs, options.out).items():
            for path in portrait(run, folder, options.seed):
                print(path)
    return 0
