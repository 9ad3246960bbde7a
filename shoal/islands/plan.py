"""What the islands of a run agree on: settings, who has which learners, when they meet, what they send."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any

import jax
import numpy as np

from shoal.errors import ShoalError
from shoal.exchanges.registry import EXCHANGES, selects, split_by_interval
from shoal.runs.checkpoint import named_leaves
from shoal.runs.own import NO_PARTS, OwnParts
from shoal.training.config import TrainConfig
from shoal.training.parts import imported, make_exchange_for, make_learner
from shoal.types import EnvRecipe, Exchange, Learner, LearnerState, Tree

ALONE = 16
"""Updates between two meetings of learners that exchange nothing: they only report."""
MODELS = ("params", "statistics", "opt_state", "hypers", "anchor")
"""What an exchange may read and change of a learner."""


@dataclass(frozen=True)
class Plan:
    """A run on islands, as each of them and their meeting know it."""

    config: TrainConfig
    """The settings of the whole run."""
    recipe: EnvRecipe
    """Its environment."""
    learner: Learner
    """One learner."""
    exchange: Exchange
    """The exchange of all learners, on one device."""

    @property
    def interval(self) -> int:
        """Iterations between two meetings.

        >>> from shoal.exchanges.config import ExchangeConfig
        >>> parts = ExchangeConfig("average", parts=("critic:6", "actor:4"))
        >>> meetings_every(TrainConfig("CartPole-v1", learners=2, exchanges=(parts,)))
        2
        """
        return meetings_every(self.config)

    @property
    def last_round(self) -> int:
        """The number of the last meeting; the first one is 1."""
        return -(-self.config.num_iterations // self.interval)

    def iteration_of(self, round: int) -> int:
        """The iterations before a meeting; the last one comes early where its interval is not full."""
        return min(round * self.interval, self.config.num_iterations)

    @cached_property
    def sent(self) -> tuple[str, ...]:
        """The fields of a learner that its messages hold: all where whole learners are copied."""
        return MODELS if copies_whole(self.config) else MODELS[:2]

    @cached_property
    def answered(self) -> tuple[str, ...]:
        """The fields that a meeting answers with."""
        return self.sent if self.sent == MODELS else (*self.sent, "anchor")

    @cached_property
    def shapes(self) -> LearnerState:
        """One learner's arrays."""
        return jax.eval_shape(self.learner.init, jax.random.key(0))


def make_plan(config: TrainConfig, own: OwnParts = NO_PARTS, group: int = 4) -> Plan:
    """The plan of a run; raises where it needs one program. `group` policies are evaluated at a time."""
    check_islands(config)
    recipe = own.recipe(config)
    learner = make_learner(config, recipe.spec, own.network, maker=own.learner)
    exchange = own.exchange or imported(config.own.exchange)
    exchange = exchange or make_exchange_for(config, learner, recipe.spec, None, group)
    return Plan(config, recipe, learner, exchange)


def check_islands(config: TrainConfig) -> None:
    """Raise where a run cannot be divided into islands."""
    config.check()
    if config.learners < 2:
        raise ShoalError("islands share out a run's learners: use --learners N, at least one for each island")
    for name, given in {
        "exchange gradients": config.shares_gradients,
        "hyper_plan": config.hyper_plan is not None,
        "distinct_seeds": config.distinct_seeds is not None,
        "on_nan stop": config.on_nan == "stop",
    }.items():
        if given:
            raise ShoalError(f"{name} needs all learners in one program; leave out --islands")


def meetings_every(config: TrainConfig) -> int:
    """Iterations between two meetings."""
    if config.own.exchange is not None:
        return 1
    timed = [one for exchange in config.exchanges for one in split_by_interval(exchange)]
    intervals = [one.local_updates for one in timed if one.exchange != "none"]
    return gcd(*intervals) if intervals else ALONE


def copies_whole(config: TrainConfig) -> bool:
    """Whether an exchange may copy or mix more of a learner than parameters and statistics."""
    if config.own.exchange is not None:
        return True
    own = (one.exchange not in EXCHANGES for one in config.exchanges)
    return any(own) or any(selects(one) or one.share_moments for one in config.exchanges)


def divide(learners: int, islands: int) -> list[tuple[int, ...]]:
    """The learners' numbers on each island: neighbours stay together, islands differ by one at most.

    >>> divide(5, 2)
    [(0, 1, 2), (3, 4)]
    """
    if not 1 <= islands <= learners:
        raise ShoalError(
            f"{islands} islands need a learner each, and the run has {learners}; use --learners N"
        )
    return [tuple(map(int, part)) for part in np.array_split(np.arange(learners), islands)]


def config_of(config: TrainConfig, members: tuple[int, ...]) -> TrainConfig:
    """The settings of one island: its learners have the numbers, so the seeds and worlds, of the run."""
    if members != tuple(range(members[0], members[0] + len(members))):
        raise ShoalError(f"the learners of an island have consecutive numbers, not {members}")
    own = config.learner_hypers and {
        name: [values[i] for i in members] for name, values in config.learner_hypers.items()
    }
    first = config.first_member + members[0]
    return replace(config, learners=len(members), first_member=first, learner_hypers=own)


def named_models(cohort: LearnerState, fields: tuple[str, ...]) -> dict[str, Any]:
    """Some fields of learners as named arrays."""
    return named_leaves({name: getattr(cohort, name) for name in fields})


def with_models(cohort: LearnerState, fields: tuple[str, ...], arrays: dict[str, Any]) -> LearnerState:
    """The cohort with these fields from named arrays, which may be the only ones among others."""
    tree = {name: getattr(cohort, name) for name in fields}
    return cohort._replace(**from_names(tree, arrays))


def from_names(like: Tree, arrays: dict[str, Any]) -> Tree:
    """The tree like another, from its leaves by name."""
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in named_leaves(like)])
