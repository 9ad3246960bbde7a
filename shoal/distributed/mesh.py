"""Devices: a mesh with the axes `learners` and `data`, on a laptop's cores as on a cluster.

A cohort's learners are divided over `learners`. Each learner's environments are divided over `data`: the
devices along it hold the same learner, step different environments, and sum their gradients.
"""

import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from shoal.errors import ShoalError
from shoal.types import Tree

DATA = "data"
"""The axis over which a learner's environments are divided."""
BY_LEARNER = PartitionSpec("learners")
"""(L, ...), divided among devices along the learner axis."""
BY_ENV = PartitionSpec("learners", DATA)
"""(L, E, ...), divided along both axes."""
BY_STEP = PartitionSpec(None, "learners", DATA)
"""(T, L, E, ...), divided along both axes."""
BY_DEVICE_ROW = PartitionSpec(("learners", DATA))
"""(N, ...), environments laid out device by device."""
REPLICATED = PartitionSpec()
"""The same on every device."""


SMALL = 1024 * 64**2
"""Multiplications below which a matrix product is quicker on one thread than divided among several."""


GROUP = 4
"""Learners a core updates at a time (see `group_size`)."""


FEW, SHORT = 4, 16_384
"""Up to FEW CPU devices and SHORT numbers, `psum` gathers from all and sums."""


SHARED_BY = "SHOAL_CORES_SHARED_BY"
"""Environment variable: how many processes share the cores that this one may use."""


def read_shape(text: str) -> tuple[int, int]:
    """A mesh's shape from text.

    >>> read_shape("4x2")
    (4, 2)
    """
    sizes = text.lower().split("x")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise ShoalError(f"a mesh is LEARNERSxDATA, two numbers of devices such as 4x2, not {text!r}")
    return int(sizes[0]), int(sizes[1])


def make_mesh(
    num_learners: int,
    num_envs: int = 1,
    *,
    parallel: bool = True,
    work: int = SMALL,
    shape: tuple[int, int] | None = None,
) -> Mesh:
    """The devices a cohort is spread over, learners first, then their environments.

    `shape` is (learners, data); by default it is chosen from the devices there are. Cores of one process
    divide learners only; accelerators and processes also divide environments. Where environments are not
    `parallel`, a process uses one device. `work` is the number of multiplications in one learner's largest
    matrix product.

    >>> make_mesh(1).shape["learners"]
    1
    """
    set_cpu_devices(num_learners if parallel else 1, work, shape)
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    if not parallel:
        devices = [first_of(devices, process) for process in range(jax.process_count())]
    shape = shape or choose_shape(num_learners, num_envs, devices)
    check_shape(shape, num_learners, num_envs, len(devices))
    return Mesh(np.array(devices[: shape[0] * shape[1]]).reshape(shape), ("learners", DATA))


def own_part(mesh: Mesh, num_learners: int) -> Mesh:
    """This process's devices of a mesh, as many as divide the learners evenly."""
    devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    count = max(n for n in range(1, len(devices) + 1) if num_learners % n == 0)
    return Mesh(np.array(devices[:count])[:, None], ("learners", DATA))


def first_of(devices: list[Any], process: int) -> Any:
    """A process's first device."""
    return next(device for device in devices if device.process_index == process)


def choose_shape(num_learners: int, num_envs: int, devices: list[Any]) -> tuple[int, int]:
    """As many devices as divide the work evenly, learners before environments; in several processes all."""
    several = jax.process_count() > 1
    most = 1 if devices[0].platform == "cpu" and not several else num_envs
    counts = [len(devices)] if several else range(len(devices), 0, -1)
    for count in counts:
        if shape := even_shape(num_learners, most, count):
            return shape
    more = next(
        n for n in range(num_envs, num_envs + len(devices) + 1) if even_shape(num_learners, n, len(devices))
    )
    raise ShoalError(
        f"{num_learners} learners x {num_envs} environments do not divide evenly over {len(devices)} "
        f"devices: use --num-envs {more}, or change --learners or the number of processes"
    )


def even_shape(num_learners: int, num_envs: int, num_devices: int) -> tuple[int, int] | None:
    """A mesh of so many devices that divides the work evenly, learners before environments.

    >>> even_shape(2, 6, 4), even_shape(1, 3, 2)
    ((2, 2), None)
    """
    for data in (n for n in range(1, num_devices + 1) if num_devices % n == 0):
        if num_learners % (num_devices // data) == 0 and num_envs % data == 0:
            return num_devices // data, data
    return None


def check_shape(shape: tuple[int, int], num_learners: int, num_envs: int, num_devices: int) -> None:
    """Raise where there are too few devices for a mesh, or it does not divide the work."""
    learners, data = shape
    name = f"mesh {learners}x{data}"
    if learners * data > num_devices:
        raise ShoalError(f"{name} needs {learners * data} devices, but there are {num_devices}")
    if jax.process_count() > 1 and learners * data < num_devices:
        raise ShoalError(f"{name} leaves some of the {num_devices} devices of all processes idle")
    if num_learners % learners:
        raise ShoalError(f"{name}: {learners} does not divide {num_learners} learners")
    if num_envs % data:
        raise ShoalError(f"{name}: {data} does not divide {num_envs} environments per learner")


def set_cpu_devices(num_learners: int, work: int, shape: tuple[int, int] | None = None) -> None:
    """Set the number of CPU devices and their threads, if JAX does not use them yet.

    XLA runs a small program on about one core, so a cohort gets a device per core. A small program that is
    not divided gets one thread: to pass its operations from thread to thread takes longer than they do (one
    CartPole learner on 2 cores: 198k steps/s instead of 162k). Where there may be an
    accelerator nothing is limited: XLA compiles for it with as many threads (on one: 50 s instead of 8).
    """
    if may_have_accelerator():
        return
    cores, processes = num_cores(), num_processes()
    if shape:
        num_devices = max(1, shape[0] * shape[1] // processes)
    elif processes == 1:
        num_devices = cores if num_learners > 1 else 1
    else:
        num_devices = max([n for n in range(1, cores + 1) if num_learners % (n * processes) == 0], default=1)
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError:  # JAX already runs
        return
    threads = 1 if num_devices > 1 or work < SMALL else cores
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = before or str(threads)  # read by XLA when it makes its threads
    jax.devices()
    if before is None:
        del os.environ["NPROC"]


def may_have_accelerator() -> bool:
    """Whether JAX has a plugin for other devices than the CPU; asking does not start them."""
    plugins = entry_points(group="jax_plugins") or find_spec("libtpu")
    return os.environ.get("JAX_PLATFORMS") != "cpu" and bool(plugins)


def num_cores() -> int:
    """The number of cores that this process may use alone."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get(SHARED_BY, "1")))


def num_processes() -> int:
    """How many processes run this program together; the call does not start JAX's devices."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def on_each_device(mesh: Mesh, function: Callable, in_specs, out_specs) -> Callable:
    """Run `function` on every device with that device's part of the arrays."""
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def local_device_index(num_devices: int) -> Array | int:
    """Which of this process's devices runs this code, in a mesh; 0 where there is one.

    The mesh lists the devices process by process, the same number for each.
    """
    if num_devices == 1:
        return 0
    return jax.lax.rem(jax.lax.axis_index(("learners", DATA)), num_devices)


def group_size(mesh: Mesh, num_learners: int) -> int:
    """How many of its learners a device updates at a time: on an accelerator all, on a core a few.

    The data of a few learners stays in a core's cache (64 CartPole learners on 2 cores:
    453k steps/s in groups of 4, 332k all at once, 417k one by one).
    """
    on_device = num_learners // mesh.shape["learners"]
    if mesh.devices.flat[0].platform != "cpu":
        return on_device
    return max(n for n in range(1, GROUP + 1) if on_device % n == 0)


def compiler_options(mesh: Mesh) -> dict[str, int]:
    """Options for XLA on these devices; none where XLA_FLAGS sets them.

    On a CPU a lower optimisation level: programs are as fast, and a first run starts 2 seconds sooner.
    """
    is_set = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    return {} if is_set or mesh.devices.flat[0].platform != "cpu" else {"xla_backend_optimization_level": 2}


def psum(tree: Tree, axes: tuple[str, ...]) -> Tree:
    """`jax.lax.psum` over mapped axes; the tree itself without axes.

    All numbers of one type are sent as one message: between processes, many small messages are slow.
    """
    if not axes:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    by_dtype: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        by_dtype.setdefault(leaf.dtype, []).append(index)
    for group in by_dtype.values():
        message = _psum_array(jnp.concatenate([leaves[index].reshape(-1) for index in group]), axes)
        ends = np.cumsum([leaves[index].size for index in group])[:-1]
        for index, part in zip(group, jnp.split(message, ends), strict=True):
            leaves[index] = part.reshape(leaves[index].shape)
    return jax.tree.unflatten(structure, leaves)


def _psum_array(message: Array, axes: tuple[str, ...]) -> Array:
    """Among few CPUs a short message is gathered and summed: that takes fewer rounds than a ring."""
    short = axes == (DATA,) and jax.lax.axis_size(axes) <= FEW and message.size <= SHORT
    if short and jax.default_backend() == "cpu":
        return jnp.sum(jax.lax.all_gather(message, axes), 0)
    return jax.lax.psum(message, axes)


def own_shard(x: Array, axis: int, shards: int) -> Array:
    """This device's part of an axis that is divided over `data`."""
    if shards == 1:
        return x
    size = x.shape[axis] // shards
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(DATA) * size, size, axis)


def gather_shards(x: Array, axis: int, shards: int) -> Array:
    """The whole axis, from the parts that the devices along `data` hold."""
    return x if shards == 1 else jax.lax.all_gather(x, DATA, axis=axis, tiled=True)


def to_device_order(x: np.ndarray, mesh: Mesh) -> np.ndarray:
    """(L, E, ...) -> (N, ...), environments laid out device by device."""
    learners, data = mesh.devices.shape
    blocks = x.reshape(learners, x.shape[0] // learners, data, x.shape[1] // data, *x.shape[2:])
    return blocks.swapaxes(1, 2).reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def from_device_order(x: np.ndarray, mesh: Mesh, num_learners: int) -> np.ndarray:
    """The way back from `to_device_order`."""
    learners, data = mesh.devices.shape
    num_envs = x.shape[0] // num_learners
    blocks = x.reshape(learners, data, num_learners // learners, num_envs // data, *x.shape[1:])
    return blocks.swapaxes(1, 2).reshape(num_learners, num_envs, *x.shape[1:])


def local_envs(x: np.ndarray, mesh: Mesh) -> np.ndarray:
    """(N, ...) laid out device by device -> (D, N / D, ...), for this process's devices."""
    own = [device.process_index == jax.process_index() for device in mesh.devices.flat]
    return x.reshape(len(own), -1, *x.shape[1:])[np.array(own)]
