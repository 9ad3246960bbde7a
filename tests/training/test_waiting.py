"""Waiting for a call: its result, its error, and the end of patience."""

import os
import signal
import threading
import time

import pytest

from shoal.runs.signals import stop_signals
from shoal.training import waiting as module
from shoal.training.waiting import GivenUp, Waiting


@pytest.fixture
def blocked():
    """A function that returns once the test has ended."""
    ended = threading.Event()
    yield ended.wait
    ended.set()
    while module._running:
        time.sleep(0.01)


def test_a_call_is_made_in_another_thread_and_has_its_result():
    assert Waiting().call("training", lambda x: (x, threading.current_thread().name), 3) == (3, "training")


@pytest.mark.parametrize("error", [TimeoutError("late"), ValueError("wrong"), KeyError("none")])
def test_an_error_is_that_of_the_function(error):
    def fail():
        raise error

    with pytest.raises(type(error)) as raised:
        Waiting().call("training", fail)
    assert raised.value is error


@pytest.mark.parametrize(("activity", "patience"), [("training", 0.0), ("compiling", 1000.0)])
def test_after_a_stop_a_long_call_is_given_up(activity, patience, blocked, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_SECONDS", patience)
    waiting = Waiting()
    waiting.stop()
    with pytest.raises(GivenUp, match=activity):
        waiting.call(activity, blocked)
    assert module._running, "it goes on"


def test_after_a_stop_a_short_call_is_waited_for():
    waiting = Waiting()
    waiting.stop()
    assert waiting.call("training", time.sleep, 0.2) is None


def test_the_first_signal_is_noted_during_a_call_and_the_second_ends_it(blocked):
    """The call itself sends the signals, from its thread."""
    waiting = Waiting()

    def send_two():
        os.kill(os.getpid(), signal.SIGTERM)
        while not waiting.stopping:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        blocked()

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as raised, stop_signals(waiting):
        waiting.call("training", send_two)
    assert raised.type is KeyboardInterrupt
    assert signal.getsignal(signal.SIGINT) is before
