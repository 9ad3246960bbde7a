"""`shoal check` finds what is wrong with environments that have one fault each, and nothing in sound ones."""

import json

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.cli.main import main
from shoal.envs.checks import rules
from shoal.envs.checks.environment import check_environment
from shoal.envs.checks.sample import Sample
from shoal.envs.registry import register
from shoal.spaces import Box, Discrete
from shoal.types import EnvSpec, JaxEnv

SHARED = np.random.default_rng(0)


class Walk(gymnasium.Env):
    """A walk on a line from a random place; `fault` says what it does wrong."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, fault="", render_mode=None):
        self.fault, self.render_mode = fault, render_mode
        self.observation_space = gymnasium.spaces.Box(-99, 5 if fault == "bounds" else 99, (2,))
        if fault == "action":
            self.action_space = gymnasium.spaces.Box(-500, 500, (1,))

    def observe(self):
        obs = np.float32([self.place, self.steps])
        if self.fault == "nan" and self.steps == 3:
            obs[1] = np.nan
        if self.fault == "float64":
            obs = obs.astype(np.float64)
        return obs[:1] if self.fault == "shape" and self.steps == 3 else obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=None if self.fault == "seed" else seed)
        self.place = 0.0 if self.fault == "start" else self.np_random.uniform(-1, 1)
        self.steps = 0 if self.fault != "memory" else getattr(self, "steps", 0)
        return self.observe(), {}

    def step(self, action):
        noise = SHARED.uniform(-0.1, 0.1) if self.fault == "shared" else 0.0
        self.place = float(np.clip(self.place + 0.1 * action[0] + noise, -9, 9))
        self.steps += 1
        over = self.steps % 20 == 0 and self.fault != "endless"
        reward = {"reward": np.inf, "zero": 0.0, "large": 1e4}.get(self.fault, -abs(self.place))
        return self.observe(), reward, over, False, {}

    def render(self):
        if self.fault == "picture":
            raise RuntimeError("no light")
        return np.zeros((8, 8, 3), np.uint8)


gymnasium.register("tests/Walk-v0", entry_point=Walk)


def found(fault: str, level: str) -> dict[str, str]:
    """The findings of one level, by topic."""
    findings = list(check_environment("tests/Walk-v0", {"fault": fault}, steps=64))
    return {finding.topic: finding.text for finding in findings if finding.level == level}


def test_nothing_is_wrong_with_a_sound_environment():
    assert not found("", "problem")
    assert not found("", "warning")
    assert {"gymnasium", "spaces", "observations", "resets", "repeats", "ends", "speed", "pictures"} <= found(
        "", "ok"
    ).keys()


@pytest.mark.parametrize(
    ("fault", "topic", "text"),
    [
        ("nan", "observations", "observation is not finite in number 1 at step 3"),
        ("reward", "rewards", "a reward is not finite at step 1"),
        ("seed", "resets", "equal seeds give different starts"),
        (
            "shape",
            "steps",
            "observation is float32 of shape (1,), but observation_space says float32 of shape (2,)",
        ),
        ("float64", "gymnasium", "within the observation space"),
    ],
)
def test_a_problem_is_found(fault, topic, text):
    assert text in found(fault, "problem")[topic]


@pytest.mark.parametrize(
    ("fault", "topic", "text"),
    [
        ("bounds", "observations", "observation is outside its bounds in number 1 at step 6"),
        ("action", "actions", "bounds from -500 to 500"),
        ("start", "resets", "episodes began alike, whatever the seed"),
        ("memory", "repeats", "after a second reset with the same seed"),
        ("shared", "repeats", "two environments with equal seeds and actions differ from step 1 on"),
        ("endless", "ends", "there is no time limit"),
        ("zero", "rewards", "every reward in"),
        ("large", "rewards", "train with --norm-reward"),
        ("picture", "pictures", "no light"),
    ],
)
def test_a_warning_is_given(fault, topic, text):
    assert text in found(fault, "warning")[topic]


def test_a_jax_environment_whose_shapes_do_not_fit_is_told_with_both():
    register("Bent-v0", bent := line(observe=lambda x, params: x[:1]))
    (problem,) = [one for one in check_environment("Bent-v0", steps=32) if one.level == "problem"]
    assert problem.text.startswith("Bent-v0: `observe` must return what `spec.observation` says")
    assert "float32[2], not float32[1]" in problem.text
    assert bent.spec.observation.shape == (2,)


def test_worlds_that_nothing_depends_on_are_noticed():
    def worlds(uses):
        step = lambda key, x, action, params: (x + params["power"] * uses, x[0], jnp.bool_(False))
        register("Line-v0", line(step=step))
        return [one for one in check_environment("Line-v0", steps=32) if one.topic == "worlds"]

    assert worlds(uses=1.0) == [("ok", "worlds", "power matter", "")]
    assert worlds(uses=0.0)[0].level == "warning"


def line(**functions):
    spec = EnvSpec("line", "jax", Box((2,)), Discrete(2), max_episode_steps=9, params={"power": 0.1})
    stay = lambda key, x, action, params: (x, x[0], jnp.bool_(False))
    given = {"reset": lambda key, params: jnp.zeros(2), "step": stay, "observe": lambda x, params: x}
    return JaxEnv(spec, **given | functions)


def test_lengths_count_the_valid_steps_of_finished_episodes():
    """Two environments: episodes of 2 and 1 steps, each followed by a reset; and none that ends."""
    valid = np.array([[0, 1, 1, 0, 1, 0], [0, 1, 1, 1, 1, 1]], bool).T
    ended = np.array([[0, 0, 1, 0, 1, 0], [0] * 6], bool).T
    sample = blank(6, 2)._replace(valid=valid, terminated=ended)
    assert rules.episode_lengths(sample) == [2, 1]
    spec = EnvSpec("x", "jax", Box((1,)), Discrete(2), max_episode_steps=1)
    assert [one.text for one in rules.check_ends(spec, sample)] == [
        "an episode took 2 steps, but the limit is 1"
    ]


@pytest.mark.parametrize(
    ("mask", "level", "text"),
    [([1, 0], "ok", "allows 50 %"), ([0, 0], "warning", "allows nothing"), ([2, 0], "problem", "holds 2")],
)
def test_masks_are_zeros_and_ones_that_leave_a_choice(mask, level, text):
    spec = EnvSpec("x", "jax", {"obs": Box((1,)), "action_mask": Box((2,))}, Discrete(2))
    sample = blank(3, 2)._replace(obs={"action_mask": np.broadcast_to(mask, (3, 2, 2))})
    (finding,) = rules.check_masks(spec, sample)
    assert finding.level == level
    assert text in finding.text


def blank(times, rows):
    flags = np.zeros((times, rows), bool)
    return Sample((), np.zeros((times - 1, rows)), np.zeros((times, rows)), flags, flags, ~flags, 1.0)


def test_the_command_ends_with_1_where_there_are_problems(capsys):
    small = ["--steps", "32", "--env-options"]
    assert main(["check", "tests/Walk-v0", *small, "fault=reward"]) == 1
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("tests/Walk-v0: 1 problem, ")
    assert main(["check", "tests/Walk-v0", *small, "fault=start", "--json", "--algo", "td3"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings[-1]["text"] == "td3 can train it"
    assert {one["level"] for one in findings} == {"ok", "warning"}
    assert main(["check", "tests/Walk-v0", *small, "fault=start", "--algo", "dqn"]) == 1
    assert "dqn needs discrete actions" in capsys.readouterr().out
    assert main(["check", "Walk-v77"]) == 2
