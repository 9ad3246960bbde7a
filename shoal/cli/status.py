"""A line on the terminal that says what the command does, until there is something else to show."""

import sys
import threading
import time


class Status:
    """What the command does and for how many seconds, where standard error is a terminal."""

    def __init__(self) -> None:
        self.text, self.began = "", 0.0
        self.ended, self.lock = threading.Event(), threading.Lock()

    def show(self, text: str) -> None:
        """Show a text with its seconds, instead of the one before."""
        started, self.text, self.began = bool(self.text), text, time.monotonic()
        if not started and sys.stderr.isatty():
            self.ended.clear()
            threading.Thread(target=self._tick, daemon=True).start()

    def clear(self) -> None:
        """Remove it; call this before anything is printed."""
        with self.lock:
            if self.text and sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self.text = ""
        self.ended.set()

    def _tick(self) -> None:
        while not self.ended.is_set():
            with self.lock:
                if self.text:
                    seconds = time.monotonic() - self.began
                    print(f"\r{self.text} {seconds:.0f} s\x1b[K", end="", file=sys.stderr, flush=True)
            self.ended.wait(0.5)


STATUS = Status()
"""The one of this process."""
