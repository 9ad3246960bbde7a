"""The engine of a Ray cluster: every island is an actor, on whichever node has room.

The driver keeps the islands' checkpoints in the run's folder, so nodes need no shared disk: an island sends
the files of a checkpoint with its message, and one that starts elsewhere is given them.
"""

import math
import os
import socket
import tempfile
import time
import warnings
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

from shoal.distributed.mesh import SHARED_BY
from shoal.errors import ShoalError
from shoal.islands.engine import Arrived, Lost, Order
from shoal.islands.options import Islands
from shoal.islands.storage import Rows, folder_of, saved_rows
from shoal.runs.checkpoint_removal import prune
from shoal.runs.files import replacing
from shoal.runs.records import replay_of

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
"""Environment variables of Ray: nothing is reported to its makers."""
MEMORY_SHARE = 0.9
"""The part of a card's memory that islands which share it divide."""
WHY = 80
"""The most letters of what Ray says of a lost island."""
REACH_SECONDS = 10.0
"""How long a cluster may take to answer."""
HANDED = 2
"""How many checkpoints of each earlier island a new one is given."""


class RayIsland:
    """The actor: an island, and the files of its checkpoints.

    Its folder is there only while it reads or saves: nothing cleans up after an actor that is killed.
    """

    def __init__(
        self,
        settings: str,
        number: int,
        members: tuple[int, ...],
        files: dict[str, bytes],
        cpus: float,
        gpus: float,
        mesh: str | None,
    ):
        _use_share(cpus, gpus)
        from shoal.islands.worker import Worker

        self.worker = Worker(settings, number, members, None, mesh)
        self.files = files

    def work(self, answer: bytes, save: bool, train: bool) -> tuple[bytes, dict[str, bytes]]:
        """Carry out an order; the message, and the files of the checkpoint that was saved."""
        with tempfile.TemporaryDirectory(prefix="shoal-island-") as place:
            self.worker.island.folder = Path(place)
            write_files(Path(place), self.files)
            self.files = {}
            self.worker.take(Order(answer, save, train))
            saved = self._saved(Path(place)) if save else {}
        return self.worker.train() if train else b"", saved

    def _saved(self, folder: Path) -> dict[str, bytes]:
        """The files of the checkpoint of now; none where its replay was not due."""
        island = self.worker.island
        rows = saved_rows(folder, folder_of(folder, island.members).name)
        now = [one for one in rows if one.iteration == int(island.state.iteration)]
        return files_of(now[0]) if now else {}


class RayEngine:
    """Islands as actors of a Ray cluster: one that is there, or a new one on this machine."""

    def __init__(self, settings: str, folder: Path, most: int, options: Islands, mesh: str | None = None):
        self.settings, self.folder, self.options, self.mesh = settings, folder, options, mesh
        os.environ |= QUIET
        try:
            self.ray: Any = import_module("ray")
        except ImportError as error:
            raise ShoalError('--engine ray needs Ray: pip install "shoal[ray]"') from error
        self.actors: dict[int, Any] = {}
        self.members: dict[int, tuple[int, ...]] = {}
        self.calls: dict[Any, int] = {}  # what was asked of which island, by the reference to its result
        self.joined = self.ray.is_initialized()
        if not self.joined:
            self._connect(options.ray_address)
        if (room := self.room()) < most and "." not in str(options.islands):
            warnings.warn(
                f"the cluster has room for {room} of {most} islands; the others begin when there is more",
                RuntimeWarning,
            )

    def _connect(self, address: str | None) -> None:
        own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        how = {"address": address} if address else {"address": "local", **own}
        try:
            _reach(address)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "os.fork")  # the processes that it starts use no JAX
                self.ray.init(log_to_driver=False, logging_level="error", **how)
        except Exception as error:  # Ray's own have no class in common
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            if address is None:
                raise ShoalError(f"Ray does not start on this machine: {reason}") from error
            raise ShoalError(
                f"cannot join a Ray cluster at {address}: {reason} (ray start --head makes one)"
            ) from error

    def start(self, island: int, members: tuple[int, ...]) -> None:
        """Ask Ray for an actor; it runs once a node has room."""
        self.stop(island)
        cpus, gpus = self.options.island_cpus, self.options.island_gpus
        share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{MEMORY_SHARE * gpus:.3f}"} if 0 < gpus < 1 else {}
        actor = self.ray.remote(RayIsland).options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": QUIET | share},
        )
        self.members[island] = members
        files = self.ray.put(self._files_for(members))
        self.actors[island] = actor.remote(self.settings, island, members, files, cpus, gpus, self.mesh)

    def send(self, island: int, order: Order) -> None:
        """Call the actor; the result comes as an event."""
        call = self.actors[island].work.remote(order.answer, order.save, order.train)
        self.calls[call] = island

    def events(self, seconds: float) -> list[Arrived | Lost]:
        """The calls that have ended: messages, and actors that are gone."""
        if not self.calls:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.calls), num_returns=1, timeout=seconds)
        if len(self.calls) > 1 and ready:
            ready, _ = self.ray.wait(list(self.calls), num_returns=len(self.calls), timeout=0)
        return [event for call in ready if (event := self._result(call)) is not None]

    def _result(self, call: Any) -> Arrived | Lost | None:
        island = self.calls.pop(call, None)
        if island is None:
            return None
        try:
            data, files = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            first = str(cause if isinstance(cause, ShoalError) else error).strip().splitlines()[0]
            failed = isinstance(error, self.ray.exceptions.RayTaskError) or "creation task" in str(error)
            return Lost(island, shorten(first, WHY, placeholder=" ..."), failed)
        self._keep(files)
        return Arrived(island, data)

    def room(self) -> int:
        """How many islands fit on the nodes that are alive."""
        cpus, gpus = self.options.island_cpus, self.options.island_gpus
        room = 0
        for node in self.ray.nodes():
            if node["Alive"]:
                there = node["Resources"]
                fits = [there.get("CPU", 0) / cpus] if cpus else []
                fits += [there.get("GPU", 0) / gpus] if gpus else []
                room += math.floor(min(fits, default=1) + 1e-6)
        return room

    def stop(self, island: int) -> None:
        """Kill an island's actor, and forget what was asked of it."""
        self.calls = {call: other for call, other in self.calls.items() if other != island}
        if (actor := self.actors.pop(island, None)) is not None:
            self.ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """Kill all actors, and leave the cluster."""
        for island in list(self.actors):
            self.stop(island)
        if not self.joined and self.ray.is_initialized():
            self.ray.shutdown()

    def _files_for(self, members: tuple[int, ...]) -> dict[str, bytes]:
        """The newest checkpoints with any of these learners."""
        known: dict[Path, list[Rows]] = {}
        for rows in saved_rows(self.folder):
            if {*rows.members} & {*members}:
                known.setdefault(rows.path.parent, []).append(rows)
        newest = [rows for some in known.values() for rows in sorted(some, key=_iteration)[-HANDED:]]
        return {name: data for rows in newest for name, data in files_of(rows).items()}

    def _keep(self, files: dict[str, bytes]) -> None:
        """Write an island's checkpoint into the run's folder, its record last."""
        if not files:
            return
        paths = [self.folder / name for name in files]
        with replacing(*paths, flush=False) as temporaries:
            for path, data in zip(temporaries, files.values(), strict=True):
                path.write_bytes(data)
        prune(paths[0].parent)


def files_of(rows: Rows) -> dict[str, bytes]:
    """The files of a checkpoint by their names from the islands' folder, the record last."""
    paths = [rows.path, replay_of(rows.path), rows.path.with_suffix(".json")]
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in paths if path.exists()}


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write files of checkpoints below the islands' folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _reach(address: str | None) -> None:
    """Raise where nothing listens at HOST:PORT; Ray itself tries again for minutes."""
    host, _, port = (address or "").rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()


def _iteration(rows: Rows) -> int:
    return rows.iteration


def _use_share(cpus: float, gpus: float) -> None:
    """Use no more of a node than what Ray keeps for the island."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault(SHARED_BY, str(max(1, cores // max(1, math.ceil(cpus)))))
    if not gpus:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
