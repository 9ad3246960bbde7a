"""Particle worlds against the package mpe2, step by step, and against numbers worked out by hand.

`python tests/envs/test_particles.py` records the package's steps anew, where it is installed.
"""

import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.multi_agent import ENVIRONMENTS
from shoal.envs.multi_agent.particles import Particles

TRACES = Path(__file__).parents[1] / "data" / "particles.npz"
WORLDS = ["simple_spread", "simple_adversary", "simple_tag"]
KINDS = ["", "_continuous"]


def package_steps(world, kind, num_steps):
    """Transitions of the package: states before, actions, observations and rewards after."""
    env = importlib.import_module(f"mpe2.{world}_v3").parallel_env(continuous_actions=bool(kind))
    inner, rng, steps = env.unwrapped.world, np.random.default_rng(0), []
    env.reset(seed=0)
    while len(steps) < num_steps:
        if not env.agents:
            env.reset(seed=len(steps))
        before = package_state(inner)
        action = draw_action(rng, before["position"], kind)
        obs, reward, *_ = env.step(dict(zip(env.agents, action, strict=True)))
        width = max(len(each) for each in obs.values())
        padded = [np.pad(obs[name], (0, width - len(obs[name]))) for name in env.possible_agents]
        reward = [reward[name] for name in env.possible_agents]
        steps.append({**before, "action": action, "obs": np.array(padded), "reward": np.array(reward)})
    return {key: np.stack([step[key] for step in steps]) for key in steps[0]}


def package_state(world):
    """The package's state, as ours has it."""
    goal = getattr(world.agents[0], "_goal_a", None)
    return {
        "position": np.array([agent.state.p_pos for agent in world.agents]),
        "velocity": np.array([agent.state.p_vel for agent in world.agents]),
        "landmarks": np.array([landmark.state.p_pos for landmark in world.landmarks]),
    } | ({} if goal is None else {"goal": np.array([goal.state.p_pos])})


def draw_action(rng, position, kind):
    """Anything, or, seven times in ten, towards the middle: there they collide."""
    if kind:
        return rng.random((len(position), 5), np.float32)
    if rng.random() > 0.7:
        return rng.integers(5, size=len(position))
    x, y = position.T
    return np.where(abs(x) > abs(y), np.where(x > 0, 1, 2), np.where(y > 0, 3, 4))


def check(env, steps):
    """Our rewards and observations after the same actions in the same states, all steps at once."""
    state = Particles(*(steps[part] for part in Particles._fields if part in steps))

    @jax.jit
    @jax.vmap
    def one(state, action):
        after, reward, terminated = env.step(jax.random.key(0), state, action, env.spec.params)
        return env.observe(after, env.spec.params), reward, terminated

    obs, reward, terminated = jax.device_get(one(state, steps["action"]))
    np.testing.assert_allclose(reward, steps["reward"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(obs, steps["obs"], rtol=1e-5, atol=1e-5)
    assert not terminated.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS)
def test_steps_are_those_recorded_of_the_package(world, kind):
    with np.load(TRACES) as file:
        start = f"{world}{kind}/"
        steps = {key.removeprefix(start): file[key] for key in file.files if key.startswith(start)}
    check(ENVIRONMENTS[f"{world}{kind}_v3"], steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS)
def test_steps_are_the_packages(world, kind):
    pytest.importorskip("mpe2")
    steps = package_steps(world, kind, 5000)
    if world == "simple_tag":
        assert (steps["reward"][:, 0] >= 20).any(), "two never caught the prey at once"
    check(ENVIRONMENTS[f"{world}{kind}_v3"], steps)


def test_the_shared_reward_by_hand():
    """Agents 0 and 1 overlap; each landmark lies 0.5 below an agent: 3 (1.5 + 1) + 2 collisions in all."""
    position = np.float32([[0.0, 0.5], [0.2, 0.5], [-1.0, 0.5]])
    state = Particles(position, 0 * position, position - np.float32([[0.0, 0.5]]))
    take = lambda name: jax.jit(ENVIRONMENTS[name].step)(
        jax.random.key(0), state, np.zeros(3, np.int32), ENVIRONMENTS[name].spec.params
    )
    after, reward, _ = take("simple_spread_shared_v3")
    np.testing.assert_allclose(reward, [-9.5 / 3] * 3, rtol=1e-6)
    # Overlap 0.1 gives 100 * 0.1 * dt = 1 to either side; agent 2 is out of reach.
    np.testing.assert_allclose(after.velocity, [[-1, 0], [1, 0], [0, 0]], atol=1e-5)
    _, own, _ = take("simple_spread_v3")
    np.testing.assert_allclose(own, [-0.75 - 0.5, -0.75 - 0.5, -0.75], rtol=1e-6)


def test_worlds_differ_by_row_and_end_together_after_25_steps():
    recipe = from_jax(ENVIRONMENTS["simple_tag_v3"])
    assert (recipe.spec.agents, recipe.spec.teams) == (4, (0, 0, 0, 1))
    env = recipe.build(np.zeros((1, 2), np.uint32), False)
    keys = jax.random.split(jax.random.key(0), 2)
    params = jax.tree.map(lambda x: np.full(2, x, np.float32), recipe.spec.params)
    params = params._replace(prey_speed=np.float32([0.1, 1.3]))

    def episode(keys):
        rows, first = env.reset(keys, params)
        right = jnp.full((26, 2, 4), 2)
        _, steps = jax.lax.scan(lambda s, x: env.step(s, *x), rows, (right, env.draw(keys, rows, 26)))
        return first, steps

    first, steps = jax.device_get(jax.jit(episode)(keys))
    assert first.obs.shape == (2, 4, 16)
    assert steps.truncated[:, 0].tolist() == [False] * 24 + [True, False]
    assert steps.valid[:, 1].tolist() == [True] * 25 + [False]
    assert not steps.terminated.any()
    speed = np.linalg.norm(steps.obs[:25, :, 3, :2], axis=-1).max(0)
    np.testing.assert_allclose(speed, [0.1, 1.2], atol=0.11)


def test_either_landmark_is_the_goal_of_the_adversary():
    env = ENVIRONMENTS["simple_adversary_v3"]
    reset = jax.jit(jax.vmap(lambda key: env.reset(key, env.spec.params)))
    states = jax.device_get(reset(jax.random.split(jax.random.key(0), 64)))
    is_goal = np.all(states.landmarks == states.goal, axis=2)
    assert (is_goal.sum(1) == 1).all()
    assert 16 < is_goal[:, 0].sum() < 48
    assert np.abs(states.position).max() <= 1
    assert np.abs(states.position).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", [f"{world}_v3" for world in WORLDS])
def test_pictures_keep_their_size_when_someone_is_far_out(name):
    env = ENVIRONMENTS[name]
    state = jax.device_get(jax.jit(env.reset)(jax.random.key(0), env.spec.params))
    far = state._replace(position=state.position + 3)
    near, wide = env.render(state, env.spec.params), env.render(far, env.spec.params)
    assert near.shape == wide.shape == (350, 350, 3)
    assert 0.01 < (near < 250).any(2).mean() < 0.2


def record():
    """Keep some of the package's steps, for where it is not installed."""
    arrays = {}
    for world in WORLDS:
        for kind, num_steps in zip(KINDS, (125, 25), strict=True):
            for key, value in package_steps(world, kind, num_steps).items():
                small = np.uint8 if value.dtype == np.int64 else np.float32
                arrays[f"{world}{kind}/{key}"] = value.astype(small)
    np.savez_compressed(TRACES, **arrays)


if __name__ == "__main__":
    record()
