"""What a learner is told about the run, besides its settings and its environment."""

from typing import NamedTuple

from jax import Array

from shoal.distributed.mesh import DATA
from shoal.errors import ShoalError
from shoal.nets.actor_critic import NetworkMaker
from shoal.nets.recurrent import RecurrentNetworkMaker
from shoal.types import EnvSpec


class LearnerContext(NamedTuple):
    """The default is a single learner on one device.

    A learner of your own is made by a function of the environment's spec and this context:

    >>> import shoal
    >>> def make(spec, context):
    ...     return shoal.ppo(shoal.PPOConfig(), spec, context)
    >>> learner = make(shoal.make("CartPole-v1").spec, shoal.LearnerContext(num_updates=10))
    >>> reports = shoal.train(shoal.TrainConfig("CartPole-v1", steps=512), learner=make)
    """

    num_updates: int | Array = 1
    """Updates that annealing and schedules take. Where an algorithm of Shoal's is compiled it is an array, so
    that runs of all lengths are one program; a learner of your own receives the number."""
    axes: tuple[str, ...] = ()
    """The mapped axes over which gradients are averaged, of learners that share every gradient."""
    shards: int = 1
    """Devices that share a learner, each with a part of its environments."""
    network: NetworkMaker | RecurrentNetworkMaker | None = None
    """A network of your own."""


ALONE = LearnerContext()


def data_axes(shards: int) -> tuple[str, ...]:
    """The mapped axes over which a learner's environments are divided."""
    return (DATA,) if shards > 1 else ()


def check_single_agent(name: str, spec: EnvSpec, context: LearnerContext) -> None:
    """Raise where an algorithm is asked for teams, or for a network of your own: only ppo supports them."""
    if spec.agents is not None:
        raise ShoalError(f"{spec.name} has {spec.agents} agents, and {name} supports one: use ppo")
    if context.network:
        raise ShoalError(f"{name} does not support networks of your own: use ppo")
