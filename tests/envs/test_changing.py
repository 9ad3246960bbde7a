"""Worlds that change: after so many episodes, within their bounds, and nothing else changes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.changing import change_worlds
from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.classic import CARTPOLE, PENDULUM
from shoal.envs.registry import make
from shoal.envs.worlds.parameters import default_worlds, read_worlds
from shoal.errors import ShoalError
from shoal.types import Box, Discrete, EnvSpec, JaxEnv

N, T = 3, 60
SHORT = CARTPOLE._replace(spec=EnvSpec(**vars(CARTPOLE.spec) | {"max_episode_steps": 4}))
"""At most four steps, which nobody falls in: an episode and its reset are five steps."""


def walked(recipe, params, num_steps=T):
    """What `num_steps` steps of pushing to the right show, and the worlds of each, (T, N, ...)."""
    env = recipe.build(np.zeros((1, N), np.uint32), False)
    keys = jax.random.split(jax.random.key(5), N)
    action = jnp.ones((N, *([1] if isinstance(recipe.spec.action, Box) else [])), int)

    def step(state, noise):
        state, seen = env.step(state, action, noise)
        return state, (seen, state)

    @jax.jit
    def run(params):
        state, _ = env.reset(keys, params)
        return jax.lax.scan(step, state, env.draw(keys, state, num_steps))[1]

    return jax.device_get(run(params))


def test_a_new_world_begins_with_every_second_episode():
    home = read_worlds(CARTPOLE.spec, [{"length": 0.7}, {}, {"gravity": 12.0}], range(N))
    seen, states = walked(change_worlds(SHORT, 2, spread=0.02), home)
    assert (seen.valid.sum(0) == T * 4 / 5).all()
    worlds = states.batch.params
    for name in ("length", "gravity", "mass_cart", "mass_pole"):
        values, first = getattr(worlds, name), getattr(home, name)
        # the first two episodes are nine steps, with the reset between; the tenth is the next one's reset
        assert (values[:9] == first).all()
        blocks = values[9:59].reshape(5, 10, N)
        assert (blocks == blocks[:, :1]).all()
        each = np.concatenate([first[None], blocks[:, 0]])
        assert all(len(np.unique(each[:, row])) == 6 for row in range(N))
        _, low, high = CARTPOLE.spec.spread[name]
        assert (values >= low).all()
        assert (values <= high).all()
    assert (worlds.force == 10).all()
    assert (states.episodes[-1] == T // 5).all()


def test_worlds_are_drawn_around_the_learners_own():
    home = read_worlds(CARTPOLE.spec, [{"gravity": 20.0}, {"gravity": 30.0}, {"gravity": 40.0}], range(N))
    _, states = walked(change_worlds(SHORT, 1, spread=1.0), home, 2000)
    drawn = states.batch.params.gravity[4::5]
    np.testing.assert_allclose(drawn.mean(0), [20, 30, 40], atol=0.2)  # 400 draws: 0.05 is one deviation
    np.testing.assert_allclose(drawn.std(0), 1.0, atol=0.15)


@pytest.mark.parametrize("env", [CARTPOLE, PENDULUM])
def test_without_a_spread_nothing_changes(env):
    plain, _ = walked(from_jax(env), default_worlds(env.spec, N))
    same, _ = walked(change_worlds(env, 1, spread=0.0), default_worlds(env.spec, N))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), plain, same)


def test_the_first_state_is_of_the_new_world():
    """An environment that begins where its world says, and stays there."""
    spec = EnvSpec(
        "there", "jax", Box((1,)), Discrete(2), 3, params={"place": 1.0}, spread={"place": (1.0, -9.0, 9.0)}
    )
    there = JaxEnv(
        spec,
        reset=lambda key, params: params["place"][None],
        step=lambda key, state, action, params: (state, jnp.float32(0), jnp.bool_(False)),
        observe=lambda state, params: state,
    )
    seen, states = walked(change_worlds(there, 1), default_worlds(spec, N))
    np.testing.assert_array_equal(seen.obs[..., 0], states.batch.params["place"])
    assert len(np.unique(seen.obs)) == N * T // 4 + 1


def test_the_command_has_options_for_it():
    recipe = make("Pendulum-v1", change_every=3, change_spread=0.5, max_episode_steps=7)
    assert recipe.spec.max_episode_steps == 7
    assert make("CartPole-v1", change_every=3).spec.backend == "jax"


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("Pendulum-v1", {"change_spread": 1}, "change_spread needs change_every"),
        ("Pendulum-v1", {"change_every": 0}, "change_every must be a number of episodes, at least 1, not 0"),
        ("Pendulum-v1", {"change_every": 2.5}, "change_every must be a number of episodes, .* not 2.5"),
        ("Pendulum-v1", {"change_every": 2, "change_spread": -1}, "change_spread must be .* at least 0, not"),
        ("pressureplate-linear-4p-v0", {"change_every": 2}, "does not say how its parameters may differ"),
    ],
)
def test_what_cannot_change_is_refused(env, options, message):
    with pytest.raises(ShoalError, match=message):
        make(env, **options)
