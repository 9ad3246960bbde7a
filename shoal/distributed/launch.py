"""Several processes on this machine that run one program together, watched until the last has ended."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.distributed.processes import ELSEWHERE

GRACE_SECONDS = 10.0
"""How long the others may take to save and end once one has failed."""
LOST_SECONDS = 3.0
"""The same once one was killed: the others cannot go on, and may wait for it."""
LOCAL_RANK, LOCAL_SIZE = "SHOAL_LOCAL_RANK", "SHOAL_LOCAL_SIZE"
"""How a process learns that it was started here."""


def launch(command: Sequence[str], size: int) -> int:
    """Run `command --rank R --coordinator ADDRESS` for each of `size` ranks; the exit status of them all.

    The first prints to this terminal, of the others what they say when they fail. A signal is passed on to
    each of them. If one ends badly the others are stopped, and if this process dies they end by themselves.
    """
    address = f"127.0.0.1:{_free_port()}"
    given = lambda rank: [*command, "--rank", str(rank), "--coordinator", address]
    ranks = [_start(given(rank), rank, size) for rank in range(size)]
    voices = [_Voice(process) for process in ranks]
    forward = lambda number, frame: [_signal(process, number) for process in ranks]
    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        culprit = _wait(ranks)
        if culprit is None:
            return 0
        return _explain(culprit, [process.returncode for process in ranks], voices)
    finally:
        for process, voice in zip(ranks, voices, strict=True):
            _signal(process, signal.SIGKILL)
            process.wait()
            voice.join()
            if process.stdin is not None:
                process.stdin.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def was_launched() -> bool:
    """Whether `launch` started this process and watches it."""
    return LOCAL_RANK in os.environ


def end_with_launcher() -> None:
    """End when the process that started this one does: its end of our standard input closes."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _start(command: list[str], rank: int, size: int) -> subprocess.Popen:
    """A process in a group of its own, so that Ctrl-C reaches it once, through this one."""
    own = _own_gpus(rank, size) | {LOCAL_RANK: str(rank), LOCAL_SIZE: str(size)}
    quiet = {} if "--debug" in command else {"TF_CPP_MIN_LOG_LEVEL": "3"}  # XLA's talk of lost connections
    return subprocess.Popen(
        command,
        env=quiet | os.environ | own,
        stdin=subprocess.PIPE,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        stderr=None if rank == 0 else subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def _own_gpus(rank: int, size: int) -> dict[str, str]:
    """A process's share of the NVIDIA devices that this one may use, if there are any."""
    known = Path("/proc/driver/nvidia/gpus")
    counted = ",".join(str(i) for i in range(len(list(known.iterdir())))) if known.is_dir() else ""
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", counted).split(",") if gpu]
    share = len(gpus) // size
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[rank * share : (rank + 1) * share])} if share else {}


class _Voice(threading.Thread):
    """Hears what a process says on its standard error, where that is not the terminal."""

    def __init__(self, process: subprocess.Popen):
        super().__init__(daemon=True)
        self.stream, self.text = process.stderr, ""
        self.start()

    def run(self) -> None:
        if self.stream is not None:
            with self.stream:
                self.text = self.stream.read()


def _wait(ranks: list[subprocess.Popen]) -> int | None:
    """Wait for all, and once one has ended badly not for long; which one that was, if any."""
    culprit, deadline = None, float("inf")
    while True:
        running = any(process.poll() is None for process in ranks)
        if culprit is None and (culprit := _culprit(ranks)) is not None:
            patience = GRACE_SECONDS if ranks[culprit].returncode > 0 else LOST_SECONDS
            deadline = time.monotonic() + patience
        if not running:
            return culprit
        if time.monotonic() > deadline:
            for process in ranks:
                _signal(process, signal.SIGKILL)
        time.sleep(0.05)


def _culprit(ranks: list[subprocess.Popen]) -> int | None:
    """Of those that have ended badly the one that was killed, else the one that failed by itself."""
    statuses = {rank: process.returncode for rank, process in enumerate(ranks) if process.returncode}
    return min(statuses, key=lambda rank: (statuses[rank] == ELSEWHERE, statuses[rank])) if statuses else None


def _explain(rank: int, statuses: list[int], voices: list[_Voice]) -> int:
    """Pass on what a process said when it failed, or say what ended it; the exit status of all.

    A mistake that all of them made, the first has told already.
    """
    if statuses[rank] < 0:
        kept = "everything up to the last checkpoint is kept, and the same command goes on from there"
        print(
            f"shoal: rank {rank} was ended by {signal.Signals(-statuses[rank]).name}; {kept}", file=sys.stderr
        )
        return 1
    if statuses[0] in (0, ELSEWHERE):
        voices[rank].join()
        print(voices[rank].text, end="", file=sys.stderr)
    return statuses[rank]


def _signal(process: subprocess.Popen, number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
