"""Milestones: the steps at which a run is evaluated and keeps a checkpoint, and the return that ends it."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from annotated_types import Interval

from shoal.errors import ShoalError
from shoal.ranges import Count
from shoal.runs.files import read_json, write_text
from shoal.settings import check, read_record

Every: TypeAlias = Annotated[int, Interval(ge=0, le=10**12)]
"""Steps between two of something; 0 is never."""


@dataclass(frozen=True)
class Milestones:
    """Evaluation while training, checkpoints to keep, and a return to stop at; they never change the numbers.

    >>> Milestones(eval_every=10_000).after(Milestones(eval_every=5_000, save_every=50_000))
    Milestones(eval_every=10000, eval_episodes=None, save_every=50000, stop_at=None, film_every=None)
    """

    eval_every: Every | None = None
    """Evaluate the learners after every so many steps, and at the end; 0 is never. Unless given, as in the
    run's last command."""
    eval_episodes: Count | None = None
    """Greedy episodes of each learner in an evaluation. Unless given, as in the run's last command, or 10."""
    save_every: Every | None = None
    """Keep a checkpoint after every so many steps, and at the end; 0 is never. Unless given, as in the run's
    last command."""
    stop_at: float | None = None
    """Stop when the learners' mean return reaches this: in an evaluation with --eval-every, else over the
    last 100 episodes. It holds for this command alone."""
    film_every: Every | None = None
    """Film an episode of the best learner after every so many steps, and at the end; 0 is never. Unless
    given, as in the run's last command."""

    def __post_init__(self):
        check(self)

    @property
    def episodes(self) -> int:
        """Episodes of each learner in an evaluation."""
        return self.eval_episodes or 10

    def given(self) -> dict[str, float]:
        """Those that are given."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def after(self, earlier: "Milestones") -> "Milestones":
        """These, where they are given, else those of the last command; `stop_at` is never taken over."""
        found = replace(earlier, **self.given() | {"stop_at": self.stop_at})
        if self.eval_episodes and not found.eval_every:
            raise ShoalError("eval_episodes has no effect without an evaluation; add --eval-every STEPS")
        return found

    def describe(self) -> str:
        """What the run does, in words; "" where it does nothing of this."""
        parts = [
            f"evaluates every {self.eval_every:,} steps" if self.eval_every else "",
            f"keeps a checkpoint every {self.save_every:,} steps" if self.save_every else "",
            f"films the best learner every {self.film_every:,} steps" if self.film_every else "",
            f"stops at a mean return of {self.stop_at:g}" if self.stop_at is not None else "",
        ]
        return ", ".join(filter(None, parts))


def keep_milestones(folder: Path, given: Milestones) -> dict[str, Any]:
    """The milestones of a run, from this command and its last one, kept for the next one."""
    path = folder / "milestones.json"
    found = given.after(read_record(Milestones, read_json(path), path) if path.exists() else Milestones())
    if found != Milestones() or path.is_file():
        write_text(path, f"{json.dumps(asdict(replace(found, stop_at=None)), indent=2)}\n")
    return asdict(found)
