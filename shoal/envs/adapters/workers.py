"""Python environments in worker processes, so that slow ones use all cores.

A worker steps some of the rows. Actions reach it by a socket; its observations, rewards and flags go into
memory that all processes share. Workers are programs of their own and not forks: JAX's threads do not survive
a fork, and a script need not be guarded by `if __name__ == "__main__"`.
"""

import mmap
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

from shoal.envs.adapters.host import EnvironmentCrashed, HostAdapter, HostEnvs, Step, host_env
from shoal.errors import ShoalError
from shoal.types import Env, EnvSpec, Tree

Make = Callable[[np.ndarray], HostEnvs]
"""Makes one environment for each seed."""

WORKERS = "workers"
"""The option of Python environments that says how many processes step them."""

SECONDS_TO_CLOSE = 1.0
"""How long a worker has to end by itself."""

_SERVE = "import sys; from shoal.envs.adapters.workers import serve; serve(*map(int, sys.argv[1:]))"
_CACHE_LINE = 64


class Failure(NamedTuple):
    """What an environment raised in its worker, or how the worker ended."""

    message: str
    traceback_text: str = ""


class Worker(NamedTuple):
    """A process and the rows that it steps."""

    process: subprocess.Popen
    connection: Connection
    rows: slice

    def send(self, *request: Any) -> None:
        """Ask for something; `receive` has the answer."""
        with suppress(OSError):  # it has ended: `receive` says so
            self.connection.send(request)

    def receive(self) -> Any:
        """The answer, which may be a `Failure`."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return Failure(f"a worker process of the environment {_how_it_ended(self.process)}")


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
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (`_close` closes it)
        bounds = np.linspace(0, len(seeds), min(num_workers, len(seeds)) + 1).astype(int).tolist()
        slices = [slice(*pair) for pair in pairwise(bounds)]
        self.workers = [_start(file, rows) for rows in slices]
        self._finalizer = weakref.finalize(self, _close, self.workers, file)
        self.answer = map_memory(file.fileno(), adapter.spec, len(seeds))
        recipe = cloudpickle.dumps((adapter, make))
        for worker in self.workers:
            worker.send("make", adapter.spec.name, recipe, seeds, worker.rows)
        self._wait()

    def reset(self, worlds: list[dict[str, float]]) -> Tree:
        """Start from the environments' seeds, in these worlds; [] keeps the worlds."""
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
        self._wait()
        return jax.tree.map(np.copy, self.answer)

    def _wait(self) -> None:
        for answer in [worker.receive() for worker in self.workers]:
            _checked(answer)


def map_memory(file: int, spec: EnvSpec, num_envs: int) -> Step:
    """The arrays of a step of N environments, in a file that every process maps."""
    axes = (num_envs, *spec.agent_axis)
    observation = jax.tree.map(lambda box: np.empty((*axes, *box.shape), box.dtype), spec.observation)
    flags = [np.empty(num_envs, bool)] * 4
    leaves, structure = jax.tree.flatten((observation, np.empty(axes, np.float32), *flags))
    starts = np.cumsum([0, *[-(-leaf.nbytes // _CACHE_LINE) * _CACHE_LINE for leaf in leaves]]).tolist()
    os.ftruncate(file, starts[-1])
    pages = mmap.mmap(file, starts[-1])
    mapped = [
        np.frombuffer(pages, leaf.dtype, leaf.size, start).reshape(leaf.shape)
        for leaf, start in zip(leaves, starts[:-1], strict=True)
    ]
    return jax.tree.unflatten(structure, mapped)


def serve(socket_number: int, file: int) -> None:
    """A worker: do what it is asked for until nobody asks any more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the program that asks decides when to end
        signal.signal(number, signal.SIG_IGN)
    connection, served = Connection(socket_number), Served(file)
    with suppress(EOFError, OSError):
        while True:
            method, *arguments = connection.recv()
            connection.send(served.answer(method, arguments))


class Served:
    """The environments of one worker; what they answer goes into the memory that all share."""

    name: str
    envs: HostEnvs

    def __init__(self, file: int):
        self.file = file
        self.methods = {
            "make": self.make,
            "reset": lambda worlds: self.write_observation(self.envs.reset(worlds)),
            "restart": lambda: self.write_observation(self.envs.restart()),
            "step": self.step,
            "render": lambda index: self.envs.render(index),
        }

    def make(self, name: str, recipe: bytes, seeds: np.ndarray, rows: slice) -> None:
        """Make the environments of some of the rows."""
        import cloudpickle

        self.name = name
        self.adapter, make = cloudpickle.loads(recipe)
        self.envs = make(seeds[rows])
        shared = map_memory(self.file, self.adapter.spec, len(seeds))
        self.answers = jax.tree.map(lambda array: array[rows], shared)

    def step(self, actions: Any) -> None:
        observation, *others = self.envs.step(actions)
        self.write_observation(observation)
        for array, found in zip(self.answers[1:], others, strict=True):
            array[:] = found

    def write_observation(self, observation: Any) -> None:
        jax.tree.map(np.copyto, self.answers[0], self.adapter.observe(observation))

    def answer(self, method: str, arguments: list[Any]) -> Any:
        """What a method returns, or a `Failure`."""
        try:
            return self.methods[method](*arguments)
        except BaseException as error:  # even SystemExit: somebody waits for an answer
            crash = EnvironmentCrashed(self.name, error)
            return Failure(str(crash), crash.traceback_text)


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
