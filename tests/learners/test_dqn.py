"""DQN for one learner: its update by hand, its exploration, its target, and when it learns."""

from functools import cache, partial

import jax
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
from tests.learners.by_hand import Adam, backward, combine, forward, layers, wide
from tests.learners.lab import drawn_by_numpy, stack

KEY = jax.random.key(0)
SPEC = EnvSpec("choices", "jax", Box((3,)), Discrete(4))
BASE = {
    "num_envs": 2,
    "num_steps": 4,
    "gradient_steps": 2,
    "batch_size": 16,
    "buffer_size": 60,
    "learning_starts": 16,
    "learning_rate": 3e-3,
    "gamma": 0.9,
    "target_every": 16,
    "hidden": (5, 4),
    "exploration_fraction": 0.5,
}


@cache
def lab(num_updates=100, **changes):
    """A learner, its functions compiled, and its settings."""
    config = with_settings(DQNConfig(), **BASE | changes)
    made = dqn.dqn(config, SPEC, LearnerContext(num_updates))
    init = drawn_by_numpy(made.init)
    return config, made._replace(init=init, act=jax.jit(made.act), update=jax.jit(made.update))


def ready(state):
    """The same learner after 48 steps, past the random ones."""
    return state._replace(private=state.private._replace(warming_up=np.bool_(False), num_steps=np.int32(48)))


def changed(state, **hypers):
    new = {name: np.float32(number) for name, number in hypers.items()}
    return state._replace(hypers=state.hypers._replace(**new))


def random_rollout(seed, scale=1.0):
    """Four steps in two environments, with an end, a cut and their resets."""
    rng = np.random.default_rng(seed)

    def flag(*place):
        flags = np.zeros((4, 2), bool)
        flags[place] = True
        return flags

    return Rollout(
        obs=np.float32(rng.normal(size=(4, 2, 3))),
        action=rng.integers(0, 4, (4, 2)).astype(np.int32),
        reward=np.float32(scale * rng.normal(size=(4, 2))),
        terminated=flag(1, 0),
        truncated=flag(0, 1),
        valid=~(flag(2, 0) | flag(1, 1)),
        last_obs=np.float32(rng.normal(size=(2, 3))),
    )


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


class ByHand:
    """DQN in one place."""

    def __init__(self, config, params):
        self.config, self.network, self.target = config, layers(params.critic), layers(params.target_critic)
        self.adam, self.steep = Adam(config.optimiser, config.learning_rate), 0

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
        gradient, _ = backward(self.network, given, slope)
        if compared_values:
            obs, theirs, weights = compared_values
            own, given = forward(self.network, obs)
            pull = sum(2 * w * (own - x) for w, x in zip(weights, theirs, strict=True)) / len(own)
            more, _ = backward(self.network, given, config.peers.coef * pull)
            gradient = combine(np.add, gradient, more)
        beta = config.prox_coef
        if beta:
            gradient = combine(lambda g, x, a: g + 2 * beta * (x - a), gradient, self.network, self.anchor)
        self.network = self.adam.step(self.network, gradient)


def assert_same(params, hand):
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    combine(close, layers(params.critic), hand.network)
    combine(close, layers(params.target_critic), hand.target)


def drawn(config, key, after):
    return wide(draws(after.private.ring, key, (config.num_gradients, config.batch_size)))


draws = jax.jit(replay.sample, static_argnums=2)


def shaken(state, seed=1):
    """A learner whose target is another network."""
    rng = np.random.default_rng(seed)
    other = jax.tree.map(lambda x: x + np.float32(rng.normal(0, 0.8, x.shape)), state.params.target_critic)
    return state._replace(params=state.params._replace(target_critic=other))


CASES = {
    "double": {},
    "single": {"double": False},
    "three plain steps": {"n_step": 3, "optimiser": "sgd", "learning_rate": 0.1},
    "near an anchor": {"prox_coef": 0.3},
    "slow target": {"tau": 0.25, "target_every": 12},
}


@pytest.mark.parametrize("name", CASES)
def test_whole_updates_by_hand(name):
    """Five updates of 8 steps: the target moves after every 16, or 12, and by tau."""
    config, learner = lab(**CASES[name])
    state = ready(shaken(learner.init(KEY)))
    hand = ByHand(config, state.params)
    if config.prox_coef:
        anchor = learner.init(jax.random.key(9)).params
        state, hand.anchor = state._replace(anchor=anchor), layers(anchor.critic)
    for number in range(5):
        key = jax.random.key(number)
        state, metrics = jax.device_get(learner.update(key, state, random_rollout(number, scale=2.0)))
        batches, losses = drawn(config, key, state), []
        for g in range(config.num_gradients):
            hand.learn(trees.take(batches, g))
            losses.append(hand.loss)
        if (number + 1) * 8 % config.target_every < 8:
            move = lambda t, x: (1 - config.tau) * t + config.tau * x
            hand.target = combine(move, hand.target, hand.network)
        assert_same(state.params, hand)
        np.testing.assert_allclose(metrics["loss/critic"], np.mean(losses), rtol=1e-4)
    assert 5 < hand.steep < 155  # both parts of Huber's loss
    if config.optimiser == "adam":
        counts = [int(x) for x in jax.tree.leaves(state.opt_state) if x.dtype == np.int32]
        assert counts == [10]


def test_double_estimates_differ_from_single_ones():
    """The cases above would not tell them apart if networks and targets agreed on the best action."""
    states = []
    for name in ("double", "single"):
        _, learner = lab(**CASES[name])
        states.append(learner.update(KEY, ready(shaken(learner.init(KEY))), random_rollout(0))[0])
    assert not same(*(state.params for state in states))


def test_the_neighbours_penalty_by_hand():
    config, learner = lab(comm_penalty_coeff=0.7)
    state, rollout = ready(shaken(learner.init(KEY))), random_rollout(0)
    others = [learner.init(jax.random.key(seed)) for seed in (4, 5)]
    weights = [2.0, 0.5]
    terms = jax.jit(learner.policy_terms)
    opinions = [jax.device_get(terms(other, rollout.obs)) for other in others]
    add = lambda *x: sum(w * y for w, y in zip(weights, x, strict=True))
    peer_targets = PeerTargets(np.full((4, 2), 2.5, np.float32), jax.tree.map(add, *opinions))
    heard = rollout._replace(peer_targets=(peer_targets,))
    after, metrics = jax.device_get(learner.update(KEY, state, heard))
    obs = np.float64(rollout.obs)[rollout.valid]
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
    agree = PeerTargets(np.ones((4, 2), np.float32), terms(state, rollout.obs))
    still = changed(state, learning_rate=0.0)
    _, metrics = learner.update(KEY, still, rollout._replace(peer_targets=(agree,)))
    assert abs(metrics["loss/neighbours"]) < 1e-5


# The target


def test_the_target_is_copied_when_it_is_due_and_stays_between():
    """Every 16 steps of 8: after updates 2, 4 and 6; between them not a bit changes."""
    _, learner = lab()
    state = ready(learner.init(KEY))
    for number in range(1, 8):
        before = state.params.target_critic
        state, _ = jax.device_get(learner.update(KEY, state, random_rollout(number)))
        apart = jax.tree.map(
            lambda a, b: np.abs(a - b).max(), state.params.target_critic, state.params.critic
        )
        assert (max(jax.tree.leaves(apart)) < 1e-6) == (number % 2 == 0)
        assert same(state.params.target_critic, before) == (number % 2 != 0)


def test_a_target_due_within_a_rollout_moves_after_it():
    """Every 12 of steps taken 8 at a time: at 16, 24, 40, 48."""
    _, learner = lab(**CASES["slow target"])
    state, moved = ready(learner.init(KEY)), []
    for number in range(6):
        before = state.params.target_critic
        state, _ = learner.update(KEY, state, random_rollout(number))
        moved.append(not same(before, state.params.target_critic))
    assert moved == [False, True, True, False, True, True]


# Exploration


def test_the_chance_of_a_random_action_falls_linearly_with_known_values():
    """From 1 to 0.2 over half of 100 updates of 8 steps: 400."""
    setup = dqn.DQNSetup(with_settings(DQNConfig(), **BASE), SPEC, 4, num_updates=100)
    state = changed(ready(lab()[1].init(KEY)), exploration_initial=1.0, exploration_final=0.2)
    at = lambda state, steps: state._replace(private=state.private._replace(num_steps=np.int32(steps)))
    exploration = jax.jit(partial(dqn.epsilon, setup))
    for steps, chance in {0: 1.0, 100: 0.8, 200: 0.6, 400: 0.2, 401: 0.2, 800: 0.2}.items():
        np.testing.assert_allclose(exploration(at(state, steps)), chance, rtol=1e-6)
    now = at(changed(state, exploration_initial=0.6, exploration_final=0.0), 100)
    np.testing.assert_allclose(exploration(now), 0.45, rtol=1e-6)


def test_a_policy_that_is_taken_elsewhere_keeps_its_chance():
    """After 48 of the 400 steps from 1 to 0.05."""
    setup, learner = dqn.DQNSetup(with_settings(DQNConfig(), **BASE), SPEC, 4, num_updates=100), lab()[1]
    state = learner.for_evaluation(ready(learner.init(KEY)), 3)
    assert float(dqn.epsilon(setup, state)) == pytest.approx(1 - 0.95 * 48 / 400)


def test_the_chance_is_reported_and_follows_the_steps():
    _, learner = lab()
    state, chances = changed(ready(learner.init(KEY)), exploration_final=0.2), []
    for number in range(3):
        state, metrics = learner.update(KEY, state, random_rollout(number))
        chances.append(float(metrics["exploration"]))
    np.testing.assert_allclose(chances, [1 - 0.8 * s / 400 for s in (56, 64, 72)], rtol=1e-6)


def values_of(state, obs):
    """Of all actions, by hand."""
    return forward(layers(state.params.critic), np.float64(obs))[0]


def acted(learner, state, num=8000, seed=1):
    """Actions at one observation, and the greedy one."""
    obs = np.broadcast_to(np.float32([0.3, -0.5, 1.0]), (num, 3))
    noise = np.asarray(learner.draw(jax.random.key(seed), (1, num)))[0]
    greedy = int(np.argmax(values_of(state, obs[:1])))
    return np.asarray(learner.act(state, obs, noise)[0]), greedy


def test_random_actions_are_uniform_and_as_frequent_as_they_should_be():
    _, learner = lab()
    state = ready(learner.init(KEY))
    actions, greedy = acted(learner, changed(state, exploration_initial=0.4, exploration_final=0.4))
    share = np.bincount(actions, minlength=4) / len(actions)
    expected = np.where(np.arange(4) == greedy, 0.6 + 0.1, 0.1)
    np.testing.assert_allclose(share, expected, atol=0.02)
    actions, greedy = acted(learner, changed(state, exploration_initial=0.0, exploration_final=0.0))
    assert (actions == greedy).all()


def test_the_first_actions_are_random_whatever_the_schedule():
    _, learner = lab()
    state = changed(learner.init(KEY), exploration_initial=0.0, exploration_final=0.0)
    actions, _ = acted(learner, state)
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / len(actions), 0.25, atol=0.025)
    for number in range(2):
        state, _ = jax.device_get(learner.update(KEY, state, random_rollout(number)))
    actions, greedy = acted(learner, state)
    assert (actions == greedy).all()


@pytest.mark.parametrize("past", [True, False])
def test_without_noise_every_action_is_the_best(past):
    """Whatever the chance, before learning too, in as many environments as are visited."""
    _, learner = lab()
    state = learner.init(KEY)
    state = learner.for_evaluation(ready(state) if past else state, 50)
    obs = np.float32(np.random.default_rng(0).normal(size=(50, 3)))
    action, _ = learner.act(state, obs, np.zeros((50, 2), np.float32))
    assert action.dtype == np.int32
    np.testing.assert_array_equal(action, values_of(state, obs).argmax(1))
    assert len(np.unique(action)) > 1


def test_every_action_can_be_drawn_and_none_beyond():
    _, learner = lab()
    edge = np.float32([[0.5, 0.0], [0.5, 0.2499], [0.5, 0.25], [0.5, 1 - 2**-24]])
    assert learner.act(learner.init(KEY), np.zeros((4, 3), np.float32), edge)[0].tolist() == [0, 0, 1, 3]


# When it learns, and from what


def test_nothing_is_learned_before_learning_starts():
    _, learner = lab()
    state = learner.init(KEY)
    after, metrics = learner.update(KEY, state, random_rollout(0))
    assert same((after.params, after.opt_state), (state.params, state.opt_state))
    assert (metrics["updates_per_step"], metrics["replay_size"], metrics["loss/total"]) == (0, 6, 0)
    after, metrics = jax.device_get(learner.update(KEY, after, random_rollout(1)))
    different = jax.tree.map(lambda a, b: bool(np.any(a != b)), state.params, after.params)
    assert all(jax.tree.leaves(different)), different
    assert (metrics["updates_per_step"], metrics["replay_size"]) == (2 / 8, 12)


def test_an_empty_buffer_teaches_nothing():
    """Rollouts shorter than n_step, no random steps: the first update has no whole transition."""
    _, learner = lab(n_step=5, norm_obs=True)
    state = ready(learner.init(KEY))
    after, metrics = learner.update(KEY, state, random_rollout(0))
    assert metrics["replay_size"] == 0
    assert same(after.params, state.params)


def test_hypers_take_effect_and_compile_nothing():
    _, learner = lab(**CASES["slow target"])
    state, _ = jax.device_get(learner.update(KEY, ready(learner.init(KEY)), random_rollout(0)))
    compiled = learner.update._cache_size()
    new = {"learning_rate": 0.1, "gamma": 0.1, "tau": 0.1}
    others = {"exploration_initial", "exploration_final", "comm_penalty_coeff", "prox_coef"}
    assert {*new} | others == {*Hypers._fields}
    before, _ = learner.update(KEY, state, random_rollout(1))
    for name, value in new.items():
        after, _ = learner.update(KEY, changed(state, **{name: value}), random_rollout(1))
        assert not same(after.params, before.params), name
    assert learner.update._cache_size() == compiled


def test_reset_steps_change_nothing():
    _, learner = lab(n_step=5, norm_obs=True)
    steps, found = random_rollout(0), []
    garbage = steps._replace(
        action=np.where(steps.valid, steps.action, np.int32(3)),
        reward=np.where(steps.valid, steps.reward, np.float32(1e6)),
    )
    for first in (steps, garbage):  # which waits for the second: five steps make a transition
        state, _ = learner.update(KEY, ready(learner.init(KEY)), first)
        found.append(jax.device_get(learner.update(KEY, state, random_rollout(1))[0]))
    one, two = found
    assert one.private.ring.count == 6
    assert same(one.params, two.params)
    assert same(one.private.ring, two.private.ring)
    assert one.statistics["obs"].count == 12


PICTURE = Box((36, 36, 1), 0, 255, "uint8")


def test_images_and_vectors_are_stored_unchanged_and_learned_from():
    spec = EnvSpec("seen", "jax", {"eye": PICTURE, "ear": Box((2,))}, Discrete(3))
    config = with_settings(
        DQNConfig(),
        **BASE | {"gradient_steps": 1, "batch_size": 2, "buffer_size": 9, "learning_starts": 0},
        norm_obs=True,
    )
    learner = dqn.dqn(config, spec, LearnerContext(10))
    rng = np.random.default_rng(0)
    eye = rng.integers(0, 256, (5, 2, 36, 36, 1)).astype(np.uint8)
    ear = np.float32(rng.normal(size=(5, 2, 2)))
    steps = random_rollout(0)._replace(
        obs={"eye": eye[:4], "ear": ear[:4]},
        last_obs={"eye": eye[4], "ear": ear[4]},
        action=np.zeros((4, 2), np.int32),
    )
    state = drawn_by_numpy(learner.init)(KEY)
    after, metrics = jax.device_get(jax.jit(learner.update)(KEY, state, steps))
    data = after.private.ring.data
    assert data.obs["eye"].dtype == data.next_obs["eye"].dtype == np.uint8
    np.testing.assert_array_equal(data.obs["eye"][0], eye[0, 0])
    np.testing.assert_array_equal(data.next_obs["eye"][0], eye[1, 0])
    assert {*after.statistics} == {"ear"}
    assert np.isfinite(metrics["loss/total"])
    different = jax.tree.map(
        lambda a, b: bool(np.any(a != b)), state.params.critic.encoder, after.params.critic.encoder
    )
    assert all(jax.tree.leaves(different)), different


# Settings


@pytest.mark.parametrize("space", [Box((2,), -1.0, 1.0), MultiDiscrete((2, 3))])
def test_actions_that_are_not_discrete_are_refused_in_one_line(space):
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


@cache
def sharing(*axes):
    """Three learners alike and their compiled update, by plain steps; over `axes` they average gradients."""
    settings = BASE | {"optimiser": "sgd", "gradient_steps": 1, "learning_rate": 0.1}
    learner = dqn.dqn(with_settings(DQNConfig(), **settings), SPEC, LearnerContext(100, axes=axes))
    state = ready(drawn_by_numpy(learner.init)(KEY))
    update = jax.vmap(learner.update, axis_name="group")
    return stack([state] * 3), jax.jit(update)


def test_learners_who_average_gradients_stay_one():
    """Each on its own batches, from its own replay."""
    start, update = sharing("group")
    cohort = start
    for number in range(3):
        rollouts = stack([random_rollout(10 * number + i) for i in range(3)])
        cohort, _ = update(jax.random.split(jax.random.key(number), 3), cohort, rollouts)
    params = [trees.take(jax.device_get(cohort.params), i) for i in range(3)]
    assert same(params[0], params[1])
    assert same(params[0], params[2])
    assert not same(params[0], trees.take(start.params, 0))


def test_sharing_is_the_mean_of_the_gradients():
    """One plain step of three learners is the mean of the steps that each would take alone."""
    (cohort, alone), (_, many) = sharing(), sharing("group")
    rollouts, keys = stack([random_rollout(i) for i in range(3)]), jax.random.split(KEY, 3)
    each, _ = jax.device_get(alone(keys, cohort, rollouts))
    shared, _ = jax.device_get(many(keys, cohort, rollouts))
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    mean = jax.tree.map(lambda x: np.mean(x, 0), each.params.critic)
    jax.tree.map(close, trees.take(shared.params.critic, 0), mean)
    assert not same(trees.take(each.params, 0), trees.take(each.params, 1))
