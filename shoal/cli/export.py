"""`shoal export`: a trained policy as ONNX, with a program that plays it."""

from dataclasses import dataclass
from pathlib import Path

from shoal.cli.arguments import RunFolder, choose_run, read_arguments
from shoal.cli.status import STATUS
from shoal.runs.run import load


@dataclass(frozen=True)
class Export:
    """Write a policy as ONNX, greedy and sampled, with a description and a program that plays it."""

    run: RunFolder = None
    """The folder of a run, or its name in runs/; the newest run unless given."""
    out: Path | None = None
    """The folder of the files; RUN/export unless given."""
    learner: str = "best"
    """best, mean (the average of all learners' parameters), or a number."""
    checkpoint: str = "latest"
    """Which checkpoint to load: latest, best, or a step (train --save-every N keeps one every N steps)."""
    trust: bool = False
    """Import the code that its settings name, though you did not train it here."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """Write the files."""
    options = read_arguments(Export, "shoal export", arguments)
    run = choose_run(options.run)
    STATUS.show("exporting")
    files = load(run).export(options.out, options.learner, options.checkpoint)
    STATUS.clear()
    for path in files:
        print(f"wrote {path}")
    print(f"python {files[-1]} plays it")
    return 0
