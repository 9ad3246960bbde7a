"""Several processes on this machine that run one program together, watched until the last has ended."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

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
    said = [_listen(process) for process in ranks]
    forward = lambda number, frame: [_signal(process, number) for process in ranks]
    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        culprit = _wait(ranks)
        if culprit is None:
            return 0
        for process, lines in zip(ranks, said, strict=True):
            print(*lines * (process.returncode > 0), sep="", end="", file=sys.stderr)
        return _explain(culprit, ranks[culprit].returncode)
    finally:
        for process in ranks:
            _signal(process, signal.SIGKILL)
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
    quiet = {} if "--debug" in command else {"TF_CPP_MIN_LOG_LEVEL": "3"}  # XLA's talk of lost connections
    return subprocess.Popen(
        command,
        env=quiet | os.environ | {LOCAL_RANK: str(rank), LOCAL_SIZE: str(size)},
        stdin=subprocess.PIPE,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        stderr=None if rank == 0 else subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def _listen(process: subprocess.Popen) -> list[str]:
    """What a process says on its standard error, as it comes."""
    lines: list[str] = []
    if process.stderr is not None:
        threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True).start()
    return lines


def _wait(ranks: list[subprocess.Popen]) -> int | None:
    """Wait for all, and once one has ended badly not for long; which one that was, if any."""
    culprit, deadline = None, float("inf")
    while any(process.poll() is None for process in ranks):
        if culprit is None and (failed := _failed(ranks)):
            culprit = failed[0]
            patience = GRACE_SECONDS if ranks[culprit].returncode > 0 else LOST_SECONDS
            deadline = time.monotonic() + patience
        if time.monotonic() > deadline:
            for process in ranks:
                _signal(process, signal.SIGKILL)
        time.sleep(0.05)
    return culprit if culprit is not None else next(iter(_failed(ranks)), None)


def _failed(ranks: list[subprocess.Popen]) -> list[int]:
    return [rank for rank, process in enumerate(ranks) if process.poll() not in (None, 0)]


def _explain(rank: int, status: int) -> int:
    """Say what ended a process that could not say it itself; the exit status of all."""
    if status > 0:
        return status
    kept = "everything up to the last checkpoint is kept, and the same command goes on from there"
    print(f"shoal: rank {rank} was ended by {signal.Signals(-status).name}; {kept}", file=sys.stderr)
    return 1


def _signal(process: subprocess.Popen, number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
