"""rware-tiny-2ag-v2 and its variants: robots bring requested shelves to the goals, and put them back.

The rules are those of the package `rware` 2.0, transition by transition, except for one tie (`who_moves`).
A warehouse is a map with an edge as wide as a robot sees. Its cells are numbered row by row, so the cells in
sight have the same offsets everywhere.
"""

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.multi_agent.marks import (
    BLACK,
    GREY,
    LILAC,
    ORANGE,
    PALE,
    WHITE,
    Mark,
    cells,
    colour_of,
    paint,
)
from shoal.envs.multi_agent.sampling import distinct, nth_remaining
from shoal.errors import ShoalError
from shoal.types import Box, Discrete, EnvSpec, JaxEnv

Payment = Literal["indiv", "global", "twostage"]

SIZES = {"tiny": (1, 3), "small": (2, 3), "medium": (2, 5), "large": (3, 5)}
"""Rows and columns of shelf blocks."""
DEMAND = {"": 1.0, "-easy": 2.0, "-hard": 0.5}
"""Requests per robot."""
FORWARD, LEFT, RIGHT, TOGGLE = 1, 2, 3, 4
"""Actions; 0 is to wait."""
UP, EAST, DOWN, WEST = range(4)
"""Headings, clockwise."""


@dataclass(frozen=True)
class Rules:
    """The rules of one variant."""

    agents: int
    requests: int
    """How many shelves are requested at any time."""
    rows: int = 1
    columns: int = 3
    """Blocks of shelves, two wide, with highways around them; an odd number of columns."""
    height: int = 8
    """How many shelves a block is high."""
    sight: int = 1
    """How many cells away a robot sees."""
    payment: Payment = "indiv"
    """A delivery pays 1 to the robot that brings the shelf, 1 to all, or 0.5 and 0.5 for putting it back."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the map, without the edge."""
        return (self.height + 1) * self.rows + 2, 3 * self.columns + 1

    @property
    def stride(self) -> int:
        """The width of the map and its edge: the distance between a cell and the one below it."""
        return self.shape[1] + 2 * self.sight

    @property
    def goals(self) -> tuple[int, int]:
        """The two cells in the middle of the last row."""
        height, width = self.shape
        right = self.cell(height - 1, width // 2)
        return right - 1, right

    def cell(self, row: Any, col: Any) -> Any:
        """The number of the cell at a row and column of the map."""
        return (row + self.sight) * self.stride + col + self.sight

    def row_col(self, cell: Any) -> tuple[Any, Any]:
        """The row and column of a cell of the map."""
        return cell // self.stride - self.sight, cell % self.stride - self.sight


class WarehouseState(NamedTuple):
    """Robots and shelves. A robot and the shelf it carries are in the same cell."""

    place: Array  # (A,) int32: the robots' cells
    heading: Array  # (A,) int32
    loaded: Array  # (A,) bool
    delivered: Array  # (A,) bool: it has brought a requested shelf to a goal since it was loaded
    shelves: Array  # (cells,) uint8: the shelf in each cell, counted from 1; 0 is none
    requests: Array  # (Q,) int32: the requested shelves, each once


@lru_cache
def highways(rules: Rules) -> np.ndarray:
    """The cells (cells,) where no shelf may be put down: between blocks, around and before the goals."""
    (height, width), middle = rules.shape, rules.shape[1] // 2
    row, col = np.indices((height, width))
    lane = (row > height - rules.height - 3) & ((col == middle - 1) | (col == middle))
    free = (col % 3 == 0) | (row % (rules.height + 1) == 0) | (row == height - 1) | lane
    return np.pad(free, rules.sight, constant_values=True).reshape(-1)  # (cells,)


@lru_cache
def first_shelves(rules: Rules) -> np.ndarray:
    """The shelf in each cell when an episode begins: one in every cell that is no highway, row by row."""
    here = ~highways(rules)
    return np.where(here, here.cumsum(), 0).astype(np.min_scalar_type(here.sum()))  # (cells,)


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
    marks = cells(height, width, WHITE)
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


def make_warehouse(name: str, rules: Rules) -> JaxEnv:
    """The environment with these rules; episodes have 500 steps."""
    length = 8 + 7 * (2 * rules.sight + 1) ** 2
    spec = EnvSpec(name, "jax", Box((length,)), Discrete(5), 500, agents=rules.agents, shortest=500)
    return JaxEnv(spec, *(partial(act, rules) for act in (reset, step, observe, render)))


_ID = re.compile(
    r"rware(-(?P<sight>\d+)s)?-((?P<size>[a-z]+)|(?P<rows>\d+)x(?P<columns>\d+))(-(?P<height>\d+)h)?"
    r"-(?P<agents>\d+)ag(-(?P<requests>\d+)req|(?P<demand>-easy|-hard))?(-(?P<payment>\w+))?-v2"
)


def warehouse(name: str) -> JaxEnv | None:
    """The environment of an id of the package, short or long; None for other names.

    >>> [warehouse(id).spec.agents for id in ("rware-tiny-4ag-hard-v2", "rware-1x5-4h-3ag-2req-global-v2")]
    [4, 3]
    >>> warehouse("CartPole-v1") is None
    True
    """
    found = _ID.fullmatch(name)
    if found is None or (found["size"] and found["size"] not in SIZES):
        return None
    size = SIZES.get(found["size"]) or (int(found["rows"]), int(found["columns"]))
    agents = int(found["agents"])
    requests = int(found["requests"] or agents * DEMAND[found["demand"] or ""])
    sizes = {"height": int(found["height"] or 8), "sight": int(found["sight"] or 1)}
    rules = Rules(agents, requests, *size, **sizes, payment=found["payment"] or "indiv")
    _check(name, rules)
    return make_warehouse(name, rules)


def _check(name: str, rules: Rules) -> None:
    """Raise where these rules make no warehouse."""
    if rules.columns % 2 == 0 or rules.rows * rules.height * rules.sight == 0:
        raise ShoalError(f"{name}: a warehouse has at least one row and an odd number of columns of shelves")
    if rules.payment not in get_args(Payment):
        raise ShoalError(f"{name}: payment is one of {', '.join(get_args(Payment))}, not {rules.payment}")
    shelves, room = int(first_shelves(rules).max()), rules.shape[0] * rules.shape[1]
    if not 0 < rules.requests < shelves or not 0 < rules.agents <= room:
        raise ShoalError(
            f"{name}: {rules.agents} robots and {rules.requests} requests for {shelves} shelves in {room} "
            f"cells; there is at least one of each, and a shelf that nobody asks for"
        )


WAREHOUSES = [
    f"rware-{size}-{agents}ag{demand}-v2"
    for size in ("tiny", "small")
    for agents in (2, 3, 4)
    for demand in DEMAND
]
"""The ids that are listed."""
