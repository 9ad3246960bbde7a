"""Stop signals: Ctrl-C and SIGTERM end a run after the call under way, or inside it where it takes long."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.training.waiting import Waiting


@contextmanager
def stop_signals(waiting: Waiting) -> Iterator[None]:
    """Ctrl-C and SIGTERM request a stop of what waits; a second one raises KeyboardInterrupt at once.

    Outside the main thread, where Python allows no signal handlers, nothing changes.
    """

    def note(number, frame):
        if waiting.stopping:
            raise KeyboardInterrupt
        waiting.stop()

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
