"""shoal/BipedalObstacles-v0: BipedalWalker with obstacles that each learner's world chooses.

The obstacles are those of BipedalWalkerHardcore, in its sizes. What follows some grass is drawn by the
weights `stump`, `stairs`, `pit` and `grass` (no obstacle this time); if all are 0, there is only grass. The
first obstacle is after the 20 steps of the start. `frequency` 1 is that of BipedalWalkerHardcore, with 5 to 9
steps of grass before the next obstacle; 2 has half the grass, 0 no obstacles. With `change_every` n the mix
changes after every n episodes:

    mix ~ Dirichlet(stump, stairs, pit, grass)

so with weights of 1 all mixes are equally likely, and a weight of 0 stays 0.

>>> import gymnasium, shoal.envs.worlds.walker
>>> env = gymnasium.make("shoal/BipedalObstacles-v0", stairs=0, pit=0)
>>> _ = env.reset(seed=1, options={"world": {"stump": 0.3, "stairs": 0, "pit": 0.7}})
>>> sorted({kind for kind, _ in env.unwrapped.obstacles})
['pit', 'stump']
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import Box2D  # pyright: ignore[reportMissingImports]
import gymnasium
import numpy as np
from gymnasium.envs.box2d.bipedal_walker import (
    SCALE,
    TERRAIN_GRASS,
    TERRAIN_HEIGHT,
    TERRAIN_LENGTH,
    TERRAIN_STARTPAD,
    TERRAIN_STEP,
    BipedalWalker,
)
from gymnasium.utils import EzPickle

from shoal.envs.worlds.gymnasium import complete_world, register_ours, requested_world

WORLD = {"stump": 1.0, "stairs": 1.0, "pit": 1.0, "grass": 0.0, "frequency": 1.0, "change_every": 0.0}
"""The obstacles of BipedalWalkerHardcore."""

SPREAD = {
    "stump": (1.0, 0.0, 3.0),
    "stairs": (1.0, 0.0, 3.0),
    "pit": (1.0, 0.0, 3.0),
    "frequency": (0.25, 0.5, 2.0),
}
"""How drawn worlds differ."""

KINDS = ("stump", "stairs", "pit", "grass")
STAIR_WIDTH, PIT_DEPTH = 4, 4
GRASS, DARK_GRASS, EARTH = (76, 255, 76), (76, 204, 76), (102, 153, 76)
WHITE, GREY = (255, 255, 255), (153, 153, 153)


class Obstacle(NamedTuple):
    """An obstacle, in steps of the terrain, relative to the ground where it begins."""

    ground: list[float]  # the height at each step
    blocks: list[tuple[float, float, float, float]]  # left, bottom, right, top


class Terrain(NamedTuple):
    """The ground of an episode."""

    heights: list[float]  # of the ground, one per step
    blocks: list[tuple[float, float, float, float]]  # left, bottom, right, top
    obstacles: list[tuple[str, int]]  # kind, and the step at which it begins


def stump(random: np.random.Generator) -> Obstacle:
    """A cube, 1 or 2 steps wide."""
    size = int(random.integers(1, 3))
    return Obstacle([0.0] * size, [(0, 0, size, size)])


def stairs(random: np.random.Generator) -> Obstacle:
    """3 or 4 stairs, up or down, one step high and four wide, on a ramp."""
    way, num = int(random.choice([-1, 1])), int(random.integers(3, 5))
    ramp = [way * (step - way) / STAIR_WIDTH for step in range(1, STAIR_WIDTH * num)]
    tops = [(STAIR_WIDTH * stair, way * stair) for stair in range(num)]
    return Obstacle([0.0, *ramp], [(left, top - 1, left + STAIR_WIDTH, top) for left, top in tops])


def pit(random: np.random.Generator) -> Obstacle:
    """A hole 2 or 3 steps wide and four deep, between two walls."""
    far = int(random.integers(3, 5))
    walls = [(left, -PIT_DEPTH, left + 1, 0) for left in (0, far)]
    return Obstacle([0.0, *[-float(PIT_DEPTH)] * far, 0.0], walls)


OBSTACLES: dict[str, Callable[[np.random.Generator], Obstacle]] = {
    "stump": stump,
    "stairs": stairs,
    "pit": pit,
}


def make_terrain(random: np.random.Generator, mix: dict[str, float], frequency: float) -> Terrain:
    """Grass, an obstacle, grass, an obstacle, until the terrain ends.

    Without obstacles it draws the same random numbers as BipedalWalker: the same seed gives the same ground.
    """
    terrain = Terrain([], [], [])
    velocity, length = 0.0, TERRAIN_STARTPAD
    while (left := TERRAIN_LENGTH - len(terrain.heights)) > 0:
        velocity = add_grass(random, terrain.heights, velocity, min(length, left))
        if length > left:
            break
        length = grass_length(random, frequency)
        kind = draw_kind(random, mix) if frequency else "grass"
        if kind != "grass":
            add_obstacle(terrain, kind, OBSTACLES[kind](random))
    return terrain._replace(heights=terrain.heights[:TERRAIN_LENGTH])


def add_grass(random: np.random.Generator, heights: list[float], velocity: float, length: int) -> float:
    """Add `length` steps of uneven grass to `heights`, the first one level; returns the last slope.

    velocity <- 0.8 velocity + 0.01 sign(TERRAIN_HEIGHT - y) + U(-1, 1) / SCALE, y <- y + velocity
    """
    y = heights[-1] if heights else TERRAIN_HEIGHT
    for step in range(length):
        if step > 0:
            velocity = 0.8 * velocity + 0.01 * float(np.sign(TERRAIN_HEIGHT - y))
            if len(heights) > TERRAIN_STARTPAD:
                velocity += random.uniform(-1, 1) / SCALE
            y += velocity
        heights.append(y)
    return velocity


def grass_length(random: np.random.Generator, frequency: float) -> int:
    """The steps of grass before the next obstacle is drawn."""
    length = int(random.integers(TERRAIN_GRASS // 2, TERRAIN_GRASS))
    return min(TERRAIN_LENGTH, max(1, round(length / frequency))) if frequency else length


def draw_kind(random: np.random.Generator, mix: dict[str, float]) -> str:
    """A kind of obstacle by the weights; no random number is used where there is only one."""
    kinds = [kind for kind, weight in mix.items() if weight > 0] or ["grass"]
    if len(kinds) == 1:
        return kinds[0]
    weights = np.array([mix[kind] for kind in kinds])
    return kinds[random.choice(len(kinds), p=weights / weights.sum())]


def add_obstacle(terrain: Terrain, kind: str, obstacle: Obstacle) -> None:
    """Add an obstacle at the end of the terrain so far."""
    start, y = len(terrain.heights), terrain.heights[-1]
    terrain.obstacles.append((kind, start))
    terrain.heights.extend(y + height * TERRAIN_STEP for height in obstacle.ground)
    for left, bottom, right, top in obstacle.blocks:
        sides = ((start + left) * TERRAIN_STEP, (start + right) * TERRAIN_STEP)
        terrain.blocks.append((sides[0], y + bottom * TERRAIN_STEP, sides[1], y + top * TERRAIN_STEP))


class BipedalObstacles(BipedalWalker):
    """BipedalWalker with the obstacles of its world; keyword arguments change the default world."""

    world_spread = SPREAD

    def __init__(self, render_mode: str | None = None, **world: float):
        super().__init__(render_mode)
        EzPickle.__init__(self, render_mode, **world)
        self.world_params = check_world(complete_world(world, WORLD))
        self.set_world(self.world_params)

    def set_world(self, world: dict[str, float]) -> None:
        """Use this world, before its first episode."""
        self.current = world
        self.mix = {kind: world[kind] for kind in KINDS}
        self.num_episodes = 0
        self.obstacles: list[tuple[str, int]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new episode. Another world, or a seed, restarts the changes of the mix."""
        world = requested_world(options, self.world_params) or self.current
        if seed is not None or world != self.current:
            self.set_world(check_world(world))
        self._destroy()
        self.world = Box2D.b2World()  # a used one keeps state, so a seed would not repeat its episode
        return super().reset(seed=seed, options=options)

    def _generate_terrain(self, hardcore: bool) -> None:
        change_every = self.current["change_every"]
        if change_every and self.num_episodes and self.num_episodes % change_every == 0:
            self.mix = draw_mix(self.np_random, self.current)
        self.num_episodes += 1
        terrain = make_terrain(self.np_random, self.mix, self.current["frequency"])
        self.obstacles = terrain.obstacles
        self.terrain_x = [step * TERRAIN_STEP for step in range(TERRAIN_LENGTH)]
        self.terrain_y = terrain.heights
        points = list(zip(self.terrain_x, self.terrain_y, strict=True))
        edges = list(pairwise(points))
        self.terrain_poly = [([a, b, (b[0], 0), (a[0], 0)], EARTH) for a, b in edges]
        blocks = [self._solid(*block) for block in terrain.blocks]
        lines = [self._line(a, b, DARK_GRASS if i % 2 else GRASS) for i, (a, b) in enumerate(edges)]
        self.terrain = [*reversed(lines), *reversed(blocks)]  # rendered in this order

    def _solid(self, left: float, bottom: float, right: float, top: float) -> Any:
        self.fd_polygon.shape.vertices = [(left, top), (right, top), (right, bottom), (left, bottom)]
        body = self.world.CreateStaticBody(fixtures=self.fd_polygon)
        body.color1, body.color2 = WHITE, GREY
        return body

    def _line(self, start: tuple[float, float], end: tuple[float, float], color: tuple[int, int, int]) -> Any:
        self.fd_edge.shape.vertices = [start, end]
        body = self.world.CreateStaticBody(fixtures=self.fd_edge)
        body.color1 = body.color2 = color
        return body


def check_world(world: dict[str, float]) -> dict[str, float]:
    """The same world; raises where a value is out of range."""
    for name, value in world.items():
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, not {value}")
    if world["change_every"] % 1:
        raise ValueError(f"change_every must be a whole number of episodes, not {world['change_every']}")
    return world


def draw_mix(random: np.random.Generator, world: dict[str, float]) -> dict[str, float]:
    """mix ~ Dirichlet(weights), over the kinds that have one."""
    kinds = [kind for kind in KINDS if world[kind] > 0]
    shares = random.dirichlet([world[kind] for kind in kinds]) if kinds else []
    return dict.fromkeys(KINDS, 0.0) | dict(zip(kinds, map(float, shares), strict=True))


register_ours(gymnasium)
