"""Processes that run one program together, on one machine or many.

Each has its devices, and all run the same Python code on the same numbers; the compiled program moves what
must move between them (XLA's collectives, over NCCL or Gloo). What only one process can know, such as the
time or a signal, is agreed on here before anyone acts on it: else they would wait for each other for ever.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shoal.distributed.mesh import REPLICATED, SHARED_BY, num_processes
from shoal.errors import ShoalError
from shoal.types import Tree

HEARTBEAT_SECONDS = 20
"""After so long without a sign of life a process counts as lost."""
START_SECONDS = 120
"""How long processes wait for each other at the start."""
ENGINES = ("Gloo", "NCCL", "MPI", "coordination")
"""Who is named in the error that tells of a lost process."""
ELSEWHERE = 3
"""The exit status of a process that stopped because another failed."""
LOCAL_RANKS = ("SHOAL_LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
LOCAL_SIZES = ("SHOAL_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


class ProcessInfo(NamedTuple):
    """Which of how many processes this is, and where they meet (unknown where a launcher's library tells)."""

    rank: int
    size: int
    coordinator: str | None = None


class FailedElsewhere(ShoalError):
    """Another process reports its failure; all stop at the same point."""


def launched_as() -> ProcessInfo | None:
    """What `mpirun` or `srun` says of this process; None where it was started alone."""
    rank, size = _first_number(RANKS), _first_number(SIZES)
    return ProcessInfo(rank, size) if rank is not None and size is not None and size > 1 else None


def join(place: ProcessInfo) -> None:
    """Meet the other processes. Call before JAX's devices are used."""
    _share_cores()
    common = {
        "initialization_timeout": START_SECONDS,
        "heartbeat_timeout_seconds": HEARTBEAT_SECONDS,
        "shutdown_timeout_seconds": HEARTBEAT_SECONDS,
    }
    try:
        if place.coordinator:
            jax.distributed.initialize(place.coordinator, place.size, place.rank, **common)
        elif "SLURM_STEP_NUM_TASKS" in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ:
            jax.distributed.initialize(**common)
        else:
            jax.distributed.initialize(cluster_detection_method="mpi4py", **common)
    except ImportError as error:
        raise ShoalError("running under mpirun needs mpi4py: pip install mpi4py") from error
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ShoalError(f"the {place.size} processes could not meet: {reason}") from error


def connect() -> None:
    """Open the connections between the processes, once their devices are chosen."""
    if num_processes() > 1:
        with _quiet_output():  # Gloo says how many there are
            first_rank_where(False)


def rank() -> int:
    """Which process this is; 0 writes."""
    return jax.process_index() if num_processes() > 1 else 0


def broadcast_from_first(number: int) -> int:
    """The first process's number, for everyone."""
    return number if num_processes() == 1 else int(_numbers(number)[0])


def first_rank_where(flag: bool) -> int | None:
    """The first process for which the flag is set, if any; they all ask together."""
    if num_processes() == 1:
        return 0 if flag else None
    flags = _numbers(int(flag))
    return int(np.argmax(flags)) if np.any(flags) else None


def run_on_first(function: Callable[[], Any]) -> Any:
    """What a function returns in the first process, where alone it is called, for everyone.

    It may return what JSON can hold. If it raises, everyone stops.
    """
    if num_processes() == 1:
        return function()
    answer, error = None, None
    if rank() == 0:
        try:
            answer = function()
        except ShoalError as raised:
            error = raised
    message = json.dumps([error is None, answer]).encode()
    length = broadcast_from_first(len(message))
    text = np.frombuffer(message.ljust(length)[:length], np.uint8)
    well, answer = json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(text), np.uint8)))
    if not well:
        raise error or FailedElsewhere("rank 0 failed")
    return answer


def fetch(tree: Tree) -> Tree:
    """The arrays on the host, whole, in every process."""
    if num_processes() == 1:
        return jax.device_get(tree)
    return jax.device_get(jax.tree.map(_whole, tree))


def put(tree: Tree, like: Tree) -> Tree:
    """Arrays that every process has on its host, on the devices that hold those of `like`."""
    return jax.tree.map(lambda x, other: _put(x, other.sharding), tree, like)


def share(tree: Tree) -> Tree:
    """The first process's arrays, for everyone; the others give any of the same shapes."""
    if num_processes() == 1:
        return tree
    bits = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)
    given = multihost_utils.broadcast_one_to_all(jax.device_get(bits))
    wrap = lambda x, like: jax.random.wrap_key_data(jnp.asarray(x)) if _is_key(like) else np.asarray(x)
    return jax.tree.map(wrap, given, tree)


def run_distributed(place: ProcessInfo, program: Callable[[], int], quiet: bool) -> int:
    """Run a program together with other processes, and end at once if something goes wrong.

    A failure is told once, with the rank it happened to; that another was lost is left to who watches the
    processes, where someone does (`quiet`).
    """
    try:
        join(place)
        return program()
    except FailedElsewhere:
        leave(ELSEWHERE)
    except ShoalError as error:
        _tell(place, str(error), error.traceback_text)
        leave(2)
    except KeyboardInterrupt:
        leave(130)
    except BaseException as error:
        lost = any(name in str(error) for name in ENGINES)
        if lost and not quiet:
            reason = str(error).strip().splitlines()[0]
            _tell(place, f"lost another process ({reason}); everything up to the last checkpoint is kept")
        elif not lost:
            _tell(place, "a bug in Shoal, or in what it was given", traceback.format_exc())
        leave(ELSEWHERE if lost else 1)
    raise AssertionError("left")


@contextmanager
def _quiet_output() -> Iterator[None]:
    """Nothing from C++ reaches the standard output meanwhile."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _tell(place: ProcessInfo, message: str, details: str = "") -> None:
    print(f"{details}shoal: rank {place.rank} of {place.size}: {message}", file=sys.stderr, flush=True)


def leave(code: int) -> None:
    """End this process at once: a process that waits for the others to end well may wait for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _numbers(number: int) -> np.ndarray:
    """Everyone's number, (P,)."""
    divided, same = _meeting()
    mine = jax.device_put(np.array([number], np.int32), next(iter(divided.addressable_devices)))
    numbers = jax.make_array_from_single_device_arrays((num_processes(),), divided, [mine])
    return np.asarray(same(numbers).addressable_data(0))


@cache
def _meeting() -> tuple[NamedSharding, Callable]:
    """One device of each process, and the program by which they tell each other a number."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([firsts[process] for process in sorted(firsts)]), ("processes",))
    divided, whole = NamedSharding(mesh, PartitionSpec("processes")), NamedSharding(mesh, REPLICATED)
    return divided, jax.jit(_same, out_shardings=whole)


def _whole(x: jax.Array) -> jax.Array:
    if x.is_fully_addressable or x.is_fully_replicated:
        return x
    assert isinstance(x.sharding, NamedSharding)
    return jax.jit(_same, out_shardings=NamedSharding(x.sharding.mesh, REPLICATED))(x)


def _same(x: jax.Array) -> jax.Array:
    return x


def _put(x: Tree, sharding: jax.sharding.Sharding) -> jax.Array:
    if num_processes() == 1:
        return jax.device_put(x, sharding)
    if _is_key(x):
        bits = np.asarray(jax.random.key_data(x))
        laid = jax.make_array_from_callback(bits.shape, sharding, lambda index: bits[index])
        return jax.jit(jax.random.wrap_key_data, out_shardings=sharding)(laid)
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def _is_key(x: Tree) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _share_cores() -> None:
    """Keep to this process's share of the cores, where several processes were given the same ones.

    But never to a single one: while Gloo waits for its own thread it keeps the core busy, so that with one
    core every message takes a turn of the scheduler (4 ms instead of 0.3).
    """
    rank, size = _first_number(LOCAL_RANKS), _first_number(LOCAL_SIZES)
    if sys.platform != "linux" or rank is None or size is None or size == 1:
        return
    cores, everything = sorted(os.sched_getaffinity(0)), range(os.cpu_count() or 1)
    share = len(cores) // size
    if len(cores) == 1:
        os.sched_setaffinity(0, everything)
        os.environ[SHARED_BY] = str(len(os.sched_getaffinity(0)))
    elif len(cores) == len(everything) and share >= 2:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])
    elif len(cores) == len(everything):
        os.environ[SHARED_BY] = str(size)


def _first_number(names: tuple[str, ...]) -> int | None:
    values = [os.environ[name] for name in names if name in os.environ]
    return int(values[0]) if values and values[0].isdecimal() else None
