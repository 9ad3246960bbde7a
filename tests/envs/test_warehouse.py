"""The warehouse: the package's own transitions, collisions and draws worked out by hand, and episodes."""

import jax
import numpy as np
import pytest

import shoal
from shoal.envs.multi_agent.sampling import distinct
from shoal.envs.multi_agent.warehouse import WarehouseState, advance, observe, wanted, warehouse, who_moves
from shoal.envs.multi_agent.warehouse_rules import WAREHOUSES, first_shelves
from shoal.envs.registry import list_environments
from shoal.errors import ShoalError
from tests.envs import packages

CLOCKWISE = np.array([0, 2, 3, 1])
"""Our headings for the package's: up, down, left, right."""


def rules_of(name):
    return warehouse(name).reset.args[0]


def as_state(rules, trace, prefix=""):
    """The package's states as ours, one row each."""
    robots, shelves = (trace[prefix + key].astype(np.int32) for key in ("robots", "shelves"))
    edge = [(0, 0), (rules.sight, rules.sight), (rules.sight, rules.sight)]
    return WarehouseState(
        place=rules.cell(robots[..., 0], robots[..., 1]),
        heading=CLOCKWISE[robots[..., 2]].astype(np.int32),
        loaded=robots[..., 3] > 0,
        delivered=robots[..., 4] > 0,
        shelves=np.pad(shelves, edge).reshape(len(shelves), -1).astype(np.uint8),
        requests=trace[prefix + "requests"].astype(np.int32),
    )


def by_hashes(place, target):
    """Whether two of four robots want one cell and the others move freely: Python's hashes decide there."""
    return place.size == 4 and len({*place, *target}) == 7 and len({*target}) == 3


def check_against(name, payment, trace):
    """Every transition ends for us as it ended in the package, and looks the same."""
    rules = rules_of(name.replace("-v2", f"-{payment}-v2"))
    state, expected = as_state(rules, trace), as_state(rules, trace, "next_")
    action, ranks = (trace[key].astype(np.int32) for key in ("action", "ranks"))

    @jax.jit
    @jax.vmap
    def program(state, action, ranks, after):
        return wanted(rules, state, action), advance(rules, state, action, ranks), observe(rules, after, ())

    target, (after, reward), obs = jax.device_get(program(state, action, ranks, expected))
    settled = ~np.array([by_hashes(*row) for row in zip(state.place, target, strict=True)])
    assert settled.mean() > 0.995

    fields = set(WarehouseState._fields) - (set() if payment == "twostage" else {"delivered"})
    for field in fields:
        ours, theirs = (getattr(x, field)[settled] for x in (after, expected))
        np.testing.assert_array_equal(ours, theirs, field)
    np.testing.assert_array_equal(reward[settled], trace["reward"][settled])
    np.testing.assert_array_equal(obs, trace["next_obs"])
    blocked = np.any((target != state.place) & (expected.place == state.place), axis=1)
    assert blocked.sum() > 5
    assert np.any(trace["reward"] > 0)


@pytest.mark.parametrize("name", packages.WAREHOUSES)
def test_recorded_transitions_of_the_package(name):
    with np.load(packages.DATA / f"{name}.npz") as trace:
        check_against(name, packages.WAREHOUSES[name], dict(trace))


@pytest.mark.parametrize(
    ("name", "payment"),
    [
        ("rware-tiny-2ag-v2", "indiv"),
        ("rware-tiny-3ag-hard-v2", "twostage"),
        ("rware-tiny-4ag-v2", "indiv"),
        ("rware-small-2ag-easy-v2", "global"),
        ("rware-small-3ag-v2", "indiv"),
        ("rware-small-4ag-v2", "twostage"),
    ],
)
def test_transitions_of_the_package(name, payment):
    pytest.importorskip("rware")
    check_against(name, payment, packages.play_warehouse(name, 4000, payment, seed=2))


@pytest.mark.parametrize(
    ("place", "target", "goes"),
    [
        pytest.param([0, 5, 6, 7], [0, 6, 7, 8], [0, 1, 1, 1], id="a queue moves behind its first"),
        pytest.param([0, 5, 6, 7], [0, 6, 7, 7], [0, 0, 0, 0], id="and waits behind one who waits"),
        pytest.param([5, 6, 15, 16], [6, 16, 5, 15], [1, 1, 1, 1], id="a ring turns"),
        pytest.param([5, 6, 4, 90], [6, 5, 5, 91], [0, 0, 0, 1], id="two do not change places"),
        pytest.param([7, 5, 0, 0], [6, 6, 0, 0], [1, 0, 0, 0], id="the first of two goes"),
        pytest.param([7, 5, 4, 0], [6, 6, 5, 0], [0, 1, 1, 0], id="unless the second is followed"),
        pytest.param([3, 17, 5, 27], [4, 4, 4, 17], [0, 1, 0, 1], id="a longer queue wins among three"),
        pytest.param([15, 7, 5, 8], [5, 6, 6, 7], [1, 0, 1, 0], id="of two followed, the one named first"),
    ],
)
def test_who_moves(place, target, goes):
    place, target = np.array(place), np.array(target)
    place[(place == 0).nonzero()[0]] = target[target == 0] = -np.arange(1, 1 + (place == 0).sum())
    assert jax.jit(who_moves)(place, target).tolist() == [bool(x) for x in goes]


def test_five_robots_one_behind_a_ring():
    place, target = np.array([5, 6, 15, 16, 4]), np.array([6, 16, 5, 15, 5])
    assert jax.jit(who_moves)(place, target).tolist() == [True] * 4 + [False]


def test_draws_without_putting_back_are_fair():
    draws = jax.jit(jax.vmap(lambda key: distinct(key, 4, 3)))(jax.random.split(jax.random.key(0), 24_000))
    sequences, counts = np.unique(draws, axis=0, return_counts=True)
    assert len(sequences) == 24
    assert all(len(set(sequence)) == 3 for sequence in sequences.tolist())
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_after_a_delivery_any_other_shelf_is_asked_for():
    rules, env = rules_of("rware-tiny-2ag-v2"), warehouse("rware-tiny-2ag-v2")
    left, right = rules.goals
    shelves = first_shelves(rules).copy()
    home = int(np.flatnonzero(shelves == 7)[0])
    shelves[home], shelves[left - rules.stride] = 0, 7
    state = WarehouseState(
        place=np.int32([left - rules.stride, right]),
        heading=np.int32([2, 0]),  # down, to the goal
        loaded=np.array([True, False]),
        delivered=np.array([False, False]),
        shelves=shelves,
        requests=np.int32([7, 3]),
    )
    keys = jax.random.split(jax.random.key(0), 9000)
    step = jax.jit(jax.vmap(env.step, (0, None, None, None)))
    after, reward, _ = jax.device_get(step(keys, state, np.int32([1, 0]), ()))
    assert np.all(reward == np.array([[1, 0]]))
    assert np.all(after.shelves[:, left] == 7)
    assert np.all(after.requests[:, 1] == 3)
    asked, counts = np.unique(after.requests[:, 0], return_counts=True)
    assert sorted({*asked.tolist(), 3, 7}) == list(range(1, 33))
    assert np.abs(counts - 300).max() < 5 * np.sqrt(300)


def test_episodes_have_500_steps_and_begin_anew():
    recipe = shoal.make("rware-tiny-2ag-v2")
    env = recipe.build(np.zeros((1, 4), np.uint32), False)

    def step(rows, now):
        rows, seen = env.step(rows, *now)
        return rows, (seen, rows.state.shelves)

    @jax.jit
    def play(key):
        key_reset, key_draw, key_act = jax.random.split(key, 3)
        keys = jax.random.split(key_draw, 4)
        rows, first = env.reset(jax.random.split(key_reset, 4), ())
        actions = jax.random.randint(key_act, (1003, 4, 2), 0, 5)
        return first, jax.lax.scan(step, rows, (actions, env.draw(keys, rows, 1003)))[1]

    first, (seen, shelves) = jax.device_get(play(jax.random.key(0)))
    assert first.obs.shape == (4, 2, 71)
    assert not np.any(seen.terminated)
    assert np.flatnonzero(seen.truncated[:, 0]).tolist() == [499, 1000]
    assert np.flatnonzero(~seen.valid[:, 0]).tolist() == [500, 1001]
    home = first_shelves(rules_of("rware-tiny-2ag-v2"))
    assert np.any(shelves[499] != home[None])
    assert np.all(shelves[500] == home[None])
    places = [np.asarray(obs[:, :, :2]) for obs in (first.obs, seen.obs[500], seen.obs[1001])]
    assert not np.array_equal(places[0], places[1])
    assert not np.array_equal(places[1], places[2])


def test_ids():
    known = [name for name, backend in list_environments("rware*") if backend == "jax"]
    assert sorted(known) == sorted(WAREHOUSES)
    assert len(WAREHOUSES) == 18
    requests = [rules_of(f"rware-small-3ag{demand}-v2").requests for demand in ("-hard", "", "-easy")]
    assert requests == [1, 3, 6]
    wide = shoal.make("rware-2s-2x3-5h-5ag-4req-twostage-v2").spec
    assert (wide.agents, wide.observation.shape, wide.max_episode_steps) == (5, (8 + 7 * 25,), 500)
    with pytest.raises(ShoalError, match="odd number of columns"):
        shoal.make("rware-2x2-5h-5ag-4req-twostage-v2")
    with pytest.raises(ShoalError, match="have 1 or more of both"):
        shoal.make("rware-tiny-1ag-hard-v2")
    with pytest.raises(ShoalError, match="payment must be one of indiv, global, twostage"):
        shoal.make("rware-tiny-2ag-communal-v2")
    with pytest.raises(ShoalError, match=r"did you mean rware-tiny-2ag-v2\?"):
        shoal.make("rware-tiny-2ag-v1")


def test_picture():
    env = warehouse("rware-tiny-4ag-v2")
    with np.load(packages.DATA / "rware-tiny-4ag-easy-v2.npz") as trace:
        states = as_state(rules_of("rware-tiny-4ag-v2"), trace)
    early, late = (env.render(jax.tree.map(lambda x, t=t: x[t], states), ()) for t in (0, 39))
    assert early.shape == late.shape == (352, 320, 3)
    assert np.any(early != late)
