"""PressurePlate: a line of rooms; an agent must stand on a room's plate while the others pass its door.

The rules of github.com/uoe-agents/pressureplate (linear layouts). Agent i's plate is in room i and works for
no one else. The last agent's target is the chest in the last room; an agent that reaches it ends the episode.
`-v0` is that program exactly, which differs from its description:

- an agent observes the others where they began, not where they are, and doors whether open or shut;
- outside its target's room, its reward is minus the number of rooms to the last one, not to its target's.

`-v1` corrects both: an agent observes agents where they are and only shut doors; outside its target's room,
its reward is minus the number of rooms to it.
"""

from itertools import permutations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shoal.envs.multi_agent.marks import BLACK, GREY, ORANGE, WHITE, YELLOW, Mark, colour_of, grid, paint
from shoal.types import Box, Discrete, EnvSpec, JaxEnv

WIDTH = 9
LONGEST = 10
"""Steps from corner to corner of a room."""

REACH = 2
"""How many cells an agent sees each way."""

GOAL = (3, 1)
MOVES = np.array([[0, -1], [0, 1], [-1, 0], [1, 0], [0, 0]], np.int32)
"""The actions, as steps in (x, y): up, down, left, right, stay."""

EDGE, DOOR = 1, 2
"""What a cell of `Corridor.kinds` holds: 0 for floor, then a wall; from 2 on, door 0, 1..."""


class Corridor(NamedTuple):
    """A layout: x to the right, y down; rooms are three cells high, counted from the bottom."""

    height: int
    doors: tuple[tuple[int, int], ...]  # the first and the last x of each
    plates: tuple[tuple[int, int], ...]
    starts: tuple[tuple[int, int], ...]

    @property
    def agents(self) -> int:
        return len(self.starts)

    @property
    def walls(self) -> np.ndarray:
        """The y of the walls, from the bottom."""
        return np.arange(self.height - 4, 0, -4)

    @property
    def targets(self) -> np.ndarray:
        """Each agent's target, (A, 2)."""
        return np.array([*self.plates, GOAL], np.int32)

    @property
    def kinds(self) -> np.ndarray:
        """What each cell holds, [y, x], with REACH cells of wall around."""
        kinds = np.zeros((self.height, WIDTH), np.int32)
        for i, (y, (first, last)) in enumerate(zip(self.walls, self.doors, strict=True)):
            kinds[y] = EDGE
            kinds[y, first : last + 1] = DOOR + i
        return np.pad(kinds, REACH, constant_values=EDGE)


FOUR = Corridor(
    height=15,
    doors=((6, 7), (2, 3), (6, 7)),
    plates=((7, 13), (2, 9), (7, 5)),
    starts=((5, 13), (5, 12), (4, 13), (4, 12)),
)
FIVE = Corridor(
    height=19,
    doors=((2, 4), (5, 7), (2, 4), (5, 7)),
    plates=((2, 17), (7, 13), (2, 9), (7, 5)),
    starts=((6, 16), (5, 17), (5, 16), (4, 17), (4, 16)),
)
SIX = Corridor(
    height=23,
    doors=((5, 7), (2, 4), (5, 7), (2, 4), (5, 7)),
    plates=((7, 21), (2, 17), (7, 13), (2, 9), (7, 5)),
    starts=((6, 21), (6, 20), (5, 21), (5, 20), (4, 21), (4, 20)),
)


def pressure_plate(corridor: Corridor, version: int) -> JaxEnv:
    """The environment of a layout; its state is where the agents are, (A, 2) int32.

    >>> env = pressure_plate(FOUR, version=0)
    >>> env.spec.name, env.spec.agents, env.spec.observation.shape
    ('pressureplate-linear-4p-v0', 4, (102,))
    """
    num, kinds, targets = corridor.agents, corridor.kinds, corridor.targets
    orders = np.array(list(permutations(range(num))), np.int32)
    own_room = np.arange(num)
    views = views_of(corridor)

    def reset(key: Array, params: tuple[()]) -> Array:
        """The agents on the first cells, in random order."""
        return jnp.asarray(np.array(corridor.starts, np.int32))[random_order(key)]

    def random_order(key: Array) -> Array:
        return jnp.asarray(orders)[jax.random.randint(key, (), 0, len(orders))]

    def step(key: Array, state: Array, action: Array, params: tuple[()]) -> tuple[Array, Array, Array]:
        """The agents move one after another, in random order; doors open or shut when all have moved."""
        wanted = state + jnp.asarray(MOVES)[action]  # (A, 2)
        free = passable(wanted, is_open(state))
        state = take_turns(state, wanted, free, random_order(key))
        terminated = jnp.any(jnp.all(state == np.array([GOAL]), axis=1))
        return state, rewards(state), terminated

    def is_open(state: Array) -> Array:
        """Whether each door's agent is on its plate, (A - 1,)."""
        return jnp.all(state[:-1] == targets[:-1], axis=1)

    def passable(positions: Array, opened: Array) -> Array:
        """Whether each position (A, 2) is floor or an open door."""
        kind = jnp.asarray(kinds)[positions[:, 1] + REACH, positions[:, 0] + REACH]
        return (kind == 0) | ((kind >= DOOR) & opened[jnp.maximum(kind - DOOR, 0)])

    def rewards(state: Array) -> Array:
        room = jnp.sum(state[:, 1:] <= corridor.walls[None], axis=1)  # a doorway belongs to the next room
        distance = jnp.sum(jnp.abs(state - targets), axis=1)
        rooms_away = jnp.abs(own_room - room) if version else num - 1 - room
        return jnp.where(room == own_room, -distance / LONGEST, -rooms_away).astype(jnp.float32)

    def observe(state: Array, params: tuple[()]) -> Array:
        """Windows of 5 x 5 around the agent: agents, plates, doors, the chest; then its x and y."""
        seen = jnp.asarray(views)[state[:, 1], state[:, 0]]  # (A, 102)
        return seen if version == 0 else corrected(seen, state)

    def corrected(seen: Array, state: Array) -> Array:
        """The views with agents where they are, and without open doors."""
        cells = state[:, None] + _WINDOW[None]  # (A, 25, 2)
        agents = jnp.any(jnp.all(cells[:, :, None] == state[None, None], axis=-1), axis=-1)
        kind = jnp.asarray(kinds)[cells[..., 1] + REACH, cells[..., 0] + REACH]
        shut = jnp.concatenate([jnp.zeros(DOOR, bool), ~is_open(state)])[kind]
        agents, shut = agents.astype(jnp.float32), shut.astype(jnp.float32)
        return jnp.concatenate([agents, seen[:, 25:50], shut, seen[:, 75:]], axis=1)

    def render(state: Array, params: tuple[()]) -> np.ndarray:
        return picture(corridor, np.asarray(state), np.asarray(is_open(state)))

    far = np.abs(np.array(corridor.starts) - np.array(GOAL)).sum(1)
    spec = EnvSpec(
        name=f"pressureplate-linear-{num}p-v{version}",
        backend="jax",
        observation=Box((102,), 0.0, np.array([1] * 100 + [WIDTH - 1, corridor.height - 1], np.float32)),
        action=Discrete(len(MOVES)),
        max_episode_steps=500,
        agents=num,
        shortest=int(far.min()),
    )
    return JaxEnv(spec, reset, step, observe, render)


def take_turns(positions: Array, wanted: Array, free: Array, order: Array) -> Array:
    """Positions (A, 2) after each agent in turn has moved where it wanted, unless another agent is there."""
    for turn in range(len(positions)):
        mover = order[turn]
        taken = jnp.any(jnp.all(positions == wanted[mover][None], axis=1))
        moves = (jnp.arange(len(positions)) == mover) & free[mover] & ~taken
        positions = jnp.where(moves[:, None], wanted, positions)
    return positions


_AROUND = np.arange(-REACH, REACH + 1)
_WINDOW = np.stack(np.meshgrid(_AROUND, _AROUND), axis=-1).reshape(-1, 2)
"""The cells in sight, as (x, y) relative to the agent, row by row."""


def views_of(corridor: Corridor) -> np.ndarray:
    """The observation at each cell [y, x] when an episode begins, (H, 9, 102)."""
    layers = np.zeros((4, corridor.height, WIDTH), np.float32)
    for layer, cells_held in ((0, corridor.starts), (1, corridor.plates), (3, [GOAL])):
        x, y = np.array(cells_held).T
        layers[layer, y, x] = 1
    layers[2] = corridor.kinds[REACH:-REACH, REACH:-REACH] >= DOOR
    padded = np.pad(layers, ((0, 0), (REACH, REACH), (REACH, REACH)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * REACH + 1,) * 2, axis=(1, 2))
    windows = np.moveaxis(windows, 0, 2).reshape(corridor.height, WIDTH, -1)
    position = np.stack(np.meshgrid(np.arange(WIDTH), np.arange(corridor.height)), axis=-1)
    return np.concatenate([windows, position], axis=-1, dtype=np.float32)


def picture(corridor: Corridor, positions: np.ndarray, opened: np.ndarray) -> np.ndarray:
    """Agents are numbered discs, plates rings of the same colour; shut doors are orange, the chest yellow."""
    kinds = corridor.kinds[REACH:-REACH, REACH:-REACH]
    shut = [DOOR + i for i in np.flatnonzero(~opened)]
    marks = grid(corridor.height, WIDTH)
    marks += [Mark(y, x, "square", GREY) for y, x in np.argwhere(kinds == EDGE)]
    marks += [Mark(y, x, "square", ORANGE, 0.9) for y, x in np.argwhere(np.isin(kinds, shut))]
    marks += [Mark(y, x, "ring", colour_of(i), 0.95) for i, (x, y) in enumerate(corridor.plates)]
    marks += [Mark(GOAL[1], GOAL[0], "square", YELLOW, 0.7), Mark(GOAL[1], GOAL[0], "square", BLACK, 0.2)]
    for i, (x, y) in enumerate(positions):
        marks += [Mark(y, x, "disc", colour_of(i), 0.7), Mark(y, x, str(i), WHITE, 0.4)]
    return paint(corridor.height, WIDTH, marks, cell=24)


PRESSURE_PLATES = tuple(
    pressure_plate(corridor, version) for version in (0, 1) for corridor in (FOUR, FIVE, SIX)
)
