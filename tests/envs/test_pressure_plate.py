"""PressurePlate: a plan worked out by hand, and any state against the rules written down once more."""

from functools import cache
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.multi_agent import ENVIRONMENTS
from shoal.envs.multi_agent.pressure_plate import DOOR, FOUR, GOAL, LONGEST, REACH

MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0), "stay": (0, 0)}
MAPS = {
    4: """
        .........
        ...G.....
        .........
        ######CC#
        .........
        .......c.
        .........
        ##BB#####
        .........
        ..b......
        .........
        ######AA#
        ....31...
        ....20.a.
        .........
    """,
    5: """
        .........
        ...G.....
        .........
        #####DDD#
        .........
        .......d.
        .........
        ##CCC####
        .........
        ..c......
        .........
        #####BBB#
        .........
        .......b.
        .........
        ##AAA####
        ....420..
        ..a.31...
        .........
    """,
    6: """
        .........
        ...G.....
        .........
        #####EEE#
        .........
        .......e.
        .........
        ##DDD####
        .........
        ..d......
        .........
        #####CCC#
        .........
        .......c.
        .........
        ##BBB####
        .........
        ..b......
        .........
        #####AAA#
        ....531..
        ....420a.
        .........
    """,
}
"""Walls #, doors A B ..., their plates a b ..., agents 0 1 ..., the chest G."""


class Rules:
    """The original's rules, one agent, one cell, one comparison at a time."""

    def __init__(self, num):
        lines = MAPS[num].split()
        self.num, self.height, self.width = num, len(lines), len(lines[0])
        where = {}
        for y, line in enumerate(lines):
            for x, letter in enumerate(line):
                where.setdefault(letter, []).append((x, y))
        self.walls = where["#"]
        self.adapter = [where[letter] for letter in "ABCDE"[: num - 1]]
        self.plates = [where[letter][0] for letter in "abcde"[: num - 1]]
        self.starts = [where[str(i)][0] for i in range(num)]
        self.goal = where["G"][0]
        self.cells = where["."] + self.plates + [cell for door in self.adapter for cell in door]

    def opened(self, places):
        return [tuple(places[i]) == plate for i, plate in enumerate(self.plates)]

    def free(self, places):
        """Where no wall and no shut door is."""
        shut = [d for d, is_open in zip(self.adapter, self.opened(places), strict=True) if not is_open]
        inside = {(x, y) for x in range(self.width) for y in range(self.height)}
        return inside - {*self.walls} - {cell for door in shut for cell in door}

    def outcomes(self, places, actions):
        """Where all end who move one after another, in whatever order."""
        free, before = self.free(places), [tuple(place) for place in places]
        moves = [list(MOVES.values())[action] for action in actions]
        wanted = [(x + dx, y + dy) for (x, y), (dx, dy) in zip(before, moves, strict=True)]
        for order in permutations(range(self.num)):
            places = before.copy()
            for i in order:
                if wanted[i] in free and wanted[i] not in places:
                    places[i] = wanted[i]
            yield places

    def rewards(self, places, version):
        rows = sorted({y for _, y in self.walls}, reverse=True)
        rewards = []
        for i, (x, y) in enumerate(places):
            room = next((r for r, row in enumerate(rows) if y > row), len(rows))
            target = [*self.plates, self.goal][i]
            if room == i:
                rewards.append(-(abs(x - target[0]) + abs(y - target[1])) / 10)
            else:
                rewards.append(-abs(room - i) if version else room - len(rows))
        return rewards

    def observation(self, places, version):
        hidden = self.opened(places) if version else [False] * (self.num - 1)
        adapter = [cell for door, gone in zip(self.adapter, hidden, strict=True) for cell in door if not gone]
        layers = [places if version else self.starts, self.plates, adapter, [self.goal]]
        seen = []
        for x, y in places:
            around = [(x + dx, y + dy) for dy in range(-2, 3) for dx in range(-2, 3)]
            seen.append([float(cell in layer) for layer in layers for cell in around] + [x, y])
        return seen


def any_states(rules, rng, num_states):
    """Places anywhere that is no wall, every second agent on its plate."""
    states = []
    for _ in range(num_states):
        places = [rules.cells[i] for i in rng.choice(len(rules.cells), rules.num, replace=False)]
        for i, plate in enumerate(rules.plates):
            if rng.random() < 0.5 and plate not in places:
                places[i] = plate
        states.append(places)
    return np.array(states, np.int32)


@pytest.mark.parametrize(("num", "version"), [(4, 0), (5, 1), (6, 0)])
def test_every_step_is_one_the_rules_allow(num, version):
    env = ENVIRONMENTS[f"pressureplate-linear-{num}p-v{version}"]
    rules, rng = Rules(num), np.random.default_rng(0)
    states, actions = any_states(rules, rng, 500), rng.integers(5, size=(500, num))

    def one(key, state, action):
        after, reward, terminated = env.step(key, state, action, ())
        return after, reward, terminated, env.observe(after, ())

    keys = jax.random.split(jax.random.key(0), 500)
    after, reward, terminated, obs = map(np.asarray, jax.jit(jax.vmap(one))(keys, states, actions))
    for t in range(500):
        places = [tuple(map(int, place)) for place in after[t]]
        assert places in rules.outcomes(states[t].tolist(), actions[t])
        np.testing.assert_allclose(reward[t], rules.rewards(places, version), rtol=1e-6)
        assert terminated[t] == (rules.goal in places)
        np.testing.assert_array_equal(obs[t], rules.observation(places, version))


PLAN = [
    (0, "right right"),
    (1, "right up up up left left left left"),
    (2, "right right up up up left left left up up up up up right right right right"),
    (3, "right right up up left left left up up up up up right right right up up up up left left left"),
]
"""Who goes where while the others stay: three plates, one after another, then the chest."""


def test_a_plan_solves_it():
    env = ENVIRONMENTS["pressureplate-linear-4p-v0"]
    step = jax.jit(env.step)
    state = np.array(FOUR.starts, np.int32)
    _, reward, _ = step(jax.random.key(0), state, np.full(4, 4), ())
    np.testing.assert_allclose(reward, [-0.2, -3, -3, -3], rtol=1e-6)
    for agent, words in PLAN:
        words = words.split()
        for i, word in enumerate(words):
            action = np.full(4, 4)
            action[agent] = list(MOVES).index(word)
            state, reward, terminated = step(jax.random.key(i), state, action, ())
            assert bool(terminated) == (agent == 3 and i == len(words) - 1)
    assert state.tolist() == [[7, 13], [2, 9], [7, 5], [3, 1]]
    assert reward.tolist() == [0, 0, 0, 0]


def test_a_shut_door_and_a_taken_cell_stop_one_and_who_is_first_is_chance():
    env = ENVIRONMENTS["pressureplate-linear-4p-v0"]
    state = np.int32([[7, 13], [6, 12], [2, 8], [4, 12]])  # door 0 is open, door 1 is not
    step = jax.jit(jax.vmap(env.step, in_axes=(0, None, None, None)))
    up, left, right, stay = 0, 2, 3, 4
    keys = jax.random.split(jax.random.key(0), 200)
    after = np.asarray(step(keys, state, np.array([left, up, up, right]), ())[0])
    assert (after == [[6, 13], [6, 11], [2, 8], [5, 12]]).all(), "the door shuts when all have moved"
    after = np.asarray(step(keys, state, np.array([stay, left, stay, right]), ())[0])
    first, second = ((after[:, i] == [5, 12]).all(1) for i in (1, 3))
    assert (first ^ second).all()
    assert 70 < first.sum() < 130


def test_an_episode_begins_in_any_order_and_lasts_500_steps():
    env = from_jax(ENVIRONMENTS["pressureplate-linear-4p-v0"]).build(np.zeros((1, 64), np.uint32), False)
    keys = jax.random.split(jax.random.key(0), 64)

    def episode(keys):
        rows, first = env.reset(keys, ())
        stay = jnp.full((501, 64, 4), 4)
        _, steps = jax.lax.scan(lambda s, x: env.step(s, *x), rows, (stay, env.draw(keys, rows, 501)))
        return first, steps._replace(obs=())

    first, steps = jax.device_get(jax.jit(episode)(keys))
    begin = first.obs[:, :, 100:].astype(int)
    assert len({str(row) for row in begin.tolist()}) > 15, "of 24 orders"
    assert {tuple(place) for place in begin.reshape(-1, 2).tolist()} == set(FOUR.starts)
    assert np.flatnonzero(steps.truncated[:, 0]).tolist() == [499]
    assert not steps.valid[500].any()


def test_its_picture_shows_the_open_door():
    env = ENVIRONMENTS["pressureplate-linear-4p-v0"]
    start = np.array(FOUR.starts, np.int32)
    through = np.concatenate([np.int32([[7, 13]]), start[1:]])
    shut, opened = env.render(start, ()), env.render(through, ())
    assert shut.shape == (15 * 24, 9 * 24, 3)
    doorway = np.s_[11 * 24 + 12, 6 * 24 + 12]
    assert shut[doorway].tolist() == [235, 140, 45]
    assert opened[doorway].tolist() == [255, 255, 255]


def earliest(start, target, opening):
    """Steps to the target by someone who walks through others, doors opening after so many steps."""
    places, step = {start}, 0
    while target not in places:
        reached = {(x + dx, y + dy) for x, y in places for dx, dy in MOVES.values()}
        places, step = {place for place in reached if passes(place, opening, step)}, step + 1
    return step


@cache
def kinds():
    return FOUR.kinds.tolist()


def passes(place, opening, step):
    kind = kinds()[place[1] + REACH][place[0] + REACH]
    return kind == 0 or (kind >= DOOR and step >= opening[kind - DOOR])


def best_return(agent, start, opening, length, version):
    """Of an agent that walks through others, in an episode of this length."""
    values = {start: 0.0}
    for step in range(length):
        reached = {}
        for (x, y), value in values.items():
            for place in ((x + dx, y + dy) for dx, dy in MOVES.values()):
                if passes(place, opening, step):
                    reached[place] = max(reached.get(place, -np.inf), value + pay(agent, place, version))
        values = reached
    return max(values.values())


@cache
def pay(agent, place, version):
    room = np.sum(place[1] <= FOUR.walls)
    if room == agent:
        return -np.abs(FOUR.targets[agent] - place).sum() / LONGEST
    return -abs(agent - room) if version else -(3 - room)


@pytest.mark.parametrize(("version", "each"), [(0, -17.298), (1, -13.215)])
def test_how_good_it_could_be_if_agents_did_not_collide(version, each):
    """The mean over all beginnings of what each agent would lose at least; see docs/results/teams.md."""
    returns = []
    for starts in permutations(FOUR.starts):
        opening = [np.inf] * 3
        for agent in range(3):
            opening[agent] = earliest(starts[agent], tuple(FOUR.targets[agent]), opening)
        length = earliest(starts[3], GOAL, opening)
        returns += [best_return(agent, starts[agent], opening, length, version) for agent in range(4)]
    assert np.mean(returns) == pytest.approx(each, abs=1e-3)
