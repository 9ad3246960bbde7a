"""Pgx's games through the adapter, against its own functions, move by move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.types import Discrete
from tests.envs.play import play
from tests.envs.suites import ranks_as_suites_like, train_in_two_parts  # noqa: F401

pgx = pytest.importorskip("pgx", reason="needs the extra pgx")

QUICK = ("tic_tac_toe", "kuhn_poker", "minatar-breakout")
"""A board that is open to all, hidden cards, and a game for one."""


def names():
    return [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in pgx.available_envs()
    ]


def repeat(game, played):
    """The same moves by Pgx itself; where a game is over, it begins as the adapter's next one does."""
    alone = game.num_players == 1

    def step(carry, now):
        state, over = carry
        action, noise = now
        after = game.step(state, action if alone else action[state.current_player], noise.key)
        fresh = noise.fresh.replace(
            observation=game.observe(noise.fresh), rewards=jnp.zeros_like(after.rewards)
        )
        state = jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, after)
        return (state, state.terminated), state

    @jax.vmap
    def one(key, action, noise):
        first = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), game.init(key))
        return first, jax.lax.scan(step, (first, jnp.bool_(False)), (action, noise))[1]

    across = lambda tree: jax.tree.map(lambda x: jnp.moveaxis(jnp.asarray(x), 1, 0), tree)
    first, states = jax.jit(one)(played.keys, across(played.action), across(played.noise))
    return jax.device_get((first, jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), states)))


def compare(name):
    game, played = pgx.make(name), play(make(f"pgx:{name}"))
    first, states = repeat(game, played)
    steps = played.steps
    np.testing.assert_array_equal(steps.terminated, states.terminated & steps.valid)
    assert not steps.truncated.any()
    obs, begun = parts(steps), parts(played.first)
    if game.num_players == 1:
        np.testing.assert_array_equal(obs["obs"], states.observation.astype(np.float32))
        np.testing.assert_array_equal(begun["obs"], first.observation.astype(np.float32))
        np.testing.assert_allclose(steps.reward, states.rewards[..., 0])
        if "action_mask" in obs:
            np.testing.assert_array_equal(obs["action_mask"], states.legal_action_mask)
        return game, played
    np.testing.assert_allclose(steps.reward, states.rewards)
    for seen, own in ((obs, states), (begun, first)):
        moves = own.current_player[..., None] == np.arange(game.num_players)  # (..., A)
        np.testing.assert_array_equal(seen["turn"][..., 0], moves)
        theirs = own.observation.astype(np.float32)
        np.testing.assert_array_equal(seen["obs"][moves].reshape(theirs.shape), theirs)
        legal = own.legal_action_mask
        np.testing.assert_array_equal(seen["action_mask"][moves].reshape(legal.shape), legal)
        waiting = seen["action_mask"][~moves]
        assert (waiting == np.eye(game.num_actions)[0]).all(), "who waits has one choice"
    return game, played


def parts(step):
    return step.obs if isinstance(step.obs, dict) else {"obs": step.obs}


@pytest.mark.parametrize("name", names())
def test_moves_are_those_of_pgx(name):
    compare(name)


def test_each_player_sees_the_board_from_its_own_side():
    steps = compare("tic_tac_toe")[1].steps
    board = steps.obs["obs"]  # (T, N, A, 3, 3, 2): own stones, the other's
    np.testing.assert_array_equal(board[:, :, 0, ..., 0], board[:, :, 1, ..., 1])
    np.testing.assert_array_equal(board[:, :, 0, ..., 1], board[:, :, 1, ..., 0])
    over = steps.terminated
    assert over.any()
    np.testing.assert_array_equal(steps.reward[over].sum(-1), 0)
    full = board.sum((-1, -2, -3))[over][:, 0] == 9
    assert (full | (abs(steps.reward[over][:, 0]) == 1)).all(), "won, lost, or drawn on a full board"


def test_players_and_teams():
    spec = make("pgx:sparrow_mahjong").spec
    assert (spec.agents, spec.teams) == (3, (0, 1, 2))
    spec = make("pgx:2048").spec
    assert (spec.agents, spec.action) == (None, Discrete(4))
    assert set(spec.observation) == {"obs", "action_mask"}
    assert make("pgx:minatar-breakout", max_episode_steps=99).spec.max_episode_steps == 99
    with pytest.raises(ShoalError, match="takes only the option max_episode_steps, not size"):
        make("pgx:go_9x9", size=5)


@pytest.mark.parametrize("name", ["tic_tac_toe"])
def test_a_run_stops_in_mid_episode_and_goes_on(name, tmp_path, compilations):
    train_in_two_parts(f"pgx:{name}", tmp_path, compilations)


def test_pictures_are_those_of_pgx():
    pytest.importorskip("resvg_py")
    env = make("pgx:tic_tac_toe").build(np.zeros((1, 2), np.uint32), True)
    picture = env.render(jax.jit(env.reset)(jax.random.split(jax.random.key(0), 2), ())[0], 0)
    assert (picture.ndim, picture.shape[2], picture.dtype) == (3, 3, np.uint8)
    assert picture.std() > 10
