"""An island: a program with some of a run's learners, which trains them from one meeting to the next."""

import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.distributed.mesh import BY_LEARNER, group_size
from shoal.distributed.processes import fetch, put
from shoal.islands.meeting import METRICS, sound_rows
from shoal.islands.messages import Message
from shoal.islands.peers import state_for
from shoal.islands.plan import config_of, make_plan, named_models, with_models
from shoal.islands.storage import find_rows, save_rows
from shoal.ops import trees
from shoal.runs import saving
from shoal.runs.cadence import REPLAY_SECONDS, SMALL_REPLAY
from shoal.runs.own import NO_PARTS, OwnParts
from shoal.training.config import TrainConfig
from shoal.training.crashes import settle_crashes
from shoal.training.iteration import Progress, shardings
from shoal.training.loop import compiled, is_lost, run, without_lost
from shoal.training.parts import mesh_for
from shoal.training.program import make_trainer
from shoal.training.scores import current_scores, score_metrics
from shoal.training.waiting import Waiting
from shoal.types import Exchange, ExchangeState, LearnerState


class Island:
    """Some of a run's learners, by number; `config` are the settings of the whole run.

    It knows nothing of engines: it takes what a meeting answers, trains until the next one, and says what it
    sends there. Its state is kept in a folder, where it has one.
    """

    def __init__(
        self,
        config: TrainConfig,
        number: int,
        members: tuple[int, ...],
        folder: Path | None = None,
        mesh: str | None = None,
        own: OwnParts = NO_PARTS,
    ):
        self.number, self.members, self.folder = number, members, folder
        self.config = config_of(config, members)
        recipe = own.recipe(config)
        devices = mesh_for(self.config, recipe.spec, mesh)
        self.plan = make_plan(config, own, group_size(devices, len(members)))
        parts = {name: part for name, part in own.trained.items() if name != "exchange"}
        exchange = listening(self.plan.exchange)
        self.trainer = make_trainer(self.config, recipe=recipe, mesh=devices, exchange=exchange, **parts)
        self.waiting = Waiting()
        self.state = self.trainer.init()
        self.round, self.run, self.begun, self.replay_at = 0, "", False, -REPLAY_SECONDS

    def take(self, answer: Message) -> None:
        """Go on from a meeting's answer; one without arrays says its round alone, where this island was late.

        The first answer after a start finds what the island's folder has of its learners.
        """
        self.run, self.round = answer.run, answer.round
        arrays = dict(answer.arrays)
        iteration = int(arrays.pop("iteration")[0])
        if arrays:
            known = self._find(iteration)
            arrays = self._newer(arrays, known)
            cohort = put(with_models(self.state.cohort, self.plan.answered, arrays), self.state.cohort)
            self.state = self.state._replace(cohort=cohort, exchange=self._peers(arrays))
            self._revive()
        clock = put(np.int32(iteration), self.state.iteration)
        self.state = self.state._replace(iteration=clock)

    def _find(self, iteration: int) -> np.ndarray:
        """After a start, go on from what the folder has; the iterations of the rows found, -1 for none."""
        known = np.full(len(self.members), -1)
        if not self.begun and self.folder is not None:
            self.state, known = find_rows(self.trainer, self.state, self.folder, self.members, iteration)
        self.begun = True
        return known

    def _newer(self, arrays: dict[str, np.ndarray], known: np.ndarray) -> dict[str, np.ndarray]:
        """The meeting's rows, but where the folder's are newer: of learners that were absent there."""
        own = arrays.pop("seen") < known
        if not own.any():
            return arrays
        kept = named_models(fetch(self.state.cohort._replace(private=())), self.plan.answered)
        return arrays | {name: trees.where_rows(own, x, arrays[name]) for name, x in kept.items()}

    def _revive(self) -> None:
        """New environments for learners that were lost to theirs and are copies of others now."""
        containment = self.trainer.parts.env.containment
        if containment is not None and containment.lost:
            containment.revive(np.flatnonzero(sound_rows(self.state.cohort)).tolist())

    def _peers(self, arrays: dict[str, np.ndarray]) -> ExchangeState:
        """What the learners hear of their peers, on the devices."""
        mesh, num_learners = self.trainer.parts.mesh, self.plan.config.learners
        state = state_for(self.plan.exchange, self.plan.shapes, num_learners, mesh.shape["learners"], arrays)
        return jax.device_put(state, shardings(mesh, BY_LEARNER))

    def train(self) -> Message:
        """Train until the next meeting, and say what is sent there."""
        round = self.round + 1
        count = self.plan.iteration_of(round) - int(self.state.iteration)
        advance = compiled(self.trainer, self.state, self.waiting)
        state, progress = self.waiting.call("training", run, advance, self.state, count)
        env = self.trainer.parts.env
        self.state, progress, crashes = settle_crashes(self.config, env, state, progress, selected=False)
        for row, fault in crashes.items():
            warnings.warn(f"an environment of learner {self.members[row]} failed: {fault}", RuntimeWarning)
        self.round = round
        return self.message(progress)

    def message(self, progress: Progress) -> Message:
        """The learners' rows, scores and metrics."""
        state, spec = self.state, self.trainer.parts.recipe.spec
        arrays = named_models(fetch(state.cohort._replace(private=())), self.plan.sent)
        scores = current_scores(spec, state.envs.episodes, jax.numpy.asarray(progress.valid_steps))
        said = scores._asdict() | {"sound": sound_rows(state.cohort)}
        said.pop("present")
        arrays |= {f"scores/{name}": np.asarray(x) for name, x in said.items()}
        arrays |= {METRICS + name: np.asarray(x, np.float32) for name, x in self._metrics(progress).items()}
        arrays["iteration"] = np.full(len(self.members), int(state.iteration), np.int32)
        return Message(self.run, self.number, self.round, self.members, arrays)

    def _metrics(self, progress: Progress) -> dict[str, Any]:
        scores = score_metrics(self.trainer.parts.recipe.spec, self.state.envs.episodes)
        metrics = progress.metrics | without_lost(scores, is_lost(self.config, progress.metrics))
        return metrics | {"lost": progress.lost, "valid_steps": progress.valid_steps}

    def save(self) -> None:
        """Write a checkpoint of the learners and their environments into the island's folder."""
        if self.folder is None:
            return
        size, now = saving.replay_bytes(self.state), time.monotonic()
        replay = size <= SMALL_REPLAY or now - self.replay_at > REPLAY_SECONDS
        self.replay_at = now if replay else self.replay_at
        save_rows(self.trainer, self.state, self.folder, self.members, replay)


def listening(exchange: Exchange) -> Exchange:
    """An exchange that only tells learners of their peers; the meeting does the rest."""

    def init(cohort: LearnerState) -> tuple[ExchangeState, LearnerState]:
        return ExchangeState(), cohort

    return exchange._replace(init=init, apply=lambda key, state, cohort, scores: (state, cohort, {}))
