"""Starts several processes on this machine that run one program together, and waits for them."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.distributed.processes import OTHER_PROCESS_FAILED

GRACE_SECONDS = 10.0
"""Seconds the others have to save and end once one has failed."""
LOST_SECONDS = 3.0
"""The same once one was killed: the others cannot continue and may wait for it."""
LOCAL_RANK, LOCAL_SIZE = "SHOAL_LOCAL_RANK", "SHOAL_LOCAL_SIZE"
"""Environment variables that `launch` sets."""


def launch(command: Sequence[str], size: int) -> int:
    """Run `command --rank R --coordinator ADDRESS` for each of `size` ranks; the exit status of them all.

    The first prints to this terminal; of the others, only the errors of one that fails are printed. Signals
    are passed on to all. If one fails, the others are stopped; if this process dies, they end by themselves.
    """
    address = f"127.0.0.1:{_free_port()}"
    with_rank = lambda rank: [*command, "--rank", str(rank), "--coordinator", address]
    ranks = [_start(with_rank(rank), rank, size) for rank in range(size)]
    errors = [_ErrorReader(process) for process in ranks]
    forward = lambda number, frame: [_signal(process, number) for process in ranks]
    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        failed = _wait(ranks)
        if failed is None:
            return 0
        return _explain(failed, [process.returncode for process in ranks], errors)
    finally:
        for process, reader in zip(ranks, errors, strict=True):
            _signal(process, signal.SIGKILL)
            process.wait()
            reader.join()
            if process.stdin is not None:
                process.stdin.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def was_launched() -> bool:
    """Whether `launch` started this process and watches it."""
    return LOCAL_RANK in os.environ


def end_with_launcher() -> None:
    """End this process when its launcher ends, which closes our standard input."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _start(command: list[str], rank: int, size: int) -> subprocess.Popen:
    """A process in a group of its own, so that Ctrl-C reaches it once, through this one."""
    own = _own_gpus(rank, size) | {LOCAL_RANK: str(rank), LOCAL_SIZE: str(size)}
    quiet = {} if "--debug" in command else {"TF_CPP_MIN_LOG_LEVEL": "3"}  # hides XLA's lost connections
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
    """The NVIDIA devices of one process: an equal share of those this one may use, if any."""
    known = Path("/proc/driver/nvidia/gpus")
    counted = ",".join(str(i) for i in range(len(list(known.iterdir())))) if known.is_dir() else ""
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", counted).split(",") if gpu]
    share = len(gpus) // size
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[rank * share : (rank + 1) * share])} if share else {}


class _ErrorReader(threading.Thread):
    """Reads a process's standard error, where that is not the terminal."""

    def __init__(self, process: subprocess.Popen):
        super().__init__(daemon=True)
        self.stream, self.text = process.stderr, ""
        self.start()

    def run(self) -> None:
        if self.stream is not None:
            with self.stream:
                self.text = self.stream.read()


def _wait(ranks: list[subprocess.Popen]) -> int | None:
    """Wait for all, for a limited time once one has failed; the rank of that one, if any."""
    failed, deadline = None, float("inf")
    while True:
        running = any(process.poll() is None for process in ranks)
        if failed is None and (failed := _first_failed(ranks)) is not None:
            patience = GRACE_SECONDS if ranks[failed].returncode > 0 else LOST_SECONDS
            deadline = time.monotonic() + patience
        if not running:
            return failed
        if time.monotonic() > deadline:
            for process in ranks:
                _signal(process, signal.SIGKILL)
        time.sleep(0.05)


def _first_failed(ranks: list[subprocess.Popen]) -> int | None:
    """The rank that was killed, else the one that failed by itself; None while none has."""
    statuses = {rank: process.returncode for rank, process in enumerate(ranks) if process.returncode}
    return (
        min(statuses, key=lambda rank: (statuses[rank] == OTHER_PROCESS_FAILED, statuses[rank]))
        if statuses
        else None
    )


def _explain(rank: int, statuses: list[int], errors: list[_ErrorReader]) -> int:
    """Print the error of the process that failed, or the signal that ended it; the exit status of all.

    An error that all processes have in common is already printed by the first.
    """
    if statuses[rank] < 0:
        kept = "everything up to the last checkpoint is kept, and the same command goes on from there"
        print(
            f"shoal: rank {rank} was ended by {signal.Signals(-statuses[rank]).name}; {kept}", file=sys.stderr
        )
        return 1
    if statuses[0] in (0, OTHER_PROCESS_FAILED):
        errors[rank].join()
        print(errors[rank].text, end="", file=sys.stderr)
    return statuses[rank]


def _signal(process: subprocess.Popen, number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
