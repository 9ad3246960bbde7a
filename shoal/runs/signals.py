"""Stop signals: Ctrl-C and SIGTERM end a run after the iteration under way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects Ctrl-C and SIGTERM in a list; a second one raises KeyboardInterrupt at once.

    Outside the main thread, where Python allows no signal handlers, the list stays empty.
    """
    caught: list[int] = []

    def note(number, frame):
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
