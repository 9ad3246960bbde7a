"""Learners whose environments fail: contained while the program runs, marked as lost when it returns."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from shoal.distributed.mesh import local_envs, num_processes, to_device_order
from shoal.distributed.processes import fetch, first_rank_where
from shoal.envs.adapters.faults import Containment, Fault
from shoal.envs.adapters.workers import WORKERS
from shoal.errors import ShoalError
from shoal.exchanges.soundness import is_sound
from shoal.ops import trees
from shoal.training.config import TrainConfig
from shoal.training.iteration import Progress, TrainState
from shoal.types import Env


def contain_crashes(config: TrainConfig, env: Env, devices: Mesh) -> None:
    """Let environments that fail cost their learners, where there are several."""
    containment: Containment | None = env.containment
    if config.env_timeout is not None:
        check_timeout(config, containment)
    if containment is None:
        return
    owners = np.repeat(np.arange(config.learners)[:, None], config.algo.num_envs, 1)
    rows = local_envs(to_device_order(owners, devices), devices)
    restarts = config.on_nan == "restart"
    containment.contain(rows if config.learners > 1 else None, restarts, config.env_timeout)


def check_timeout(config: TrainConfig, containment: Containment | None) -> None:
    """Raise where nothing can end an environment that takes too long."""
    limit = f"env_timeout {config.env_timeout:g}"
    if containment is None:
        raise ShoalError(f"{limit}: {config.env} is compiled and runs in no process of its own; leave it out")
    if config.env_options.get(WORKERS, 1) == 1:
        raise ShoalError(
            f"{limit} needs processes that can be ended when {config.env} hangs; "
            f"add --env-options {WORKERS}=2, or leave it out"
        )


def settle_crashes(
    config: TrainConfig, env: Env, state: TrainState, progress: Progress, selected: bool
) -> tuple[TrainState, Progress, dict[int, Fault]]:
    """After a call of the program: whom it lost to environments, in the state, in the progress, and told.

    PPO's learners are lost already, to the NaN of their rewards; a replay keeps no such steps, so here the
    parameters become NaN, too. Environments of learners that a selection has replaced are made anew.
    """
    containment: Containment | None = env.containment
    if containment is None or containment.learners is None:
        return state, progress, {}
    told = containment.take()
    if containment.restarts or first_rank_where(bool(containment.lost)) is None:
        return state, progress, told
    if selected:
        containment.revive(np.flatnonzero(fetch(is_sound(state.cohort))).tolist())
    lost = everywhere(np.isin(np.arange(config.learners), list(containment.lost)))
    if first_rank_where(bool(told)) is not None:
        state = state._replace(cohort=state.cohort._replace(params=lose(state.cohort.params, lost)))
    loss = np.where(lost, np.nan, progress.metrics["loss/total"])
    metrics = progress.metrics | {"loss/total": loss}
    return state, progress._replace(metrics=metrics, lost=progress.lost | lost), told


def everywhere(flags: np.ndarray) -> np.ndarray:
    """Flags that are set in any process. All processes must call it."""
    if num_processes() == 1:
        return flags
    return np.asarray(np.any(multihost_utils.process_allgather(flags), 0))


def lose(params: trees.Tree, lost: np.ndarray) -> trees.Tree:
    """Parameters (L, ...) with NaN for these learners, on the same devices."""

    def spoil(params: trees.Tree, lost: Array) -> trees.Tree:
        one = lambda x: (
            jnp.where(trees.align(lost, x), jnp.nan, x) if jnp.issubdtype(x.dtype, jnp.floating) else x
        )
        return jax.tree.map(one, params)

    return jax.jit(spoil, out_shardings=jax.tree.map(lambda x: x.sharding, params))(params, lost)
