"""Training as an iterator of reports: from an environment, a configuration or a state, and saved by hand."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from shoal.distributed.processes import fetch
from shoal.errors import ShoalError
from shoal.runs import checkpoint, saving
from shoal.runs.cache import cache_compilations
from shoal.runs.config import write_config
from shoal.runs.describing import describe_run
from shoal.runs.files import make_folder
from shoal.runs.folder import keep_annealing
from shoal.runs.milestones import Milestones
from shoal.runs.own import read_call
from shoal.runs.run import Run
from shoal.runs.session import save_into
from shoal.runs.trust import sign
from shoal.runs.watch import Watch
from shoal.training.config import TrainConfig
from shoal.training.iteration import TrainState
from shoal.training.loop import Report, progress_reports
from shoal.training.program import Trainer, make_trainer


def train(
    start: Any = None,
    /,
    *,
    env: Any = None,
    network: Any = None,
    learner: Any = None,
    exchange: Any = None,
    state: TrainState | Report | Run | None = None,
    mesh: Mesh | str | None = None,
    **settings,
) -> Iterator[Report]:
    """Train, yielding a report about `reports` times; the loop's body is where callbacks would be.

    It starts as `run` does, from an environment or a configuration, with parts of your own, but writes
    nothing. `state` is what to go on from: a report, its state, or a run. `mesh` divides learners and their
    environments over devices.

    >>> import shoal
    >>> for report in shoal.train("CartPole-v1", steps=2048, learners=2, reports=2):
    ...     print(report.step, report.metrics["return_mean"].shape)
    1024 (2,)
    2048 (2,)
    >>> longer = shoal.train("CartPole-v1", steps=3072, learners=2, anneal_to=2048, state=report)
    >>> next(longer).step
    3072
    """
    cache_compilations()
    parts = {"env": env, "network": network, "learner": learner, "exchange": exchange}
    config, own = read_call(start, parts, settings)
    if state is None:
        trainer = make_trainer(config, recipe=own.recipe(config), mesh=mesh, **own.trained)
        begun = trainer.init()
    else:
        config, iteration = go_on(config, state)
        trainer = make_trainer(config, recipe=own.recipe(config), mesh=mesh, start=iteration, **own.trained)
        begun = copied(trainer, state)
    return (report for report in progress_reports(trainer, begun) if report.due)


def save(report: Report, folder: Path | str) -> Path:
    """Save what training has reached: `load` opens the folder, and `run` goes on from it.

    >>> import shoal
    >>> *_, report = shoal.train("CartPole-v1", steps=2048, learners=2, reports=2)
    >>> shoal.load(shoal.save(report, "runs/saved")).step
    2048
    """
    folder = make_folder(Path(folder))
    config = report.trainer.parts.config
    write_config(folder / "config.yaml", config)
    sign(folder, config)
    describe_run(folder, report.trainer.parts, report.state.cohort)
    save_into(folder, report, Watch(Milestones(), config))
    return folder


def go_on(config: TrainConfig, state: TrainState | Report | Run) -> tuple[TrainConfig, int]:
    """The configuration that goes on from a state, annealed as that one was, and the state's iteration."""
    if isinstance(state, Run):
        before = state.config
        iteration = checkpoint.resume_step(state.folder / "checkpoints") // before.steps_after(1)
        annealed_to = before.anneal_to or before.steps
    else:
        state = state.state if isinstance(state, Report) else state
        iteration, annealed_to = int(state.iteration), config.steps_after(int(state.horizon))
    if iteration >= config.num_iterations:
        reached = config.steps_after(iteration)
        raise ShoalError(f"the state is at step {reached:,} of {config.steps:,}; give larger steps to go on")
    return keep_annealing(config, annealed_to) if config.anneal_to is None else config, iteration


def copied(trainer: Trainer, state: TrainState | Report | Run) -> TrainState:
    """A copy of a state, in a trainer's own environments and on its devices."""
    fresh = trainer.init()
    if isinstance(state, Run):
        if not checkpoint.resume_step(state.folder / "checkpoints"):
            raise ShoalError(f"{state.folder} holds no checkpoint to go on from; train it first")
        return saving.restore(trainer, fresh, state.folder)[0]
    given = state.state if isinstance(state, Report) else state
    if any(x.is_deleted() for x in jax.tree.leaves(given)):
        raise ShoalError("the state lost its replay to the reports after it; give the last report's")
    parts = saving.saved_parts(trainer, given)
    order = partial(saving.to_saved_order, trainer)
    found, needed = (
        jax.tree.map(lambda x: (x.shape, x.dtype), jax.eval_shape(order, one))
        for one in (parts, saving.saved_parts(trainer, fresh))
    )
    if found != needed:
        raise ShoalError("the state is one of other settings; give the settings it was trained with")
    return saving.from_saved_order(trainer, fresh, order(fetch(parts)))
