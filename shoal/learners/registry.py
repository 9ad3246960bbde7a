"""The algorithms, by name. A new one is a file of its own and a line here."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.learners.context import LearnerContext
from shoal.learners.dqn import DQNConfig, dqn
from shoal.learners.hyper_schedules import in_iterations
from shoal.learners.ppo import PPOConfig, ppo
from shoal.learners.sac import SACConfig, sac
from shoal.learners.td3 import TD3Config, td3
from shoal.learners.wrappers.augmentation import augmented
from shoal.learners.wrappers.curiosity import curious
from shoal.learners.wrappers.team import team
from shoal.types import EnvSpec, Learner


class Algorithm(NamedTuple):
    """Its settings, and what makes a learner of them: make(config, spec, context)."""

    config: type
    make: Callable[[Any, EnvSpec, LearnerContext], Learner]


def make_registered(config: Any, spec: EnvSpec, context: LearnerContext) -> Learner:
    """A learner of the algorithm whose settings these are."""
    return ALGORITHMS[name_of(config)].make(config, spec, context)


def name_of(config: Any) -> str:
    """The name of the algorithm that has these settings."""
    for name, algorithm in ALGORITHMS.items():
        if type(config) is algorithm.config:
            return name
    raise ShoalError(f"{type(config).__name__} is no registered algorithm's: pass train(..., learner=...)")


def ppo_with_wrappers(config: PPOConfig, spec: EnvSpec, context: LearnerContext) -> Learner:
    """PPO, and around it what its settings ask for: curiosity, augmentation, a team."""

    def one(spec: EnvSpec, config: PPOConfig) -> Learner:
        learner = ppo(config, spec, context)
        return (
            curious(learner, config, spec, context.axes, context.shards)
            if config.curiosity.enabled
            else learner
        )

    if spec.agents is None:
        return augmented(partial(one, spec), config, spec) if config.inputs.augment else one(spec, config)
    if config.inputs.augment:
        raise ShoalError("inputs.augment is for environments with one agent")
    plans = tuple(in_iterations(plan, config.rollout_size) for plan in config.schedules)
    player = lambda seen, num_envs: one(seen, replace(config, num_envs=num_envs, schedules=plans))
    return team(player, config.team, spec, config.num_envs, context.shards)


ALGORITHMS = {
    "ppo": Algorithm(PPOConfig, ppo_with_wrappers),
    "td3": Algorithm(TD3Config, td3),
    "sac": Algorithm(SACConfig, sac),
    "dqn": Algorithm(DQNConfig, dqn),
}
"""`--algo` takes these names."""
