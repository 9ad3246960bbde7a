"""Python environments in worker processes, so that slow ones use all cores.

A worker steps some of the rows. Actions reach it by a socket; its observations, rewards and flags go into
memory that all processes share. Workers are programs of their own and not forks: JAX's threads do not survive
a fork, and a script need not be guarded by `if __name__ == "__main__"`.

A worker that dies, or is ended because a row takes too long, is replaced where failures are contained: the
row that it stepped is bad, and the episodes of its others are cut short.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import IO, Any, NamedTuple

import jax
import numpy as np

from shoal.envs.adapters.faults import Deadline, Fault, Faults, Plan
from shoal.envs.adapters.host import HostAdapter, HostEnvs, Step, host_env
from shoal.envs.adapters.worker_process import Bad, Failure, map_memory
from shoal.errors import ShoalError
from shoal.types import Env, Tree

Make = Callable[[np.ndarray], HostEnvs]
"""Makes one environment for each seed."""
WORKERS = "workers"
"""The option of Python environments that says how many processes step them."""
SECONDS_TO_CLOSE = 1.0
"""How long a worker has to end by itself."""
_SERVE = "import sys; from shoal.envs.adapters.worker_process import serve; serve(*map(int, sys.argv[1:]))"


class Worker(NamedTuple):
    """A process and the rows that it steps."""

    process: subprocess.Popen
    connection: Connection
    rows: slice

    def send(self, *request: Any) -> None:
        """Ask for something; `receive` has the answer."""
        with suppress(OSError):  # it has ended: `receive` says so
            self.connection.send(request)

    def receive(self, timeout: float | None = None, at: np.ndarray | None = None) -> Any:
        """The answer, which may be a `Failure`; `timeout` is for each row, whose number is `at`."""
        try:
            if timeout is not None and at is not None and not self._answers(Deadline(timeout), at):
                self.process.kill()
                self.process.wait()
                return Failure(f"a step or a reset took longer than --env-timeout {timeout:g} seconds")
            return self.connection.recv()
        except (EOFError, OSError):
            return Failure(f"a worker process of the environment {_how_it_ended(self.process)}")

    def _answers(self, deadline: Deadline, at: np.ndarray) -> bool:
        while (left := deadline.left(int(at[self.rows.start]))) > 0:
            if self.connection.poll(left):
                return True
        return False

    def end(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


def without_workers(name: str, options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The other options, and the number of workers.

    >>> without_workers("Walk-v0", {"workers": 4, "size": 3})
    ({'size': 3}, 4)
    """
    num_workers = options.get(WORKERS, 1)
    if not isinstance(num_workers, int) or isinstance(num_workers, bool) or num_workers < 1:
        raise ShoalError(f"{name}: {WORKERS}={num_workers!r} must be a whole number of processes, 1 or more")
    return {key: value for key, value in options.items() if key != WORKERS}, num_workers


def worker_env(adapter: HostAdapter, make: Make, seeds: np.ndarray, num_workers: int) -> Env:
    """`host_env` with the environments of each device in `num_workers` processes; one: in this process."""
    if num_workers == 1:
        return host_env(adapter, make, seeds)
    distribute = lambda own_seeds: WorkerEnvs(adapter, make, own_seeds, num_workers)
    return host_env(adapter._replace(observe=lambda seen: seen), distribute, seeds)


class WorkerEnvs:
    """N environments in several processes, with the episodes of one process.

    Their observations are those of `adapter.observe` already.
    """

    def __init__(self, adapter: HostAdapter, make: Make, seeds: np.ndarray, num_workers: int):
        import cloudpickle  # Gymnasium needs it, too

        adapter = adapter._replace(spec=replace(adapter.spec, augment=None))
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._file = file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (`_close` closes it)
        bounds = np.linspace(0, len(seeds), min(num_workers, len(seeds)) + 1).astype(int).tolist()
        slices = [slice(*pair) for pair in pairwise(bounds)]
        self.workers = [_start(file, rows) for rows in slices]
        self._finalizer = weakref.finalize(self, _close, self.workers, file)
        self.answer, self.at = map_memory(file.fileno(), adapter.spec, len(seeds))
        self.faults, self.plan = Faults(seeds), Plan(adapter.spec.name, contained=False, restarts=False)
        self.worlds: list[dict[str, float]] = []
        self._deaths = 0
        self._made = (adapter.spec.name, cloudpickle.dumps((adapter, make)), seeds)
        for worker in self.workers:
            worker.send("make", *self._made, worker.rows)
        for worker in self.workers:
            _checked(worker.receive())

    def contain(self, plan: Plan) -> None:
        """What one of these raises costs only its row, and so does one that hangs or whose process ends."""
        self.plan = plan
        self.faults.set(plan)
        for worker in self.workers:
            worker.send("contain", plan)
            _checked(worker.receive())

    def drop(self, rows: list[int]) -> None:
        """Step these no more."""
        self.faults.drop(rows)
        self._tell("drop", rows)

    def revive(self, rows: list[int]) -> None:
        """Make these anew at the next step."""
        self.faults.revive(rows)
        self._tell("revive", rows)

    def _tell(self, what: str, rows: list[int]) -> None:
        """Ask the workers of some rows for something; one that has ended is noticed at the next step."""
        for worker in self.workers:
            start, stop = worker.rows.start, worker.rows.stop
            if own := [row - start for row in rows if start <= row < stop]:
                worker.send(what, own)
                worker.receive()

    def reset(self, worlds: list[dict[str, float]]) -> Tree:
        """Start from the environments' seeds, in these worlds; [] keeps the worlds."""
        self.worlds = worlds or self.worlds
        return self._ask(lambda rows: ("reset", worlds[rows]))[0]

    def restart(self) -> Tree:
        """Start new episodes; random numbers continue."""
        return self._ask(lambda rows: ("restart",))[0]

    def step(self, actions: Any) -> Step:
        """One step of all rows, in all workers at the same time."""
        return self._ask(lambda rows: ("step", actions[rows]))

    def render(self, index: int) -> np.ndarray | None:
        """A picture of one row."""
        worker = next(worker for worker in self.workers if index < worker.rows.stop)
        worker.send("render", index - worker.rows.start)
        return _checked(worker.receive())

    def close(self) -> None:
        """End the workers."""
        self._finalizer()

    def _ask(self, request: Callable[[slice], tuple]) -> Step:
        for worker in self.workers:
            worker.send(*request(worker.rows))
        timeout = self.plan.timeout
        answers = [worker.receive(timeout, self.at) for worker in self.workers]
        for index, answer in enumerate(answers):
            rows = self.workers[index].rows
            if isinstance(answer, Bad):
                self._note(rows, answer)
            elif isinstance(answer, Failure) and self.plan.contained and self._has_ended(index):
                self._replace(index, answer)
            elif _checked(answer) is None and any(self.faults.bad[rows]):
                self.faults.bad[rows] = [False] * (rows.stop - rows.start)
        return jax.tree.map(np.copy, self.answer)

    def _has_ended(self, index: int) -> bool:
        return self.workers[index].process.poll() is not None

    def _note(self, rows: slice, answer: Bad) -> None:
        for fault in answer.new:
            self.faults.note(fault._replace(row=fault.row + rows.start))
        self.faults.bad[rows] = answer.rows

    def _replace(self, index: int, failure: Failure) -> None:
        """Put another worker in the place of one that ended; its rows begin new episodes at the next step."""
        worker = self.workers[index]
        rows, step, faults = worker.rows, self.answer, self.faults
        worker.end()
        faults.note(Fault(rows.start + int(self.at[rows.start]), failure.message))
        self._deaths += 1
        self.workers[index] = worker = _start(self._file, rows)
        out = [faults.is_out(row) for row in range(rows.start, rows.stop)]
        requests = [("make", *self._made, rows), ("contain", self.plan)]
        counts = [count + self._deaths for count in faults.counts[rows]]
        requests += [("replace", out, counts, self.worlds[rows])]
        for request in requests:
            worker.send(*request)
            _checked(worker.receive())
        bad = np.array(faults.bad[rows])
        reward, terminated, truncated, valid, over = (array[rows] for array in step[1:])
        reward[:], terminated[:], truncated[:], valid[:], over[:] = 0.0, False, True, True, True
        reward[bad] = np.nan


def _start(file: IO[bytes], rows: slice) -> Worker:
    """A worker for these rows, which waits to be asked."""
    here, there = socket.socketpair()
    numbers = (there.fileno(), file.fileno())
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, *map(str, numbers)],
        pass_fds=numbers,
        env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.DEVNULL,
    )
    there.close()
    return Worker(process, Connection(here.detach()), rows)


def _close(workers: list[Worker], file: IO[bytes]) -> None:
    """End the workers, which do so when nobody is left to ask; kill those that do not."""
    for worker in workers:
        worker.connection.close()
    file.close()
    for worker in workers:
        try:
            worker.process.wait(SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def _checked(answer: Any) -> Any:
    """The answer; a failure is raised."""
    if isinstance(answer, Failure):
        error = ShoalError(answer.message)
        error.traceback_text = answer.traceback_text
        raise error
    return answer


def _how_it_ended(process: subprocess.Popen) -> str:
    """A process's end in words.

    >>> _how_it_ended(subprocess.Popen(["sh", "-c", "kill -9 $$"]))
    'was ended by signal 9 (SIGKILL)'
    >>> _how_it_ended(subprocess.Popen(["sh", "-c", "exit 3"]))
    'ended with exit code 3'
    """
    code = process.wait()
    if code < 0:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"
