"""The plan of a sweep: its trials, and which of them train in one program."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import jax
from annotated_types import Interval

from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.learners.ppo_config import PPOConfig
from shoal.learners.registry import ALGORITHMS, name_of
from shoal.learners.replay import zeros_like_space
from shoal.ranges import Count
from shoal.runs.config import from_settings, to_settings
from shoal.runs.sweep.axes import MOST_TRIALS, Axis, Values, combinations, draw_trials, write_axis
from shoal.runs.sweep.halving import ETA, num_kept, rungs_of
from shoal.settings import check, get, long_name, types
from shoal.training.config import TrainConfig
from shoal.training.parts import make_learner
from shoal.types import EnvSpec

MEMORY = 2 * 2**30
"""Bytes of a program's learners and rollouts, unless the device says how many it has."""
Tried: TypeAlias = Annotated[int, Interval(ge=1, le=MOST_TRIALS)]
"""How many settings are tried."""
LARGEST = 1024
"""The most learners in a program by default: larger ones are hardly quicker and report late."""
TPE_BATCHES = 16
"""About how many times Optuna is told results by default."""


class Trial(NamedTuple):
    """Settings that are tried, with every seed."""

    number: int
    values: dict[str, Any]  # by the settings' dotted names
    config: TrainConfig  # of one learner


class Group(NamedTuple):
    """Trials whose settings differ in data alone, so that one program trains them."""

    config: TrainConfig  # of one learner
    hypers: dict[str, str]  # the hyperparameters in which they differ: dotted name -> its name in `Hypers`
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Plan:
    """What a sweep tries, and how."""

    base: TrainConfig
    """The settings of one learner that stay as they are."""
    axes: Mapping[str, Axis]
    """The settings that vary."""
    method: Literal["grid", "random", "tpe"]
    num_trials: Tried
    """How many settings are tried; of a grid, all of them."""
    seeds: Count = 4
    """Learners of each setting."""
    halving: bool = False
    """Whether the worse two thirds stop after a ninth, and again after a third of the steps."""
    batch: Count | None = None
    """Learners in a program; as many as fit unless given."""

    def __post_init__(self):
        check(self)
        if self.batch is not None and self.batch < self.seeds:
            raise ShoalError(f"a batch of {self.batch} learners has no room for {self.seeds} seeds")
        if self.method == "grid" and (
            drawn := [n for n, x in self.axes.items() if not isinstance(x, Values)]
        ):
            raise ShoalError(f"{drawn[0]} has a prior; draw from it with --random N, or ask with --tpe N")
        if not self.axes:
            raise ShoalError("nothing varies; give --grid NAME=VALUE,VALUE,..., --random N or --tpe N")
        if self.method == "tpe" and self.halving:
            raise ShoalError("tpe learns from whole trials; use halving with a grid or random settings")
        self._check_base()

    def _check_base(self) -> None:
        alone = {"learners": self.base.learners > 1, "exchange": self.base.exchanges}
        alone |= {"evolve": self.base.evolve, "hyper_plan": self.base.hyper_plan}
        if given := [name for name, value in alone.items() if value]:
            raise ShoalError(
                f"a sweep compares learners that train alone; leave out {given[0]} "
                "(seeds N repeats each setting)"
            )

    @property
    def algo(self) -> str:
        """The algorithm's name."""
        return name_of(self.base.algo)

    @cached_property
    def trials(self) -> list[Trial]:
        """The trials of a grid or of random search; settings that cannot be are refused here."""
        if self.method == "grid":
            values = combinations(self.axes)
        else:
            values = draw_trials(self.axes, self.num_trials, self.base.seed, self.algo)
        return [self.trial(number, each) for number, each in enumerate(values)]

    def trial(self, number: int, values: dict[str, Any]) -> Trial:
        """A trial with these values."""
        config = from_settings(to_settings(self.base) | values)
        config.check()
        return Trial(number, values, config)

    @cached_property
    def spec(self) -> EnvSpec:
        """What is known of the environment."""
        return make(self.base.env, **self.base.options).spec

    @cached_property
    def hypers(self) -> dict[str, str]:
        """The axes that are hyperparameters, by their dotted names: their names in `Hypers`."""
        learner = make_learner(self.base, self.spec)
        fields = jax.eval_shape(learner.init, jax.random.key(0)).hypers._fields
        known = types(ALGORITHMS[self.algo].config)
        found = {long_name(field, known): field for field in fields}
        return {name: found[name] for name in self.axes if name in found}

    def group(self, trials: list[Trial]) -> list[Group]:
        """The trials in groups of one program each, in the order of the first of each."""
        found: dict[str, Group] = {}
        for trial in trials:
            hypers = {name: field for name, field in self.hypers.items() if is_data(trial.config, field)}
            fixed = {name: value for name, value in trial.values.items() if name not in hypers}
            group = found.setdefault(repr((fixed, hypers)), Group(trial.config, hypers, ()))
            found[repr((fixed, hypers))] = group._replace(trials=(*group.trials, trial))
        return list(found.values())

    @cached_property
    def groups(self) -> list[Group]:
        """The groups of the trials of a grid or of random search."""
        return self.group(self.trials)

    @cached_property
    def only_group(self) -> Group:
        """The group of all that Optuna may ask for; raises where trials differ in more than data."""
        values = {
            name: axis.values[0] if isinstance(axis, Values) else axis.low for name, axis in self.axes.items()
        }
        (group,) = self.group([self.trial(0, values)])
        if others := [name for name in self.axes if name not in group.hypers]:
            raise ShoalError(
                f"{others[0]} needs a program for each value, and tpe has one; vary it with grid or random"
            )
        return group._replace(trials=())

    def rungs(self, group: Group) -> list[int]:
        """The steps at which halving compares the trials of a group."""
        return rungs_of(group.config, self.spec.max_episode_steps or 0)

    def size(self, group: Group) -> int:
        """The trials that a program of this group trains at once."""
        number = self.num_trials if self.method == "tpe" else len(group.trials)
        most = max(1, (self.batch or fitting(group.config)) // self.seeds)
        if self.batch is None and self.halving:
            most = min(most, num_kept(number, len(self.rungs(group)) - 1))
        if self.batch is None and self.method == "tpe":
            most = min(most, max(ETA, -(-number // TPE_BATCHES)))
        programs = -(-number // most)
        return -(-number // programs)

    def describe(self) -> str:
        """The number of settings, learners, programs and steps."""
        learners = self.num_trials * self.seeds
        names = (
            f"{counted(self.num_trials, 'setting')} x {counted(self.seeds, 'seed')} = {learners:,} learners"
        )
        if self.method == "tpe":
            size = self.size(self.only_group)
            told = counted(-(-self.num_trials // size), "batch", "batches")
            return f"{names}, asked of Optuna in {told}, {self.base.steps:,} steps each"
        programs = [-(-len(group.trials) // self.size(group)) for group in self.groups]
        kinds = f" of {len(programs)} kinds" if 1 < len(programs) < sum(programs) else ""
        if not self.halving:
            turns = counted(sum(programs), "program") + kinds
            return f"{names} in {turns}, {self.base.steps:,} steps each"
        steps = sum(map(self._halved_steps, self.groups)) * self.seeds
        full = sum(
            group.config.steps_after(group.config.num_iterations)
            for group in self.groups
            for _ in group.trials
        )
        ends = " and ".join(f"{step:,}" for step in self.rungs(self.groups[0])[:-1])
        return (
            f"{names}{kinds}, the best third going on after {ends} of {self.base.steps:,} steps: "
            f"{steps:,} steps in all, {100 * steps / (full * self.seeds):.0f} % of the whole grid's"
        )

    def _halved_steps(self, group: Group) -> int:
        """The steps of one seed of a group, as if it were alone."""
        size, number, before, total = self.size(group), len(group.trials), 0, 0
        for rung, step in enumerate(self.rungs(group)):
            trained = min(-(-num_kept(number, rung) // size), -(-number // size)) * size
            total, before = total + trained * (step - before), step
        return total

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides the results, as sweep.yaml has it."""
        return {
            "method": self.method,
            "trials": self.num_trials,
            "seeds": self.seeds,
            "halving": self.halving,
            "batch": self.batch,
            "axes": {name: write_axis(axis) for name, axis in self.axes.items()},
            "settings": to_settings(self.base),
        }


def is_data(config: TrainConfig, hyper: str) -> bool:
    """Whether another value of a hyperparameter needs no other program.

    It does where the value switches something on, or where a schedule ends at a value of its own.
    """
    plan = config.algo.plan if isinstance(config.algo, PPOConfig) else ()
    ends = {schedule.name for schedule in plan if schedule.ratio}
    return hyper not in config.idle and hyper not in ends


def together(group: Group, trials: list[Trial], seeds: int) -> TrainConfig:
    """The run of several trials of a group, trial after trial, with the same seeds for each of them."""
    own = {
        field: [float(get(trial.config.algo, name)) for trial in trials for _ in range(seeds)]
        for name, field in group.hypers.items()
    }
    return replace(
        group.config, learners=len(trials) * seeds, distinct_seeds=seeds, learner_hypers=own or None
    )


def fitting(config: TrainConfig) -> int:
    """How many learners fit into a program: each needs its state and a rollout, and twice that to compute."""
    spec = make(config.env, **config.options).spec
    one = jax.eval_shape(
        lambda: (
            make_learner(config, spec).init(jax.random.key(0)),
            zeros_like_space(spec.observation, (config.algo.rollout_size, *spec.agent_axis)),
        )
    )
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))
    device = jax.devices()[0].memory_stats()
    memory = device["bytes_limit"] // 2 if device else MEMORY
    return max(1, min(LARGEST, memory // (3 * size)))


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
