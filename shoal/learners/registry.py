"""The algorithms, by name. To add one, write a file of its own and add a line here."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.learners.context import LearnerContext
from shoal.learners.dqn import DQNConfig, dqn
from shoal.learners.hyper_schedules import steps_to_iterations
from shoal.learners.ppo import PPOConfig, ppo
from shoal.learners.sac import SACConfig, sac
from shoal.learners.td3 import TD3Config, td3
from shoal.learners.wrappers.augmentation import add_augmentation
from shoal.learners.wrappers.curiosity import add_curiosity
from shoal.learners.wrappers.team import make_team
from shoal.types import EnvSpec, Learner


class Algorithm(NamedTuple):
    """The class of its settings, and make(config, spec, context) -> learner."""

    config: type
    make: Callable[[Any, EnvSpec, LearnerContext], Learner]


def make_registered(config: Any, spec: EnvSpec, context: LearnerContext) -> Learner:
    """A learner of the algorithm that has these settings."""
    return ALGORITHMS[name_of(config)].make(config, spec, context)


def name_of(config: Any) -> str:
    """The name of the algorithm that has these settings."""
    for name, algorithm in ALGORITHMS.items():
        if type(config) is algorithm.config:
            return name
    raise ShoalError(
        f"{type(config).__name__} belongs to no registered algorithm: pass train(..., learner=...)"
    )


def ppo_with_wrappers(config: PPOConfig, spec: EnvSpec, context: LearnerContext) -> Learner:
    """PPO with the wrappers that its settings ask for: curiosity, augmentation, a team."""

    def one(spec: EnvSpec, config: PPOConfig) -> Learner:
        learner = ppo(config, spec, context)
        if not config.curiosity.enabled:
            return learner
        return add_curiosity(learner, config, spec, context.axes, context.shards)

    if spec.agents is None and config.inputs.augment:
        return add_augmentation(partial(one, spec), config, spec)
    if spec.agents is None:
        return one(spec, config)
    if config.inputs.augment:
        raise ShoalError("inputs.augment is for environments with one agent")
    schedules = tuple(steps_to_iterations(text, config.rollout_size) for text in config.schedules)
    make = lambda spec, num_envs: one(spec, replace(config, num_envs=num_envs, schedules=schedules))
    return make_team(make, config.team, spec, config.num_envs, context.shards)


ALGORITHMS = {
    "ppo": Algorithm(PPOConfig, ppo_with_wrappers),
    "td3": Algorithm(TD3Config, td3),
    "sac": Algorithm(SACConfig, sac),
    "dqn": Algorithm(DQNConfig, dqn),
}
"""`--algo` takes these names."""
