"""Pgx's games: board and card games for two players and more, 2048, and MinAtar.

All players are agents of one world, each a team of its own, and all see the game from their own side at each
step. Only the player whose turn it is moves; the others have a single choice, which the game ignores, so
their samples train values and no policies. Observations have these parts:

| part          | shape    | meaning                                            |
|---------------|----------|----------------------------------------------------|
| `obs`         | (A, ...) | the game as the player sees it                     |
| `turn`        | (A, 1)   | 1 for the player who moves now                     |
| `action_mask` | (A, n)   | the legal moves; the first choice for who waits    |

Who begins is drawn, as Pgx does. Games for one player have no axis of agents and no `turn`; MinAtar, where
every move is legal, has no mask either.
"""

import io
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from PIL import Image

from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.adapters.suite import Suite, UnknownOptions
from shoal.imports import import_user_module
from shoal.ops.masks import ACTION_MASK
from shoal.types import Box, Discrete, EnvRecipe, EnvSpec, JaxEnv, Tree


def pgx_env(name: str) -> JaxEnv:
    """Pgx's game of that name, by its own functions."""
    game = import_user_module("pgx", f"pgx:{name}").make(name)
    alone, players = game.num_players == 1, jnp.arange(game.num_players)

    def reset(key: Array, params: Tree) -> Any:
        return game.init(key).replace(observation=())  # made anew by `observe`, from each side

    def step(key: Array, state: Any, action: Array, params: Tree) -> tuple[Any, Array, Array]:
        move = action if alone else action[state.current_player]
        state = game.step(state, move, key)
        reward = state.rewards[0] if alone else state.rewards
        return state.replace(observation=()), reward, state.terminated

    def observe(state: Any, params: Tree) -> Tree:
        see = lambda player: game._observe(state, player).astype(jnp.float32)
        legal = state.legal_action_mask.astype(jnp.float32)
        if alone:
            obs = see(state.current_player)
            return obs if name.startswith("minatar") else {"obs": obs, ACTION_MASK: legal}
        turn = (players == state.current_player)[:, None]
        waits = jnp.zeros_like(legal).at[0].set(1)
        parts = {"obs": jax.vmap(see)(players), "turn": turn.astype(jnp.float32)}
        return {**parts, ACTION_MASK: jnp.where(turn, legal, waits)}

    seen = jax.eval_shape(lambda key: observe(reset(key, ()), ()), jax.random.key(0))
    box = lambda x: Box(x.shape if alone else x.shape[1:])
    spec = EnvSpec(
        name=f"pgx:{name}",
        backend="pgx",
        observation=jax.tree.map(box, seen),
        action=Discrete(game.num_actions),
        agents=None if alone else game.num_players,
        teams=() if alone else tuple(range(game.num_players)),
    )
    return JaxEnv(spec, reset, step, observe, lambda state, params: _picture(state, name))


def _picture(state: Any, name: str) -> np.ndarray:
    """Pgx's drawing of a state."""
    painter = import_user_module("resvg_py", f"a picture of pgx:{name}")
    drawing = jax.tree.map(jnp.asarray, state).to_svg()
    drawn = bytes(painter.svg_to_bytes(svg_string=drawing))
    return np.asarray(Image.open(io.BytesIO(drawn)).convert("RGB"))


def _names() -> Collection[str]:
    return import_user_module("pgx", "pgx").available_envs()


def _recipe(name: str, options: dict[str, Any]) -> EnvRecipe:
    if others := sorted(options.keys() - {"max_episode_steps"}):
        raise UnknownOptions(f"pgx:{name} takes only the option max_episode_steps, not {', '.join(others)}")
    env = pgx_env(name)
    return from_jax(env._replace(spec=replace(env.spec, **options)))


SUITE = Suite(_recipe, _names, library="pgx")
