"""Runs in Python: train in a folder, load it later, evaluate its learners, take their policies."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ShoalError
from shoal.ops import trees
from shoal.runs import checkpoint
from shoal.runs.cache import cache_compilations
from shoal.runs.config import from_settings, read_settings
from shoal.runs.evaluation import evaluate_learners, evaluate_match, own_world
from shoal.runs.events import record_film
from shoal.runs.learners import RunParts, choose_learner, find_parts, learners_of, load_learners
from shoal.runs.lineage import hyper_plan, read_lineage
from shoal.runs.metrics import read_metrics, read_summary
from shoal.runs.milestones import Milestones
from shoal.runs.own import NO_PARTS, OwnParts, find_exchange_again, read_call
from shoal.runs.policy import Policy
from shoal.runs.progress import ProgressBar, on_terminal
from shoal.runs.session import Finished, describe_stop, open_session, train_session
from shoal.runs.tracking.trackers import places, record_now
from shoal.runs.video import write_video
from shoal.training.config import TrainConfig
from shoal.training.episode import episode
from shoal.training.evaluate import Evaluation
from shoal.training.loop import Report
from shoal.training.scores import best_learner


class Played(NamedTuple):
    """One episode in pictures."""

    learner: int | str
    frames: list[np.ndarray]  # (H, W, 3) uint8 each; one more than there were steps
    total: float  # the raw return
    step: int  # of the checkpoint


class Run:
    """A run in its folder, trained or still training: `shoal.run` and `shoal.load` return one.

    Everything is read from the folder on access, so a run that is still training is up to date.

    >>> import shoal
    >>> run = shoal.load("runs/demo")
    >>> run.learners, run.step, run.metrics["return_mean"].shape
    (2, 1024, (2,))
    >>> evaluation = run.evaluate(episodes=2, learner="best")[0]
    >>> evaluation.learner == run.best, evaluation.episodes
    (True, 2)
    >>> action = run.policy()(np.zeros(4))
    """

    def __init__(self, folder: Path | str, own: OwnParts = NO_PARTS):
        """`own` are parts of the user's own that cannot be imported, or not yet."""
        self.folder, self._own = Path(folder), own
        self.config  # noqa: B018  fails here, not later, where there is no run

    def __repr__(self) -> str:
        count, end = self.config.learners, self.config.steps_after(self.config.num_iterations)
        return (
            f"Run({str(self.folder)!r}: {self.config.env}, {count} learner{'s' * (count > 1)}, "
            f"step {self.step:,} of {end:,})"
        )

    @cached_property
    def config(self) -> TrainConfig:
        """Its settings."""
        settings = read_settings(self.folder / "config.yaml")
        find_exchange_again(self.folder, settings.get("exchange"), self._own.exchange)
        return from_settings(settings)

    @cached_property
    def parts(self) -> RunParts:
        """Its environment and its learner; kept, because what is compiled for them is kept with them."""
        cache_compilations()
        return find_parts(self.folder, self.config, self._own)

    @property
    def learners(self) -> int:
        """How many learners it has."""
        return self.config.learners

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv, an entry per report and learner: `pandas.DataFrame(run.metrics)`."""
        return read_metrics(self.folder)

    @property
    def summary(self) -> dict:
        """The content of summary.json: steps, seconds, returns, speed; {} before the run has ended once."""
        return read_summary(self.folder)

    @property
    def step(self) -> int:
        """Environment steps per learner at the newest checkpoint; 0 where there is none."""
        meta = checkpoint.newest_meta(self.folder / "checkpoints")
        return self.config.steps_after(meta["iteration"]) if meta else 0

    @property
    def checkpoints(self) -> list[int]:
        """The steps of its checkpoints, oldest first; `evaluate`, `policy` and `play` take one of them."""
        return checkpoint.saved_steps(self.folder / "checkpoints")

    @property
    def best(self) -> int:
        """The number of the learner with the highest mean return at the newest checkpoint."""
        meta = checkpoint.newest_meta(self.folder / "checkpoints")
        return best_learner(meta["scores"]) if meta else 0

    def evaluate(
        self,
        episodes: int = 100,
        learner: int | str = "all",
        *,
        sampled: bool = False,
        seed: int = 0,
        checkpoint: int | str = "latest",
        levels: str | None = None,
        each_world: bool = False,
        against: "Run | Path | str | None" = None,
    ) -> list[Evaluation]:
        """Play whole episodes; an `Evaluation` per learner (and world), like `shoal eval --json`.

        `learner` is a number, "best", "mean" (of all parameters) or "all". Actions are greedy unless
        `sampled`. `checkpoint` is "latest", "best" or a step. `levels` are a generated game's "seen",
        "unseen" or "all"; `each_world` adds every learner's world to the worlds; `against` is another run
        of the same game between teams.
        """
        trained = load_learners(self.folder, checkpoint, self.parts)
        if against is None:
            return evaluate_learners(
                trained, episodes, learner, sampled=sampled, seed=seed, levels=levels, each_world=each_world
            )
        rival = against if isinstance(against, Run) else Run(against)
        other = load_learners(rival.folder, checkpoint, rival.parts)
        return evaluate_match(trained, other, episodes, learner, sampled=sampled, seed=seed)

    def policy(
        self,
        learner: int | str = "best",
        checkpoint: int | str = "latest",
        *,
        sampled: bool = False,
        seed: int = 0,
    ) -> Policy:
        """One learner as a function from NumPy observations to NumPy actions, greedy unless `sampled`."""
        trained = load_learners(self.folder, checkpoint, self.parts)
        _, cohort = choose_learner(trained, learner)
        return Policy(
            self.parts.unstacked,
            trained.learner,
            trees.take(cohort, 0),
            num_frames=self.config.frame_stack,
            sampled=sampled,
            seed=seed,
        )

    def play(
        self,
        learner: int | str = "best",
        checkpoint: int | str = "latest",
        *,
        sampled: bool = False,
        seed: int = 0,
        steps: int = 1000,
    ) -> Played:
        """One episode of a learner in its own world, of at most so many steps, as pictures."""
        trained = load_learners(self.folder, checkpoint, self.parts)
        name, cohort = choose_learner(trained, learner)
        world = own_world(trained, name)
        played = episode(
            trained.recipe, trained.learner, cohort, seed, steps, world, sampled=sampled, pictures=True
        )
        rewards, frames = zip(*((step.reward, step.picture) for step in played), strict=True)
        return Played(name, list(frames), sum(rewards), trained.step)

    def video(
        self, path: Path | str | None = None, learner: int | str = "best", *, fps: int = 30, **how
    ) -> Path:
        """Write an episode as .gif or .mp4, videos/learner_K.gif in the run's folder unless given.

        `how` goes to `play`: checkpoint, sampled, seed, steps. TensorBoard shows a .gif among its images.
        """
        played = self.play(learner, **how)
        path = path or self.folder / "videos" / f"learner_{played.learner}.gif"
        return write_film(self.folder, played, Path(path), fps)

    def export(
        self,
        folder: Path | str | None = None,
        learner: int | str = "best",
        checkpoint: int | str = "latest",
    ) -> list[Path]:
        """Write a policy as ONNX, its description and a program that plays it; returns the files.

        They are in export/ of the run's folder unless another is given: policy.onnx, policy_sampled.onnx,
        policy.json, play.py; of a team two .onnx for each of its policies.
        """
        from shoal.runs.export.files import export_learner

        trained = load_learners(self.folder, checkpoint, self.parts)
        return export_learner(trained, learner, Path(folder or self.folder / "export"), self.folder.name)

    def plot(self, out: Path | str | None = None, **how) -> list[Path]:
        """Plot learning curves and the best learner's policy; returns the files written.


        `out` is a folder, `plots` in the run's unless given, or one figure: a .png, .pdf or .svg. `how` goes
        to `PlotOptions`: metric, x, statistic, smooth, episode, seed.
        """
        from shoal.runs.plots.run import PlotOptions, plot

        return plot([self.folder], out, PlotOptions(**how), self._own)


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
    checkpoints at every `save_every` steps are kept; the run ends where the learners' mean return reaches
    `stop_at`. The same call without the first three does as the last one did; 0 turns them off.

    `track` names trackers that record the run, too: "wandb", "mlflow", "trackio", or a list of them.

    >>> import shoal
    >>> run = shoal.run("CartPole-v1", steps=1_024, learners=2, folder="runs/demo")
    >>> run
    Run('runs/demo': CartPole-v1, 2 learners, step 1,024 of 1,024)
    """
    parts = {"env": env, "network": network, "learner": learner, "exchange": exchange}
    config, own = read_call(start, parts, settings)
    milestones = Milestones(eval_every, eval_episodes, save_every, stop_at)
    opened = open_session(config, folder, clobber, mesh=mesh, milestones=milestones, own=own, track=track)
    if not isinstance(opened, Finished):
        bar = ProgressBar(opened) if on_terminal() else None
        with bar or nullcontext():
            ended = train_session(opened, bar.update if bar else lambda report: None)
        if ended.interrupted:
            raise KeyboardInterrupt(describe_stop(ended))
    return Run(opened.folder, own)


def write_film(folder: Path, played: Played, path: Path, fps: int) -> Path:
    """Write an episode of a run as .gif or .mp4, a .gif also into the run's TensorBoard events."""
    written = write_video(played.frames, path, fps)
    record_film(folder, played.learner, played.step, written, played.frames[0].shape)
    if written.resolve().parent == (folder / "videos").resolve():
        record_now(folder, list(places(folder)))
    return written


def load(
    folder: Path | str, *, env: Any = None, network: Any = None, learner: Any = None, exchange: Any = None
) -> Run:
    """The run in a folder, trained here or elsewhere.

    Parts of your own are found by their import paths. Those that cannot be imported, because they were
    defined in a script, a notebook or a lambda, are given here.

    >>> import shoal
    >>> shoal.load("runs/demo").config.env
    'CartPole-v1'
    """
    return Run(folder, OwnParts(env, network, learner, exchange))


def evaluate(
    trained: Run | Report, episodes: int = 100, learner: int | str = "all", **how
) -> list[Evaluation]:
    """Play whole episodes with the learners of a run, or of a report while they train.

    `how` goes to `Run.evaluate`: sampled, seed, levels, each_world, and of a run a checkpoint.

    >>> import shoal
    >>> evaluations = shoal.evaluate(shoal.load("runs/demo"), episodes=2)
    >>> [(one.learner, one.episodes) for one in evaluations]
    [(0, 2), (1, 2)]
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
