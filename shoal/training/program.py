"""The program of a run: its parts, and its iterations compiled together."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from shoal.distributed.mesh import (
    BY_LEARNER,
    DATA,
    REPLICATED,
    compiler_options,
    group_size,
    local_envs,
    num_processes,
    to_device_order,
)
from shoal.distributed.processes import rank
from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.nets.actor_critic import NetworkMaker
from shoal.settings import changed, long_name, types
from shoal.training.config import TrainConfig
from shoal.training.crashes import contain_crashes
from shoal.training.iteration import (
    ROLLOUT_SPEC,
    Parts,
    Progress,
    Start,
    TrainState,
    advance,
    collect_stage,
    exchange_stage,
    init_state,
    shardings,
    start_of,
    state_spec,
    update_stage,
)
from shoal.training.parts import (
    LearnerMaker,
    env_seeds,
    imported,
    links_of,
    make_exchange_for,
    make_learner,
    mesh_for,
)
from shoal.training.scores import disagreement
from shoal.types import EnvRecipe, EnvSpec, Exchange, Rollout, Tree


class Stages(NamedTuple):
    """The stages of an iteration, compiled separately so each can be timed; a replay is updated in place."""

    collect: Callable[[TrainState], tuple[TrainState, Rollout]]
    update: Callable[[TrainState, Rollout], tuple[TrainState, Progress]]
    exchange: Callable[[TrainState, Progress], tuple[TrainState, Progress]]


class Trainer(NamedTuple):
    """A run ready to train: `init()` makes its first state, `advance(state, n)` trains for n iterations.

    `advance_in_place(private, state without it, n)` does the same and deletes the given private state;
    `stages` does one iteration in stages; `compare(state)` measures how far the learners are apart;
    `begin(config)` makes the first state of learners with other hyperparameters of their own.

    Environments are built once and begin once: make a new trainer to start again.
    """

    parts: Parts
    init: Callable[[], TrainState]
    advance: Callable[[TrainState, Array], tuple[TrainState, Progress]]
    advance_in_place: Callable[[Tree, TrainState, Array], tuple[TrainState, Progress]]
    stages: Stages
    compare: Callable[[TrainState], dict[str, Array]]
    begin: Callable[[TrainConfig], TrainState]


def make_trainer(
    config: TrainConfig,
    *,
    recipe: EnvRecipe | None = None,
    learner: LearnerMaker | None = None,
    network: NetworkMaker | None = None,
    exchange: Exchange | None = None,
    mesh: Mesh | str | None = None,
    start: int = 0,
) -> Trainer:
    """Build the environments, the learner, the exchange and the compiled program.

    `learner(spec, context)`, `network` and `exchange` are your own, where given. `mesh` divides learners
    and their environments over devices, e.g. "4x2"; chosen from the devices there are unless given. `start`
    is the iteration a resumed run continues from: environments that cannot be restored start new episodes.
    """
    parts = make_parts(config, recipe, learner, network, exchange, mesh, start)
    state, by_learner = shardings(parts.mesh, (state_spec(parts), BY_LEARNER))
    visible = shardings(parts.mesh, REPLICATED) if num_processes() > 1 else by_learner
    jit = partial(jax.jit, compiler_options=compiler_options(parts.mesh))
    in_place = partial(jit, donate_argnums=0)
    begin = partial(first_state, parts.recipe.spec, jit(partial(init_state, parts), out_shardings=state))
    stage = jit if parts.learner.grouped else in_place

    def advance_in_place(private: Tree, state: TrainState, count: Array) -> tuple[TrainState, Progress]:
        return advance(parts, state._replace(cohort=state.cohort._replace(private=private)), count)

    return Trainer(
        parts=parts,
        init=partial(begin, config),
        advance=jit(partial(advance, parts), out_shardings=(state, visible)),
        advance_in_place=in_place(advance_in_place, out_shardings=(state, visible)),
        stages=Stages(
            stage(partial(collect_stage, parts), out_shardings=(state, shardings(parts.mesh, ROLLOUT_SPEC))),
            stage(partial(update_stage, parts), out_shardings=(state, by_learner)),
            stage(partial(exchange_stage, parts), out_shardings=(state, visible)),
        ),
        compare=jit(
            lambda state: disagreement(parts.learner, state.cohort, state.envs.step.obs, links_of(config)),
            out_shardings=visible,
        ),
        begin=begin,
    )


def for_learners(trainer: Trainer, config: TrainConfig) -> Trainer:
    """The same program for a run that differs in its `learner_hypers` alone."""
    return trainer._replace(parts=trainer.parts._replace(config=config), init=partial(trainer.begin, config))


def first_state(spec: EnvSpec, init: Callable[[Start], TrainState], config: TrainConfig) -> TrainState:
    """The first state, with the learners' own hyperparameters: put in here they are data of the program."""
    state = init(start_of(config, spec))
    own = {
        name: jax.device_put(np.asarray(values, np.float32), getattr(state.cohort.hypers, name).sharding)
        for name, values in (config.learner_hypers or {}).items()
    }
    return state._replace(cohort=state.cohort._replace(hypers=state.cohort.hypers._replace(**own)))


def warn_of_idle(config: TrainConfig) -> None:
    """Say where a bound on standardised observations is set, but they are not standardised."""
    bound = long_name("clip_obs", types(type(config.algo)))
    if bound in changed(config.algo) and not config.algo.norm_obs and rank() == 0:
        warnings.warn("clip_obs has no effect without norm_obs; add --norm-obs", RuntimeWarning)


def make_parts(
    config: TrainConfig,
    recipe: EnvRecipe | None,
    learner: LearnerMaker | None,
    network: NetworkMaker | None,
    exchange: Exchange | None,
    mesh: Mesh | str | None,
    start: int,
) -> Parts:
    """Everything an iteration needs, built."""
    config.check() if exchange is None else config.check_part()
    warn_of_idle(config)
    recipe = recipe or make(config.env, **config.options)
    devices = mesh if isinstance(mesh, Mesh) else mesh_for(config, recipe.spec, mesh)
    make_one = partial(make_learner, config, recipe.spec, network, devices.shape[DATA], learner)
    made = make_one()
    independent = made.grouped and not config.shares_gradients
    on_device = config.learners // devices.shape["learners"]
    group = group_size(devices, config.learners) if independent else on_device
    exchange = exchange or imported(config.own.exchange)
    exchange = exchange or make_exchange_for(config, made, recipe.spec, devices, group)
    seeds = to_device_order(env_seeds(config, start), devices)
    env = recipe.build(local_envs(seeds, devices), False)
    contain_crashes(config, env, devices)
    if config.hard_resets and env.restart is None:
        raise ShoalError(f"{config.env} cannot start new episodes at any time; leave hard_resets out")
    # One of the user's own may compute with the number while it is made, so it is made once.
    is_own = learner or config.own.learner
    learner_for = (lambda _: made) if is_own else lambda horizon: make_one(num_updates=horizon)
    return Parts(config, recipe, env, made, exchange, devices, group, learner_for)
