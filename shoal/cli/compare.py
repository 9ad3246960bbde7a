"""`shoal compare`: runs side by side, and how probable it is that one is better than another."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from shoal.cli.arguments import read_arguments
from shoal.cli.status import STATUS
from shoal.errors import ShoalError
from shoal.ops.comparison import Estimate
from shoal.runs.comparison import Compared, Comparison, compare
from shoal.runs.plots.run import PlotOptions, plot
from shoal.runs.progress import format_return


@dataclass(frozen=True)
class Compare:
    """Compare runs: mean, interquartile mean (IQM), area under the curve, probability of improvement.

    All with 95 % bootstrap intervals over learners. Runs that differ in their seed alone are one group.
    """

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN ...")] = ()
    """Folders of runs or their names in runs/, folders with runs below them, or quoted patterns."""
    metric: str = "return_mean"
    """The column of metrics.csv that is compared; more is better."""
    at: int | None = None
    """Compare at this step; the last one that all runs have reached unless given."""
    label: tuple[str, ...] = ()
    """What the groups are called, one for each, in their order."""
    out: Path | None = None
    """Also draw their learning curves with intervals: a .png, .pdf or .svg."""
    json: bool = False
    """Print one JSON object instead of tables."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """Print the comparison."""
    options = read_arguments(Compare, "shoal compare", arguments)
    if not options.runs:
        raise ShoalError("no run is given; try shoal compare runs/A runs/B (shoal runs lists them)")
    found = compare(options.runs, options.metric, options.at, options.label)
    STATUS.clear()
    if options.json:
        print(json.dumps(found.to_dict(), indent=1))
    else:
        print("\n".join(tables(found)))
    if options.out:
        (path,) = plot(options.runs, options.out, PlotOptions(metric=options.metric, label=options.label))
        if not options.json:
            print(path)
    return 0


def tables(found: Comparison) -> list[str]:
    """A line for each group, then one for each pair, the better one first."""
    lines = aligned(
        [("", "learners", "step", "mean", "IQM", "mean over all steps"), *map(group_line, found.groups)]
    )
    for label in found.dependent:
        lines.append(
            f"the learners of {label} depend on each other: train it with several --seed for intervals"
        )
    if not found.improvements:
        return lines
    pairs = [(a, b, one) for (a, b), one in found.improvements.items() if one.value > 0.5]
    pairs += [(a, b, one) for (a, b), one in found.improvements.items() if one.value == 0.5 and a < b]
    texts = [f"  {percent(one)}  {a} is better than {b}" for a, b, one in pairs]
    return [*lines, "", "probability that a learner of one is better than a learner of the other:", *texts]


def group_line(one: Compared) -> tuple[str, ...]:
    """A group's columns."""
    numbers = [in_brackets(estimate) for estimate in (one.mean, one.iqm, one.area)]
    return (one.label, str(len(one.scores.scores)), f"{one.step:,}", *numbers)


def in_brackets(estimate: Estimate) -> str:
    """A number, and its interval in brackets.

    >>> in_brackets(Estimate(200.04, 150.0, 230.0))
    '200.0 [150.0, 230.0]'
    """
    value, low, high = map(format_return, estimate)
    return f"{value} [{low}, {high}]"


def percent(estimate: Estimate) -> str:
    """A probability, and its interval in brackets.

    >>> percent(Estimate(0.75, 0.5, 1.0))
    ' 75 % [50, 100]'
    """
    value, low, high = (f"{100 * x:.0f}" for x in estimate)
    return f"{value:>3} % [{low}, {high}]"


def aligned(cells: list[tuple[str, ...]]) -> list[str]:
    """Lines in columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
