"""`shoal eval`: the returns of a run's learners."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.cli import show
from shoal.cli.arguments import RunFolder, choose_run, read_arguments
from shoal.cli.status import STATUS
from shoal.runs.catalogue import find_run
from shoal.runs.evaluation import RANDOM
from shoal.runs.run import load
from shoal.training.evaluate import Evaluation


@dataclass(frozen=True)
class Eval:
    """Play whole episodes and print their returns; actions are greedy unless --sampled."""

    run: RunFolder = None
    """The folder of a run, or its name in runs/; the newest run unless given."""
    episodes: int = 100
    """Episodes per learner, each from its own start."""
    learner: str = "all"
    """best, mean (the average of all learners' parameters), all, or a number."""
    sampled: bool = False
    """Sample actions as in training instead of taking the most likely ones."""
    each_world: bool = False
    """Where worlds differ, also show every learner in every learner's world."""
    against: Path | None = None
    """Another run of the same environment with teams: its best learner plays this run's, on each side; or
    random, for an opponent that acts at random."""
    levels: Literal["seen", "unseen", "all"] | None = None
    """Which levels of a generated game (Procgen): those seen in training, unseen ones, or all."""
    checkpoint: str = "latest"
    """Which checkpoint to load: latest, best, or a step (train --save-every N keeps one every N steps)."""
    seed: int = 0
    """The seed of the episodes; other episodes than in training."""
    json: bool = False
    """Print one JSON list instead of a table."""
    trust: bool = False
    """Import the code that its settings name, though you did not train it here."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """Print the returns of a run's learners."""
    options = read_arguments(Eval, "shoal eval", arguments)
    run = choose_run(options.run, sys.stderr if options.json else None)
    STATUS.show("evaluating")
    if options.json:
        with show.stdout_to_stderr():
            evaluations = _evaluate(run, options)
        STATUS.clear()
        print(json.dumps([one.to_dict() for one in evaluations], indent=1))
    else:
        evaluations = _evaluate(run, options)
        STATUS.clear()
        show.evaluations(evaluations)
    return 0


def _evaluate(run: Path, options: Eval) -> Sequence[Evaluation]:
    by_chance = options.against == Path(RANDOM)
    against = RANDOM if by_chance else options.against and find_run(options.against)
    return load(run).evaluate(
        options.episodes,
        options.learner,
        sampled=options.sampled,
        seed=options.seed,
        checkpoint=options.checkpoint,
        levels=options.levels,
        each_world=options.each_world,
        against=against,
    )
