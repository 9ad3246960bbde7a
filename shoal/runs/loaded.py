"""Runs in Python, loaded from their folder: evaluate their learners, take their policies.

What a method needs is imported when it is called: a process that loads a policy needs no JAX.
"""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.ops.ranking import best_learner
from shoal.runs import checkpoint_files
from shoal.runs.metrics import read_metrics
from shoal.runs.numpy_policy import numpy_policy, read_description, read_learner, reading_description
from shoal.runs.policy import Policy
from shoal.runs.summary import read_summary

if TYPE_CHECKING:
    from shoal.runs.films import Played
    from shoal.runs.learners import RunParts
    from shoal.runs.own import OwnParts
    from shoal.training.config import TrainConfig
    from shoal.training.evaluate import Evaluation


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

    def __init__(self, folder: Path | str, own: "OwnParts | None" = None, trust: bool = False):
        """`own` are parts of the user's own that cannot be imported, or not yet; `trust` allows to import
        what the settings name."""
        self.folder, self._given, self._trusted = Path(folder), own, trust
        if read_description(self.folder) is None:
            self.config  # noqa: B018  fails here, not later, where there is no run

    def __repr__(self) -> str:
        count, end = self.config.learners, self.config.steps_after(self.config.num_iterations)
        return (
            f"Run({str(self.folder)!r}: {self.config.env}, {count} learner{'s' * (count > 1)}, "
            f"step {self.step:,} of {end:,})"
        )

    @property
    def _own(self) -> "OwnParts":
        from shoal.runs.own import OwnParts

        return OwnParts() if self._given is None else self._given

    @cached_property
    def config(self) -> "TrainConfig":
        """Its settings."""
        from shoal.runs import trust
        from shoal.runs.config import errors_in, from_settings, read_settings
        from shoal.runs.own import find_exchange_again

        path = self.folder / "config.yaml"
        settings = read_settings(path)
        if not self._trusted:
            given = [kind for kind, part in self._own._asdict().items() if part is not None]
            trust.check_code(self.folder, settings, given)
        trust.trust(self.folder)
        find_exchange_again(self.folder, settings.get("exchange"), self._own.exchange)
        with errors_in(path):
            return from_settings(settings)

    @cached_property
    def parts(self) -> "RunParts":
        """Its environment and its learner; kept, because what is compiled for them is kept with them."""
        from shoal.runs.cache import cache_compilations
        from shoal.runs.learners import find_parts

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
        meta = checkpoint_files.newest_meta(self.folder / "checkpoints")
        return self.config.steps_after(meta["iteration"]) if meta else 0

    @property
    def checkpoints(self) -> list[int]:
        """The steps of its checkpoints, oldest first; `evaluate`, `policy` and `play` take one of them."""
        return checkpoint_files.saved_steps(self.folder / "checkpoints")

    @property
    def best(self) -> int:
        """The number of the learner with the highest mean return at the newest checkpoint."""
        meta = checkpoint_files.newest_meta(self.folder / "checkpoints")
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
    ) -> "list[Evaluation]":
        """Play whole episodes; an `Evaluation` per learner (and world), like `shoal eval --json`.

        `learner` is a number, "best", "mean" (of all parameters) or "all". Actions are greedy unless
        `sampled`. `checkpoint` is "latest", "best" or a step. `levels` are a generated game's "seen",
        "unseen" or "all"; `each_world` adds every learner's world to the worlds; `against` is another run
        of the same game between teams, or "random" for an opponent that acts at random.
        """
        from shoal.runs.evaluation import RANDOM, evaluate_learners, evaluate_match
        from shoal.runs.learners import load_learners

        trained = load_learners(self.folder, checkpoint, self.parts)
        if against is None:
            return evaluate_learners(
                trained, episodes, learner, sampled=sampled, seed=seed, levels=levels, each_world=each_world
            )
        other = None
        if against != RANDOM:
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
        """One learner as a function from NumPy observations to NumPy actions, greedy unless `sampled`.

        It acts in NumPy, without JAX; where the network or the learner is your own, and in runs of version
        0.1, in JAX.
        """
        if (description := read_description(self.folder)) is None:
            from shoal.runs.learners import load_policy

            return load_policy(self.folder, self.parts, learner, checkpoint, sampled=sampled, seed=seed)
        if learner == "mean":
            from shoal.runs.learners import load_values

            state = load_values(self.folder, self.parts, learner, checkpoint)
        else:
            with reading_description(self.folder):
                state = read_learner(self.folder, description, learner, checkpoint)
        with reading_description(self.folder):
            return numpy_policy(description, state, sampled=sampled, seed=seed)

    def play(
        self,
        learner: int | str = "best",
        checkpoint: int | str = "latest",
        *,
        sampled: bool = False,
        seed: int = 0,
        steps: int = 1000,
    ) -> "Played":
        """One episode of a learner in its own world, of at most so many steps, as pictures."""
        from shoal.runs.films import play

        return play(self.folder, self.parts, learner, checkpoint, sampled=sampled, seed=seed, steps=steps)

    def video(
        self, path: Path | str | None = None, learner: int | str = "best", *, fps: int = 30, **how
    ) -> Path:
        """Write an episode as .gif or .mp4, videos/learner_K.gif in the run's folder unless given.

        `how` goes to `play`: checkpoint, sampled, seed, steps. TensorBoard shows a .gif among its images.
        """
        from shoal.runs.films import write_film

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
        from shoal.runs.learners import load_learners

        trained = load_learners(self.folder, checkpoint, self.parts)
        return export_learner(trained, learner, Path(folder or self.folder / "export"), self.folder.name)

    def plot(self, out: Path | str | None = None, **how) -> list[Path]:
        """Plot learning curves and the best learner's policy; returns the files written.

        `out` is a folder, `plots` in the run's unless given, or one figure: a .png, .pdf or .svg. `how` goes
        to `PlotOptions`: metric, x, statistic, smooth, episode, seed.
        """
        from shoal.runs.plots.run import PlotOptions, plot

        self.config  # noqa: B018  fails here where its code may not be imported
        return plot([self.folder], out, PlotOptions(**how), self._own)


def load(
    folder: Path | str,
    *,
    env: Any = None,
    network: Any = None,
    learner: Any = None,
    exchange: Any = None,
    trust: bool = False,
) -> Run:
    """The run in a folder, trained here or elsewhere.

    Parts of your own are found by their import paths. Those that cannot be imported, because they were
    defined in a script, a notebook or a lambda, are given here. Of a run that you did not train here nothing
    that its settings name is imported, unless you `trust` it.

    >>> import shoal
    >>> shoal.load("runs/demo").config.env
    'CartPole-v1'
    """
    own = (env, network, learner, exchange)
    if all(part is None for part in own):
        return Run(folder, trust=trust)
    from shoal.runs.own import OwnParts

    return Run(folder, OwnParts(*own), trust)
