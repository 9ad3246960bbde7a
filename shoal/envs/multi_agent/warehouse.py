"""rware-tiny-2ag-v2 and its variants: robots bring requested shelves to the goals, and put them back.

The rules are those of the package `rware` 2.0, transition by transition, except for one tie (`who_moves`).
A warehouse is a map with an edge as wide as a robot sees. Its cells are numbered row by row, so the cells in
sight have the same offsets everywhere.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.multi_agent.marks import BLACK, GREY, LILAC, ORANGE, PALE, WHITE, Mark, colour_of, grid, paint
from shoal.envs.multi_agent.sampling import distinct, nth_remaining
from shoal.envs.multi_agent.warehouse_rules import Rules, first_shelves, highways, read_rules
from shoal.types import Box, Discrete, EnvSpec, JaxEnv

FORWARD, LEFT, RIGHT, TOGGLE = 1, 2, 3, 4
"""Actions; 0 is to wait."""
UP, EAST, DOWN, WEST = range(4)
"""Headings, clockwise."""


class WarehouseState(NamedTuple):
    """Robots and shelves. A robot and the shelf it carries are in the same cell."""

    place: Array  # (A,) int32: the robots' cells
    heading: Array  # (A,) int32
    loaded: Array  # (A,) bool
    delivered: Array  # (A,) bool: it has brought a requested shelf to a goal since it was loaded
    shelves: Array  # (cells,) uint8: the shelf in each cell, counted from 1; 0 is none
    requests: Array  # (Q,) int32: the requested shelves, each once


def reset(rules: Rules, key: Array, params: tuple[()]) -> WarehouseState:
    """Robots in different random cells with random headings; different shelves are requested."""
    key_place, key_heading, key_requests = jax.random.split(key, 3)
    height, width = rules.shape
    cell = distinct(key_place, height * width, rules.agents)
    none = jnp.zeros(rules.agents, bool)
    return WarehouseState(
        place=rules.cell(cell // width, cell % width),
        heading=jax.random.randint(key_heading, (rules.agents,), 0, 4),
        loaded=none,
        delivered=none,
        shelves=jnp.asarray(first_shelves(rules)),
        requests=1 + distinct(key_requests, int(first_shelves(rules).max()), rules.requests),
    )


def step(
    rules: Rules, key: Array, state: WarehouseState, action: Array, params: tuple[()]
) -> tuple[WarehouseState, Array, Array]:
    """One move of all robots; a delivered shelf is replaced by another request. No episode terminates."""
    others = int(first_shelves(rules).max()) - rules.requests
    ranks = jnp.int32(jax.random.uniform(key, (2,)) * others)
    state, reward = advance(rules, state, action, ranks)
    return state, reward, jnp.bool_(False)


def advance(rules: Rules, state: WarehouseState, action: Array, ranks: Array) -> tuple[WarehouseState, Array]:
    """One move; a delivery at goal g adds a request: of rank `ranks[g]` among the shelves not requested."""
    state, back = move(rules, state, action)
    brought = jnp.zeros(rules.agents, bool)
    for rank, goal in zip(ranks, rules.goals, strict=True):
        fulfilled = state.requests == state.shelves[goal]  # (Q,)
        brought |= jnp.any(fulfilled) & (state.place == goal)
        another = 1 + nth_remaining(rank, state.requests - 1)
        state = state._replace(requests=jnp.where(fulfilled, another, state.requests))
    return state._replace(delivered=state.delivered | brought), pay(rules, brought, back)


def pay(rules: Rules, brought: Array, back: Array) -> Array:
    """Each robot's reward for bringing a requested shelf to a goal, and for putting one back."""
    match rules.payment:
        case "indiv":
            return jnp.float32(brought)
        case "global":
            return jnp.full(rules.agents, jnp.sum(brought), jnp.float32)
        case "twostage":
            return 0.5 * (jnp.float32(brought) + back)


def move(rules: Rules, state: WarehouseState, action: Array) -> tuple[WarehouseState, Array]:
    """The state after robots moved, turned, loaded and unloaded; and who put a delivered shelf back.

    A robot without a shelf passes below shelves; two shelves never share a cell.
    """
    place, heading, loaded, delivered, shelves, requests = state
    target = wanted(rules, state, action)
    goes = who_moves(place, target)
    arrives = jnp.where(goes, target, place)

    toggles = action == TOGGLE
    drops = toggles & loaded & ~jnp.asarray(highways(rules))[place]
    lifts = toggles & ~loaded & (shelves[place] > 0)
    turned = (heading + (action == RIGHT) - (action == LEFT)) & 3
    state = WarehouseState(
        place=arrives,
        heading=turned,
        loaded=loaded & ~drops | lifts,
        delivered=delivered & ~drops,
        shelves=carry(shelves, place, arrives, goes & loaded),
        requests=requests,
    )
    return state, drops & delivered


def carry(shelves: Array, place: Array, arrives: Array, takes: Array) -> Array:
    """The map of shelves after robots that carry one moved from `place` to `arrives`."""
    cell = jnp.arange(shelves.size)[None]
    leaves = (cell == place[:, None]) & takes[:, None]  # (A, cells)
    lands = (cell == arrives[:, None]) & takes[:, None]
    landed = jnp.sum(jnp.where(lands, shelves[place][:, None], 0), axis=0, dtype=shelves.dtype)
    return jnp.where(jnp.any(lands, axis=0), landed, jnp.where(jnp.any(leaves, axis=0), 0, shelves))


def wanted(rules: Rules, state: WarehouseState, action: Array) -> Array:
    """The cell each robot wants: the next one, if it goes forward and no wall or shelf blocks it.

    A standing shelf blocks a robot that carries one. A carried shelf does not: it may move away.
    """
    place, heading, loaded = state.place, state.heading, state.loaded
    row, col = rules.row_col(place)
    down, east = step_of(heading)
    height, width = rules.shape
    wall = (row + down < 0) | (row + down >= height) | (col + east < 0) | (col + east >= width)
    ahead = place + down * rules.stride + east
    carried = jnp.any((ahead[:, None] == place[None]) & loaded[None], axis=1)
    stands = (state.shelves[ahead] > 0) & ~carried
    return jnp.where((action == FORWARD) & ~wall & ~(loaded & stands), ahead, place)


def step_of(heading: Array) -> tuple[Array, Array]:
    """The next cell in a direction, as steps down and steps east."""
    down = jnp.int32(heading == DOWN) - jnp.int32(heading == UP)
    return down, jnp.int32(heading == EAST) - jnp.int32(heading == WEST)


def who_moves(place: Array, target: Array) -> Array:
    """Which robots move from `place` to `target`, as the package decides with a graph of cells.

    Robots in a queue move together if the first one enters an empty cell; so do four or more in a ring. Two
    robots never swap cells. Of several that want one cell, the one with the longest queue behind it moves;
    among equals, the one whose cell comes first in the list of each robot's cell and the cell it wants. (In
    one case, two of four robots want one cell and the others move freely, the package breaks the tie by
    Python's hashes of the cells; here it is a tie like any other.)

    >>> jax.jit(who_moves)(jnp.array([13, 11, 10]), jnp.array([12, 12, 11])).tolist()  # the longer queue
    [False, True, True]
    """
    num = place.size
    onto = (target[:, None] == place[None]) & ~np.eye(num, dtype=bool)  # (A, A): i wants the cell of j
    empty = jnp.all(target[:, None] != place[None], axis=1)
    number = jnp.arange(num)
    named = jnp.minimum(2 * number, jnp.min(jnp.where(onto, 2 * number[:, None] + 1, 2 * num), axis=0))
    queue = jnp.zeros(num, jnp.int32)
    for _ in range(num - 1):
        queue = jnp.max(jnp.where(onto, queue[:, None] + 1, 0), axis=0)
    claim = queue * 2 * num - named
    first = jnp.all((target[:, None] != target[None]) | (claim[:, None] >= claim[None]), axis=1)
    goes = first & empty
    for _ in range(num - 1):
        goes = first & (empty | jnp.any(onto & goes[None], axis=1))
    return goes | in_ring(onto)


def in_ring(onto: Array) -> Array:
    """Which robots are in a ring of at least four, each of which wants the cell of the next."""
    num = len(onto)
    ring = jnp.zeros(num, bool)
    if num < 4:
        return ring
    reach = onto
    for length in range(2, num + 1):
        reach = jnp.any(reach[:, :, None] & onto[None], axis=1)
        ring |= jnp.diagonal(reach) if length > 2 else False
    return ring & ~jnp.any(onto & onto.T, axis=1)


def observe(rules: Rules, state: WarehouseState, params: tuple[()]) -> Array:
    """Each robot's own state, then the cells around it row by row.

    [column, row, loaded, heading (4), on a highway] and for each cell
    [a robot, its heading (4), a shelf, requested]
    """
    place, heading, loaded = state.place, state.heading, state.loaded
    row, col = rules.row_col(place)
    lane = jnp.asarray(highways(rules))[place]
    itself = jnp.stack([col, row, loaded, *directions(heading), lane], axis=1)  # (A, 8)

    reach = np.arange(-rules.sight, rules.sight + 1)
    offsets = (reach[:, None] * rules.stride + reach).reshape(1, -1)
    seen = place[:, None] + offsets  # (A, cells in sight)
    here = seen[:, :, None] == place[None, None]  # (A, cells in sight, A)
    heading_there = jnp.sum(jnp.where(here, heading[None, None], 0), axis=2)
    shelf = state.shelves[seen]
    requested = jnp.any(shelf[:, :, None] == state.requests[None, None], axis=2)
    around = jnp.stack([jnp.any(here, axis=2), *directions(heading_there), shelf > 0, requested], axis=2)
    return jnp.concatenate([itself, around.reshape(len(place), -1)], axis=1, dtype=jnp.float32)


def directions(heading: Array) -> list[Array]:
    """The heading one-hot, in the package's order: up, down, left, right."""
    return [heading == way for way in (UP, DOWN, WEST, EAST)]


def render(rules: Rules, state: WarehouseState, params: tuple[()]) -> np.ndarray:
    """Shelves (requested ones in orange), goals, and robots with their heading; a ring shows a load."""
    state = WarehouseState(*map(np.asarray, state))
    height, width = rules.shape
    marks = grid(height, width)
    marks += [Mark(*rules.row_col(goal), "square", BLACK, 0.95) for goal in rules.goals]
    for cell in np.flatnonzero(state.shelves):
        colour = ORANGE if state.shelves[cell] in state.requests else LILAC
        marks.append(Mark(*rules.row_col(cell), "square", colour, 0.8))
    for i, (cell, heading) in enumerate(zip(state.place, state.heading, strict=True)):
        row, col = rules.row_col(cell)
        marks.append(Mark(row, col, "disc", BLACK if state.loaded[i] else PALE, 0.76))
        marks.append(Mark(row, col, "disc", colour_of(i), 0.62))
        marks.append(Mark(row, col, "arrow", WHITE, 0.4, heading))
    return paint(height, width, marks, cell=min(32, 2 * (200 // height)), ground=GREY)


def warehouse(name: str) -> JaxEnv | None:
    """The environment of an id of the package; None for other names. Episodes have 500 steps.

    >>> [warehouse(id).spec.agents for id in ("rware-tiny-4ag-hard-v2", "rware-1x5-4h-3ag-2req-global-v2")]
    [4, 3]
    >>> warehouse("CartPole-v1") is None
    True
    """
    rules = read_rules(name)
    if rules is None:
        return None
    length = 8 + 7 * (2 * rules.sight + 1) ** 2
    spec = EnvSpec(name, "jax", Box((length,)), Discrete(5), 500, agents=rules.agents, shortest=500)
    return JaxEnv(spec, *(partial(act, rules) for act in (reset, step, observe, render)))
