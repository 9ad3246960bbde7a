"""Foraging-8x8-2p-2f-coop-v3 and its variants: players load food together that is too heavy for one.

The rules are those of the package `lbforaging` 2.0 (whose ids end in v3), transition by transition. Every
episode begins like the package's first one; in the package, later ones avoid cells where players ended.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.multi_agent.marks import BLACK, GREY, WHITE, YELLOW, Mark, colour_of, grid, paint
from shoal.envs.multi_agent.sampling import distinct, free_cell
from shoal.errors import ShoalError
from shoal.types import Box, Discrete, EnvSpec, JaxEnv

NORTH, SOUTH, WEST, EAST, LOAD = range(1, 6)
"""Actions; 0 is to wait."""
STRONGEST = 2
"""Players have a level of 1 or 2."""
COUNTED = 3
"""No food is heavier than the three weakest players are strong."""


@dataclass(frozen=True)
class Rules:
    """The rules of one variant; the field is square."""

    size: int
    players: int
    foods: int
    coop: bool = False
    """Whether every food has the largest level possible."""
    sight: int | None = None
    """How many cells away a player sees; everything if None."""


class ForagingState(NamedTuple):
    """Players and food; positions are (row, column)."""

    player: Array  # (A, 2) int32
    level: Array  # (A,) int32
    food: Array  # (F, 2) int32
    weight: Array  # (F,) int32: its level; 0 once it is eaten
    supply: Array  # () int32: the weight of all food at the beginning


def reset(rules: Rules, key: Array, params: tuple[()]) -> ForagingState:
    """Players in different cells, with levels of their own; food away from the border and from other food."""
    key_player, key_level, key_food, key_weight = jax.random.split(key, 4)
    cell = distinct(key_player, rules.size**2, rules.players)
    player = jnp.stack([cell // rules.size, cell % rules.size], axis=1)
    level = jax.random.randint(key_level, (rules.players,), 1, STRONGEST + 1)
    heaviest = jnp.sum(jnp.sort(level)[:COUNTED])
    uniforms = jax.random.uniform(key_weight, (rules.foods,))
    weight = jnp.full(rules.foods, heaviest) if rules.coop else 1 + jnp.int32(uniforms * heaviest)
    food, there = scatter_food(rules, jax.random.uniform(key_food, (rules.foods,)), player)
    weight = jnp.where(there, weight, 0)
    return ForagingState(player, level, food, weight, jnp.sum(weight))


def scatter_food(rules: Rules, uniforms: Array, player: Array) -> tuple[Array, Array]:
    """Food in free cells, one after the other, and whether there was room for it.

    No food is at the border, in a player's cell, or within two moves of other food. So a player is beside one
    food at most.
    """
    row, col = np.indices((rules.size, rules.size))
    last = rules.size - 1
    free = jnp.asarray((row > 0) & (row < last) & (col > 0) & (col < last))
    for at in player:
        free &= (row != at[0]) | (col != at[1])
    food, there = [], []
    for uniform in uniforms:
        at = jnp.stack(free_cell(uniform, free))
        food.append(at)
        there.append(jnp.any(free))
        free &= abs(row - at[0]) + abs(col - at[1]) > 2
    return jnp.stack(food), jnp.stack(there)


def step(
    rules: Rules, key: Array, state: ForagingState, action: Array, params: tuple[()]
) -> tuple[ForagingState, Array, Array]:
    """Players move, then load food they are strong enough for; the last food ends the episode.

    reward_i = level_i / (levels of all who load it) * weight / supply
    """
    player = move(rules, state, action)
    beside = jnp.sum(abs(player[:, None] - state.food[None]), axis=2) == 1  # (A, F)
    load = jnp.where(beside & (action == LOAD)[:, None], state.level[:, None], 0)
    force = jnp.sum(load, axis=0)  # (F,)
    taken = (force >= state.weight) & (state.weight > 0)
    worth = jnp.where(taken, state.weight, 0) / jnp.maximum(force * state.supply, 1)
    weight = jnp.where(taken, 0, state.weight)
    reward = jnp.sum(load * worth[None], axis=1)
    return state._replace(player=player, weight=weight), reward, jnp.all(weight == 0)


def move(rules: Rules, state: ForagingState, action: Array) -> Array:
    """The players' cells after a move, (A, 2): not in a wall, in food, or in a cell that several want.

    Two players may swap cells. A player may also enter the cell of one that wanted to leave and could not.
    """
    down = jnp.int32(action == SOUTH) - jnp.int32(action == NORTH)
    east = jnp.int32(action == EAST) - jnp.int32(action == WEST)
    ahead = state.player + jnp.stack([down, east], axis=1)
    inside = jnp.all((ahead >= 0) & (ahead < rules.size), axis=1)
    food = jnp.any(same(ahead, state.food) & (state.weight > 0)[None], axis=1)
    wanted = jnp.where((inside & ~food)[:, None], ahead, state.player)
    alone = jnp.sum(same(wanted, wanted), axis=1) == 1
    return jnp.where(alone[:, None], wanted, state.player)


def same(some: Array, others: Array) -> Array:
    """Whether cells (A, 2) and (B, 2) are equal, for all pairs: (A, B)."""
    return jnp.all(some[:, None] == others[None], axis=2)


def observe(rules: Rules, state: ForagingState, params: tuple[()]) -> Array:
    """Row, column and level of each food in sight, row by row, then of each player in sight, itself first.

    Positions are relative to the corner of what is in sight; (-1, -1, 0) fills up the rest. Near the upper
    and the left border, players are seen from farther away than food.
    """
    sight = rules.sight or rules.size
    corner = jnp.maximum(state.player - sight, 0)[:, None]  # (A, 1, 2)
    food = state.food[None] - corner  # (A, F, 2)
    away = abs(state.food[None] - state.player[:, None])
    near = jnp.all(away <= sight, axis=2) & (state.weight > 0)[None]
    number = state.food @ np.array([rules.size, 1])
    before = number[:, None] < number[None]  # (F, F)
    foods = listed(food, state.weight, near, before[None])

    player = state.player[None] - corner  # (A, A, 2)
    seen = jnp.all((player >= 0) & (player <= 2 * sight), axis=2)
    players = listed(player, state.level, seen, jnp.asarray(itself_first(rules.players)))
    return jnp.concatenate([foods, players], axis=1, dtype=jnp.float32)


def itself_first(num: int) -> np.ndarray:
    """(A, A, A): whether i lists j before k: itself first, then the others in their order."""
    i, j, k = np.indices((num, num, num))
    return (i != k) & ((i == j) | (j < k))


def listed(position: Array, level: Array, seen: Array, before: Array) -> Array:
    """What is seen, (A, 3 N), without gaps; then (-1, -1, 0) for each thing that is not seen.

    `before[i, j, k]` says whether i lists j before k; `seen` is (A, N), `position` (A, N, 2), `level` (N,).
    """
    slot = jnp.sum(before & seen[:, :, None], axis=1)  # (A, N): how many are listed before
    slots = jnp.arange(seen.shape[1])[None, :, None]
    fits = seen[:, None] & (slot[:, None] == slots)  # (A, slots, N)
    row, col = jnp.moveaxis(position, 2, 0)  # (A, N) each
    columns = (row + 1, col + 1, jnp.broadcast_to(level[None], row.shape))
    found = jnp.stack([jnp.sum(jnp.where(fits, x[:, None], 0), axis=2) for x in columns], axis=2)
    return (found - np.array([[[1, 1, 0]]])).reshape(len(seen), -1)


def render(rules: Rules, state: ForagingState, params: tuple[()]) -> np.ndarray:
    """Food as yellow squares, players as discs, both with their levels."""
    state = ForagingState(*map(np.asarray, state))
    marks = grid(rules.size, rules.size)
    for (row, col), weight in zip(state.food, state.weight, strict=True):
        if weight > 0:
            marks += [Mark(row, col, "square", YELLOW, 0.8), Mark(row, col, str(weight), BLACK, 0.5)]
    for i, ((row, col), level) in enumerate(zip(state.player, state.level, strict=True)):
        marks += [
            Mark(row, col, "disc", colour_of(i), 0.8),
            Mark(row, col, str(level), WHITE, 0.45),
        ]
    return paint(rules.size, rules.size, marks, cell=max(2 * (160 // rules.size), 12), ground=GREY)


def make_foraging(name: str, rules: Rules) -> JaxEnv:
    """The environment with these rules; episodes have 50 steps at most."""
    heaviest = STRONGEST * min(rules.players, COUNTED)
    num, last = rules.foods + rules.players, rules.size - 1
    high = [last, last, heaviest] * rules.foods + [last, last, STRONGEST] * rules.players
    box = Box((3 * num,), np.float32([-1, -1, 0] * num), np.float32(high))
    spec = EnvSpec(name, "jax", box, Discrete(6), 50, agents=rules.players)
    return JaxEnv(spec, *(partial(act, rules) for act in (reset, step, observe, render)))


_ID = re.compile(r"Foraging(-(\d+)s)?-(\d+)x(\d+)-(\d+)p-(\d+)f(-coop)?-v3")


def foraging(name: str) -> JaxEnv | None:
    """The environment of an id of the package; None for other names.

    >>> foraging("Foraging-8x8-3p-2f-v3").spec.observation.shape, foraging("CartPole-v1")
    ((15,), None)
    """
    found = _ID.fullmatch(name)
    if found is None:
        return None
    size, width, players, foods = map(int, found.group(3, 4, 5, 6))
    sight = int(found[2]) if found[2] else None
    if size != width or size < 3 or sight == 0 or not 0 < players <= size**2 or foods < 1:
        raise ShoalError(
            f"{name}: a field must be square, at least 3x3, with room for all players and some food"
        )
    return make_foraging(name, Rules(size, players, foods, bool(found[7]), sight))


FIELDS = [
    f"Foraging{sight}-{field}-v3"
    for field in (
        "8x8-2p-2f",
        "8x8-2p-2f-coop",
        "8x8-2p-3f",
        "8x8-3p-2f",
        "10x10-3p-3f",
        "15x15-3p-4f",
        "15x15-3p-5f",
        "15x15-4p-3f",
        "15x15-4p-5f",
    )
    for sight in ("", "-2s")
]
"""The ids that are listed."""
