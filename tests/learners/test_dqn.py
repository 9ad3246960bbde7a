"""DQN for one learner: its update by hand, its exploration, its target, and when it learns."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.learners import dqn, replay
from shoal.learners.context import LearnerContext
from shoal.learners.dqn import DQNConfig, Hypers
from shoal.ops import trees
from shoal.setting_names import SHORT_NAMES
from shoal.settings import with_settings
from shoal.types import Box, Discrete, EnvSpec, MultiDiscrete, PeerTargets, Rollout

KEY = jax.random.key(0)
SPEC = EnvSpec("choices", "jax", Box((3,)), Discrete(4))
BASE = {
    "num_envs": 2,
    "num_steps": 4,
    "gradient_steps": 2,
    "batch_size": 16,
    "buffer_size": 60,
    "learning_starts": 0,
    "learning_rate": 3e-3,
    "gamma": 0.9,
    "target_every": 16,
    "hidden": (5, 4),
}


@cache
def lab(num_updates=100, **changes):
    """A learner, its functions compiled, and its settings."""
    config = with_settings(DQNConfig(), **BASE | changes)
    made = dqn.dqn(config, SPEC, LearnerContext(num_updates))
    return config, made._replace(act=jax.jit(made.act), update=jax.jit(made.update))


def random_rollout(seed, scale=1.0):
    """Four steps in two environments, with an end, a cut and their resets."""
    rng = np.random.default_rng(seed)
    flag = lambda *place: jnp.zeros((4, 2), bool).at[place].set(True)
    return Rollout(
        obs=jnp.float32(rng.normal(size=(4, 2, 3))),
        action=jnp.asarray(rng.integers(0, 4, (4, 2)), jnp.int32),
        reward=jnp.float32(scale * rng.normal(size=(4, 2))),
        terminated=flag(1, 0),
        truncated=flag(0, 1),
        valid=~(flag(2, 0) | flag(1, 1)),
        last_obs=jnp.float32(rng.normal(size=(2, 3))),
    )


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


# By hand: a network is a list of (weight, bias) in double precision, with relu between them.


def layers(network):
    return [(np.float64(layer.weight), np.float64(layer.bias)) for layer in network.head.layers]


def forward(network, x):
    given = []
    for i, (weight, bias) in enumerate(network):
        given.append(x)
        x = x @ weight + bias
        x = np.maximum(x, 0) if i < len(network) - 1 else x
    return x, given


def backward(network, given, slope):
    found = []
    for i in reversed(range(len(network))):
        found.insert(0, (given[i].T @ slope, slope.sum(0)))
        slope = slope @ network[i][0].T * (given[i] > 0)
    return found


def combine(function, *networks):
    return [
        tuple(function(*leaves) for leaves in zip(*layer, strict=True))
        for layer in zip(*networks, strict=True)
    ]


class ByHand:
    """DQN in one place."""

    def __init__(self, config, params):
        self.config, self.network, self.target = config, layers(params.critic), layers(params.target_critic)
        self.mean = self.square = combine(np.zeros_like, self.network)
        self.count, self.steep = 0, 0

    def learn(self, batch, compared_values=None):
        config, rows = self.config, np.arange(len(batch.steps))
        judged = forward(self.target, batch.next_obs)[0]
        chooser = self.network if config.double else self.target
        best = np.argmax(forward(chooser, batch.next_obs)[0], 1)
        goal = np.zeros(len(rows))
        for b in rows:
            for k in range(batch.steps[b]):
                goal[b] += config.gamma**k * batch.reward[b, k]
            if not batch.terminated[b]:
                goal[b] += config.gamma ** batch.steps[b] * judged[b, best[b]]
        values, given = forward(self.network, batch.obs)
        error = values[rows, batch.action] - goal
        self.steep += np.sum(np.abs(error) > 1)
        self.loss = np.mean(np.where(np.abs(error) > 1, np.abs(error) - 0.5, 0.5 * error**2))
        slope = np.zeros_like(values)
        slope[rows, batch.action] = np.clip(error, -1, 1) / len(rows)
        gradient = backward(self.network, given, slope)
        if compared_values:
            obs, theirs, weights = compared_values
            own, given = forward(self.network, obs)
            pull = sum(2 * w * (own - x) for w, x in zip(weights, theirs, strict=True)) / len(own)
            more = backward(self.network, given, config.peers.coef * pull)
            gradient = combine(np.add, gradient, more)
        beta = config.prox_coef
        if beta:
            gradient = combine(lambda g, x, a: g + 2 * beta * (x - a), gradient, self.network, self.anchor)
        self.step(gradient)

    def step(self, gradient):
        if self.config.optimiser == "sgd":
            self.network = combine(lambda x, g: x - self.config.learning_rate * g, self.network, gradient)
            return
        self.count += 1
        self.mean = combine(lambda m, g: 0.9 * m + 0.1 * g, self.mean, gradient)
        self.square = combine(lambda v, g: 0.999 * v + 0.001 * g**2, self.square, gradient)

        def moved(x, m, v):
            m, v = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
            return x - self.config.learning_rate * m / (np.sqrt(v) + 1e-8)

        self.network = combine(moved, self.network, self.mean, self.square)


def assert_same(params, hand):
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    combine(close, layers(params.critic), hand.network)
    combine(close, layers(params.target_critic), hand.target)


def drawn(config, key, after):
    batches = replay.sample(after.private.ring, key, (config.num_gradients, config.batch_size))
    return jax.tree.map(lambda x: np.float64(x) if x.dtype == jnp.float32 else np.asarray(x), batches)


def shaken(state, seed=1):
    """A learner whose target is another network."""
    rng = np.random.default_rng(seed)
    other = jax.tree.map(lambda x: x + jnp.float32(rng.normal(0, 0.8, x.shape)), state.params.target_critic)
    return state._replace(params=state.params._replace(target_critic=other))


CASES = {
    "double": {},
    "single": {"double": False},
    "three steps": {"n_step": 3},
    "plain steps": {"optimiser": "sgd", "learning_rate": 0.1},
    "near an anchor": {"prox_coef": 0.3},
    "slow target": {"tau": 0.25, "target_every": 8},
}


@pytest.mark.parametrize("name", CASES)
def test_whole_updates_by_hand(name):
    """Five updates of 8 steps: the target moves after every 16, or 8, and by tau."""
    config, learner = lab(**CASES[name])
    state = shaken(learner.init(KEY))
    hand = ByHand(config, state.params)
    if config.prox_coef:
        anchor = learner.init(jax.random.key(9)).params
        state, hand.anchor = state._replace(anchor=anchor), layers(anchor.critic)
    for number in range(5):
        key = jax.random.fold_in(KEY, number)
        state, metrics = learner.update(key, state, random_rollout(number, scale=2.0))
        batches, losses = drawn(config, key, state), []
        for g in range(config.num_gradients):
            hand.learn(trees.take(batches, g))
            losses.append(hand.loss)
        if (number + 1) * 8 % config.target_every == 0:
            move = lambda t, x: (1 - config.tau) * t + config.tau * x
            hand.target = combine(move, hand.target, hand.network)
        assert_same(state.params, hand)
        np.testing.assert_allclose(metrics["loss/critic"], np.mean(losses), rtol=1e-4)
    assert 5 < hand.steep < 155  # both parts of Huber's loss
    if config.optimiser == "adam":
        counts = [int(x) for x in jax.tree.leaves(state.opt_state) if x.dtype == jnp.int32]
        assert counts == [10]


def test_two_ways_to_choose_are_two():
    """The cases above would not tell them apart if networks and targets agreed on the best action."""
    states = []
    for double in (True, False):
        _, learner = lab(double=double)
        states.append(learner.update(KEY, shaken(learner.init(KEY)), random_rollout(0))[0])
    assert not same(*(state.params for state in states))


def test_neighbours_pull_by_hand():
    config, learner = lab(comm_penalty_coeff=0.7)
    state, rollout = shaken(learner.init(KEY)), random_rollout(0)
    others = [learner.init(jax.random.key(seed)) for seed in (4, 5)]
    weights = [2.0, 0.5]
    opinions = [learner.policy_terms(other, rollout.obs) for other in others]
    add = lambda *x: sum(w * y for w, y in zip(weights, x, strict=True))
    peer_targets = PeerTargets(jnp.full((4, 2), 2.5), jax.tree.map(add, *opinions))
    after, metrics = learner.update(KEY, state, rollout._replace(peer_targets=(peer_targets,)))
    obs = np.float64(rollout.obs)[np.asarray(rollout.valid)]
    theirs = [forward(layers(other.params.critic), obs)[0] for other in others]
    hand, batches, costs = ByHand(config, state.params), drawn(config, KEY, after), []
    for g in range(2):
        own = forward(hand.network, obs)[0]
        costs.append(
            0.7 * np.mean(sum(w * np.sum((own - x) ** 2, 1) for w, x in zip(weights, theirs, strict=True)))
        )
        hand.learn(trees.take(batches, g), (obs, theirs, weights))
    assert_same(after.params, hand)
    np.testing.assert_allclose(metrics["loss/neighbours"], np.mean(costs), rtol=1e-4)
    agree = PeerTargets(jnp.ones((4, 2)), learner.policy_terms(state, rollout.obs))
    once = lab(comm_penalty_coeff=0.7, gradient_steps=1)[1]
    _, metrics = once.update(KEY, state, rollout._replace(peer_targets=(agree,)))
    assert abs(metrics["loss/neighbours"]) < 1e-5


# The target


def test_the_target_is_copied_when_it_is_due_and_stays_between():
    """Every 24 steps of 8: after updates 3 and 6; between them not a bit changes."""
    _, learner = lab(target_every=24)
    state = learner.init(KEY)
    for number in range(1, 8):
        before = state.params.target_critic
        state, _ = learner.update(KEY, state, random_rollout(number))
        apart = jax.tree.map(
            lambda a, b: np.abs(a - b).max(), state.params.target_critic, state.params.critic
        )
        assert (max(jax.tree.leaves(apart)) < 1e-6) == (number % 3 == 0)
        assert same(state.params.target_critic, before) == (number % 3 != 0)


def test_a_target_due_within_a_rollout_moves_after_it():
    """Every 12 of steps taken 8 at a time: at 16, 24, 40, 48."""
    _, learner = lab(target_every=12)
    state, moved = learner.init(KEY), []
    for number in range(6):
        before = state.params.target_critic
        state, _ = learner.update(KEY, state, random_rollout(number))
        moved.append(not same(before, state.params.target_critic))
    assert moved == [False, True, True, False, True, True]


# Exploration


def test_the_chance_of_a_random_action_falls_linearly_with_known_values():
    """From 1 to 0.2 over half of 100 updates of 8 steps: 400."""
    config = with_settings(
        DQNConfig(), **BASE, exploration_initial=1.0, exploration_final=0.2, exploration_fraction=0.5
    )
    setup = dqn.DQNSetup(config, SPEC, 4, num_updates=100)
    state = dqn.init(setup, KEY)
    for steps, chance in {0: 1.0, 100: 0.8, 200: 0.6, 400: 0.2, 401: 0.2, 800: 0.2}.items():
        now = state._replace(private=state.private._replace(num_steps=jnp.int32(steps)))
        np.testing.assert_allclose(dqn.exploration(setup, now), chance, rtol=1e-6)
    hypers = state.hypers._replace(exploration_initial=jnp.float32(0.6), exploration_final=jnp.float32(0.0))
    now = state._replace(private=state.private._replace(num_steps=jnp.int32(100)), hypers=hypers)
    np.testing.assert_allclose(dqn.exploration(setup, now), 0.45, rtol=1e-6)


def test_the_chance_is_reported_and_follows_the_steps():
    _, learner = lab(exploration_final=0.2, exploration_fraction=0.5)
    state, chances = learner.init(KEY), []
    for number in range(3):
        state, metrics = learner.update(KEY, state, random_rollout(number))
        chances.append(float(metrics["exploration"]))
    np.testing.assert_allclose(chances, [1 - 0.8 * s / 400 for s in (8, 16, 24)], rtol=1e-6)


def acted(learner, state, num=8000, seed=1):
    """Actions at one observation, and the greedy one."""
    obs = jnp.broadcast_to(jnp.array([0.3, -0.5, 1.0]), (num, 3))
    noise = learner.draw(jax.random.key(seed), (1, num))[0]
    greedy = int(np.argmax(np.asarray(state.params.critic(obs[0]))))
    return np.asarray(learner.act(state, obs, noise)[0]), greedy


def test_random_actions_are_uniform_and_as_frequent_as_they_should_be():
    _, learner = lab(exploration_initial=0.4, exploration_final=0.4)
    actions, greedy = acted(learner, learner.init(KEY))
    share = np.bincount(actions, minlength=4) / len(actions)
    expected = np.where(np.arange(4) == greedy, 0.6 + 0.1, 0.1)
    np.testing.assert_allclose(share, expected, atol=0.02)
    _, never = lab(exploration_initial=0.0, exploration_final=0.0)
    actions, greedy = acted(never, never.init(KEY))
    assert (actions == greedy).all()


def test_the_first_actions_are_random_whatever_the_schedule():
    _, learner = lab(exploration_initial=0.0, exploration_final=0.0, learning_starts=16)
    state = learner.init(KEY)
    actions, _ = acted(learner, state)
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / len(actions), 0.25, atol=0.025)
    for number in range(2):
        state, _ = learner.update(KEY, state, random_rollout(number))
    actions, greedy = acted(learner, state)
    assert (actions == greedy).all()


@pytest.mark.parametrize("learning_starts", [0, 1000])
def test_without_noise_every_action_is_the_best(learning_starts):
    """Whatever the chance, before learning too, in as many environments as are visited."""
    _, learner = lab(learning_starts=learning_starts)
    state = learner.for_evaluation(learner.init(KEY), 50)
    obs = jnp.float32(np.random.default_rng(0).normal(size=(50, 3)))
    action, _ = learner.act(state, obs, jnp.zeros((50, 2)))
    values = np.asarray(state.params.critic(obs))
    assert action.dtype == jnp.int32
    np.testing.assert_array_equal(action, values.argmax(1))
    assert len(np.unique(action)) > 1


def test_every_action_can_be_drawn_and_none_beyond():
    _, learner = lab(exploration_initial=1.0, learning_starts=16)
    state = learner.init(KEY)
    edge = jnp.array([[0.5, 0.0], [0.5, 0.2499], [0.5, 0.25], [0.5, 1 - 2**-24]], jnp.float32)
    assert learner.act(state, jnp.zeros((4, 3)), edge)[0].tolist() == [0, 0, 1, 3]


# When it learns, and from what


def test_nothing_is_learned_before_learning_starts():
    _, learner = lab(learning_starts=16, target_every=8)
    state = learner.init(KEY)
    after, metrics = learner.update(KEY, state, random_rollout(0))
    assert same((after.params, after.opt_state), (state.params, state.opt_state))
    assert (metrics["updates_per_step"], metrics["replay_size"], metrics["loss/total"]) == (0, 6, 0)
    after, metrics = learner.update(KEY, after, random_rollout(1))
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), state.params, after.params)
    assert all(jax.tree.leaves(changed)), changed
    assert (metrics["updates_per_step"], metrics["replay_size"]) == (2 / 8, 12)


def test_a_learner_that_remembers_nothing_learns_nothing():
    """Rollouts shorter than n_step, no random steps: the first update has no whole transition."""
    _, learner = lab(n_step=5)
    state = learner.init(KEY)
    after, metrics = learner.update(KEY, state, random_rollout(0))
    assert metrics["replay_size"] == 0
    assert same(after.params, state.params)


def test_hypers_take_effect_and_compile_nothing():
    _, learner = lab(tau=0.5, target_every=8)
    state, _ = learner.update(KEY, learner.init(KEY), random_rollout(0))
    compiled = learner.update._cache_size()
    new = {"learning_rate": 0.1, "gamma": 0.1, "tau": 0.1}
    others = {"exploration_initial", "exploration_final", "comm_penalty_coeff", "prox_coef"}
    assert {*new} | others == {*Hypers._fields}
    before, _ = learner.update(KEY, state, random_rollout(1))
    for name, value in new.items():
        changed = state._replace(hypers=state.hypers._replace(**{name: jnp.float32(value)}))
        assert not same(learner.update(KEY, changed, random_rollout(1))[0].params, before.params), name
    assert learner.update._cache_size() == compiled


def test_reset_steps_change_nothing():
    _, learner = lab(norm_obs=True, n_step=2)
    steps, state = random_rollout(0), learner.init(KEY)
    garbage = steps._replace(
        action=jnp.where(steps.valid, steps.action, 3), reward=jnp.where(steps.valid, steps.reward, 1e6)
    )
    one, two = (learner.update(KEY, state, r)[0] for r in (steps, garbage))
    assert same(one.params, two.params)
    assert same(one.private.ring, two.private.ring)
    assert one.statistics["obs"].count == 6


PICTURE = Box((36, 36, 1), 0, 255, "uint8")


def test_pictures_and_vectors_are_remembered_as_they_are_and_learned_from():
    spec = EnvSpec("seen", "jax", {"eye": PICTURE, "ear": Box((2,))}, Discrete(3))
    config = with_settings(
        DQNConfig(), **BASE | {"gradient_steps": 1, "batch_size": 2, "buffer_size": 9}, norm_obs=True
    )
    learner = dqn.dqn(config, spec, LearnerContext(10))
    rng = np.random.default_rng(0)
    eye = jnp.asarray(rng.integers(0, 256, (5, 2, 36, 36, 1)), jnp.uint8)
    ear = jnp.float32(rng.normal(size=(5, 2, 2)))
    steps = random_rollout(0)._replace(
        obs={"eye": eye[:4], "ear": ear[:4]},
        last_obs={"eye": eye[4], "ear": ear[4]},
        action=jnp.zeros((4, 2), jnp.int32),
    )
    state = learner.init(KEY)
    after, metrics = jax.jit(learner.update)(KEY, state, steps)
    data = after.private.ring.data
    assert data.obs["eye"].dtype == data.next_obs["eye"].dtype == jnp.uint8
    np.testing.assert_array_equal(data.obs["eye"][0], eye[0, 0])
    np.testing.assert_array_equal(data.next_obs["eye"][0], eye[1, 0])
    assert {*after.statistics} == {"ear"}
    assert np.isfinite(metrics["loss/total"])
    changed = jax.tree.map(
        lambda a, b: bool(np.any(a != b)), state.params.critic.encoder, after.params.critic.encoder
    )
    assert all(jax.tree.leaves(changed)), changed


# Settings


@pytest.mark.parametrize("space", [Box((2,), -1.0, 1.0), MultiDiscrete((2, 3))])
def test_actions_that_are_not_choices_are_refused_in_one_line(space):
    with pytest.raises(ShoalError, match="dqn needs discrete actions, which odd does not have") as caught:
        dqn.dqn(DQNConfig(), EnvSpec("odd", "jax", Box((3,)), space), LearnerContext(10))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"num_envs": 0},
        {"batch_size": 0},
        {"target_every": 0},
        {"n_step": 0},
        {"gradient_steps": 0},
        {"learning_starts": -1},
        {"learning_rate": 0.0},
        {"gamma": -0.1},
        {"tau": 1.5},
        {"exploration_initial": 1.5},
        {"exploration_final": -0.5},
        {"exploration_fraction": -1.0},
        {"optimiser": "magic"},
    ],
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(ShoalError, match=SHORT_NAMES.get(*change, *change)):
        with_settings(DQNConfig(), **change)


def test_learners_who_average_gradients_stay_one():
    """Each on its own batches, from its own replay."""
    config = with_settings(DQNConfig(), **BASE)
    learner = dqn.dqn(config, SPEC, LearnerContext(100, axes=("group",)))
    cohort = trees.stack([learner.init(KEY)] * 3)
    update = jax.jit(jax.vmap(learner.update, axis_name="group"))
    for number in range(3):
        rollouts = trees.stack([random_rollout(10 * number + i) for i in range(3)])
        cohort, _ = update(jax.random.split(jax.random.fold_in(KEY, number), 3), cohort, rollouts)
    params = [trees.take(cohort.params, i) for i in range(3)]
    assert same(params[0], params[1])
    assert same(params[0], params[2])
    assert not same(params[0], learner.init(KEY).params)


def test_sharing_is_the_mean_of_the_gradients():
    """One plain step of three learners is the mean of the steps that each would take alone."""
    settings = BASE | {"optimiser": "sgd", "gradient_steps": 1, "learning_rate": 0.1}
    alone, many = (
        dqn.dqn(with_settings(DQNConfig(), **settings), SPEC, LearnerContext(100, axes=a))
        for a in ((), ("group",))
    )
    cohort = trees.stack([alone.init(KEY)] * 3)
    rollouts, keys = trees.stack([random_rollout(i) for i in range(3)]), jax.random.split(KEY, 3)
    each, _ = jax.jit(jax.vmap(alone.update))(keys, cohort, rollouts)
    shared, _ = jax.jit(jax.vmap(many.update, axis_name="group"))(keys, cohort, rollouts)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    mean = jax.tree.map(lambda x: np.mean(x, 0), each.params.critic)
    jax.tree.map(close, trees.take(shared.params.critic, 0), mean)
    assert not same(trees.take(each.params, 0), trees.take(each.params, 1))
