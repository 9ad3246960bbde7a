"""Ctrl-C and SIGTERM end the command at once, whatever it does: a thread watches for them.

Python notices signals only between two of its own instructions, and compiling takes many seconds. Nor does a
KeyboardInterrupt always arrive: extensions and callbacks of libraries lose it, or make another error of it.
"""

import os
import signal
import socket
import threading
from typing import Any, NoReturn

from shoal.cli.status import STATUS
from shoal.runs.files import remove_unfinished

STOPS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"
"""Clears the line and shows the cursor on a terminal."""


def end_at_signals() -> None:
    """From now on a stop signal ends the process; where a handler is set later, the second one does."""
    watched, told = socket.socketpair()
    told.setblocking(False)
    for number in STOPS:
        signal.signal(number, _end_by_handler)
    signal.set_wakeup_fd(told.detach())
    threading.Thread(target=_watch, args=(watched,), daemon=True).start()


def watching() -> bool:
    """Whether this process is the command's own, which watches for stop signals."""
    return signal.getsignal(signal.SIGINT) is _end_by_handler


def _end_now() -> NoReturn:
    """End this process with one line, and with files as they were; an orderly end would wait for C++."""
    remove_unfinished()
    STATUS.clear()
    # Past rich, which draws its bar again below whatever is printed, and hides the cursor.
    os.write(2, SHOW_CURSOR * os.isatty(2) + b"shoal: interrupted\n")
    os._exit(130)


def _end_by_handler(number: int, frame: Any) -> None:
    """Python's handler: the thread is mostly first, but not where another handler comes next."""
    _end_now()


def _watch(watched: socket.socket) -> None:
    noted = False
    while told := watched.recv(1):
        if told[0] in STOPS:
            if noted or signal.getsignal(told[0]) is _end_by_handler:
                _end_now()
            noted = True
