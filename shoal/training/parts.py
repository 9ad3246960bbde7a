"""The parts of a run, from its settings: devices, learner, exchange, worlds, seeds."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from shoal.distributed.mesh import make_mesh, read_shape
from shoal.envs.worlds.parameters import default_worlds, draw_worlds, read_worlds
from shoal.errors import ShoalError
from shoal.exchanges.builders import communication_graphs
from shoal.exchanges.combinators import chain, part_names
from shoal.exchanges.config import ExchangeContext
from shoal.exchanges.exploration import check_names, names_of
from shoal.exchanges.population import follow_hyper_plan
from shoal.exchanges.registry import make_exchange
from shoal.imports import import_attribute
from shoal.learners.context import LearnerContext
from shoal.learners.registry import make_registered
from shoal.nets.actor_critic import NetworkMaker
from shoal.training.config import TrainConfig
from shoal.types import EnvSpec, Exchange, Learner, Tree

LearnerMaker: TypeAlias = Callable[[EnvSpec, LearnerContext], Learner]
"""Makes a learner of your own, from the environment's spec and the run's context."""


def mesh_for(config: TrainConfig, spec: EnvSpec, asked: str | None) -> Mesh:
    """The devices of a run."""
    shape = read_shape(asked) if asked else None
    if shape and shape[1] > 1 and not config.algo.divisible:
        raise ShoalError(f"mesh {asked}: only ppo's environments can be divided; use {shape[0] * shape[1]}x1")
    num_envs = config.algo.num_envs if config.algo.divisible else 1
    return make_mesh(config.learners, num_envs, parallel=spec.parallel, work=config.algo.work, shape=shape)


def make_learner(
    config: TrainConfig,
    spec: EnvSpec,
    network: NetworkMaker | None = None,
    shards: int = 1,
    maker: LearnerMaker | None = None,
    num_updates: Array | None = None,
) -> Learner:
    """One learner of a run, its environments divided over `shards` devices.

    `num_updates` are those that annealing takes; the settings' unless given.
    """
    maker, network = maker or imported(config.own.learner), network or imported(config.own.network)
    axes = ("learners", "group") if config.shares_gradients else ()
    annealed = config.num_annealed if num_updates is None else num_updates
    context = LearnerContext(annealed, axes, shards, network)
    return maker(spec, context) if maker else make_registered(config.algo, spec, context)


def imported(path: str | None) -> Any:
    """The part of the user's own at an import path; None without one."""
    return None if path is None else import_attribute(path)


def make_exchange_for(
    config: TrainConfig, learner: Learner, spec: EnvSpec, mesh: Mesh | None, group: int
) -> Exchange:
    """The exchange of a run."""
    state = jax.eval_shape(learner.init, jax.random.key(0))
    check_names(names_of(config.evolve), state.hypers)  # before a prior is asked for
    check_names(config.evolving, state.hypers)
    if config.algo.prox_coef and config.parts and "encoder" in part_names(state.params) - config.parts:
        raise ShoalError("prox_coef needs an exchange of the encoder, too; add it to --parts")
    anchored = config.algo.prox_coef > 0
    priors = config.priors
    context = ExchangeContext(config.learners, learner, spec, config.seed, mesh, group, priors, anchored)
    exchange = make_exchange(config.exchanges, context)
    if not config.hyper_plan:
        return exchange
    plan = [(step // config.algo.rollout_size, values) for step, values in config.hyper_plan]
    return chain(exchange, follow_hyper_plan(plan))


def links_of(config: TrainConfig) -> np.ndarray | None:
    """Which learners are linked by the run's communication graphs, (L, L); None where it has none."""
    graphs = communication_graphs(config.exchanges, config.learners, config.seed)
    return np.any(np.stack(graphs) != 0, axis=0) if graphs else None


def worlds_of(config: TrainConfig, spec: EnvSpec) -> Tree:
    """The physical parameters of every learner's world, (L,) per leaf."""
    if config.env_params is not None:
        return read_worlds(spec, config.env_params, config.members)
    if config.env_spread:
        return draw_worlds(spec, config.env_spread, config.members, config.seed)
    return default_worlds(spec, config.learners)


def env_seeds(config: TrainConfig, start: int) -> np.ndarray:
    """A seed per environment, (L, E); it depends on the learner's own number."""
    entropy = [np.random.SeedSequence([config.seed, member, start]) for member in config.members]
    return np.stack([e.generate_state(config.algo.num_envs) for e in entropy])
