"""Follows a run's folder, and records with a tracker what the tracker does not have yet."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

from shoal.runs import checkpoint
from shoal.runs.config import read_settings
from shoal.runs.files import read_json, write_text
from shoal.runs.summary import read_summary
from shoal.runs.tracking.record import Record, Title
from shoal.runs.tracking.reports import NewReports, of_cohort, of_learner

FOLDER = "tracking"
"""Where a run's folder keeps what its trackers know."""
MANY_LEARNERS = 32
"""With more learners, they have no records of their own."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at the folder."""
LARGEST = 1 << 30
"""Bytes above which a checkpoint is not sent, such as one with a replay."""


@dataclass
class Known:
    """What a tracker has of a run; kept in the run's folder."""

    group: str
    ids: list[str] = field(default_factory=list)  # of the records: the whole run, then the learners
    step: int = -1  # of the last report
    films: dict[str, float] = field(default_factory=dict)  # their times of writing
    checkpoints: list[int] = field(default_factory=list)  # their steps
    place: str = ""  # where to look at it


def known_path(folder: Path, tracker: str) -> Path:
    """The file in which a run's folder keeps what a tracker has."""
    return folder / FOLDER / f"{tracker}.json"


def read_known(folder: Path, tracker: str) -> Known:
    """What a tracker has of a run."""
    path = known_path(folder, tracker)
    return Known(**read_json(path)) if path.is_file() else Known(f"{folder.resolve().name}-{uuid4().hex[:6]}")


def opener(tracker: str) -> Callable[[Title], Record]:
    """How a tracker opens a record."""
    match tracker:
        case "wandb":
            from shoal.runs.tracking.wandb_record import WandbRecord as Opened
        case "mlflow":
            from shoal.runs.tracking.mlflow_record import MlflowRecord as Opened
        case "trackio":
            from shoal.runs.tracking.trackio_record import TrackioRecord as Opened
        case _:
            raise ValueError(f"no tracker is called {tracker!r}")
    return Opened


class Follower:
    """Records what a run's folder has and a tracker does not."""

    def __init__(self, folder: Path, tracker: str, open_record: Callable[[Title], Record]):
        self.folder, self.path = folder, known_path(folder, tracker)
        self.known = read_known(folder, tracker)
        settings = read_settings(folder / "config.yaml")
        self.num_learners: int = settings["learners"]
        self.reports = NewReports(folder / "metrics.csv", self.num_learners)
        group = self.known.group if self.num_learners > 1 else None
        self.title, self.open_record = Title(folder.resolve().name, settings, group=group), open_record
        self.whole = open_record(self.title._replace(id=self.known.ids[0] if self.known.ids else None))
        self.learners: list[Record] = []
        self.known.ids, self.known.place = [self.whole.id, *self.known.ids[1:]], self.whole.place
        self.keep()

    def look(self) -> None:
        """Record new reports and films."""
        before = json.dumps(asdict(self.known))
        for step, columns in self.reports.read():
            if step > self.known.step:
                self.whole.log(step, of_cohort(columns))
                self.learners = self.learners or self._open_learners()
                for learner, record in enumerate(self.learners):
                    record.log(step, of_learner(columns, learner))
                self.known.step = step
        for path in sorted([*self.folder.glob("videos/*.gif"), *self.folder.glob("videos/*.mp4")]):
            written = path.stat().st_mtime
            if self.known.films.get(path.name) != written:
                self.whole.add_film(max(self.known.step, 0) + 1, f"film/{path.stem}", path)
                self.known.films[path.name] = written
        if json.dumps(asdict(self.known)) != before:
            self.keep()

    def close(self) -> None:
        """Record the checkpoints that stay, and end."""
        lasting = checkpoint.lasting(self.folder / "checkpoints")
        sent = {step: data for step, data in lasting.items() if data.stat().st_size <= LARGEST}
        for step in lasting.keys() - sent.keys():
            print(f"the checkpoint at step {step} has more than {LARGEST / 1e9:.1f} GB: not sent")
        if sent and list(sent) != self.known.checkpoints:
            pairs = [path for data in sent.values() for path in (data, data.with_suffix(".json"))]
            files = {str(path.relative_to(self.folder)): path for path in pairs}
            config = {"config.yaml": self.folder / "config.yaml"}
            self.whole.add_files(config | files, {"step": max(sent), "checkpoints": list(sent)})
            self.known.checkpoints = list(sent)
        summary = read_summary(self.folder)
        complete = summary.get("steps") == self.known.step and not summary.get("interrupted")
        for record in (self.whole, *self.learners):
            record.close(complete)
        self.keep()

    def keep(self) -> None:
        """Write down what the tracker has."""
        write_text(self.path, json.dumps(asdict(self.known), indent=2))

    def _open_learners(self) -> list[Record]:
        """The records of the learners, where these are few; not before they are needed."""
        if not 1 < self.num_learners <= MANY_LEARNERS:
            return []
        ids = self.known.ids[1:] or [None] * self.num_learners
        titles = [
            self.title._replace(name=f"{self.title.name} learner {k}", id=known, whole=self.whole.id)
            for k, known in enumerate(ids)
        ]
        opened = [self.open_record(title) for title in titles]
        self.known.ids = [self.whole.id, *(record.id for record in opened)]
        return opened


def follow(folder: Path, tracker: str, ended: threading.Event) -> None:
    """Record a run until it has ended."""
    follower = Follower(folder, tracker, opener(tracker))
    over = False
    while not over:
        over = ended.wait(LOOK_SECONDS)
        follower.look()
    follower.close()
