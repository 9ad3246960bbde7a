"""The folder of a run on islands: what every run's folder has, for all learners, and more.

islands.csv    a row per meeting, as `attendance` writes it
islands/       a folder for each island, with its checkpoints
"""

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.errors import ShoalError
from shoal.islands.attendance import Attendance, begin_meetings, extend_meetings
from shoal.islands.meeting import Held, Meeting
from shoal.ops import trees
from shoal.ops.ranking import best_learner
from shoal.runs.config import to_settings
from shoal.runs.divergence import Diverged
from shoal.runs.files import FolderLock
from shoal.runs.folder import find_checkpoint, prepare_folder
from shoal.runs.lineage import begin_lineage, extend_lineage
from shoal.runs.metrics import MetricsWriter
from shoal.runs.summary import read_summary, write_summary

SAVE_SECONDS = 30.0
"""Seconds between checkpoints."""


class Progress(NamedTuple):
    """How far a run on islands is."""

    step: int
    total: int
    returns: np.ndarray  # (L,) the mean returns last known
    islands: int
    absent: dict[int, str]
    steps_per_second: float
    due: bool


class Record:
    """Writes the folder of a run on islands; a context manager."""

    def __init__(self, meeting: Meeting, folder: Path, clobber: bool = False, save_every: int | None = None):
        self.meeting, self.folder, self.save_every = meeting, folder, save_every
        self.config = meeting.plan.config
        self.lock, self.began = FolderLock(), time.monotonic()
        found = None if clobber else find_checkpoint(folder, self.config)
        if found and "islands" not in found:
            raise ShoalError(f"{folder} holds a run of one program; leave out --islands, or use --clobber")
        step = self.config.steps_after(found["iteration"]) if found else 0
        prepare_folder(folder, self.lock, self.config, clobber, found)
        meta = meeting.restore(folder) if found else None
        self.resumed_step = step if meta else None
        kept = (meta or {}).get("record", {})
        self.seconds, self.valid_steps = kept.get("seconds", 0.0), kept.get("valid_steps", 0)
        self.totals = {"meetings": 0, "absences": 0, "left_out": 0, "restarts": 0, "bytes": 0} | kept.get(
            "totals", {}
        )
        num_learners = self.config.learners
        self.bytes = np.array(kept.get("bytes", [0.0] * num_learners))
        self.returns = np.array(kept.get("returns", [None] * num_learners), float)
        self.came, self.meetings = np.zeros(num_learners), 0  # since the last report
        self.lost = np.zeros(num_learners, bool)
        self.saved_at, self.first_seconds = time.monotonic(), 0.0
        self._begin_files()

    def _begin_files(self) -> None:
        hypers = jax.device_get(self.meeting.state.models.hypers)
        self.evolved = tuple(self.config.priors) if self.config.selection_every else ()
        if self.evolved:
            begin_lineage(
                self.folder, {name: getattr(hypers, name) for name in self.evolved}, self.resumed_step
            )
        self.metrics = MetricsWriter(self.folder, self.resumed_step, to_settings(self.config))
        begin_meetings(self.folder, self.resumed_step)

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *exception) -> None:
        self.metrics.close()
        self.lock.release()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self.seconds + time.monotonic() - self.began

    @property
    def step(self) -> int:
        """Steps of a learner up to the last meeting."""
        return self.config.steps_after(self.meeting.state.iteration)

    def write(
        self, before: int, held: Held, attendance: Attendance, members: dict[int, tuple[int, ...]]
    ) -> Progress:
        """Write a meeting; `before` is the iteration of the one before it."""
        iteration, metrics = self.meeting.state.iteration, dict(held.metrics)
        self._count(held, attendance, members, metrics)
        came = int(np.sum(self.meeting.state.seen == iteration))
        extend_meetings(self.folder, self.meeting.round, self.step, self.elapsed, came, attendance)
        selects = self.config.selection_every
        if selects and iteration // selects > before // selects:
            hypers = self.meeting.state.models.hypers
            values = {name: np.asarray(getattr(hypers, name)) for name in self.evolved}
            parent = metrics["population/parent"]
            extend_lineage(self.folder, self.step, parent, metrics["population/score"], values)
        last = iteration == self.config.num_iterations
        due = last or iteration // self.config.report_every > before // self.config.report_every
        if due:
            self._report(metrics)
        return Progress(
            step=self.step,
            total=self.config.steps_after(self.config.num_iterations),
            returns=self.returns,
            islands=len(members),
            absent=attendance.absent,
            steps_per_second=self.valid_steps / max(self.elapsed, 1e-9),
            due=due,
        )

    def _count(
        self, held: Held, attendance: Attendance, members: dict[int, tuple[int, ...]], metrics: dict[str, Any]
    ) -> None:
        self.meetings += 1
        self.came += held.came
        if "return_mean" in metrics:
            known = np.isfinite(metrics["return_mean"]) | held.came
            self.returns = np.where(known, metrics["return_mean"], self.returns)
        steps = metrics.pop("valid_steps", np.zeros(1))
        self.valid_steps += int(np.nansum(steps))
        if not self.first_seconds:
            self.first_seconds = time.monotonic() - self.began
        for island, own in members.items():
            carried = attendance.received.get(island, 0) + attendance.sent.get(island, 0)
            self.bytes[list(own)] += carried / len(own)
            self.totals["bytes"] += carried
        self.totals["meetings"] += 1
        self.totals["absences"] += len(attendance.absent)
        self.totals["left_out"] += sum(why.startswith("left out") for why in attendance.absent.values())
        lost = np.nan_to_num(metrics.get("lost", np.zeros(1))) > 0
        if lost.all() and not self.config.revives:
            raise Diverged(f"all learners diverged near step {self.step:,}; earlier checkpoints are kept")
        if (new := lost & ~self.lost).any():
            listed = ", ".join(map(str, np.flatnonzero(new)[:8]))
            cause = "the loss is not finite; try a smaller --learning-rate, or --norm-reward"
            warnings.warn(f"learner {listed} diverged near step {self.step:,}: {cause}", RuntimeWarning)
        self.lost = self.lost | lost

    def _report(self, metrics: dict[str, Any]) -> None:
        """A record per learner in metrics.csv; NaN in what an absent island would have said."""
        models = self.meeting.state.models
        hypers = jax.device_get(models.hypers)
        metrics |= {f"hypers/{name}": getattr(hypers, name) for name in self.config.evolving}
        metrics |= {"disagreement/params": distance_from_mean(models.params)}
        metrics |= self.meeting.plan.exchange.derive_metrics(metrics)
        metrics |= {"islands/present": self.came / self.meetings, "islands/bytes": self.bytes}
        compiled = max(self.elapsed - self.first_seconds, 1e-9)
        metrics["steps_per_second"] = self.valid_steps / max(self.elapsed, 1e-9)
        metrics["steps_per_second_compiled"] = self.valid_steps / compiled
        self.metrics.write(self.step, self.elapsed, metrics)
        self.came, self.meetings = np.zeros_like(self.came), 0

    def must_save(self, before: int) -> bool:
        """Whether the state after this meeting is saved, by time or because its checkpoint is kept."""
        last = self.meeting.state.iteration == self.config.num_iterations
        return last or self.keeps(before) or time.monotonic() - self.saved_at > SAVE_SECONDS

    def keeps(self, before: int) -> bool:
        """Whether this meeting is the first at a multiple of `save_every` steps: its checkpoint is kept."""
        every, earlier = self.save_every, self.config.steps_after(before)
        return bool(every) and self.step // every > earlier // every

    def save(self, before: int) -> None:
        """Write a checkpoint of the whole run."""
        finite = self.returns[np.isfinite(self.returns)]
        meta = {
            "score": float(finite.max()) if finite.size else float("-inf"),
            "scores": self.returns,
            "evaluated": False,
            "kept": self.keeps(before),
            "clock": {"seconds": self.elapsed, "valid_steps": self.valid_steps},
            "record": {
                "seconds": self.elapsed,
                "valid_steps": self.valid_steps,
                "totals": self.totals,
                "bytes": self.bytes,
                "returns": self.returns,
            },
        }
        self.meeting.save(self.folder, meta)
        self.saved_at = time.monotonic()

    def finish(self, interrupted: bool) -> dict:
        """Write summary.json."""
        best = best_learner(self.returns)
        compiled = max(self.elapsed - self.first_seconds, 1e-9)
        summary = {
            "env": self.config.env,
            "algo": to_settings(self.config)["algo"],
            "learners": self.config.learners,
            "steps": self.step,
            "seconds": self.elapsed,
            "steps_per_second": self.valid_steps / max(self.elapsed, 1e-9),
            "steps_per_second_compiled": self.valid_steps / compiled,
            "return_mean": self.returns,
            "best_return": self.returns[best],
            "best_learner": best,
            "lost_learners": np.flatnonzero(self.lost).tolist(),
            "backend": self.meeting.plan.recipe.spec.backend,
            "interrupted": interrupted,
            "islands": self.totals,
        }
        write_summary(self.folder, summary, flush=not interrupted)
        return read_summary(self.folder)


def distance_from_mean(params: Any) -> np.ndarray:
    """How far each learner's parameters are from the mean of all that are finite, (L,)."""
    matrix = np.asarray(trees.as_matrix(params)[0])
    sound = np.isfinite(matrix).all(1)
    mean = matrix[sound].mean(0, keepdims=True) if sound.any() else np.nan
    return np.linalg.norm(matrix - mean, axis=1)
