"""The runs and sweeps below some folders, each by a name of its own that is safe in an address."""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shoal.runs.catalogue import FILES, RunRow, describe, run_folders
from shoal.runs.files import is_locked
from shoal.runs.naming import ROOT, digest
from shoal.runs.trust import look_at_config
from shoal.training.config import TrainConfig
from shoal.watch.tail import MetricsTail

LOOK_SECONDS = 0.5
"""The folders are searched for runs no more often."""

Value = TypeVar("Value")


class Entry(NamedTuple):
    """A run or a sweep on the shelf."""

    id: str  # in addresses: no path ever comes from a browser
    name: str  # to show
    folder: Path
    tail: MetricsTail
    kept: dict[str, tuple[Any, Any]]  # what was made from its files, and their stamp then

    def once(self, what: str, stamp: Any, make: Callable[[], Value]) -> Value:
        """What `make` returns, made again only when the stamp has changed."""
        found = self.kept.get(what)
        if found is None or found[0] != stamp:
            found = self.kept[what] = (stamp, make())
        return found[1]

    def stamp(self, *more: str) -> tuple[Any, ...]:
        """Changes when the run's files do, or when it begins or ends to train."""
        return (_locked(self.folder), *(_changed(self.folder / name) for name in (*FILES, *more)))

    def row(self) -> RunRow:
        """Its state, steps and returns."""
        return self.once("row", self.stamp("checkpoints"), self._describe)

    def _describe(self) -> RunRow:
        try:
            return describe(self.folder, self.config())
        except Exception:  # whatever a damaged file raises; describe() says it
            return describe(self.folder)

    def config(self) -> TrainConfig:
        """Its settings; raises where they cannot be read."""
        path = self.folder / "config.yaml"
        return self.once("config", _changed(path), lambda: look_at_config(path))


class Shelf:
    """The runs and sweeps below folders, searched for again as time passes."""

    def __init__(self, roots: Iterable[Path]):
        self.roots = list(roots)
        self._lock, self._searched = threading.Lock(), 0.0
        self._runs: dict[str, Entry] = {}
        self._sweeps: dict[str, Entry] = {}

    def runs(self) -> dict[str, Entry]:
        """The runs by their ids."""
        self._search()
        return self._runs

    def sweeps(self) -> dict[str, Entry]:
        """The sweeps by their ids."""
        self._search()
        return self._sweeps

    def _search(self) -> None:
        with self._lock:
            if time.monotonic() - self._searched < LOOK_SECONDS:
                return
            folders = list(dict.fromkeys(run for root in self.roots for run in run_folders(root)))
            above = dict.fromkeys(at for run in folders for at in (run.parent, run.parent.parent))
            sweeps = [at for at in above if (at / "sweep.yaml").is_file()]
            self._runs = self._entries(folders, self._runs)
            self._sweeps = self._entries(sweeps, self._sweeps)
            self._searched = time.monotonic()

    def _entries(self, folders: list[Path], before: dict[str, Entry]) -> dict[str, Entry]:
        """These folders by id; what is known of them is kept."""
        ids = {digest(str(folder.resolve())): folder for folder in folders}
        new = lambda id, folder: Entry(
            id, self._name(folder), folder, MetricsTail(folder / "metrics.csv"), {}
        )
        return {id: before.get(id) or new(id, folder) for id, folder in ids.items()}

    def _name(self, folder: Path) -> str:
        """A folder's path from the one that was given, or from runs/."""
        for root in (ROOT, *self.roots):
            if folder != root and folder.is_relative_to(root):
                return str(folder.relative_to(root))
        return folder.resolve().name


def _changed(path: Path) -> tuple[int, int, int] | None:
    """When a file or folder last changed, its size and its number; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _locked(folder: Path) -> bool:
    try:
        return is_locked(folder)
    except OSError:  # it was removed
        return False
