"""TD3 for one learner: how it begins, what it does at first, its actions and their bounds, when it learns."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.adapters.jax_env import from_jax
from shoal.errors import ShoalError
from shoal.learners import replay, td3
from shoal.learners.td3 import Hypers, TD3Config
from shoal.ops import trees
from shoal.setting_names import SHORT_NAMES
from shoal.settings import with_settings
from shoal.training import rollout as collection
from shoal.types import Box, Discrete, EnvSpec, JaxEnv, MultiBinary, MultiDiscrete, Rollout

KEY = jax.random.key(0)
LOW, HIGH = np.array([-1.0, 0.5, -7.0]), np.array([3.0, 0.75, -1.0])
SPACES = {
    "two": Box((1,), -2.0, 2.0),
    "asymmetric": Box((3,), LOW, HIGH),
    "square": Box((2, 2), np.array([[-1.0, 0.0], [-2.0, -0.5]]), np.array([[3.0, 1.0], [2.0, 0.0]])),
    "number": Box((), -3.0, 1.0),
}
SMALL = {
    "num_envs": 2,
    "num_steps": 4,
    "batch_size": 8,
    "buffer_size": 40,
    "learning_starts": 16,
    "hidden": (4,),
    "learning_rate": 0.01,
}


@pytest.mark.parametrize("kind", [kind for kind in SPACES if kind != "number"])
def test_actions_fit_their_bounds_without_promoting_ranks(kind):
    """The suite forbids it (conftest.py)."""
    space = SPACES[kind]
    action = jnp.zeros((5, 2, int(np.prod(space.shape))))
    assert td3.from_bounds(space, td3.to_bounds(space, action)).shape == action.shape


def test_an_action_whose_bounds_are_equal_is_neither_learned_nor_undefined():
    """The second of three can only be 0.5: it is 0 inside, whatever an actor says, and 0.5 outside."""
    space = Box((3,), np.array([-1.0, 0.5, 0.0]), np.array([1.0, 0.5, 2.0]))
    setup = td3.TD3Setup(with_settings(TD3Config(), **SMALL), EnvSpec("fixed", "jax", Box((3,)), space), 3)
    chosen = td3.policy(setup, lambda obs: jnp.full((1, 3), 0.3), jnp.zeros((1, 3)))
    np.testing.assert_allclose(chosen, [[np.tanh(0.3), 0.0, np.tanh(0.3)]], rtol=1e-6)
    outside = td3.to_bounds(space, jnp.array([[0.5, 0.7, -0.5]]))
    np.testing.assert_allclose(outside, [[0.5, 0.5, 0.5]])
    np.testing.assert_allclose(td3.from_bounds(space, outside), [[0.5, 0.0, -0.5]])


def spec(kind="asymmetric", shape=(3,)):
    return EnvSpec(kind, "jax", Box(shape), SPACES[kind])


@cache
def lab(kind="asymmetric", **changes):
    """A learner, its functions compiled."""
    made = td3.td3(with_settings(TD3Config(), **SMALL | changes), spec(kind))
    return made._replace(init=jax.jit(made.init), act=jax.jit(made.act), update=jax.jit(made.update))


def rollout(seed=0, kind="asymmetric", num_steps=4, num_envs=2):
    """Random steps without an end."""
    rng, space = np.random.default_rng(seed), SPACES[kind]
    shape = (num_steps, num_envs)
    never = jnp.zeros(shape, bool)
    return Rollout(
        obs=jnp.float32(rng.normal(size=(*shape, 3))),
        action=jnp.float32(rng.uniform(space.low, space.high, (*shape, *space.shape))),
        reward=jnp.float32(rng.normal(size=shape)),
        terminated=never,
        truncated=never,
        valid=~never,
        last_obs=jnp.float32(rng.normal(size=(num_envs, 3))),
    )


def ready(state):
    """The same learner, past its random steps."""
    buffer = state.private.buffer._replace(warming_up=jnp.bool_(False))
    return state._replace(private=state.private._replace(buffer=buffer))


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def within(space, action):
    """In units of the bounds: -1 is low, 1 is high. Written again, for NumPy."""
    low, high = (np.broadcast_to(np.float64(x), space.shape) for x in (space.low, space.high))
    return 2 * (np.float64(action) - low) / (high - low) - 1


# Beginnings


def test_the_critics_differ_and_the_targets_are_the_networks():
    params = lab().init(KEY).params
    first, second = params.critic
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert a.shape == b.shape
        assert not a.any() or not np.isclose(a, b).any()
    assert any(leaf.any() for leaf in jax.tree.leaves(first))
    assert same(params.target_actor, params.actor)
    assert same(params.target_critic, params.critic)
    assert not same(params, lab().init(jax.random.key(1)).params)
    assert params.critic[0].head.layers[0].weight.shape == (3 + 3, 4)
    assert params.actor.head.layers[-1].weight.shape == (4, 3)


def test_the_actors_rate_is_the_critics_unless_given():
    assert lab().init(KEY).hypers.actor_learning_rate == np.float32(0.01)
    hypers = td3.td3(with_settings(TD3Config(), **SMALL, actor_learning_rate=0.5), spec()).init(KEY).hypers
    assert (float(hypers.learning_rate), float(hypers.actor_learning_rate)) == (np.float32(0.01), 0.5)


@pytest.mark.parametrize("own", [None, 0.01])
def test_a_changed_rate_is_the_actors_too_unless_it_has_its_own(own):
    learner = lab(learning_starts=0, policy_delay=1, actor_learning_rate=own)
    state, _ = learner.update(KEY, learner.init(KEY), rollout())
    still = state._replace(hypers=state.hypers._replace(learning_rate=jnp.float32(0.0)))
    after, _ = learner.update(KEY, still, rollout(1))
    assert same(after.params.critic, state.params.critic)
    assert same(after.params.actor, state.params.actor) == (own is None)


@pytest.mark.parametrize(
    "space",
    [Discrete(3), MultiDiscrete((2, 3)), MultiBinary(2), Box((2,)), Box((2,), [-1.0, -np.inf], 1.0)],
)
def test_actions_without_bounds_are_refused_in_one_line(space):
    with pytest.raises(ShoalError, match="td3 needs continuous actions between bounds, which odd ") as caught:
        td3.td3(TD3Config(), EnvSpec("odd", "jax", Box((3,)), space))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"num_envs": 0},
        {"num_steps": 0},
        {"batch_size": 0},
        {"buffer_size": 0},
        {"n_step": 0},
        {"policy_delay": 0},
        {"gradient_steps": 0},
        {"learning_starts": -1},
        {"learning_rate": 0.0},
        {"gamma": 1.1},
        {"tau": 0.0},
        {"comm_penalty_coeff": -1.0},
        {"prox_coef": -1.0},
        {"ou_theta": 0.0},
        {"exploration": "levy"},
        {"prox_form": "dreams"},
    ],
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(ShoalError, match=SHORT_NAMES.get(*change, *change)):
        with_settings(TD3Config(), **change)


@pytest.mark.parametrize("change", [{"actor_learning_rate": 0.0}, {"actor_learning_rate": -1.0}])
def test_an_impossible_rate_of_the_actors_is_refused(change):
    with pytest.raises(ShoalError, match="learning_rate"):
        with_settings(TD3Config(), **change)


# Actions


@pytest.mark.parametrize("kind", SPACES)
def test_random_actions_are_uniform_between_the_bounds_and_not_the_policys(kind):
    learner, space = lab(kind, num_envs=4000), SPACES[kind]
    state = learner.init(KEY)
    noise = learner.draw(jax.random.key(1), (1, 4000))[0]
    action, _ = learner.act(state, jnp.ones((4000, 3)), noise)
    assert action.shape == (4000, *space.shape)
    units = within(space, action).reshape(4000, -1)
    assert np.abs(units).max() <= 1 + 1e-5
    for column in units.T:
        quantiles = np.quantile(column, np.linspace(0.1, 0.9, 9))
        np.testing.assert_allclose(quantiles, np.linspace(-0.8, 0.8, 9), atol=0.08)
    if units.shape[1] > 1:
        assert np.abs(np.corrcoef(units.T) - np.eye(units.shape[1])).max() < 0.08
    other = state._replace(params=jax.tree.map(lambda x: x + 1.0, state.params))
    same_action, _ = learner.act(other, -jnp.ones((4000, 3)), noise)
    np.testing.assert_array_equal(same_action, action)


@pytest.mark.parametrize("kind", SPACES)
def test_noise_has_its_deviation_in_units_of_half_the_range(kind):
    learner, space = lab(kind, num_envs=4000), SPACES[kind]
    state = ready(learner.init(KEY))
    obs = jnp.broadcast_to(jnp.array([0.3, -0.2, 0.1]), (4000, 3))
    noise = learner.draw(jax.random.key(1), (1, 4000))[0]
    greedy, _ = learner.act(state, obs, jnp.zeros_like(noise))
    np.testing.assert_array_equal(greedy, np.broadcast_to(greedy[:1], greedy.shape))
    by_hand = np.tanh(np.float64(state.params.actor(obs)))
    np.testing.assert_allclose(within(space, greedy).reshape(4000, -1), by_hand, atol=1e-5)
    for deviation in (0.1, 0.02):
        now = state._replace(hypers=state.hypers._replace(exploration_noise=jnp.float32(deviation)))
        apart = within(space, learner.act(now, obs, noise)[0]) - within(space, greedy)
        np.testing.assert_allclose(apart.std(0), deviation, rtol=0.06)
        np.testing.assert_allclose(apart.mean(0), 0, atol=0.1 * deviation)
    wild = state._replace(hypers=state.hypers._replace(exploration_noise=jnp.float32(9.0)))
    units = within(space, learner.act(wild, obs, noise)[0])
    assert np.abs(units).max() <= 1 + 1e-5
    assert np.mean(np.abs(units) > 0.999) > 0.8


@pytest.mark.parametrize("exploration", ["gaussian", "ou"])
def test_a_visitor_without_noise_is_greedy_even_before_it_has_learned(exploration):
    """In as many environments as it likes, with the noise of training forgotten."""
    learner = lab(exploration=exploration)
    state = learner.init(KEY)
    obs = jnp.float32(np.random.default_rng(0).normal(size=(5, 3)))
    for noise in learner.draw(KEY, (3, 2)):
        _, memory = learner.act(state, obs[:2], noise)
        state = state._replace(private=memory)
    visitor = learner.for_evaluation(state, 5)
    expected = np.tanh(np.float64(state.params.actor(obs)))
    for _ in range(3):
        action, memory = learner.act(visitor, obs, jnp.zeros((5, 3)))
        visitor = visitor._replace(private=memory)
        np.testing.assert_allclose(within(SPACES["asymmetric"], action), expected, atol=1e-5)
    assert same(visitor.params, state.params)


@cache
def wandering(theta):
    """Exploration by itself, (T, E): what is added to the greedy action, in units of its deviation."""
    learner = lab("two", num_envs=400, exploration="ou", ou_theta=theta, exploration_noise=0.01)
    state = ready(learner.init(KEY))
    obs = jnp.zeros((400, 3))
    centre = within(
        SPACES["two"], learner.act(learner.for_evaluation(state, 400), obs, jnp.zeros((400, 1)))[0]
    )

    def body(memory, noise):
        action, memory = learner.act(state._replace(private=memory), obs, noise)
        return memory, action

    noise = learner.draw(jax.random.key(1), (120, 400))
    _, actions = jax.lax.scan(body, state.private, noise)
    return (within(SPACES["two"], actions)[..., 0] - centre[None, :, 0]) / 0.01


@pytest.mark.parametrize("theta", [0.15, 0.5, 1.0])
def test_wandering_noise_has_its_deviation_and_forgets_at_its_rate(theta):
    """corr(x_t, x_{t+k}) = (1 - theta)^k, for each environment by itself."""
    late = wandering(theta)[40:]
    np.testing.assert_allclose(late.std(), 1, atol=0.05)
    for k in (1, 2, 5):
        found = np.mean(late[k:] * late[:-k]) / np.mean(late**2)
        np.testing.assert_allclose(found, (1 - theta) ** k, atol=0.05)
    assert abs(np.mean(late[:, 1:] * late[:, :-1])) < 0.05


def test_wandering_noise_has_its_deviation_from_the_first_step():
    np.testing.assert_allclose(wandering(0.15)[0].std(), 1, atol=0.15)


def test_random_actions_are_uniform_whatever_the_exploration():
    """By the standard deviation of the first, 1 / sqrt 3, and that the next knows nothing of it."""
    learner = lab("two", num_envs=4000, exploration="ou")
    state = learner.init(KEY)
    units = []
    for noise in learner.draw(KEY, (2, 4000)):
        action, memory = learner.act(state, jnp.zeros((4000, 3)), noise)
        state = state._replace(private=memory)
        units.append(within(SPACES["two"], action)[:, 0])
    np.testing.assert_allclose(units[0].std(), 3**-0.5, rtol=0.05)
    assert abs(np.corrcoef(*units)[0, 1]) < 0.1


@pytest.mark.parametrize("kind", SPACES)
def test_what_the_environment_gets_is_what_is_remembered(kind):
    """Within the bounds before any clipping, of the right shape, and in the replay in units of them."""
    space = SPACES[kind]
    echo = JaxEnv(
        EnvSpec("echo", "jax", Box(space.shape), space, max_episode_steps=3),
        reset=lambda key, params: jnp.zeros(space.shape),
        step=lambda key, state, action, params: (action, jnp.sum(action), jnp.bool_(False)),
        observe=lambda state, params: state,
    )
    made = td3.td3(
        with_settings(TD3Config(), **SMALL | {"num_envs": 4, "num_steps": 8, "exploration_noise": 2.0}),
        echo.spec,
    )
    env = from_jax(echo).build(np.zeros((1, 4), np.uint32), False)
    play = jax.jit(partial(collection.collect, env, made, 8))
    keys = jax.random.split(KEY, (1, 4))
    cohort, worlds = jax.vmap(made.init)(keys[:, 0]), collection.reset_envs(env, keys, ())
    update = jax.jit(jax.vmap(made.update, (0, 0, Rollout(1, 1, 1, 1, 1, 1, 0, 1, 1))))
    for number in range(3):  # random ones, then the policy's with large noise
        now = jax.random.split(jax.random.fold_in(KEY, number), 1)
        worlds, cohort, seen = play(now, cohort, worlds)
        action = np.asarray(seen.action)
        assert (action >= np.float32(space.low)).all()
        assert (action <= np.float32(space.high)).all()
        assert action.shape == (8, 1, 4, *space.shape)
        cohort, _ = update(now, cohort, seen)
    kept = jax.tree.map(lambda x: np.asarray(x[0]), cohort.private.buffer.ring)
    stored = min(int(kept.count), 40)
    assert kept.data.action.shape == (40, max(1, int(np.prod(space.shape))))
    landed = within(space, kept.data.next_obs[:stored]).reshape(stored, -1)
    np.testing.assert_allclose(kept.data.action[:stored], landed, atol=1e-5)
    assert np.abs(kept.data.action).max() <= 1 + 1e-5


def test_smoothing_stays_within_asymmetric_bounds():
    """The target's action is clipped at the bounds, in whatever units: never beyond -1 or 1."""
    met = []
    learner = lab()
    state = ready(learner.init(KEY))

    class Spy:
        def __call__(self, obs, action):
            met.append(action)
            return jnp.zeros(action.shape[:-1])

    batch = replay.sample(state.private.buffer.ring, KEY, (64,))
    hypers = state.hypers._replace(target_noise=jnp.float32(3.0), target_noise_clip=jnp.float32(2.5))
    spied = state.params._replace(target_critic=(Spy(), Spy()))
    noise = jax.random.normal(KEY, (64, 3))
    td3.targets(td3.TD3Setup(with_settings(TD3Config(), **SMALL), spec(), 3), hypers, spied, batch, noise)
    (first, second) = met
    np.testing.assert_array_equal(first, second)
    assert np.abs(first).max() == 1
    centre = np.tanh(np.asarray(state.params.actor(batch.next_obs)))
    expected = np.clip(centre + np.clip(3.0 * np.asarray(noise), -2.5, 2.5), -1, 1)
    np.testing.assert_allclose(first, expected, atol=1e-5)


# When it learns


def test_nothing_is_learned_before_learning_starts():
    """16 steps of 2 x 4 each: the first update changes no bit, the second does."""
    learner = lab()
    state = learner.init(KEY)
    after, metrics = learner.update(KEY, state, rollout(0))
    assert same((after.params, after.opt_state, after.hypers), (state.params, state.opt_state, state.hypers))
    assert (metrics["updates_per_step"], metrics["replay_size"]) == (0, 8)
    assert metrics["loss/critic"] == metrics["loss/total"] == 0
    assert bool(after.private.buffer.warming_up)
    assert after.private.num_gradients == 0
    after, metrics = learner.update(KEY, after, rollout(1))
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), state.params, after.params)
    assert all(jax.tree.leaves(changed)), changed
    assert (metrics["updates_per_step"], metrics["replay_size"]) == (1, 16)
    assert metrics["loss/critic"] > 0
    assert not after.private.buffer.warming_up
    assert after.private.num_gradients == 8


@pytest.mark.parametrize("gradient_steps", [1, 6])
def test_the_ratio_of_updates_to_steps_is_told(gradient_steps):
    learner = lab(gradient_steps=gradient_steps, learning_starts=0)
    state, metrics = learner.update(KEY, learner.init(KEY), rollout())
    assert metrics["updates_per_step"] == np.float32(gradient_steps / 8)
    for number in range(1, 6):
        state, metrics = learner.update(KEY, state, rollout(number))
    assert metrics["replay_size"] == 40  # of 48
    assert state.private.buffer.num_steps == 48


def test_a_learner_that_remembers_nothing_learns_nothing():
    """Rollouts shorter than n_step, no random steps: the first update has no whole transition."""
    learner = lab(n_step=5, learning_starts=0)
    state = learner.init(KEY)
    after, metrics = learner.update(KEY, state, rollout())
    assert metrics["replay_size"] == 0
    assert same(after.params, state.params)


def test_two_updates_of_one_step_are_one_of_two():
    """With a delay of 2, fed the same batches and noise: the actor moves in the second, on its batch."""
    batches = replay.sample(filled(), jax.random.key(7), (4, 8))
    noise = jax.random.normal(jax.random.key(8), (4, 8, 3))
    ones, twos, four = (
        td3.TD3Setup(with_settings(TD3Config(), **SMALL | {"gradient_steps": n}), spec(), 3)
        for n in (1, 2, 4)
    )

    def fed(setup, sizes):
        state, start = td3.init(setup, KEY), 0
        learn = jax.jit(partial(td3.learn, setup))
        moved = []
        for size in sizes:
            part = jax.tree.map(lambda x, a=start, b=start + size: x[a:b], (batches, noise))
            before = state.params
            (params, opt_state), _ = learn(state, rollout(), *part)
            done = state.private.num_gradients + size
            state = state._replace(
                params=params, opt_state=opt_state, private=state.private._replace(num_gradients=done)
            )
            moved.append(not same(before.actor, params.actor))
            assert moved[-1] == (not same(before.target_critic, params.target_critic))
            start += size
        return state, moved

    one, moved = fed(ones, [1, 1, 1, 1])
    assert moved == [False, True, False, True]
    two, _ = fed(twos, [2, 2])
    all_at_once, _ = fed(four, [4])
    for other in (two, all_at_once):
        close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
        jax.tree.map(close, (one.params, one.opt_state), (other.params, other.opt_state))


def filled():
    """A replay of 16 random transitions."""
    learner = lab(learning_starts=1000)
    state = learner.init(KEY)
    for seed in range(2):
        state, _ = learner.update(KEY, state, rollout(seed))
    return state.private.buffer.ring


def test_hypers_take_effect_and_compile_nothing():
    learner = lab(learning_starts=0, policy_delay=2, target_noise=0.1, actor_learning_rate=0.01)
    state, _ = learner.update(KEY, learner.init(KEY), rollout())
    compiled = learner.update._cache_size()
    new = {
        "learning_rate": 0.1,
        "actor_learning_rate": 0.1,
        "gamma": 0.1,
        "tau": 0.5,
        "target_noise": 0.9,
        "target_noise_clip": 0.01,
    }
    assert {*new, "exploration_noise", "comm_penalty_coeff", "prox_coef"} == {*Hypers._fields}
    assert all(leaf.shape == () for leaf in jax.tree.leaves(state.hypers))
    before, _ = learner.update(KEY, state, rollout(1))
    for name, value in new.items():
        changed = state._replace(hypers=state.hypers._replace(**{name: jnp.float32(value)}))
        after, _ = learner.update(KEY, changed, rollout(1))
        assert not same(after.params, before.params), name
        if name == "learning_rate":  # the actor's own is another
            assert not same(after.params.critic, before.params.critic)
        if name == "actor_learning_rate":
            assert not same(after.params.actor, before.params.actor)
    assert learner.update._cache_size() == compiled


def test_reset_steps_change_nothing():
    """What was seen and done in them, and what they paid, reaches neither replay nor learning."""
    learner = lab(learning_starts=0, norm_obs=True, n_step=2)
    steps = rollout()
    flag = lambda *place: jnp.zeros((4, 2), bool).at[place].set(True)
    steps = steps._replace(truncated=flag(1, 0), valid=~flag(2, 0))
    garbage = steps._replace(
        action=jnp.where((~steps.valid)[..., None], 99.0, steps.action),
        reward=jnp.where(steps.valid, steps.reward, 1e6),
    )
    state = learner.init(KEY)
    after = [learner.update(KEY, state, r)[0] for r in (steps, garbage)]
    assert same(*(a.params for a in after))
    assert same(*(a.private.buffer.ring for a in after))
    assert same(*(a.statistics for a in after))
    assert after[0].statistics["obs"].count == 7


def test_opinions_and_distances_are_of_actions_in_units_of_the_bounds():
    learner = lab()
    one, two = (learner.init(jax.random.key(seed)) for seed in (0, 1))
    obs = jnp.float32(np.random.default_rng(0).normal(size=(4, 2, 3)))
    a, b = (np.tanh(np.float64(s.params.actor(obs))) for s in (one, two))
    actions, squares = learner.policy_terms(one, obs)
    np.testing.assert_allclose(actions, a, atol=1e-6)
    np.testing.assert_allclose(squares, np.sum(a**2, -1), rtol=1e-5)
    np.testing.assert_allclose(
        learner.distance(one, two, obs), np.sum((a - b) ** 2, -1), rtol=1e-4, atol=1e-6
    )
    assert not np.any(learner.distance(one, one, obs))
    assert trees.size(learner.distance(one, two, obs)) == 8
