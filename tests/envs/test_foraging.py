"""Foraging: the package's own transitions, collisions and loads worked out by hand, and beginnings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.envs.multi_agent.foraging import FIELDS, ForagingState, foraging, scatter_food
from shoal.envs.registry import list_environments
from shoal.errors import ShoalError
from tests.envs import packages

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
    env = foraging(name)
    rules = env.reset.args[0]
    step = jax.jit(jax.vmap(lambda state, action: env.step(jax.random.key(0), state, action, ())))
    look = jax.jit(jax.vmap(lambda state: env.observe(state, ())))
    state = as_state(trace, rules.foods)
    after, reward, terminated = jax.device_get(step(state, trace["action"].astype(np.int32)))
    np.testing.assert_array_equal(look(state), trace["obs"])
    np.testing.assert_array_equal(look(after), trace["next_obs"])
    np.testing.assert_array_equal(after.player, trace["next_players"][..., :2])
    np.testing.assert_array_equal(after.level, trace["next_players"][..., 2])
    np.testing.assert_array_equal(field_of(after, rules.size), trace["next_field"])
    np.testing.assert_array_equal(terminated, trace["over"])
    np.testing.assert_allclose(reward, trace["reward"], rtol=1e-6)
    assert np.any(trace["reward"] > 0)


@pytest.mark.parametrize("name", packages.FIELDS)
def test_recorded_transitions_of_the_package(name):
    with np.load(packages.DATA / f"{name}.npz") as trace:
        check_against(name, dict(trace))


@pytest.mark.parametrize("name", NAMES)
def test_transitions_of_the_package(name):
    pytest.importorskip("lbforaging")
    check_against(name, packages.play_foraging(name, 4000, seed=2))


STEP = jax.jit(foraging("Foraging-8x8-3p-2f-v3").step)


def after(state, *actions):
    return jax.device_get(STEP(jax.random.key(0), jax.tree.map(np.int32, state), np.int32(actions), ()))


def players_at(*places, level=(1, 2, 1), weight=(3, 2)):
    food = [[4, 4], [1, 6]]
    player = [list(place) for place in places]
    return ForagingState(*map(np.array, (player, level, food, weight, sum(weight))))


MOVES = {
    "two change places, one meets a wall": ("00 01 77", (4, 3, 2), "01 00 77"),
    "a cell that two want stays empty": ("00 02 77", (4, 3, 1), "00 02 67"),
    "one steps where another could not leave": ("00 01 03", (4, 4, 3), "01 01 03"),
    "food is in the way": ("43 54 00", (4, 1, 0), "43 54 00"),
    "so is who stands and loads": ("33 32 00", (5, 4, 0), "33 32 00"),
}
"""Rows and columns before, actions, rows and columns after."""


@pytest.mark.parametrize("case", MOVES)
def test_moves(case):
    before, actions, ends = MOVES[case]
    state, reward, terminated = after(players_at(*[map(int, place) for place in before.split()]), *actions)
    assert " ".join(f"{row}{col}" for row, col in state.player) == ends
    assert not np.any(reward)
    assert not terminated


def test_loads():
    """Food of 3 and 2, players of 1, 2 and 1: rewards are shares of 5, divided by level."""
    around = players_at((4, 3), (3, 4), (5, 4))
    state, reward, terminated = after(around, 5, 0, 5)
    assert (reward.tolist(), state.weight.tolist()) == ([0, 0, 0], [3, 2])
    state, reward, terminated = after(around, 5, 5, 0)
    np.testing.assert_allclose(reward, [3 / 5 / 3, 3 / 5 * 2 / 3, 0], rtol=1e-6)
    assert (state.weight.tolist(), bool(terminated)) == ([0, 2], False)
    state, reward, terminated = after(around, 5, 5, 5)
    np.testing.assert_allclose(reward, [3 / 5 / 4, 3 / 5 / 2, 3 / 5 / 4], rtol=1e-6)
    state, reward, terminated = after(players_at((1, 5), (0, 6), (5, 4), weight=(0, 2)), 5, 5, 5)
    np.testing.assert_allclose(reward, [1 / 3, 2 / 3, 0], rtol=1e-6)
    assert bool(terminated)


def test_food_lies_anywhere_it_may():
    """Of 9 cells inside a 5x5 field one is a player's; food then keeps two moves away from other food."""
    rules = foraging("Foraging-5x5-1p-2f-v3").reset.args[0]
    lots = (np.indices((24, 24)).reshape(2, -1).T + 0.5) / 24
    scatter = jax.jit(jax.vmap(lambda lot: scatter_food(rules, lot, jnp.array([[1, 1]]))))
    food, there = jax.device_get(scatter(lots.astype(np.float32)))
    found, where = np.unique(food[:, 0] @ np.array([5, 1]), return_counts=True)
    inside = [(row, col) for row in (1, 2, 3) for col in (1, 2, 3) if (row, col) != (1, 1)]
    assert found.tolist() == [5 * row + col for row, col in inside]
    assert np.all(where == 24 * 24 // 8)
    for row, col in inside:
        here = np.all(food[:, 0] == np.array([[row, col]]), axis=1)
        far = [5 * r + c for r, c in inside if abs(r - row) + abs(c - col) > 2]
        assert np.all(there[here, 1] == bool(far))
        if far:
            second, counts = np.unique(food[here, 1] @ np.array([5, 1]), return_counts=True)
            assert second.tolist() == far
            assert np.ptp(counts) == 0


def test_beginnings():
    keys = jax.random.split(jax.random.key(0), 8000)
    for name in ("Foraging-8x8-4p-2f-coop-v3", "Foraging-8x8-4p-2f-v3"):
        begun = jax.device_get(jax.jit(jax.vmap(partial(foraging(name).reset, params=())))(keys))
        assert set(np.unique(begun.level)) == {1, 2}
        assert np.abs(begun.player.mean((0, 1)) - 3.5).max() < 0.1
        heaviest = np.sort(begun.level, axis=1)[:, :3].sum(1)
        np.testing.assert_array_equal(begun.supply, begun.weight.sum(1))
        if "coop" in name:
            assert np.all(begun.weight == heaviest[:, None])
            continue
        _, counts = np.unique(begun.weight[heaviest == 4], return_counts=True)
        assert np.abs(counts / counts.sum() - 0.25).max() < 0.03


def test_ids():
    known = [name for name, backend in list_environments("Foraging*") if backend == "jax"]
    assert sorted(known) == sorted(FIELDS)
    spec = shoal.make("Foraging-2s-11x11-6p-7f-coop-v3").spec
    assert (spec.agents, spec.observation.shape, spec.max_episode_steps) == (6, (39,), 50)
    with pytest.raises(ShoalError, match="a field must be square"):
        shoal.make("Foraging-8x9-2p-2f-v3")


def test_picture():
    env = foraging("Foraging-8x8-3p-2f-v3")
    before, later = players_at((4, 3), (3, 4), (5, 4)), players_at((4, 3), (3, 4), (5, 4), weight=(0, 2))
    assert env.render(before, ()).shape == (320, 320, 3)
    differs = np.any(env.render(before, ()) != env.render(later, ()), axis=2)
    assert {tuple(cell) for cell in np.argwhere(differs) // 40} == {(4, 4)}
