"""What a PPO learner is made of: its settings, its network, its statistics and its private state."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from shoal.learners import observations, sequences
from shoal.learners.context import LearnerContext, data_axes
from shoal.learners.ppo_config import Hypers, PPOConfig
from shoal.nets.actor_critic import Layers, NetworkMaker, Split, actor_critic
from shoal.nets.recurrent import RecurrentNetworkMaker, recurrent_actor_critic
from shoal.ops import masks
from shoal.ops.distributions import Distribution, distribution_for
from shoal.ops.statistics import Running
from shoal.types import EnvSpec, LearnerState, Tree


class Statistics(NamedTuple):
    """Running moments of each standardised observation by name, of returns, of the critic's targets."""

    obs: dict[str, Running]
    returns: Running
    targets: Running | tuple[()] = ()  # where they are standardised


class Private(NamedTuple):
    """What never leaves the learner."""

    num_updates: Array  # () int32, so far
    kl_coef: Array  # () weight of the KL penalty
    discounted_return: Array  # (E,) so far in each environment's episode
    carry: Tree = ()  # (E, ...) of a recurrent policy
    start: Tree = ()  # (E, ...) the carry when the current rollout began
    reward_range: Array | tuple[()] = ()  # (2,) the least and the largest reward so far, where needed


class PPOSetup(NamedTuple):
    """What is fixed when a learner is made: the first argument of PPO's functions."""

    config: PPOConfig
    spec: EnvSpec
    distribution: Distribution
    make_network: NetworkMaker | RecurrentNetworkMaker
    num_updates: int | Array  # that annealing takes
    axes: tuple[str, ...] = ()
    shards: int = 1

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The mapped axes over which a learner's environments are divided."""
        return data_axes(self.shards)

    @property
    def all_axes(self) -> tuple[str, ...]:
        """Those, and the axes of learners that share every gradient: moments are of all their samples."""
        return *self.axes, *self.data_axes


def make_setup(config: PPOConfig, spec: EnvSpec, context: LearnerContext) -> PPOSetup:
    """The setup of a learner; raises where it does not support the environment or the number of devices."""
    masks.check(spec)
    num_updates, axes, shards, network = context
    if config.recurrent:
        num_parts = config.num_minibatches * config.network.grad_accumulation
        sequences.check_division(config.num_envs, num_parts, shards)
    network = network or default_network(config)
    return PPOSetup(config, spec, distribution_for(spec.action), network, num_updates, axes, shards)


def default_network(config: PPOConfig) -> NetworkMaker | RecurrentNetworkMaker:
    """The network that the settings describe."""
    network, memory = config.network, config.memory
    layers = Layers(
        hidden=config.hidden,
        critic_hidden=network.critic_hidden,
        activation=config.activation,
        images=network.images,
        init=network.init,
        init_log_std=network.init_log_std,
        split=Split(network.split_start, network.split_keys, network.split_hidden),
    )
    if memory.kind == "none":
        return actor_critic(**layers._asdict())
    return recurrent_actor_critic(memory.kind, memory.size, layers)


def initial_hypers(config: PPOConfig) -> Hypers:
    """Those of a new learner: infinity where an option is off; the critic's rate only where it is given."""
    number = lambda x: jnp.float32(x if isinstance(x, int | float) else jnp.inf)
    absent = ("critic_learning_rate",) if config.value.learning_rate is None else ()
    return Hypers(**{name: number(x) for name, x in config.hypers.items() if name not in absent})


def initial_carry(setup: PPOSetup, params: Tree, num_envs: int) -> Tree:
    """A recurrent policy's carry at the start of an episode."""
    return params.initial_carry(num_envs) if setup.config.recurrent else ()


def standardise(setup: PPOSetup, state: LearnerState, obs: Tree) -> Tree:
    """Observations as the network sees them."""
    return observations.standardise(obs, state.statistics.obs, setup.config.inputs.clip_obs)


def restrict(setup: PPOSetup, obs: Tree, outputs: Array) -> Array:
    """The policy's outputs, such that actions the environment forbids have probability 0."""
    return masks.restrict(setup.spec.action, obs, outputs)
