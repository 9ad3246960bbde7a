"""Foraging: the package's own transitions, collisions and loads worked out by hand, and beginnings."""

import jax
import numpy as np

from shoal.envs.teams.foraging import ForagingState, foraging

NAMES = [
    "Foraging-8x8-2p-2f-coop-v3",
    "Foraging-2s-8x8-2p-2f-coop-v3",
    "Foraging-8x8-3p-2f-v3",
    "Foraging-2s-10x10-3p-3f-v3",
    "Foraging-5x5-4p-2f-v3",
    "Foraging-2s-7x7-5p-4f-v3",
]
"""Many players in little room bump into each other."""


def as_state(trace, foods, prefix=""):
    """The package's states as ours, one row each."""
    players, fields = (trace[prefix + key].astype(np.int32) for key in ("players", "field"))
    food = np.zeros((len(fields), foods, 3), np.int32)
    for found, field in zip(food, fields, strict=True):
        there = np.argwhere(field)
        found[: len(there), :2], found[: len(there), 2] = there, field[tuple(there.T)]
    return ForagingState(
        players[..., :2], players[..., 2], food[..., :2], food[..., 2], trace["supply"].astype(np.int32)
    )


def field_of(state, size):
    """The weight of the food in each cell."""
    field = np.zeros((len(state.weight), size, size), np.uint8)
    for row, food, weight in zip(field, state.food, state.weight, strict=True):
        np.add.at(row, tuple(np.asarray(food).T), np.asarray(weight))
    return field


def check_against(name, trace):
    """Every transition ends for us as it ended in the package, and looks the same."""
    env, (size, foods) = foraging(name), (trace["field"].shape[1], int(name.split("f")[0].split("-")[-1]))
    step = jax.jit(jax.vmap(lambda state, action: env.step(jax.random.key(0), state, action, ())))
    look = jax.jit(jax.vmap(lambda state: env.observe(state, ())))
    state = as_state(trace, foods)
    after, reward, terminated = step(state, trace["action"].astype(np.int32))
    np.testing.assert_array_equal(look(state), trace["obs"])
    np.testing.assert_array_equal(look(after), trace["next_obs"])
    np.testing.assert_array_equal(after.player, trace["next_players"][..., :2])
    np.testing.assert_array_equal(after.level, trace["next_players"][..., 2])
    np.testing.assert_array_equal(field_of(after, size), trace["next_field"])
    np.testing.assert_array_equal(terminated, trace["over"])
    np.testing.assert_allclose(reward, trace["reward"], rtol=1e-6)
