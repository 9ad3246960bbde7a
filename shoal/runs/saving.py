"""A run's state in checkpoints, independent of devices: learners and environments are in their own order.

Of several processes the first one reads and writes, so they need no shared disk.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.distributed.mesh import from_device_order, to_device_order
from shoal.distributed.processes import fetch, put, rank, run_on_first, share
from shoal.errors import ShoalError
from shoal.learners.replay import Ring
from shoal.ops import trees
from shoal.runs import checkpoint
from shoal.training.iteration import TrainState
from shoal.training.program import Trainer
from shoal.types import LearnerState, Tree


def arrays_to_save(
    trainer: Trainer, state: TrainState, replay: bool = True, training_goes_on: bool = False
) -> dict[str, np.ndarray]:
    """All that the run needs to resume, on the host; without `replay` all but that. {} in other processes.

    Where training goes on, what it changes in place is copied, so that it can be written meanwhile.
    """
    parts = saved_parts(trainer, state)
    parts = fetch(parts if replay else parts | {"cohort": _without_transitions(state.cohort)})
    if rank() > 0:
        return {}
    arrays = checkpoint.arrays_of(to_saved_order(trainer, parts))
    if not training_goes_on:
        return arrays
    is_shared = lambda name, array: name.startswith("cohort/private/") and array.base is not None
    return {name: array.copy() if is_shared(name, array) else array for name, array in arrays.items()}


def replay_bytes(state: TrainState) -> float:
    """The size of the transitions in the learners' replays; 0 without any."""
    found = 0.0
    for ring in filter(_is_ring, jax.tree.leaves(state.cohort.private, is_leaf=_is_ring)):
        capacity = ring.data.steps.shape[1]
        filled = min(int(np.max(fetch(ring.count))), capacity)
        found += sum(x.nbytes for x in jax.tree.leaves(ring.data)) * filled / capacity
    return found


def _without_transitions(cohort: LearnerState) -> LearnerState:
    empty = lambda x: jax.numpy.zeros((x.shape[0], 0, *x.shape[2:]), x.dtype)
    emptied = lambda x: x._replace(data=jax.tree.map(empty, x.data)) if _is_ring(x) else x
    return cohort._replace(private=jax.tree.map(emptied, cohort.private, is_leaf=_is_ring))


def _is_ring(node: Any) -> bool:
    return isinstance(node, Ring)


def restore(trainer: Trainer, fresh: TrainState, folder: Path) -> tuple[TrainState, dict]:
    """The newest checkpoint with all that a run needs, on the devices.

    `fresh` gives shapes and, where needed, new episodes.
    """
    like = jax.eval_shape(partial(to_saved_order, trainer), saved_parts(trainer, fresh))
    loaded: list[tuple[Tree, dict]] = []

    def load() -> dict:
        found = checkpoint.load_latest(folder / "checkpoints", like, resumes=True)
        assert found is not None, "open_session found one"
        loaded.append(found)
        return found[1]

    meta = run_on_first(load)
    parts = loaded[0][0] if loaded else jax.tree.map(_placeholder, like)
    return from_saved_order(trainer, fresh, share(parts)), meta


def restore_rows(trainer: Trainer, fresh: TrainState, rows: Sequence[tuple[Path, int]]) -> TrainState:
    """The learners of other runs with programs of the same shape: learner i is row k of the run in a folder.

    They go on where these runs' newest checkpoints are, which must all be at one step.
    """
    like = jax.eval_shape(partial(to_saved_order, trainer), saved_parts(trainer, fresh))
    folders = list(dict.fromkeys(folder for folder, _ in rows))
    loaded = [checkpoint.load_latest(folder / "checkpoints", like, resumes=True) for folder in folders]
    if missing := [folder for folder, one in zip(folders, loaded, strict=True) if one is None]:
        raise ShoalError(f"{missing[0]} holds no checkpoint; start over with --clobber")
    index = np.array([folders.index(folder) * trainer.parts.config.learners + row for folder, row in rows])
    parts = [one[0] for one in loaded if one is not None]
    of_all = {name: parts[0][name] for name in ("exchange", "key", "iteration")}
    own = [{name: part for name, part in one.items() if name not in of_all} for one in parts]
    chosen = jax.tree.map(lambda *leaves: _concatenate(leaves)[index], *own)
    return from_saved_order(trainer, fresh, chosen | of_all)


def _concatenate(leaves: Sequence[Any]) -> Any:
    """Arrays of NumPy, or keys, one after the other."""
    return (np if isinstance(leaves[0], np.ndarray) else jax.numpy).concatenate(leaves)


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
