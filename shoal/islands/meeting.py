"""The meeting of islands: the run's exchange, on the rows of the learners that came."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.exchanges.combinators import empty_scores
from shoal.exchanges.population import draw_hypers
from shoal.exchanges.soundness import is_sound
from shoal.islands.messages import BadMessage, Message, Template, check_form, template_of
from shoal.islands.peers import snapshots_for
from shoal.islands.plan import MODELS, Plan, named_models, with_models
from shoal.ops import trees
from shoal.runs import checkpoint
from shoal.runs.leaves import REPLAY
from shoal.training.iteration import HYPERS, start_of
from shoal.types import ExchangeState, LearnerState, Scores

SCORES = ("samples", "returns", "episodes", "sound")
"""What a message says of its learners' scores."""
METRICS = "metrics/"
"""The beginning of the names of the numbers that are only reported."""
MOST_METRICS = 1000
"""A message with more of them is refused."""
sound_rows = jax.jit(is_sound)
"""One program; outside of one, each of its operations would be a program of its own."""


class MeetingState(NamedTuple):
    """All that a meeting keeps until the next one."""

    models: LearnerState  # of every learner as it was last known; without `private`
    exchange: ExchangeState
    scores: Scores  # as last known
    key: Array  # () that of the whole cohort
    iteration: int
    seen: np.ndarray  # (L,) int32: the iteration at which each learner last came


class Held(NamedTuple):
    """The outcome of a meeting."""

    answers: list[Message]  # to those who came
    left_out: dict[int, str]  # islands whose messages were refused, and why
    metrics: dict[
        str, np.ndarray
    ]  # (L,) each: the exchange's, and those that were reported, NaN where absent
    came: np.ndarray  # (L,) bool: who sent a message that was taken
    present: np.ndarray  # (L,) bool: whose rows were exchanged


class Meeting:
    """Holds the meetings of a run.

    >>> from shoal.islands.island import Island
    >>> from shoal.islands.plan import make_plan
    >>> import shoal
    >>> config = shoal.TrainConfig("CartPole-v1", steps=1024, learners=2)
    >>> meeting = Meeting(make_plan(config), "a run")
    >>> meeting.answer(0, (0, 1)).round
    0
    """

    def __init__(self, plan: Plan, run: str):
        self.plan, self.run, self.round = plan, run, 0
        num_learners = plan.config.learners
        self.private, models, exchange, key = _begin(plan)
        scores = empty_scores(num_learners)._replace(returns=jnp.full(num_learners, jnp.nan))
        self.state = MeetingState(models, exchange, scores, key, 0, np.zeros(num_learners, np.int32))
        self.template = _template(plan)
        self._hold = jax.jit(partial(_hold, plan))

    def answer(self, island: int, members: tuple[int, ...]) -> Message:
        """What an island begins with, or goes on from: its learners' rows as they are now."""
        rows, models = np.array(members), self.state.models
        taken = named_models(models, self.plan.answered)
        arrays = {name: np.asarray(x)[rows] for name, x in taken.items()}
        arrays |= snapshots_for(members, self.state.exchange)
        arrays["seen"] = self.state.seen[rows]
        arrays["iteration"] = np.full(len(members), self.state.iteration, np.int32)
        return Message(self.run, island, self.round, members, arrays)

    def meet(self, messages: Sequence[Message], round: int | None = None) -> Held:
        """Exchange what came; the others are absent.

        A message that is not of the next round, or whose arrays are not as expected, is left out. So is a
        learner whose numbers are not finite, by the exchange itself: in a population it is replaced.
        """
        round = self.round + 1 if round is None else round
        came, left_out = self.admit(messages, round)
        num_learners = self.plan.config.learners
        present, reported = np.zeros(num_learners, bool), {}
        state, scores = self.state, {name: np.array(x) for name, x in self.state.scores._asdict().items()}
        scores["samples"][:] = 0
        models = {name: np.array(x) for name, x in named_models(state.models, self.plan.sent).items()}
        for message in came:
            rows, arrays = np.array(message.members), message.arrays
            present[rows] = arrays["scores/sound"] | (self.plan.sent == MODELS)
            for name in ("samples", "returns", "episodes"):
                scores[name][rows] = arrays[f"scores/{name}"]
            for name, x in models.items():
                x[rows] = arrays[name]
            for name in filter(is_metric, arrays):
                found = reported.setdefault(
                    name.removeprefix(METRICS), np.full(num_learners, np.nan, np.float32)
                )
                found[rows] = arrays[name]
        scores["present"] = present
        iteration = self.plan.iteration_of(round)
        exchange, mixed, metrics = self._hold(
            state.key,
            np.int32(state.iteration),
            np.int32(iteration - state.iteration),
            state.exchange,
            with_models(state.models, self.plan.sent, models),
            Scores(**scores),
        )
        there = _rows_of(came, num_learners)
        seen = np.where(there, iteration, state.seen).astype(np.int32)
        self.state = MeetingState(mixed, exchange, Scores(**scores), state.key, iteration, seen)
        self.round = round
        answers = [self.answer(message.island, message.members) for message in came]
        sound = np.asarray(sound_rows(mixed))
        return Held(answers, left_out, reported | jax.device_get(metrics), there, present & sound)

    def admit(self, messages: Sequence[Message], round: int) -> tuple[list[Message], dict[int, str]]:
        """The messages that take part, in the order of their learners, and the islands that do not."""
        came, left_out, taken = [], {}, set()
        for message in sorted(messages, key=lambda one: one.members):
            try:
                self.check(message, round)
                if twice := taken & {*message.members}:
                    raise BadMessage(f"learner {min(twice)} came from another island, too")
            except BadMessage as bad:
                left_out[message.island] = str(bad)
                continue
            taken |= {*message.members}
            came.append(message)
        return came, left_out

    def check(self, message: Message, round: int) -> None:
        """Raise `BadMessage` where a message is not one of this meeting."""
        metrics = {name: x for name, x in message.arrays.items() if is_metric(name)}
        arrays = {name: x for name, x in message.arrays.items() if name not in metrics}
        check_form(message._replace(arrays=arrays), self.template, self.run, round)
        if len(metrics) > MOST_METRICS:
            raise BadMessage(f"it has {len(metrics)} metrics, more than {MOST_METRICS}")
        for name, x in metrics.items():
            if x.shape != (len(message.members),) or x.dtype != np.float32:
                raise BadMessage(f"{name} is {x.dtype}{list(x.shape)}, not float32[{len(message.members)}]")

    def save(self, folder: Path, meta: dict[str, Any]) -> None:
        """Write a checkpoint of the whole run; its learners have what they began with as private state."""
        step = self.plan.config.steps_after(self.state.iteration)
        record = {
            "iteration": self.state.iteration,
            "islands": {"round": self.round, "run": self.run},
            **meta,
        }
        checkpoint.save(folder / "checkpoints", step, _tree(self), record)

    def restore(self, folder: Path) -> dict | None:
        """Go on from the newest checkpoint there; its record, or None where there is none."""
        found = checkpoint.load_latest(folder / "checkpoints", _tree(self), resumes=True)
        if found is None:
            return None
        tree, meta = found
        models = with_models(self.state.models, checkpoint_fields(self), _without(tree["cohort"]))
        exchange = trees.unpack(tree["exchange"], jax.device_get(self.state.exchange))
        kept = tree["meeting"]
        self.state = MeetingState(
            models, exchange, kept["scores"], tree["key"], int(tree["iteration"]), kept["seen"]
        )
        self.run, self.round = meta["islands"]["run"], int(tree["iteration"]) // self.plan.interval
        return meta


def is_metric(name: str) -> bool:
    """Whether an array of a message is only reported."""
    return name.startswith(METRICS)


def checkpoint_fields(meeting: Meeting) -> tuple[str, ...]:
    """The fields of learners that a checkpoint holds beside `private`."""
    return tuple(name for name in meeting.state.models._fields if name != "private")


def _without(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in arrays.items() if not name.startswith("private/")}


def _tree(meeting: Meeting) -> dict[str, Any]:
    """What a checkpoint of a meeting holds: `cohort` is read by all that read runs."""
    state = meeting.state
    cohort = named_models(state.models, checkpoint_fields(meeting))
    cohort |= {f"private/{name}": x for name, x in meeting.private.items()}
    return {
        "cohort": cohort,
        "exchange": trees.pack(state.exchange),
        "key": state.key,
        "iteration": np.int32(state.iteration),
        "meeting": {"scores": state.scores, "seen": state.seen},
    }


def _begin(plan: Plan) -> tuple[dict[str, Any], LearnerState, ExchangeState, Array]:
    """The learners' private state by name, without replays; their models, the exchange, the cohort's key."""

    def begin(seed: Array, members: Array):
        key_cohort, key_members = jax.random.split(jax.random.key(seed))
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key_members, members)
        key_learner = jax.vmap(partial(jax.random.split, num=3))(keys)[:, 0]
        cohort = jax.lax.map(plan.learner.init, key_learner)
        if priors := plan.config.priors:
            key_hypers = jax.vmap(jax.random.fold_in, (0, None))(keys, HYPERS)
            cohort = cohort._replace(hypers=draw_hypers(priors, key_hypers, cohort.hypers))
        exchange, models = plan.exchange.init(cohort._replace(private=()))
        named = checkpoint.named_leaves({"cohort": {"private": cohort.private}})
        private = {
            name.removeprefix("cohort/private/"): x for name, x in named.items() if not REPLAY.match(name)
        }
        return private, models, exchange, key_cohort

    start = start_of(plan.config, plan.recipe.spec)
    private, models, exchange, key = jax.jit(begin)(start.seed, start.members)
    own = {name: jnp.asarray(x, jnp.float32) for name, x in (plan.config.learner_hypers or {}).items()}
    return private, models._replace(hypers=models.hypers._replace(**own)), exchange, key


def _hold(
    plan: Plan,
    key: Array,
    iteration: Array,
    count: Array,
    state: ExchangeState,
    models: LearnerState,
    scores: Scores,
) -> tuple[ExchangeState, LearnerState, dict[str, Array]]:
    """The exchanges of `count` iterations: those before the last one only wait, as in one program."""

    def once(i: Array, carry: tuple) -> tuple:
        state, models, _ = carry
        now = scores._replace(samples=jnp.where(i == count - 1, scores.samples, 0.0))
        return plan.exchange.apply(jax.random.fold_in(key, iteration + i), state, models, now)

    _, _, shapes = jax.eval_shape(once, jnp.int32(0), (state, models, {}))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.fori_loop(0, count, once, (state, models, zero))


def _template(plan: Plan) -> Template:
    """What messages to the meeting hold, beside metrics."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), plan.shapes)
    scores = {"samples": np.float32, "returns": np.float32, "episodes": np.int32, "sound": np.bool_}
    arrays: dict[str, Any] = named_models(one, plan.sent)
    arrays |= {f"scores/{name}": np.zeros(1, scores[name]) for name in SCORES}
    arrays["iteration"] = np.zeros(1, np.int32)
    return template_of(arrays, tuple(range(plan.config.learners)))


def _rows_of(messages: Sequence[Message], num_learners: int) -> np.ndarray:
    """Which learners the messages are about."""
    rows = np.zeros(num_learners, bool)
    for message in messages:
        rows[list(message.members)] = True
    return rows
