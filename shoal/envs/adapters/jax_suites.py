"""What the adapters of JAX suites share: the suite's step, as it is, becomes a `JaxEnv`."""

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.adapters.host import one_line_errors
from shoal.envs.adapters.kept_starts import from_jax_keeping_starts
from shoal.envs.adapters.suite import UnknownOptions, option_errors
from shoal.types import ActionSpace, EnvRecipe, EnvSpec, JaxEnv, ObservationSpace, Tree

if TYPE_CHECKING:
    import gymnasium.spaces as gs

    from shoal.envs.spaces import Convert

NEW_STARTS = 16
"""After so many steps an environment draws the start of its next episode anew."""


class Moment(NamedTuple):
    """A suite's state, and what the suite said with it."""

    state: Tree
    obs: Tree
    truncated: Array


class Outcome(NamedTuple):
    """What a suite's step returns, terminated and truncated apart."""

    state: Tree
    obs: Tree
    reward: Array
    terminated: Array
    truncated: Array | bool = False


def suite_recipe(
    spec: EnvSpec,
    reset: Callable[[Array, Tree], tuple[Tree, Tree]],
    step: Callable[[Array, Tree, Array, Tree], Outcome],
    render: Callable[[Tree, Tree], np.ndarray] | None = None,
) -> EnvRecipe:
    """The recipe of a suite's environment, from its functions for one row, without automatic reset.

    reset(key, params) -> (state, obs)
    step(key, state, action, params) -> Outcome
    render(state, params) -> RGB array, outside compiled code

    Keys are arrays of numbers, because some suites keep them in their states.
    """

    def first(key: Array, params: Tree) -> Moment:
        return Moment(*reset(jax.random.key_data(key), params), jnp.bool_(False))

    def follow(key: Array, moment: Moment, action: Array, params: Tree) -> tuple[Moment, Array, Array]:
        after = step(jax.random.key_data(key), moment.state, action, params)
        moment = Moment(after.state, after.obs, jnp.asarray(after.truncated, bool))
        return moment, jnp.asarray(after.reward, jnp.float32), jnp.asarray(after.terminated, bool)

    env = JaxEnv(
        spec,
        first,
        follow,
        observe=lambda moment, params: moment.obs,
        render=render and (lambda moment, params: render(moment.state, params)),
        truncated=lambda moment, params: moment.truncated,
    )
    return from_jax_keeping_starts(env, NEW_STARTS)


@contextmanager
def making(name: str, options: dict[str, Any]) -> Iterator[None]:
    """While a suite makes an environment: its errors in one line, its warnings not at all."""
    with one_line_errors(name), option_errors(name, options), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def known_options(name: str, options: dict[str, Any], known: Collection[str]) -> None:
    """Raise where options are not among the parameters of an environment."""
    if unknown := sorted(options.keys() - set(known)):
        raise UnknownOptions(f"{name} has no option {unknown[0]}; it has {', '.join(known)}")


def adapt_row(
    observation_space: "gs.Space", action_space: "gs.Space", name: str
) -> tuple[ObservationSpace, "Convert", ActionSpace, "Convert"]:
    """Our spaces of an environment, given as Gymnasium's, and the conversions of a single row."""
    from shoal.envs.spaces import adapt

    action_space.dtype = jax.dtypes.canonicalize_dtype(action_space.dtype)  # without 64 bits
    observation, observe, action, act = adapt(observation_space, action_space, name)
    return observation, _one_row(observe), action, _one_row(act)


def _one_row(convert: "Convert") -> "Convert":
    """A conversion of batches (N, ...) as one of a single row."""
    return lambda row: jax.tree.map(
        lambda x: x[0], convert(jax.tree.map(lambda x: jnp.asarray(x)[None], row))
    )
