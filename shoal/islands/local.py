"""The engine of one machine: every island is a process."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from shoal.distributed.mesh import SHARED_BY
from shoal.islands.engine import Arrived, Lost, Order
from shoal.islands.worker import ERROR, flags_of, read_frame, write_frame


class LocalEngine:
    """Islands as processes of this machine.

    `settings` is the text of the run's config.yaml; `folder` is where islands keep their checkpoints.
    """

    def __init__(self, settings: str, folder: Path, islands: int, mesh: str | None = None):
        self.settings, self.folder, self.mesh, self.islands = settings, folder, mesh, islands
        self.processes: dict[int, subprocess.Popen] = {}
        self.found: queue.Queue[tuple[subprocess.Popen, Arrived | Lost]] = queue.Queue()

    def start(self, island: int, members: tuple[int, ...]) -> None:
        """Start an island's process."""
        self.stop(island)
        shared = {SHARED_BY: str(self.islands)} if SHARED_BY not in os.environ else {}
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal.islands.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | shared,
            start_new_session=True,  # so that Ctrl-C does not end it
        )
        self.processes[island] = process
        setup = {
            "settings": self.settings,
            "number": island,
            "members": members,
            "folder": str(self.folder),
            "mesh": self.mesh,
        }
        self._write(island, 0, json.dumps(setup).encode())
        threading.Thread(target=self._read, args=(island, process), daemon=True).start()

    def send(self, island: int, order: Order) -> None:
        """Write an order to its process, in a thread: a long one waits until it is read."""
        arguments = (island, flags_of(order), order.answer)
        threading.Thread(target=self._write, args=arguments, daemon=True).start()

    def events(self, seconds: float) -> list[Arrived | Lost]:
        """What the islands have sent, and which are gone."""
        found = []
        try:
            found.append(self.found.get(timeout=seconds))
            while True:
                found.append(self.found.get_nowait())
        except queue.Empty:
            pass
        return [event for process, event in found if self.processes.get(event.island) is process]

    def room(self) -> int:
        """As many as were asked for: processes share the cores."""
        return self.islands

    def stop(self, island: int) -> None:
        """Kill an island's process."""
        process = self.processes.pop(island, None)
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Kill all of them."""
        for island in list(self.processes):
            self.stop(island)

    def _write(self, island: int, kind: int, data: bytes) -> None:
        process = self.processes.get(island)
        if process is None or process.stdin is None:
            return
        try:
            write_frame(process.stdin, kind, data)
        except (OSError, ValueError):
            return  # it is gone, which its reader notices

    def _read(self, island: int, process: subprocess.Popen) -> None:
        assert process.stdout is not None, "it has a pipe"
        try:
            while frame := read_frame(process.stdout):
                kind, data = frame
                if kind == ERROR:
                    self.found.put((process, Lost(island, data.decode(errors="replace").strip(), True)))
                    return
                self.found.put((process, Arrived(island, data)))
        except (OSError, ValueError):
            pass
        code = process.wait()
        ended = signal.Signals(-code).name if code < 0 else f"code {code}"
        self.found.put((process, Lost(island, f"its process ended ({ended})")))
