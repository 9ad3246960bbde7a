"""`shoal plot`: learning curves, and the best learner's policy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from shoal.cli import cache
from shoal.cli.arguments import read_arguments
from shoal.cli.status import STATUS
from shoal.errors import ShoalError
from shoal.runs.plots.policy import plot_policy
from shoal.runs.plots.run import destinations, plot


@dataclass(frozen=True)
class Plot:
    """Plot learning curves, the best learner's policy and one episode; several runs are also compared."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Folders of runs."""
    out: Path | None = None
    """The folder of the plots; each run's plots/ unless given."""
    episode: bool = True
    """Plot an episode of the best learner, and its policy and value over the state space."""
    seed: int = 0
    """The seed of the episode."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """Write the plots."""
    options = read_arguments(Plot, "shoal plot", arguments)
    if not options.runs:
        raise ShoalError("no run is given; try shoal plot runs/CartPole-v1__ppo__s1")
    cache.cache_compilations()
    STATUS.show("plotting")
    paths = plot(options.runs, options.out)
    STATUS.clear()
    for path in paths:
        print(path)
    if options.episode:
        for run, folder in destinations(options.runs, options.out).items():
            for path in plot_policy(run, folder, options.seed):
                print(path)
    return 0
