"""What the packages rware and lbforaging do, step by step; run to record some of it in tests/data.

PYTHONPATH=. python tests/envs/packages.py    # needs: pip install rware==2.0.0 lbforaging==2.0.0
"""

from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[1] / "data"


class Recorder:
    """A random generator that notes which of the candidates was chosen for each goal."""

    def __init__(self, env):
        self.env, self.random, self.ranks = env, env.np_random, np.zeros(2, int)

    def __getattr__(self, name):
        return getattr(self.random, name)

    def choice(self, candidates, *args, **options):
        if args or options:
            return self.random.choice(candidates, *args, **options)
        rank = self.random.integers(len(candidates))
        at_goals = [shelf for shelf in self.env.shelfs if (shelf.x, shelf.y) == self.env.goals[0]]
        first = any(shelf in self.env.request_queue for shelf in at_goals)
        self.ranks[0 if first else 1] = rank
        return candidates[rank]


def crowd(env, random, near_goals):
    """Put the robots of a new episode close to each other, some with a shelf, at the goals or anywhere."""
    from rware.warehouse import Direction

    height, width = env.grid_size
    top, left = (height - 3, width // 2 - 2) if near_goals else random.integers((height - 2, width - 2))
    standing = {(shelf.x, shelf.y) for shelf in env.shelfs}
    for agent, cell in zip(env.agents, random.permutation(12)[: len(env.agents)], strict=True):
        agent.x, agent.y = int(left + cell % 4) % width, int(top + cell // 4) % height
        agent.dir = list(Direction)[random.integers(4)]
        if (agent.x, agent.y) not in standing and random.random() < 0.7:
            asked = [shelf for shelf in env.request_queue if (shelf.x, shelf.y) not in where(env.agents)]
            shelf = random.choice(asked) if asked and random.random() < 0.7 else random.choice(env.shelfs)
            if any(other.carrying_shelf is shelf for other in env.agents):
                continue
            agent.carrying_shelf, shelf.x, shelf.y = shelf, agent.x, agent.y
            agent.has_delivered = bool(random.integers(2)) and shelf not in env.request_queue
    env._recalc_grid()


def where(things):
    return {(thing.x, thing.y) for thing in things}


def ring(env, random):
    """Put four robots in a ring, each heading for the next, with nothing in their way."""
    from rware.warehouse import Direction

    left, clockwise = int(random.integers(env.grid_size[1] - 1)), random.integers(2)
    ways = ("RIGHT", "DOWN", "UP", "LEFT") if clockwise else ("DOWN", "LEFT", "RIGHT", "UP")
    for i, agent in enumerate(random.permutation(env.agents)):
        agent.x, agent.y = left + i % 2, env.grid_size[0] - 2 + i // 2
        agent.dir = Direction[ways[i]]
    env._recalc_grid()


def warehouse_now(env):
    """The state, in arrays."""
    numbers = [[a.y, a.x, a.dir.value, a.carrying_shelf is not None, a.has_delivered] for a in env.agents]
    return {
        "robots": np.array(numbers, np.uint8),
        "shelves": env.grid[1].astype(np.uint8),
        "requests": np.array([shelf.id for shelf in env.request_queue], np.uint8),
        "obs": np.array([env._make_obs(agent) for agent in env.agents]).astype(np.uint8),
    }


def play_warehouse(name, steps, payment="indiv", seed=0, length=40):
    """`steps` transitions: the state before, what happened, and the state after ("next_...")."""
    import gymnasium
    import rware  # noqa: F401
    from rware.warehouse import RewardType

    env = gymnasium.make(name, disable_env_checker=True).unwrapped
    kinds = {"indiv": "INDIVIDUAL", "global": "GLOBAL", "twostage": "TWO_STAGE"}
    env.reward_type = RewardType[kinds[payment]]
    random = np.random.default_rng(seed)
    env.reset(seed=seed)
    env._np_random = recorder = Recorder(env)
    trace = []
    for t in range(steps):
        if t % length == 0:
            env.reset()
            kind = t // length % 5
            if kind == 4 and env.n_agents == 4:
                ring(env, random)
            elif kind:
                crowd(env, random, near_goals=kind > 1)
        before, recorder.ranks = warehouse_now(env), np.zeros(2, int)
        action = random.choice(5, env.n_agents, p=[0.05, 0.55, 0.125, 0.125, 0.15])
        action[:] = 1 if kind == 4 and t % length == 0 else action
        reward = np.array(env.step(list(action))[1], np.float32)
        after = {f"next_{key}": value for key, value in warehouse_now(env).items()}
        trace.append(
            before | after | {"action": action.astype(np.uint8), "ranks": recorder.ranks, "reward": reward}
        )
    return {key: np.stack([moment[key] for moment in trace]) for key in trace[0]}


def foraging_now(env):
    """The state, in arrays; what a player sees twice over is left out."""
    return {
        "players": np.array([[*p.position, p.level] for p in env.players], np.uint8),
        "field": env.field.astype(np.uint8),
        "obs": np.array(env._make_gym_obs()).astype(np.int8),
    }


def play_foraging(name, steps, seed=0):
    """`steps` transitions: the state before, what happened, and the state after ("next_...")."""
    import gymnasium
    import lbforaging  # noqa: F401

    env = gymnasium.make(name, disable_env_checker=True).unwrapped
    random = np.random.default_rng(seed)
    env.reset(seed=seed)
    trace = []
    for _ in range(steps):
        if env.game_over:
            env.reset()
        before = foraging_now(env) | {"supply": np.uint8(env._food_spawned)}
        action = np.array([towards_food(env, player, random) for player in env.players], np.uint8)
        reward = np.array(env.step(list(action))[1], np.float32)
        after = {f"next_{key}": value for key, value in foraging_now(env).items()}
        trace.append(before | after | {"action": action, "reward": reward, "over": env.field.sum() == 0})
    return {key: np.stack([moment[key] for moment in trace]) for key in trace[0]}


def towards_food(env, player, random):
    """An action: often to load or to go to some food, where others go too, else any."""
    rows, cols = np.nonzero(env.field)
    if not len(rows) or random.random() < 0.3:
        return random.integers(6)
    down, east = rows[0] - player.position[0], cols[0] - player.position[1]
    if abs(down) + abs(east) == 1:
        return 5 if random.random() < 0.7 else random.integers(6)
    if abs(down) > abs(east) or not east:
        return 2 if down > 0 else 1
    return 4 if east > 0 else 3


WAREHOUSES = {
    "rware-tiny-2ag-v2": "indiv",
    "rware-tiny-4ag-easy-v2": "twostage",
    "rware-small-3ag-hard-v2": "global",
}
FIELDS = ("Foraging-8x8-2p-2f-coop-v3", "Foraging-2s-7x7-4p-3f-v3")
"""What is recorded: who is paid in which warehouse, and fields."""


def record():
    """Write the traces that are compared where the packages are not installed."""
    for name, payment in WAREHOUSES.items():
        np.savez_compressed(DATA / name, **play_warehouse(name, 600, payment, seed=1))
    for name in FIELDS:
        np.savez_compressed(DATA / name, **play_foraging(name, 600, seed=1))


if __name__ == "__main__":
    record()
