"""Devices: a mesh with the axes `learners` and `data`, on a laptop's cores as on a cluster."""

import os
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

ROWS = PartitionSpec("learners")
"""Divided among devices along the learner axis."""
WHOLE = PartitionSpec()
"""The same on every device."""


def use_every_core() -> None:
    """Give JAX one CPU device per core, if nothing has run on it yet.

    XLA runs a small program on about one core, so a cohort is spread over one device per core.
    """
    try:
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    except (RuntimeError, AttributeError):  # JAX already runs, or this system has no affinity
        return


def make_mesh(num_learners: int, parallel: bool = True) -> Mesh:
    """The devices a cohort is spread over: as many as divide its learners evenly, or just one.

    >>> make_mesh(1).shape["learners"]
    1
    """
    use_every_core()
    devices = jax.devices() if parallel else jax.devices()[:1]
    usable = max(n for n in range(1, len(devices) + 1) if num_learners % n == 0)
    return Mesh(np.array(devices[:usable]).reshape(usable, 1), ("learners", "data"))


def on_each_device(mesh: Mesh, function: Callable, in_specs, out_specs) -> Callable:
    """Run `function` on every device with that device's rows."""
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
