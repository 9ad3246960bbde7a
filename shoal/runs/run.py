"""Runs in Python: train in a folder; evaluate the learners of a run or of a report."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.runs.evaluation import evaluate_learners
from shoal.runs.films import write_film as write_film
from shoal.runs.learners import learners_of
from shoal.runs.lineage import hyper_plan, read_lineage
from shoal.runs.loaded import Run as Run
from shoal.runs.loaded import load as load
from shoal.runs.milestones import Milestones
from shoal.runs.own import read_call
from shoal.runs.progress import ProgressBar, on_terminal
from shoal.runs.session import Finished, describe_stop, open_session, train_session
from shoal.training.config import TrainConfig
from shoal.training.evaluate import Evaluation
from shoal.training.loop import Report


def run(
    start: Any = None,
    /,
    *,
    env: Any = None,
    network: Any = None,
    learner: Any = None,
    exchange: Any = None,
    folder: Path | str | None = None,
    clobber: bool = False,
    mesh: str | None = None,
    eval_every: int | None = None,
    eval_episodes: int | None = None,
    save_every: int | None = None,
    stop_at: float | None = None,
    film_every: int | None = None,
    track: str | Sequence[str] | None = None,
    **settings,
) -> Run:
    """Train in a folder, as `shoal train` does: with metrics, checkpoints and a summary.

    It starts from an environment, whose preset is taken, or from a configuration; `settings` change it. An
    environment is a name, or one of your own: a `JaxEnv`, a Gymnasium class, factory or instance. `network`,
    `learner` and `exchange` may be your own, too. config.yaml names them by their import paths, so `load`
    finds them.

    The same call again resumes a run that was interrupted, or returns one that is complete; `clobber` starts
    over. A terminal shows a progress bar. Ctrl-C saves and raises KeyboardInterrupt.

    After every `eval_every` steps the learners play `eval_episodes` greedy episodes each (10 unless given);
    checkpoints at every `save_every` steps are kept; after every `film_every` steps the best learner is
    filmed; the run ends where the learners' mean return reaches `stop_at`. The same call without the first
    three, or `film_every`, does as the last one did; 0 turns them off.

    `track` names trackers that record the run, too: "wandb", "mlflow", "trackio", or a list of them.

    >>> import shoal
    >>> run = shoal.run("CartPole-v1", steps=1_024, learners=2, folder="runs/demo")
    >>> run
    Run('runs/demo': CartPole-v1, 2 learners, step 1,024 of 1,024)
    """
    parts = {"env": env, "network": network, "learner": learner, "exchange": exchange}
    config, own = read_call(start, parts, settings)
    milestones = Milestones(eval_every, eval_episodes, save_every, stop_at, film_every)
    opened = open_session(config, folder, clobber, mesh=mesh, milestones=milestones, own=own, track=track)
    if not isinstance(opened, Finished):
        bar = ProgressBar(opened) if on_terminal() else None
        with bar or nullcontext():
            ended = train_session(opened, bar.update if bar else lambda report: None)
        if ended.interrupted:
            raise KeyboardInterrupt(describe_stop(ended))
    return Run(opened.folder, own)


def evaluate(
    trained: Run | Report, episodes: int = 100, learner: int | str = "all", **how
) -> list[Evaluation]:
    """Play whole episodes with the learners of a run, or of a report while they train.

    `how` goes to `Run.evaluate`: sampled, seed, levels, each_world, and of a run a checkpoint.

    >>> import shoal
    >>> evaluations = shoal.evaluate(shoal.load("runs/demo"), episodes=2)
    >>> {one.learner: one.episodes for one in evaluations}
    {0: 2, 1: 2}
    """
    if isinstance(trained, Run):
        return trained.evaluate(episodes, learner, **how)
    return evaluate_learners(learners_of(trained), episodes, learner, **how)


def follow_best(folder: Path) -> TrainConfig:
    """One learner with the hyperparameters of the ancestors of a population's best learner."""
    found = Run(folder)
    if not found.step:
        raise ShoalError(f"{folder} holds no checkpoint yet; train it first")
    whole = hyper_plan(read_lineage(folder), found.best)
    plan = [[step, values] for step, values in whole if step <= found.step]
    return replace(found.config, learners=1, exchanges=(), evolve=(), hyper_plan=plan)
