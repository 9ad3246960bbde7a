"""Processes that run one program together, on one machine or many.

Each process has its own devices. All run the same Python code on the same numbers; the compiled program moves
data between them (XLA's collectives, over NCCL or Gloo). What only one process knows, such as the time or a
signal, is first made known to all: processes that take different decisions wait for each other for ever.
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
"""A process that is silent for this long counts as lost."""
START_SECONDS = 120
"""How long processes wait for each other at the start."""
ENGINES = ("Gloo", "NCCL", "MPI", "coordination")
"""Names that occur in the errors of a lost process."""
OTHER_PROCESS_FAILED = 3
"""The exit status of a process that stops because another one failed."""
LOCAL_RANKS = ("SHOAL_LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
LOCAL_SIZES = ("SHOAL_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


class ProcessInfo(NamedTuple):
    """This process's rank, the number of processes, the coordinator's address (None in mpirun and srun)."""

    rank: int
    size: int
    coordinator: str | None = None


class OtherProcessFailed(ShoalError):
    """Another process failed and reports it; this one stops too."""


def read_launcher() -> ProcessInfo | None:
    """This process as `mpirun` or `srun` describes it; None where it was started alone."""
    rank, size = _first_number(RANKS), _first_number(SIZES)
    return ProcessInfo(rank, size) if rank is not None and size is not None and size > 1 else None


def join(process: ProcessInfo) -> None:
    """Connect to the other processes. Call it before JAX's devices are used."""
    _limit_cores()
    common = {
        "initialization_timeout": START_SECONDS,
        "heartbeat_timeout_seconds": HEARTBEAT_SECONDS,
        "shutdown_timeout_seconds": HEARTBEAT_SECONDS,
    }
    try:
        if process.coordinator:
            own = listening_address(process.coordinator)
            jax.distributed.initialize(
                process.coordinator, process.size, process.rank, coordinator_bind_address=own, **common
            )
        elif "SLURM_STEP_NUM_TASKS" in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ:
            jax.distributed.initialize(**common)
        else:
            jax.distributed.initialize(cluster_detection_method="mpi4py", **common)
    except ImportError as error:
        raise ShoalError("running under mpirun needs mpi4py: pip install mpi4py") from error
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ShoalError(f"the {process.size} processes could not connect: {reason}") from error


def listening_address(coordinator: str) -> str | None:
    """Where the first process listens: on this machine alone, or on all its addresses where a host is named.

    >>> listening_address("127.0.0.1:29400"), listening_address("[::1]:29400")
    ('127.0.0.1:29400', '[::1]:29400')
    >>> listening_address("host1:29400")
    """
    host = coordinator.rpartition(":")[0].strip("[]")
    return coordinator if host in ("localhost", "::1") or host.startswith("127.") else None


def connect() -> None:
    """Open the connections between the processes, once their devices are chosen."""
    if num_processes() > 1:
        with _quiet_output():  # Gloo prints the number of processes
            first_rank_where(False)


def rank() -> int:
    """The number of this process; process 0 writes the files."""
    return jax.process_index() if num_processes() > 1 else 0


def broadcast_from_first(number: int) -> int:
    """The first process's number, in every process."""
    return number if num_processes() == 1 else int(_numbers(number)[0])


def first_rank_where(flag: bool) -> int | None:
    """The first process whose flag is set, if any. All processes must call it."""
    if num_processes() == 1:
        return 0 if flag else None
    flags = _numbers(int(flag))
    return int(np.argmax(flags)) if np.any(flags) else None


def run_on_first(function: Callable[[], Any]) -> Any:
    """Call a function in the first process only; its result in every process.

    The result must be a value that JSON can hold. If the function raises, all processes stop.
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
    succeeded, answer = json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(text), np.uint8)))
    if not succeeded:
        raise error or OtherProcessFailed("rank 0 failed")
    return answer


def fetch(tree: Tree) -> Tree:
    """The complete arrays on the host, in every process."""
    if num_processes() == 1:
        return jax.device_get(tree)
    return jax.device_get(jax.tree.map(_replicate, tree))


def put(tree: Tree, like: Tree) -> Tree:
    """Arrays that every process has on its host, on devices, sharded like those of `like`."""
    return jax.tree.map(lambda x, other: _put(x, other.sharding), tree, like)


def share(tree: Tree) -> Tree:
    """The first process's arrays, in every process; the others pass any of the same shapes."""
    if num_processes() == 1:
        return tree
    bits = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)
    given = multihost_utils.broadcast_one_to_all(jax.device_get(bits))
    wrap = lambda x, like: jax.random.wrap_key_data(jnp.asarray(x)) if _is_key(like) else np.asarray(x)
    return jax.tree.map(wrap, given, tree)


def run_distributed(process: ProcessInfo, program: Callable[[], int], quiet: bool) -> int:
    """Run a program together with other processes; end this one at once if something goes wrong.

    A failure is reported once, by the process it happened in. `quiet` leaves it to the launcher to report a
    lost process.
    """
    try:
        join(process)
        return program()
    except OtherProcessFailed:
        exit_now(OTHER_PROCESS_FAILED)
    except ShoalError as error:
        _report(process, str(error), error.traceback_text)
        exit_now(2)
    except KeyboardInterrupt:
        exit_now(130)
    except BaseException as error:
        lost = any(name in str(error) for name in ENGINES)
        if lost and not quiet:
            reason = str(error).strip().splitlines()[0]
            _report(process, f"lost another process ({reason}); everything up to the last checkpoint is kept")
        elif not lost:
            _report(process, "a bug in Shoal, or in what it was given", traceback.format_exc())
        exit_now(OTHER_PROCESS_FAILED if lost else 1)
    raise AssertionError("exited")


@contextmanager
def _quiet_output() -> Iterator[None]:
    """Hide what C++ writes to the standard output."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _report(process: ProcessInfo, message: str, details: str = "") -> None:
    print(f"{details}shoal: rank {process.rank} of {process.size}: {message}", file=sys.stderr, flush=True)


def exit_now(code: int) -> None:
    """End this process at once: an orderly end waits for the other processes, perhaps for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _numbers(number: int) -> np.ndarray:
    """The numbers of all processes, (P,)."""
    divided, gather = _all_gather()
    mine = jax.device_put(np.array([number], np.int32), next(iter(divided.addressable_devices)))
    numbers = jax.make_array_from_single_device_arrays((num_processes(),), divided, [mine])
    return np.asarray(gather(numbers).addressable_data(0))


@cache
def _all_gather() -> tuple[NamedSharding, Callable]:
    """A sharding over one device of each process, and the program that gathers such an array."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([firsts[process] for process in sorted(firsts)]), ("processes",))
    divided, whole = NamedSharding(mesh, PartitionSpec("processes")), NamedSharding(mesh, REPLICATED)
    return divided, jax.jit(_identity, out_shardings=whole)


def _replicate(x: jax.Array) -> jax.Array:
    if x.is_fully_addressable or x.is_fully_replicated:
        return x
    assert isinstance(x.sharding, NamedSharding)
    return jax.jit(_identity, out_shardings=NamedSharding(x.sharding.mesh, REPLICATED))(x)


def _identity(x: jax.Array) -> jax.Array:
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


def _limit_cores() -> None:
    """Use only a share of the cores where several processes of a machine may use the same ones.

    Never a single core: Gloo waits in a busy loop, so that with one core every message takes a turn of the
    scheduler (4 ms instead of 0.3).
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
