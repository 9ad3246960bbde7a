"""Waiting for compiled programs: they run in a thread, so that the main thread notices signals meanwhile."""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from math import inf
from typing import Any

from shoal.envs.adapters.host import time_steps

PATIENCE_SECONDS = 2.0
"""How long training may still take once a stop is requested; compiling has nothing to save and gets none."""
TURN_SECONDS = 0.1
"""How often the main thread looks whether it should go on waiting."""

_running: set[Future] = set()
"""The calls under way, those that nobody waits for any more among them."""


class GivenUp(KeyboardInterrupt):
    """The call under way did not end soon after a stop was requested; it goes on in its thread."""


class Waiting:
    """What a run waits for, since when, and whether it should stop.

    >>> waiting = Waiting()
    >>> waiting.call("training", pow, 2, 5), waiting.activity
    (32, 'training')
    """

    def __init__(self) -> None:
        self.begin("compiling")
        self.stop_asked = inf

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self.stop_asked < inf

    def stop(self) -> None:
        """Request a stop: a call that does not end soon is given up."""
        self.stop_asked = time.monotonic()

    def begin(self, activity: str) -> None:
        """Tell what is under way from now on."""
        self.activity, self.since, self.begun_at = activity, time.monotonic(), time_steps()

    @property
    def time_steps(self) -> int:
        """How many time steps environments in Python have taken since then; others are not counted: 0."""
        return time_steps() - self.begun_at

    def call(self, activity: str, function: Callable, *arguments: Any) -> Any:
        """The function's result; raises `GivenUp` where it takes too long after a stop.

        Signals are noticed at once, also while C++ computes: the function runs in a thread of its own.
        """
        self.begin(activity)
        future: Future = Future()
        _running.add(future)

        def work() -> None:
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
            finally:
                _running.discard(future)

        threading.Thread(target=work, daemon=True, name=activity).start()
        patience = PATIENCE_SECONDS if activity == "training" else 0.0
        while not wait([future], TURN_SECONDS).done:
            if time.monotonic() - self.stop_asked > patience:
                raise GivenUp(activity)
        return future.result()


@atexit.register
def _end_during_a_call() -> None:
    """End this process at once where a call is still under way: an orderly end waits for it, or crashes."""
    if any(not future.done() for future in _running):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)
