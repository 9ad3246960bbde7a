"""`shoal plot`: learning curves, and the best learner's policy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from shoal.cli.arguments import choose_run, read_arguments
from shoal.cli.status import STATUS
from shoal.runs.cache import cache_compilations
from shoal.runs.plots.run import PlotOptions, plot


@dataclass(frozen=True)
class Plot(PlotOptions):
    """Plot learning curves, the best learner's policy and one episode; several runs are also compared.

    Runs that differ in their seed alone are one curve of a comparison.
    """

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[RUN ...]")] = ()
    """Runs by folder or by name, folders with runs below them, or quoted patterns such as 'runs/*__ppo__*';
    the newest run unless given."""
    out: Path | None = None
    """A folder for all figures, each run's plots/ unless given; or one figure: a .png, .pdf or .svg."""
    trust: bool = False
    """Import the code that its settings name, though you did not train it here."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """Write the plots."""
    options = read_arguments(Plot, "shoal plot", arguments)
    runs = options.runs or (choose_run(None),)
    cache_compilations()
    STATUS.show("plotting")
    paths = plot(runs, options.out, options)
    STATUS.clear()
    for path in paths:
        print(path)
    return 0
