"""Worlds that differ: who gets which, what they do to the motion, and what is said of mistakes."""

import itertools
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.classic import BUILTIN, CARTPOLE, PENDULUM
from shoal.envs.classic.pendulum import PendulumState
from shoal.envs.worlds import parameters
from shoal.errors import ShoalError
from shoal.types import Box, Discrete, EnvSpec
from tests.probes import counter

CART = CARTPOLE.spec
POOL = EnvSpec("CartPole-v1", "envpool", Box((4,)), Discrete(2))
KNOWN = "gravity, mass_cart, mass_pole, length, force, time_step, max_position, max_angle"


def alike(a, b):
    assert type(a) is type(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def message(function, *args):
    """The one line that a mistake is answered with."""
    with pytest.raises(ShoalError) as caught:
        function(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_the_same_worlds_are_the_defaults(name):
    spec = BUILTIN[name].spec
    params = parameters.default_worlds(spec, 3)
    assert type(params) is type(spec.params)
    for default, leaf in zip(spec.params, params, strict=True):
        assert leaf.dtype == np.float32
        np.testing.assert_array_equal(leaf, np.full(3, default, np.float32))
    alike(parameters.draw_worlds(spec, 0.0, range(3), seed=1), params)
    alike(parameters.draw_unseen_worlds(spec, 0.0, 3, seed=1), params)


def test_worlds_without_parameters_are_nothing():
    assert parameters.default_worlds(counter().spec, 4) == ()


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_drawn_worlds_differ_where_they_should_and_stay_within_bounds(name):
    spec = BUILTIN[name].spec
    params, default = (
        parameters.draw_worlds(spec, 5.0, range(200), seed=1),
        parameters.default_worlds(spec, 200),
    )
    for field in params._fields:
        found = params._asdict()[field]
        assert found.dtype == np.float32
        assert found.shape == (200,)
        if field not in spec.spread:
            np.testing.assert_array_equal(found, default._asdict()[field])
            continue
        _, low, high = np.float32(spec.spread[field])
        assert found.min() >= low
        assert found.max() <= high
        assert np.unique(found).size > 5
        assert (found == low).any(), "a spread of 5 reaches the bounds"
        assert (found == high).any() or high == np.inf


def test_a_spread_is_a_standard_deviation():
    gravity = parameters.draw_worlds(CART, 0.5, range(4000), seed=2).gravity
    assert gravity.mean() == pytest.approx(9.8, abs=0.03)
    assert gravity.std() == pytest.approx(0.5, rel=0.04)
    twice = parameters.draw_worlds(CART, 1.0, range(4000), seed=2).gravity
    np.testing.assert_allclose(twice - 9.8, 2 * (gravity - 9.8), atol=1e-5)


def test_published_ranges():
    """github.com/WaimenMak/FRL: l = clip(1 + N, .5, 1.5), m = clip(1 + N, .2, 5), and so on."""
    assert PENDULUM.spec.spread["length"] == (1, 0.5, 1.5)
    assert PENDULUM.spec.spread["mass"] == (1, 0.2, 5)
    assert BUILTIN["PendulumSparse-v1"].spec.spread == PENDULUM.spec.spread
    bounds = {"length": (1, 0.3, 2), "mass_pole": (1, 0.01, 1), "mass_cart": (1, 0.2, 2)}
    assert bounds.items() <= CART.spread.items()
    assert BUILTIN["CartPoleContinuous-v0"].spec.spread == CART.spread
    for spec in (CART, PENDULUM.spec):
        assert spec.spread["gravity"][0] == 1


def test_a_members_world_depends_on_its_number_and_the_seed_alone():
    several = parameters.draw_worlds(CART, 0.3, range(6), seed=1)
    alike(parameters.draw_worlds(CART, 0.3, [4], seed=1), jax.tree.map(lambda x: x[[4]], several))
    alike(parameters.draw_worlds(CART, 0.3, [5, 2], seed=1), jax.tree.map(lambda x: x[[5, 2]], several))
    other = parameters.draw_worlds(CART, 0.3, range(6), seed=2)
    assert not np.intersect1d(several.gravity, other.gravity).size
    assert np.unique(several.gravity).size == 6


def test_a_member_draws_its_parameters_in_the_order_of_their_names():
    noise = np.random.default_rng(np.random.SeedSequence([7, 3, 77])).standard_normal(4)
    (gravity, length, mass_cart, mass_pole) = 0.01 * noise + [9.8, 0.5, 1.0, 0.1]
    world = parameters.draw_worlds(CART, 0.01, [3], seed=7)
    expected = (gravity, mass_cart, mass_pole, length)
    np.testing.assert_allclose([x[0] for x in world[:4]], expected, rtol=1e-6)


def test_unseen_worlds_are_nobodys():
    seen, fresh = (
        parameters.draw_worlds(CART, 0.3, range(50), seed=1),
        parameters.draw_unseen_worlds(CART, 0.3, 50, seed=1),
    )
    assert np.unique(fresh.gravity).size == 50
    assert not np.intersect1d(seen.gravity, fresh.gravity).size
    alike(parameters.draw_unseen_worlds(CART, 0.3, 3, seed=1), jax.tree.map(lambda x: x[:3], fresh))


def test_mistakes_of_a_draw():
    assert message(parameters.draw_worlds, POOL, 0.1, [0], 1) == (
        "CartPole-v1 by EnvPool has no physical parameters, so its worlds cannot differ; "
        "choose one of CartPole-v1, CartPoleContinuous-v0, CartPoleNoVel-v1, Pendulum-v1, "
        "PendulumSparse-v1, PendulumNoVel-v1, Acrobot-v1, MountainCar-v0, MountainCarContinuous-v0, "
        "shoal/BipedalObstacles-v0, shoal/LunarLanderWorlds-v0, "
        "or declare some (docs/how-to/worlds-that-differ.md)"
    )
    assert "Ant-v5 by Gymnasium has no" in message(
        parameters.draw_unseen_worlds, replace(POOL, name="Ant-v5", backend="gym"), 0.1, 2, 1
    )
    assert message(parameters.draw_worlds, replace(CART, spread={}), 0.1, [0], 1) == (
        "CartPole-v1 by jax does not say how its parameters may differ; "
        "fill `EnvSpec.spread`, or give the worlds in a file"
    )
    odd = replace(CART, spread={"colour": (1.0, 0.0, 1.0)})
    assert (
        message(parameters.draw_worlds, odd, 0.1, [0], 1)
        == f"CartPole-v1: `spread` names 'colour'; it has {KNOWN}"
    )
    for spread in (-0.1, np.nan, np.inf):
        text = message(parameters.draw_worlds, CART, spread, [0], 1)
        assert text == f"env_spread must be a number of at least 0, not {spread}"


@cache
def obs_after(name):
    """What is seen after three steps."""
    env = BUILTIN[name]

    def program(params, action):
        advance = lambda state, _: (env.step(None, state, action, params)[0], None)
        start = env.reset(jax.random.key(0), env.spec.params)
        return env.observe(jax.lax.scan(advance, start, length=3)[0], params)

    compiled = jax.jit(program)
    return lambda params, action: np.asarray(compiled(jax.tree.map(np.float32, params), action))


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, env in BUILTIN.items() for field in env.spec.spread]
)
def test_what_is_spread_changes_the_motion(name, field):
    env = BUILTIN[name]
    space = env.spec.action
    action = np.int32(0) if isinstance(space, Discrete) else np.full(space.shape, space.high, np.float32)
    default = env.spec.params._asdict()[field]
    other = env.spec.params._replace(**{field: np.float32(0.9 * default)})

    after = obs_after(name)
    assert np.abs(after(other, action) - after(env.spec.params, action)).max() > 1e-6


def corners(spec):
    """Every combination of the bounds, (2^n,) per leaf; where there is no bound, three times the default."""
    bounds = []
    for name, (_, low, high) in sorted(spec.spread.items()):
        bounds.append((low, high if np.isfinite(high) else 3 * spec.params._asdict()[name]))
    columns = np.float32(list(itertools.product(*bounds))).T
    return parameters.default_worlds(spec, columns.shape[1])._replace(
        **dict(zip(sorted(spec.spread), columns, strict=True))
    )


def arrivals(env, params, policy):
    """Whether an episode terminates within its limit, (worlds, starts)."""
    starts = jax.random.split(jax.random.key(0), 200)

    def arrives(params, key):
        def advance(carry, _):
            state, over = carry
            state, _, terminated = env.step(None, state, policy(env.observe(state, params)), params)
            return (state, over | terminated), None

        start = (env.reset(key, params), jnp.bool_(False))
        return jax.lax.scan(advance, start, length=env.spec.max_episode_steps)[0][1]

    play = jax.vmap(jax.vmap(arrives, (None, 0)), (0, None))
    return np.asarray(jax.jit(play)(params, starts))


@pytest.mark.parametrize("name", ["MountainCar-v0", "MountainCarContinuous-v0"])
def test_every_mountain_can_be_climbed_but_not_by_pushing_on(name):
    env = BUILTIN[name]
    push = (lambda way: 1 + way) if name == "MountainCar-v0" else (lambda way: way[None])
    worst = corners(env.spec)
    assert not arrivals(env, worst, lambda obs: push(jnp.float32(1))).any()
    right_first = arrivals(env, worst, lambda obs: push(jnp.where(obs[1] < 0, -1.0, 1.0)))
    left_first = arrivals(env, worst, lambda obs: push(jnp.where(obs[1] <= 0, -1.0, 1.0)))
    assert (right_first | left_first).all()


def test_every_acrobot_can_be_swung_up():
    env = BUILTIN["Acrobot-v1"]
    arrived = arrivals(env, corners(env.spec), lambda obs: 1 + jnp.sign(obs[5]))
    assert arrived.shape[0] == 16
    assert arrived.mean(1).min() > 0.9


def test_gravity_pulls_a_pendulum_as_the_equation_says():
    """theta'' = 3 g / (2 l) sin theta: from rest at a quarter turn, one step gives theta'' dt."""
    params = parameters.read_worlds(PENDULUM.spec, [{"gravity": 4}, {"gravity": 4, "length": 0.5}], [0, 1])
    state = PendulumState(*np.float32([np.pi / 2, 0, 0]))
    step = jax.jit(jax.vmap(lambda world: PENDULUM.step(None, state, jnp.zeros(1), world)))
    after, _, _ = step(params)
    np.testing.assert_allclose(after.theta_dot, [6 * 0.05, 12 * 0.05], rtol=1e-6)


ONE, TWO = {"gravity": 9.8, "masscart": 4.0, "masspole": 1.0, "length": 10}, {"Mass_Cart": 2, "FORCE": 8.5}


@pytest.mark.parametrize(
    "data",
    [
        {"cartpole_parameters": {"1": ONE, "2": TWO, "3": {}}},
        {"1": ONE, "2": TWO, "3": {}},
        {"0": ONE, "1": TWO, "2": {}},
        {"worlds": {"2": {}, "0": ONE, "1": TWO}},
        {"worlds": [ONE, TWO, {}]},
        {1: ONE, 2: TWO, 3: {}},
        [ONE, TWO, {}],
    ],
)
def test_given_worlds_may_be_written_in_several_ways(data):
    params = parameters.read_worlds(CART, data, [0, 1, 2])
    expected = parameters.default_worlds(CART, 3)._replace(
        gravity=np.float32([9.8, 9.8, 9.8]),
        mass_cart=np.float32([4, 2, 1]),
        mass_pole=np.float32([1, 0.1, 0.1]),
        length=np.float32([10, 0.5, 0.5]),
        force=np.float32([10, 8.5, 10]),
    )
    alike(params, expected)
    assert all(leaf.dtype == np.float32 for leaf in params)
    alike(parameters.read_worlds(CART, data, [1]), jax.tree.map(lambda x: x[[1]], expected))
    alike(parameters.read_worlds(CART, data, [2, 0]), jax.tree.map(lambda x: x[[2, 0]], expected))


def test_a_single_learner_is_not_taken_for_a_name_around_the_learners():
    assert parameters.read_worlds(CART, {"1": {"length": 2}}, [0]).length.tolist() == [2]
    assert parameters.read_worlds(CART, {"0": {"length": 2}}, [0]).length.tolist() == [2]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"1": ONE},
            "the parameters describe 1 learner, but there is none for 2; describe learners 1 to 3",
        ),
        (
            [ONE, TWO],
            "the parameters describe 2 learners, but there is none for 2; describe learners 0 to 2",
        ),
        ({}, "the parameters describe 0 learners, but there is none for 1; describe learners 1 to 3"),
        (
            {"1": {}, "2": {}, "4": {}},
            "learners must be numbered 1, 2, ... without gaps, but 3 is missing; the keys are 1, 2, 4",
        ),
        (
            {"0": {}, "2": {}, "10": {}},
            "learners must be numbered 0, 1, ... without gaps, but 1 is missing; the keys are 0, 2, 10",
        ),
        (
            {"1": {}, "gravity": 9.8},
            'learners must be numbers, not \'gravity\'; write {"0": {...}, "1": ...}',
        ),
        (
            {"worlds": 3},
            "parameters of worlds must be an object of learners or a list, not 3; "
            'write {"0": {"gravity": 9.8}, "1": ...}',
        ),
        (
            "cartpole",
            "parameters of worlds must be an object of learners or a list, not a text; "
            'write {"0": {"gravity": 9.8}, "1": ...}',
        ),
        (
            {"1": {}, "2": [9.8], "3": {}},
            'learner 2: parameters must be an object, not a list; write {"gravity": 9.8}',
        ),
        ([{}, None, {}], 'learner 1: parameters must be an object, not null; write {"gravity": 9.8}'),
        (
            {"1": {"masskart": 1}, "2": {}, "3": {}},
            f"learner 1: no parameter 'masskart'; CartPole-v1 has {KNOWN}",
        ),
        (
            [{"masscart": 1, "mass_cart": 2}, {}, {}],
            "learner 0: mass_cart is given twice, in two spellings; keep one of them",
        ),
        ([{"length": True}, {}, {}], "learner 0: length must be a finite number, not True"),
        ([{"length": "long"}, {}, {}], "learner 0: length must be a finite number, not 'long'"),
        ([{"length": float("nan")}, {}, {}], "learner 0: length must be a finite number, not nan"),
        ([{"length": float("-inf")}, {}, {}], "learner 0: length must be a finite number, not -inf"),
        ([{"length": 1e39}, {}, {}], "learner 0: length must be a finite number, not 1e+39"),
        ([{"length": None}, {}, {}], "learner 0: length must be a finite number, not None"),
    ],
)
def test_mistakes_in_given_worlds(data, said):
    assert message(parameters.read_worlds, CART, data, [0, 1, 2]) == said


def test_worlds_cannot_be_given_where_nothing_is_physical():
    assert "CartPole-v1 by EnvPool has no physical parameters" in message(
        parameters.read_worlds, POOL, [{}], [0]
    )
    assert "counter by jax has no physical parameters" in message(
        parameters.read_worlds, counter().spec, [{}], [0]
    )
