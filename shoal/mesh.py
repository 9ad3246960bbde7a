"""Devices: a mesh with the axes `learners` and `data`, on a laptop's cores as on a cluster."""

import os
import sys
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

ROWS = PartitionSpec("learners")
"""Divided among devices along the learner axis."""
WHOLE = PartitionSpec()
"""The same on every device."""


SMALL = 1024 * 64**2
"""Multiplications below which a matrix product is quicker on one thread than divided among several."""


GROUP = 4
"""Learners a core updates at a time (see `group_size`)."""


def make_mesh(num_learners: int, parallel: bool = True, work: int = SMALL) -> Mesh:
    """The devices a cohort is spread over: as many as divide its learners evenly, or just one.

    `work` is how many multiplications one learner's largest matrix product has.

    >>> make_mesh(1).shape["learners"]
    1
    """
    divide_cores(num_learners if parallel else 1, work)
    devices = jax.devices() if parallel else jax.devices()[:1]
    usable = max(n for n in range(1, len(devices) + 1) if num_learners % n == 0)
    return Mesh(np.array(devices[:usable]).reshape(usable, 1), ("learners", "data"))


def divide_cores(num_learners: int, work: int) -> None:
    """Give every device of the CPU its cores, if JAX has not begun to use them yet.

    XLA runs a small program on about one core, so a cohort gets a device per core. A program that has
    nothing to divide gets one thread: handing its many small operations from thread to thread takes
    longer than they do (one CartPole learner on 2 cores: 198k steps/s instead of 162k).
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    threads = 1 if num_learners > 1 or work < SMALL else cores
    try:
        jax.config.update("jax_num_cpu_devices", cores if num_learners > 1 else 1)
    except RuntimeError:  # JAX already runs
        return
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = before or str(threads)  # read by XLA when it makes its threads
    jax.devices()
    if before is None:
        del os.environ["NPROC"]


def on_each_device(mesh: Mesh, function: Callable, in_specs, out_specs) -> Callable:
    """Run `function` on every device with that device's rows."""
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def group_size(mesh: Mesh, num_learners: int) -> int:
    """How many of its learners a device updates at a time: on an accelerator all of them.

    On a core, a few: what they compute stays in its cache (64 CartPole learners on 2 cores:
    453k steps/s in groups of 4, 332k all at once, 417k one by one).
    """
    on_device = num_learners // mesh.shape["learners"]
    if mesh.devices.flat[0].platform != "cpu":
        return on_device
    return max(n for n in range(1, GROUP + 1) if on_device % n == 0)
