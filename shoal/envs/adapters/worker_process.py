"""The process of a worker: it steps some of the environments, and answers into memory that all share."""

import mmap
import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.envs.adapters.faults import Fault
from shoal.envs.adapters.host import EnvironmentCrashed, HostEnvs, Step
from shoal.types import EnvSpec

_CACHE_LINE = 64


class Failure(NamedTuple):
    """What an environment raised in its worker, or how the worker ended."""

    message: str
    traceback_text: str = ""


class Bad(NamedTuple):
    """A worker's answer where some of its rows are bad."""

    rows: list[bool]
    new: list[Fault]


class Shared(NamedTuple):
    """The memory that all processes share."""

    step: Step
    at: np.ndarray  # (N,) int32: in a worker's first entry the row that it steps, counted from that one


def map_memory(file: int, spec: EnvSpec, num_envs: int) -> Shared:
    """The arrays of a step of N environments, in a file that every process maps."""
    axes = (num_envs, *spec.agent_axis)
    observation = jax.tree.map(lambda box: np.empty((*axes, *box.shape), box.dtype), spec.observation)
    flags = [np.empty(num_envs, bool)] * 4
    step = (observation, np.empty(axes, np.float32), *flags)
    leaves, structure = jax.tree.flatten(Shared(step, np.empty(num_envs, np.int32)))
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
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):  # the program that asks decides when to end
        signal.signal(number, signal.SIG_IGN)
    connection, served = Connection(socket_number), Served(file)
    with suppress(EOFError, OSError):
        while True:
            method, *arguments = connection.recv()
            connection.send(served.answer(method, arguments))


def _end_with(parent: int) -> None:
    """End this process with the one that started it, also while an environment hangs."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


class Served:
    """The environments of one worker; what they answer goes into the memory that all share."""

    name: str
    envs: HostEnvs

    def __init__(self, file: int):
        self.file = file
        self.methods = {
            "make": self.make,
            "contain": lambda plan: self.envs.contain(plan),
            "drop": lambda rows: self.envs.drop(rows),
            "revive": lambda rows: self.envs.revive(rows),
            "replace": self.replace,
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
        self.answers, at = jax.tree.map(lambda array: array[rows], shared)
        self.envs.faults.at = at

    def replace(self, out: list[bool], counts: list[int], worlds: list[dict[str, float]]) -> None:
        """Take the place of a worker that has ended."""
        self.envs.faults.in_new_process(out, counts)
        self.envs.begin_anew(worlds)

    def step(self, actions: Any) -> Bad | None:
        observation, *others = self.envs.step(actions)
        for array, found in zip(self.answers[1:], others, strict=True):
            array[:] = found
        return self.write_observation(observation)

    def write_observation(self, observation: Any) -> Bad | None:
        """Put an observation where all can read it; which rows are bad, if any are."""
        jax.tree.map(np.copyto, self.answers[0], self.adapter.observe(observation))
        faults = self.envs.faults
        return Bad(faults.bad, faults.take()) if any(faults.bad) else None

    def answer(self, method: str, arguments: list[Any]) -> Any:
        """What a method returns, or a `Failure`."""
        try:
            return self.methods[method](*arguments)
        except BaseException as error:  # even SystemExit: somebody waits for an answer
            crash = EnvironmentCrashed(self.name, error)
            return Failure(str(crash), crash.traceback_text)
