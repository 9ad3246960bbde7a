"""The public names."""

from shoal.envs.registry import make, register
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.learners.context import LearnerContext
from shoal.learners.dqn import DQNConfig, dqn
from shoal.learners.ppo import PPOConfig, ppo
from shoal.learners.sac import SACConfig, sac
from shoal.learners.td3 import TD3Config, td3
from shoal.nets.actor_critic import actor_critic
from shoal.runs.comparison import compare
from shoal.runs.policy import Policy
from shoal.runs.presets import preset
from shoal.runs.reports import save, train
from shoal.runs.run import Run, evaluate, load, run
from shoal.runs.sweep.sweep import Sweep, sweep
from shoal.training.config import TrainConfig
from shoal.training.loop import Report
from shoal.types import Box, Discrete, EnvSpec, JaxEnv, Learner, MultiBinary, MultiDiscrete

__all__ = [
    "Box",
    "DQNConfig",
    "Discrete",
    "EnvSpec",
    "ExchangeConfig",
    "JaxEnv",
    "Learner",
    "LearnerContext",
    "MultiBinary",
    "MultiDiscrete",
    "PPOConfig",
    "Policy",
    "Report",
    "Run",
    "SACConfig",
    "ShoalError",
    "Sweep",
    "TD3Config",
    "TrainConfig",
    "actor_critic",
    "compare",
    "dqn",
    "evaluate",
    "load",
    "make",
    "ppo",
    "preset",
    "register",
    "run",
    "sac",
    "save",
    "sweep",
    "td3",
    "train",
]
