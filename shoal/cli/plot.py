"""`shoal plot`: learning curves, and the best learner's policy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from shoal.cli import cache
from shoal.cli.arguments import choose_run, read_arguments
from shoal.runs.plots.policy import plot_policy
from shoal.runs.plots.run import destinations, plot


@dataclass(frozen=True)
class Plot:
    """Plot learning curves, the best learner's policy and one episode; several runs are also compared."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[RUN ...]")] = ()
    """Folders of runs, or their names in runs/; the newest run unless given."""
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
    runs = [choose_run(run) for run in options.runs or (None,)]
    cache.cache_compilations()
    for path in plot(runs, options.out):
        print(path)
    if options.episode:
        for run, folder in destinations(runs, options.out).items():
            for path in plot_policy(run, folder, options.seed):
                print(path)
    return 0
