"""Environments in Python that fail: which rows, why, and what becomes of them and their learners."""

import os
import re
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from shoal.errors import ShoalError
from shoal.types import Tree

SEED_OF_NEXT = 11
"""Folded into a row's seed, with how often it failed, for the environment that is made anew."""


class EnvironmentCrashed(ShoalError):
    """An environment raised; the message is one line, `traceback_text` the environment's own traceback.

    What it returned may be wrong, too: then the message says so, and there is no traceback to show.
    """

    def __init__(self, name: str, error: BaseException):
        if isinstance(error, ShoalError):
            super().__init__(str(error))
            self.traceback_text = error.traceback_text
            return
        reason = str(error).strip().splitlines()
        super().__init__(f"{name} raised {type(error).__name__}" + (f": {reason[0]}" if reason else ""))
        below = error.__traceback__
        while below is not None and os.path.dirname(below.tb_frame.f_code.co_filename) == _ADAPTERS:
            below = below.tb_next
        self.traceback_text = "".join(traceback.format_exception(type(error), error, below))


_ADAPTERS = os.path.dirname(__file__)
"""Lines of a traceback in this folder are ours and not the environment's."""


class Fault(NamedTuple):
    """An environment that raised, took too long, or whose process ended."""

    row: int
    message: str
    traceback_text: str = ""

    def __str__(self) -> str:
        """The message, and the line of code it is from.

        >>> str(Fault(0, "Walk raised KeyError: 3", '  File "walk.py", line 7, in step\\n    x = y[3]'))
        'Walk raised KeyError: 3 (walk.py:7, in step)'
        """
        places = re.findall(r'File "(.*)", line (\d+), in (\S+)', self.traceback_text)
        return self.message + (" ({}:{}, in {})".format(*places[-1]) if places else "")


class Faults:
    """The rows of one batch of environments: which are bad, and whether they are made anew.

    Not contained, an exception leaves the batch. Contained, its row is bad: rewards and observations are NaN
    from then on. With `restarts` the next step makes the environment anew and begins an episode there.
    """

    def __init__(self, seeds: Sequence[int] | np.ndarray):
        num_rows = len(seeds)
        self.seeds = [int(seed) for seed in seeds]
        self.name, self.contained, self.restarts = "the environment", False, False
        self.bad, self.renews, self.counts = [False] * num_rows, [False] * num_rows, [0] * num_rows
        self.at: Any = [0]
        """The row that is stepped, which the process that waits for this one reads."""
        self._new: list[Fault] = []

    def set(self, plan: "Plan") -> None:
        """Contain what environments raise, or not; make those that fail anew, or not."""
        self.name, self.contained, self.restarts = plan.name, plan.contained, plan.restarts

    def catch(self, row: int, error: BaseException) -> None:
        """A row has raised."""
        crash = EnvironmentCrashed(self.name, error)
        self.note(Fault(row, str(crash), crash.traceback_text))

    def note(self, fault: Fault) -> None:
        """A row has failed."""
        self.bad[fault.row], self.renews[fault.row] = True, self.restarts
        self.counts[fault.row] += 1
        self._new.append(fault)

    def take(self) -> list[Fault]:
        """The faults since the last call."""
        new, self._new = self._new, []
        return new

    def is_out(self, row: int) -> bool:
        """Whether a row is bad and stays so."""
        return self.bad[row] and not self.renews[row]

    def drop(self, rows: Iterable[int]) -> None:
        """These rows count as bad from now on, and stay so."""
        for row in rows:
            self.bad[row], self.renews[row] = True, False

    def revive(self, rows: Iterable[int]) -> None:
        """Make the environments of these rows anew at the next step."""
        for row in rows:
            self.renews[row] = self.bad[row]
            self.counts[row] += 1

    def in_new_process(self, out: Sequence[bool], counts: Sequence[int]) -> None:
        """The rows of a process that ended, in another one: made anew at the next step, but for those out.

        `counts` are higher than any so far, so that their seeds are new.
        """
        self.bad, self.renews = [True] * len(out), [not row for row in out]
        self.counts = list(counts)

    def renewed(self, row: int) -> int:
        """A row has a new environment; the seed of its first episode."""
        self.bad[row] = self.renews[row] = False
        entropy = np.random.SeedSequence([self.seeds[row], SEED_OF_NEXT, self.counts[row]])
        return int(entropy.generate_state(1)[0])


class Plan(NamedTuple):
    """What becomes of environments that fail."""

    name: str
    contained: bool  # they cost their learner, not the run
    restarts: bool  # they are made anew at the next step
    timeout: float | None = None  # the seconds that a step or a reset may take


class ContainedEnvs(Protocol):
    """Environments of which some may fail."""

    faults: Faults

    def contain(self, plan: "Plan") -> None:
        """Say what becomes of those that fail."""
        ...

    def drop(self, rows: list[int]) -> None:
        """Step these no more."""
        ...

    def revive(self, rows: list[int]) -> None:
        """Make these anew at the next step."""
        ...


class Containment:
    """What failing environments cost: their learners. One for the environments of all devices.

    `contain` sets it up before the first reset; without it an exception ends the program. The caller of the
    program reads `take` each time it returns.
    """

    def __init__(self, name: str, devices: Sequence[ContainedEnvs]):
        self.name, self.devices = name, devices
        self.learners: np.ndarray | None = None  # (D, N), whose each row is; None where nothing is contained
        self.restarts = False
        self._plan: Plan | None = None
        self._new: dict[int, Fault] = {}
        self.lost: set[int] = set()

    def contain(
        self, learners: np.ndarray | None, restarts: bool = False, timeout: float | None = None
    ) -> None:
        """Contain failures, given the learner of every row (D, N); with None only limit the time."""
        self.learners, self.restarts = learners, restarts
        self._plan = Plan(self.name, learners is not None, restarts, timeout)
        self.renewed()

    def renewed(self) -> None:
        """All environments are others now."""
        self._new, self.lost = {}, set()
        if self._plan:
            for envs in self.devices:
                envs.contain(self._plan)

    def collect(self, device: int) -> list[bool]:
        """Note what failed in the last call on a device; which of its rows are bad."""
        faults = self.devices[device].faults
        if self.learners is not None:
            for fault in faults.take():
                learner = int(self.learners[device, fault.row])
                self._new.setdefault(learner, fault)
                if not self.restarts and learner not in self.lost:
                    self.devices[device].drop(np.flatnonzero(self.learners[device] == learner).tolist())
                    self.lost.add(learner)
        return faults.bad

    def take(self) -> dict[int, Fault]:
        """The first fault of each learner that had one since the last call."""
        new, self._new = self._new, {}
        return new

    def revive(self, learners: Iterable[int]) -> None:
        """These learners go on, as copies of others: their environments are made anew."""
        assert self.learners is not None
        for learner in set(learners) & self.lost:
            self.lost.discard(learner)
            for envs, owners in zip(self.devices, self.learners, strict=True):
                envs.revive(np.flatnonzero(owners == learner).tolist())


class Deadline:
    """When a process that steps several rows has taken too long for one of them."""

    def __init__(self, timeout: float):
        self.timeout, self.row, self.since = timeout, None, time.monotonic()

    def left(self, row: int) -> float:
        """The seconds left for the row that is stepped; the clock starts anew with each."""
        now = time.monotonic()
        if row != self.row:
            self.row, self.since = row, now
        return self.timeout - (now - self.since)


def spoiled(obs: Tree, bad: Sequence[bool]) -> Tree:
    """The observations, with NaN for every real number of the bad rows.

    >>> spoiled({"x": np.ones((2, 2), np.float32), "n": np.ones(2, np.uint8)}, [False, True])["x"].tolist()
    [[1.0, 1.0], [nan, nan]]
    """
    if True not in bad:
        return obs
    rows = np.flatnonzero(bad)

    def one(x: np.ndarray) -> np.ndarray:
        if not np.issubdtype(x.dtype, np.floating):
            return x
        x = np.array(x)
        x[rows] = np.nan
        return x

    return jax.tree.map(one, obs)
