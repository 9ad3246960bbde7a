"""Built-in environments against Gymnasium's, step by step, and their pictures."""

import os

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.envs.classic import BUILTIN
from shoal.envs.classic.pendulum import PENDULUM, PENDULUM_SPARSE, PendulumState
from shoal.envs.classic.render import _no_window
from shoal.types import Box, Discrete

THEIRS = {"PendulumSparse-v1": "Pendulum-v1", "CartPoleContinuous-v0": "CartPole-v1"}
"""What of Gymnasium's to compare with those that are not Gymnasium's."""
SEEN_IN_PART = {"CartPoleNoVel-v1": ("CartPole-v1", [0, 2]), "PendulumNoVel-v1": ("Pendulum-v1", [0, 1])}
"""Those of which only a part is seen: which they are else, and which numbers of the observation remain."""
SEEN_WHOLE = sorted(BUILTIN.keys() - SEEN_IN_PART.keys())
IN_GYMNASIUM = sorted({*SEEN_WHOLE} - THEIRS.keys())

# Parameters of rows 2 and 3, and what Gymnasium calls them. Rows 0 and 1 have the defaults.
OTHER_PARAMS = {
    "CartPole-v1": {"gravity": 15.0, "mass_cart": 2.0, "mass_pole": 0.3, "length": 0.8, "force": 12.0},
    "CartPoleContinuous-v0": {
        "gravity": 7.0,
        "mass_cart": 0.5,
        "mass_pole": 0.4,
        "length": 0.7,
        "force": 10.0,
    },
    "Pendulum-v1": {"gravity": 5.0, "mass": 1.5, "length": 0.7, "max_speed": 6.0},
    "PendulumSparse-v1": {"gravity": 5.0},
    "Acrobot-v1": {"mass_1": 1.2, "mass_2": 0.8, "length_1": 1.1, "centre_1": 0.4, "centre_2": 0.6},
    "MountainCar-v0": {"gravity": 0.002, "force": 0.0012, "goal_position": 0.4},
    "MountainCarContinuous-v0": {"force": 0.002, "goal_position": 0.4},
}


def cartpole_to_gymnasium(p):
    return {
        "gravity": p.gravity,
        "masscart": p.mass_cart,
        "masspole": p.mass_pole,
        "total_mass": p.mass_cart + p.mass_pole,
        "length": p.length,
        "polemass_length": p.mass_pole * p.length,
        "force_mag": p.force,
    }


TO_GYMNASIUM = {
    "CartPole-v1": cartpole_to_gymnasium,
    "CartPoleContinuous-v0": cartpole_to_gymnasium,
    "Pendulum-v1": lambda p: {"g": p.gravity, "m": p.mass, "l": p.length, "max_speed": p.max_speed},
    "PendulumSparse-v1": lambda p: {"g": p.gravity},
    "Acrobot-v1": lambda p: {
        "LINK_MASS_1": p.mass_1,
        "LINK_MASS_2": p.mass_2,
        "LINK_LENGTH_1": p.length_1,
        "LINK_COM_POS_1": p.centre_1,
        "LINK_COM_POS_2": p.centre_2,
    },
    "MountainCar-v0": lambda p: {
        "gravity": p.gravity,
        "force": p.force,
        "goal_position": p.goal_position,
    },
    "MountainCarContinuous-v0": lambda p: {"power": p.force, "goal_position": p.goal_position},
}
# Rows 0 and 2 act at random; rows 1 and 3 like this, which reaches the goal or survives to the limit.
SKILL = {
    "CartPole-v1": lambda obs: obs @ jnp.array([0.1, 0.3, 1.0, 1.0]) > 0,
    "CartPoleContinuous-v0": lambda obs: obs @ jnp.array([[0.1], [0.3], [1.0], [1.0]]),
    "Pendulum-v1": lambda obs: jnp.sign(obs[..., 2:]) * 3,
    "PendulumSparse-v1": lambda obs: jnp.sign(obs[..., 2:]) * 3,
    "Acrobot-v1": lambda obs: 1 + jnp.sign(obs[..., 5]),
    "MountainCar-v0": lambda obs: 1 + jnp.sign(obs[..., 1]),
    "MountainCarContinuous-v0": lambda obs: jnp.sign(obs[..., 1:]),
}
N = 4
SKILLED = np.array([False, True, False, True])


def build(name):
    return from_jax(BUILTIN[name]).build(np.zeros((1, N), np.uint32), True)


def params_of(name):
    """Default parameters in rows 0 and 1, others in rows 2 and 3."""
    default = BUILTIN[name].spec.params
    other = default._replace(**OTHER_PARAMS[name])
    return jax.tree.map(lambda a, b: np.float32([a, a, b, b]), default, other)


def begin(env, key):
    return jax.device_get(jax.jit(env.reset)(key, env.spec.params))


def random_actions(key, space, num_steps):
    if isinstance(space, Discrete):
        return jax.random.randint(key, (num_steps, N), 0, space.num)
    return jax.random.uniform(key, (num_steps, N, 1), minval=1.5 * space.low, maxval=1.5 * space.high)


@pytest.fixture(scope="module", params=SEEN_WHOLE)
def played(request):
    """Each environment played once, for a little more than its time limit."""
    env = build(request.param)
    num_steps = env.spec.max_episode_steps + 20

    @jax.jit
    def play(key):
        key_reset, key_draw, key_act = jax.random.split(key, 3)
        state, first = env.reset(jax.random.split(key_reset, N), params_of(request.param))
        noise = env.draw(jax.random.split(key_draw, N), state, num_steps)
        actions = random_actions(key_act, env.spec.action, num_steps)

        def step(carry, now):
            state, obs = carry
            action, noise = now
            skilled = SKILLED.reshape(N, *[1] * (action.ndim - 1))
            action = jnp.where(skilled, SKILL[request.param](obs).astype(action.dtype), action)
            after, ts = env.step(state, action, noise)
            return (after, ts.obs), (state, action, after, ts)

        return jax.lax.scan(step, (state, first.obs), (actions, noise))[1]

    return env, jax.tree.map(np.asarray, play(jax.random.key(7)))


@pytest.mark.parametrize("name", SEEN_IN_PART)
def test_some_are_others_seen_in_part(name):
    like, kept = SEEN_IN_PART[name]
    part, whole = BUILTIN[name], BUILTIN[like]
    assert (part.reset, part.step, part.render) == (whole.reset, whole.step, whole.render)
    assert part.spec.max_episode_steps == whole.spec.max_episode_steps
    assert (part.spec.action, part.spec.params, part.spec.spread) == (
        whole.spec.action,
        whole.spec.params,
        whole.spec.spread,
    )
    state = begin(whole, jax.random.key(3))
    seen, all_of_it = (jax.jit(env.observe)(state, env.spec.params) for env in (part, whole))
    np.testing.assert_array_equal(seen, all_of_it[np.array(kept)])
    box, boxes = part.spec.observation, whole.spec.observation
    np.testing.assert_array_equal(np.broadcast_to(box.high, 2), boxes.high[kept])
    np.testing.assert_array_equal(np.broadcast_to(box.low, 2), boxes.low[kept])


def test_every_row_agrees_with_gymnasium(played):
    env, (before, action, _, ts) = played
    name = env.spec.name
    states = np.concatenate([x.reshape(*x.shape[:2], -1) for x in jax.tree.leaves(before.state)], -1)
    states = np.float64(states[..., :2] if name.startswith("Pendulum") else states)
    for row in range(N):
        params = jax.tree.map(lambda x, row=row: float(x[row]), params_of(name))
        theirs = gymnasium.make(THEIRS.get(name, name))
        vars(theirs.unwrapped).update(TO_GYMNASIUM[name](params))
        theirs.reset(seed=0)
        obs, flags = [], []
        for t in range(len(action)):
            if not ts.valid[t, row]:
                theirs.reset()
                obs.append(ts.obs[t, row])
                flags.append((0.0, False, False))
                continue
            # From our state at each step: rounding must not grow along a chaotic path.
            theirs.unwrapped.state = states[t, row].copy()
            a = action[t, row]
            clipped = np.clip(a, -1, 1) if env.spec.action == Box((1,), -1.0, 1.0) else a
            if name == "CartPoleContinuous-v0":  # to the right, with that much
                theirs.unwrapped.force_mag, clipped = params.force * float(clipped[0]), 1
            step_obs, reward, terminated, truncated, _ = theirs.step(clipped)
            if name == "PendulumSparse-v1":
                reward = step_obs[0] > np.cos(0.1 * np.pi)
            obs.append(step_obs)
            flags.append((float(reward), terminated, truncated and not terminated))
        reward, terminated, truncated = map(np.array, zip(*flags, strict=True))
        np.testing.assert_allclose(ts.obs[:, row], obs, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(ts.reward[:, row], reward, rtol=1e-5, atol=1e-5)
        assert ts.terminated[:, row].tolist() == terminated.tolist()
        assert ts.truncated[:, row].tolist() == truncated.tolist()


def test_the_comparison_saw_both_kinds_of_end(played):
    env, (_, _, _, ts) = played
    assert ts.truncated.any()
    assert ts.terminated.any() or env.spec.name.startswith("Pendulum")
    assert (~ts.valid).any()


def test_states_stay_typed_and_observations_stay_in_their_space(played):
    env, (before, _, after, ts) = played
    assert [(x.dtype, x.shape) for x in jax.tree.leaves(before)] == [
        (x.dtype, x.shape) for x in jax.tree.leaves(after)
    ]
    assert ts.obs.dtype == ts.reward.dtype == np.float32
    space = env.spec.observation
    standard = ts.obs[:, :2]  # the rows with default parameters
    assert (standard >= space.low).all()
    assert (standard <= space.high).all()


def test_parameters_stay_with_their_row(played):
    env, (_, _, after, _) = played
    jax.tree.map(
        lambda kept, given: np.testing.assert_array_equal(kept, np.broadcast_to(given, kept.shape)),
        after.params,
        params_of(env.spec.name),
    )


@pytest.mark.parametrize(
    "name",
    [name if name == "CartPole-v1" else pytest.param(name, marks=pytest.mark.slow) for name in SEEN_WHOLE],
)
def test_compiled_and_plain_steps_agree(name):
    env = build(name)

    @jax.jit
    def prepare(keys):
        state, _ = env.reset(keys, params_of(name))
        chance = jax.tree.map(lambda x: x[0], env.draw(keys, state, 1))
        return state, chance, random_actions(jax.random.key(4), env.spec.action, 1)[0]

    state, chance, action = jax.device_get(prepare(jax.random.split(jax.random.key(3), N)))
    state = state._replace(over=np.arange(N) == 1, steps=np.int32([0, 9, 9, 1000]))
    compiled = jax.jit(env.step)(state, action, chance)
    with jax.disable_jit():
        plain = env.step(state, action, chance)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), compiled, plain)


@pytest.mark.parametrize("name", SEEN_WHOLE)
def test_parameters_change_the_motion_of_their_row_only(name):
    """Four copies of one row, two of them with other parameters."""
    env = BUILTIN[name]
    space = env.spec.action
    action = np.int32(0) if isinstance(space, Discrete) else np.full(space.shape, space.high, np.float32)

    @jax.jit
    def step(params):
        state = env.reset(jax.random.key(0), env.spec.params)
        return jax.vmap(lambda one: env.observe(env.step(None, state, action, one)[0], one))(params)

    obs = np.asarray(step(params_of(name)))
    np.testing.assert_array_equal(obs[0], obs[1])
    np.testing.assert_array_equal(obs[2], obs[3])
    assert (obs[0] != obs[2]).any()


@pytest.mark.parametrize("name", IN_GYMNASIUM)
def test_spaces_limits_and_first_observations_are_gymnasiums(name):
    theirs, spec = gymnasium.make(name), BUILTIN[name].spec
    np.testing.assert_allclose(spec.observation.low, theirs.observation_space.low)
    np.testing.assert_allclose(spec.observation.high, theirs.observation_space.high)
    assert spec.observation.shape == theirs.observation_space.shape
    assert spec.max_episode_steps == theirs.spec.max_episode_steps
    if isinstance(spec.action, Box):
        assert spec.action.shape == theirs.action_space.shape
        assert (theirs.action_space.low, theirs.action_space.high) == (spec.action.low, spec.action.high)
    else:
        assert spec.action.num == theirs.action_space.n
    ours = first_observations(BUILTIN[name], 2000)
    sample = np.array([theirs.reset(seed=seed)[0] for seed in range(200)])
    np.testing.assert_allclose(ours.mean(0), sample.mean(0), atol=0.2 * sample.std(0).max())
    np.testing.assert_allclose(ours.std(0), sample.std(0), atol=0.1 * sample.std(0).max())
    assert (np.abs(ours).max(0) <= 1.05 * np.abs(sample).max(0)).all()


def first_observations(env, num):
    observe = lambda key: env.observe(env.reset(key, env.spec.params), env.spec.params)
    return np.asarray(jax.jit(jax.vmap(observe))(jax.random.split(jax.random.key(0), num)))


def test_sparse_pendulum_moves_like_pendulum_and_pays_only_upright():
    params = PENDULUM.spec.params
    step, sparse_step = jax.jit(PENDULUM.step), jax.jit(PENDULUM_SPARSE.step)
    for theta, expected in [(0.0, 1), (0.3, 1), (-0.3, 1), (0.33, 0), (np.pi, 0), (2 * np.pi + 0.1, 1)]:
        state = PendulumState(*map(np.float32, (theta, 0.0, 0.0)))
        torque = np.float32([-15 * np.sin(theta) / 3])  # stands still
        dense, _, _ = jax.device_get(step(None, state, torque, params))
        sparse, reward, terminated = jax.device_get(sparse_step(None, state, torque, params))
        assert sparse == dense
        assert (float(reward), bool(terminated)) == (expected, False)


def test_full_pushes_of_the_continuous_cart_are_those_of_cartpole():
    discrete, continuous = BUILTIN["CartPole-v1"], BUILTIN["CartPoleContinuous-v0"]
    params = continuous.spec.params._replace(force=10.0)
    assert params == discrete.spec.params
    step, push_step = jax.jit(discrete.step), jax.jit(continuous.step)
    for state in 4 * np.random.default_rng(0).uniform(-0.05, 0.05, (20, 4)).astype(np.float32):
        for action, push in ((0, -1.0), (1, 1.0)):
            expected = step(None, state, np.int32(action), params)
            found = push_step(None, state, np.float32([push]), params)
            jax.tree.map(np.testing.assert_array_equal, found, expected)
    np.testing.assert_array_equal(*(env.render(state, params) for env in (discrete, continuous)))


@pytest.mark.parametrize("name", SEEN_WHOLE)
def test_pictures_follow_the_state_and_leave_it_alone(name):
    env = build(name)
    keys = jax.random.split(jax.random.key(3), N)
    state, _ = jax.device_get(jax.jit(env.reset)(keys, params_of(name)))
    moved = state._replace(state=jax.tree.map(lambda x: x + np.float32(0.3), state.state))
    before = jax.tree.map(np.array, state)
    first, second, again = env.render(state, 1), env.render(moved, 1), env.render(state, 1)
    assert first.dtype == np.uint8
    assert first.ndim == 3
    assert first.shape[2] == 3
    assert (first[..., 0] != first[..., 2]).any(), "no colour"
    assert (first != second).any()
    np.testing.assert_array_equal(first, again)
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.array, state))


@pytest.mark.parametrize("name", IN_GYMNASIUM)
def test_the_picture_is_gymnasiums(name):
    theirs = gymnasium.make(name, render_mode="rgb_array")
    theirs.reset(seed=1)
    env = BUILTIN[name]
    start = theirs.unwrapped.state
    state = begin(env, jax.random.key(0))
    leaves, kind = jax.tree.flatten(state)
    numbers = np.append(np.float32(start), [0, 0])[: sum(leaf.size for leaf in leaves)]
    state = jax.tree.unflatten(kind, numbers if len(leaves) > 1 else [numbers])
    if isinstance(env.spec.action, Box):
        theirs.step(np.zeros(1, np.float32))
        state, _, _ = jax.jit(env.step)(None, state, np.zeros(1, np.float32), env.spec.params)
    different = (theirs.render() != env.render(state, env.spec.params)).any(-1).mean()
    theirs.close()
    assert different < 0.001  # rounding of the state to float32
    assert env.render(state, env.spec.params).any(), "the cached renderer survives another's close"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("CartPole-v1", {"length": 1.0}),
        ("Acrobot-v1", {"length_1": 2.0}),
        ("MountainCar-v0", {"goal_position": 0.0}),
    ],
)
def test_parameters_one_can_see_are_in_the_picture(name, change):
    env = BUILTIN[name]
    state, params = begin(env, jax.random.key(0)), env.spec.params
    standard = env.render(state, params)
    assert (standard != env.render(state, params._replace(**change))).any()
    np.testing.assert_array_equal(standard, env.render(state, params))


def test_pendulums_picture_shows_the_torque():
    state = PendulumState(*map(jnp.float32, (0.5, 0.0, 0.0)))
    picture = lambda torque: PENDULUM.render(state._replace(torque=jnp.float32(torque)), PENDULUM.spec.params)
    assert (picture(0) != picture(2)).any()
    assert (picture(-2) != picture(2)).any()


@pytest.mark.parametrize(("display", "driver"), [(None, "dummy"), (":0", None)])
def test_a_missing_screen_is_replaced_and_a_present_one_left_alone(monkeypatch, display, driver):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("SDL_VIDEODRIVER", "WAYLAND_DISPLAY", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    before = dict(os.environ)
    _no_window()
    assert dict(os.environ) == before | ({"SDL_VIDEODRIVER": driver} if driver else {})
