"""`shoal sweep`: many settings with several seeds each, in as few programs as possible."""

import sys
from dataclasses import dataclass

from shoal.cli.arguments import read_arguments
from shoal.cli.flags import Output, whole_numbers
from shoal.cli.parse import read_env, read_run
from shoal.cli.status import STATUS
from shoal.errors import ShoalError
from shoal.runs.milestones import Milestones
from shoal.runs.progress import format_return
from shoal.runs.sweep.axes import read_grid
from shoal.runs.sweep.plan import Plan
from shoal.runs.sweep.sweep import Sweep, default_folder, make_plan, run_sweep, train_with_bar
from shoal.runs.sweep.table import Row, best_first, describe_values

SHOWN = 5
"""The best trials in the table at the end."""


@dataclass(frozen=True)
class SweepFlags:
    """Train many settings with several seeds each; the same command again resumes.

    shoal sweep ENV --grid learning_rate=1e-4,3e-4 gamma=0.98,0.99 --seeds 4 [FLAGS of shoal train ENV]
    """

    grid: tuple[str, ...] = ()
    """NAME=VALUE,VALUE,... each: every combination is tried;
    with --random and --tpe, the values to choose from."""
    random: int | None = None
    """Try so many settings, drawn from the priors and from the values of --grid."""
    tpe: int | None = None
    """Try so many settings that Optuna asks for, in batches."""
    priors: tuple[str, ...] = ()
    """What --random and --tpe vary: names, or name=PRIOR as --evolve has them, e.g. "gamma=one-minus-log 0.9
    0.999"; the algorithm's own unless --priors or --grid is given."""
    seeds: int = 4
    """Learners of each setting; those of different settings share starts and first networks."""
    halving: bool = False
    """Successive halving: the best third goes on after a ninth, and again after a third of the steps."""
    batch: int | None = None
    """Learners in a program; as many as fit unless given."""


def main(arguments: list[str]) -> int:
    """Run a sweep, and print the best trials."""
    plan, output = parse_sweep(arguments)
    folder = output.folder or default_folder(plan)
    description = plan.describe()
    STATUS.clear()
    print(f"{description} -> {folder}", file=sys.stderr)
    try:
        found = run_sweep(plan, folder, output.clobber, train_with_bar, output.mesh)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from what is saved")
        return 130
    print("\n".join(summary(found)))
    return 0


def parse_sweep(arguments: list[str]) -> tuple[Plan, Output]:
    """The plan, and its folder and devices."""
    how = {"return_unknown_args": True, "registry": whole_numbers()}
    flags, rest = read_arguments(SweepFlags, "shoal sweep", arguments, **how)
    base, (output, milestones), islands = read_run(*read_env(rest))
    if islands.islands is not None:
        raise ShoalError("a sweep's programs are not divided into islands; leave out --islands")
    if milestones != Milestones():
        raise ShoalError(f"a sweep ends every trial at --steps; leave out {', '.join(milestones.given())}")
    if output.processes > 1 or output.profile or output.track:
        raise ShoalError(
            "a sweep is one process without trackers; leave out --processes, --profile and --track"
        )
    options = {"seeds": flags.seeds, "halving": flags.halving, "batch": flags.batch}
    return make_plan(base, read_grid(flags.grid), flags.random, flags.tpe, flags.priors, **options), output


def summary(found: Sweep) -> list[str]:
    """The best trials, and what to do next."""
    rows = [line(row) for row in best_first(found.trials)[:SHOWN]]
    cells = [("trial", "mean", "95 % interval", "IQM", "steps", "settings"), *rows]
    widths = [max(map(len, column)) for column in list(zip(*cells, strict=True))[:-1]]
    return [
        f"the best {len(rows)} of {len(found.trials)} trials, returns of the last 100 episodes:",
        *("  ".join([*map(str.ljust, row, widths), row[-1]]) for row in cells),
        f"files in {found.folder}: trials.csv, best.yaml, parallel.png, importance.png, curves.png",
        f"next: shoal train --config {found.folder}/best.yaml --seeds 8 --seed {found.config.seed + 1000}",
    ]


def line(row: Row) -> tuple[str, ...]:
    """A trial's columns."""
    mean, iqm, low, high = map(format_return, (row.mean, row.iqm, *row.interval))
    values = describe_values(row.values)
    return str(row.number), mean, f"{low} to {high}", iqm, f"{row.steps:,}", values
