"""A run's state in checkpoints, independent of devices: learners and environments are in their own order.

Of several processes the first one reads and writes, so they need no shared disk.
"""

from functools import partial
from pathlib import Path

import jax

from shoal.distributed.mesh import from_device_order, to_device_order
from shoal.distributed.processes import fetch, put, rank, run_on_first, share
from shoal.ops import trees
from shoal.runs import checkpoint
from shoal.training.iteration import TrainState
from shoal.training.program import Trainer
from shoal.types import Tree


def save(trainer: Trainer, state: TrainState, folder: Path, step: int, meta: dict) -> None:
    """Write a checkpoint of everything the run needs to resume."""
    parts = fetch(saved_parts(trainer, state))
    if rank() == 0:
        checkpoint.save(folder / "checkpoints", step, to_saved_order(trainer, parts), meta)


def restore(trainer: Trainer, fresh: TrainState, folder: Path) -> tuple[TrainState, dict]:
    """The newest intact checkpoint, on the devices; `fresh` gives shapes and, where needed, new episodes."""
    like = jax.eval_shape(partial(to_saved_order, trainer), saved_parts(trainer, fresh))
    loaded: list[tuple[Tree, dict]] = []

    def load() -> dict:
        found = checkpoint.load_latest(folder / "checkpoints", like)
        assert found is not None, "open_session found one"
        loaded.append(found)
        return found[1]

    meta = run_on_first(load)
    parts = loaded[0][0] if loaded else jax.tree.map(_placeholder, like)
    return from_saved_order(trainer, fresh, share(parts)), meta


def saved_parts(trainer: Trainer, state: TrainState) -> dict[str, Tree]:
    """The content of a checkpoint; environments that cannot be saved are left out."""
    parts = {
        "cohort": state.cohort,
        "exchange": state.exchange,
        "keys": state.keys,
        "key": state.key,
        "iteration": state.iteration,
        "episodes": state.envs.episodes,
    }
    if trainer.parts.recipe.spec.exact_resume:
        parts |= {"world": state.envs.state, "time_step": state.envs.step}
    return parts


def to_saved_order(trainer: Trainer, parts: dict[str, Tree]) -> dict[str, Tree]:
    """The parts in the order of learners and environments, instead of that of devices."""
    parts = parts | {"exchange": trees.pack(parts["exchange"])}
    if "world" not in parts:
        return parts
    mesh, num_learners = trainer.parts.mesh, trainer.parts.config.learners
    by_learner = partial(from_device_order, mesh=mesh, num_learners=num_learners)
    return parts | {"world": jax.tree.map(by_learner, parts["world"])}


def from_saved_order(trainer: Trainer, fresh: TrainState, parts: dict[str, Tree]) -> TrainState:
    """The state of a run from its parts, on the devices."""
    envs, cohort = fresh.envs, put(parts["cohort"], fresh.cohort)
    episodes = put(parts["episodes"], envs.episodes)
    if "world" in parts:
        laid_out = jax.tree.map(partial(to_device_order, mesh=trainer.parts.mesh), parts["world"])
        state, step = put((laid_out, parts["time_step"]), (envs.state, envs.step))
        envs = envs._replace(state=state, step=step, episodes=episodes)
    else:  # new episodes
        begun = {name: getattr(envs.episodes, name) for name in ("running_return", "running_length")}
        envs = envs._replace(episodes=episodes._replace(**begun))
        shardings = jax.tree.map(lambda x: x.sharding, fresh.cohort)
        cohort = jax.jit(jax.vmap(trainer.parts.learner.on_restart), out_shardings=shardings)(cohort)
    return TrainState(
        cohort=cohort,
        envs=envs,
        exchange=put(trees.unpack(parts["exchange"], fetch(fresh.exchange)), fresh.exchange),
        keys=put(parts["keys"], fresh.keys),
        key=put(parts["key"], fresh.key),
        iteration=put(parts["iteration"], fresh.iteration),
        horizon=fresh.horizon,
    )


def _placeholder(like: jax.ShapeDtypeStruct) -> jax.Array:
    """Any array of that shape; the first process's array replaces it."""
    if jax.numpy.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), like.shape) if like.shape else jax.random.key(0)
    return jax.numpy.zeros(like.shape, like.dtype)
