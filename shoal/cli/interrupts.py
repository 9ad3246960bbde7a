"""Ctrl-C and SIGTERM end the command within seconds, whatever it does: a thread watches for them.

Python raises KeyboardInterrupt only between two of its own instructions, and compiling takes many seconds.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from shoal.cli.status import STATUS

LIMIT_SECONDS = 3.0
"""How long the main thread may take to react."""
STOPS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def end_soon() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; where that has no effect the process ends anyway.

    It also ends at a second signal. A handler that is set later has all the time it needs for the first one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watched, told = socket.socketpair()
    told.setblocking(False)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler), signal.set_wakeup_fd(told.fileno())
    threading.Thread(target=_watch, args=(watched,), daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.set_wakeup_fd(before[1])
        told.close()


def _watch(watched: socket.socket) -> None:
    with watched:
        if _is_time_to_end(watched):
            end_now()


def _is_time_to_end(watched: socket.socket) -> bool:
    """Wait for a signal, then for another one or until time is up; False once nobody watches any more."""
    if not _next_stop(watched):
        return False
    watched.settimeout(LIMIT_SECONDS)
    while True:
        try:
            return _next_stop(watched)
        except TimeoutError:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                return True


def _next_stop(watched: socket.socket) -> bool:
    """Wait for a stop signal; False once nobody watches any more."""
    while told := watched.recv(1):
        if told[0] in STOPS:
            return True
    return False


def end_now() -> NoReturn:
    """End this process with one line: an orderly end waits for what C++ computes."""
    STATUS.clear()
    if sys.stderr.isatty():
        print("\r\x1b[K\x1b[?25h", end="", file=sys.stderr)  # a progress bar hides the cursor
    print("shoal: interrupted", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(130)
