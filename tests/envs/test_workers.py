"""Python environments in worker processes: the episodes of one process, and workers that fail."""

import os
import signal
import time

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.envs.adapters.faults import Faults
from shoal.envs.adapters.host import HostAdapter, take_crash
from shoal.envs.adapters.suite import UnknownOptions
from shoal.envs.adapters.worker_process import map_memory
from shoal.envs.adapters.workers import WorkerEnvs
from shoal.errors import ShoalError
from shoal.types import Box, Discrete, EnvSpec

SEEDS = np.array([[3, 1, 4, 1, 5]], np.uint32)


class Draws(gymnasium.Env):
    """Observes a draw, a picture of what it was told, and how many steps it took; lasts 2 + draw steps."""

    observation_space = gymnasium.spaces.Dict(
        {
            "draw": gymnasium.spaces.Discrete(3),
            "told": gymnasium.spaces.Box(0, 255, (2, 2, 1), np.uint8),
            "step": gymnasium.spaces.Box(-9, 99, (), np.float64),
        }
    )
    action_space = gymnasium.spaces.Discrete(7)

    def __init__(self, fault=None):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.draw, self.taken = int(self.np_random.integers(3)), 0
        return self.observe(0), {}

    def observe(self, told):
        return {"draw": self.draw, "told": np.full((2, 2, 1), told, np.uint8), "step": self.taken}

    def step(self, action):
        self.taken += 1
        if self.fault == "raise" and self.taken == 2:
            raise ZeroDivisionError("the wheel came off")
        if self.fault == "die" and self.taken == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.observe(action), 0.5 * action, self.taken == 2 + self.draw, False, {}


class Falls(gymnasium.Env):
    """Shows a number that it draws at a reset; an action of 1 raises, one of 2 ends the process."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drawn = self.np_random.random(1)
        return self.drawn, {}

    def step(self, action):
        if action == 1:
            raise ZeroDivisionError("the wheel came off")
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.drawn, 0.0, False, False, {}


def build(workers, **options):
    return shoal.make(Draws, workers=workers, **options).build(SEEDS, False)


def play(env, actions):
    """The first time step and those that follow, compiled."""

    @jax.jit
    def program(actions):
        state, first = env.reset(None, None)
        _, steps = jax.lax.scan(lambda state, action: env.step(state, action, ()), state, actions)
        return first, steps

    return jax.device_get(program(jnp.asarray(actions)))


ACTIONS = np.random.default_rng(0).integers(0, 7, (12, 5)).astype(np.int32)


def test_two_workers_play_the_episodes_of_one_process():
    expected, found = play(build(workers=1), ACTIONS), play(build(workers=2), ACTIONS)
    jax.tree.map(np.testing.assert_array_equal, expected, found)
    steps = found[1]
    assert steps.reward[0].tolist() == (0.5 * ACTIONS[0]).tolist()
    assert set(steps.terminated.sum(0).tolist()) == {2, 3}  # episodes end each in its own time


@pytest.mark.slow
def test_a_crash_in_a_worker_is_told_like_any_other():
    env = build(workers=2, fault="raise")
    play(env, ACTIONS)
    crash = take_crash()
    assert str(crash) == "test_workers:Draws raised ZeroDivisionError: the wheel came off"
    assert "in step" in crash.traceback_text
    assert "adapters" not in crash.traceback_text


@pytest.mark.slow
def test_a_worker_that_dies_is_told_with_its_signal():
    play(build(workers=2, fault="die"), ACTIONS)
    assert str(take_crash()) == "a worker process of the environment was ended by signal 9 (SIGKILL)"


class Nothing:
    """Environments that nobody steps."""

    def __init__(self, seeds):
        self.faults = Faults(seeds)


@pytest.mark.slow
def test_every_environment_that_is_made_anew_has_a_seed_of_its_own():
    """The first row fails, then its process ends, then it fails again."""
    env = shoal.make(Falls, workers=2).build(SEEDS[:, :2], False)
    env.containment.contain(np.zeros((1, 2), int), restarts=True)
    state, first = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 2), env.spec.params)
    step, drawn = jax.jit(env.step), [float(first.obs[0, 0])]
    for action in (1, 2, 1):
        state, _ = step(state, jnp.array([action, 0]), ())
        state, begun = step(state, jnp.array([0, 0]), ())
        assert begun.valid.tolist() == [False, True]
        drawn.append(float(begun.obs[0, 0]))
    assert len({*drawn}) == 4


@pytest.mark.slow
def test_workers_end_with_their_environments_and_survive_ctrl_c(monkeypatch):
    monkeypatch.setattr("shoal.envs.adapters.workers.SECONDS_TO_CLOSE", 30.0)  # on a busy machine, too
    spec = EnvSpec("nothing", "gym", Box((1,)), Discrete(2))
    workers = WorkerEnvs(HostAdapter(spec, id, id, scored=False), Nothing, SEEDS[0], 3)
    processes = [worker.process for worker in workers.workers]
    assert [worker.rows for worker in workers.workers] == [slice(0, 1), slice(1, 3), slice(3, 5)]
    for process in processes:
        process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert [process.poll() for process in processes] == [None] * 3
    workers.close()
    assert [process.poll() for process in processes] == [0] * 3


def test_the_memory_holds_every_part_in_its_type(tmp_path):
    observation = {"image": Box((2, 3), 0, 255, "uint8"), "speed": Box((1,))}
    spec = EnvSpec("two", "gym", observation, Discrete(2), agents=2)
    with (tmp_path / "memory").open("w+b") as file:
        here, there = map_memory(file.fileno(), spec, 4), map_memory(file.fileno(), spec, 4)
    shapes = jax.tree.map(lambda x: (x.dtype.name, x.shape), here.step[0])
    assert shapes == {"image": ("uint8", (4, 2, 2, 3)), "speed": ("float32", (4, 2, 1))}
    assert here.step[1].shape == (4, 2)
    for number, array in enumerate(jax.tree.leaves(here)):
        array[:] = number % 2
    for number, array in enumerate(jax.tree.leaves(there)):
        assert (array == number % 2).all()  # nothing overlaps, and the other mapping sees it


@pytest.mark.parametrize("workers", [0, 1.5, True, "two"])
def test_a_number_of_workers_that_is_none_is_refused(workers):
    with pytest.raises(ShoalError, match=r"Draws: workers=.* must be a whole number of processes"):
        shoal.make(Draws, workers=workers)


def test_compiled_environments_have_nothing_to_share_out():
    with pytest.raises(
        UnknownOptions, match="takes max_episode_steps, change_every and change_spread, not workers"
    ):
        shoal.make("jax:CartPole-v1", workers=2)
    assert shoal.make("CartPole-v1", workers=2).spec.backend == "gym"
