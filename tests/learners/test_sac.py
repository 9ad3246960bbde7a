"""SAC for one learner: its squashed policy, its targets, its temperature, and whole updates by hand."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.learners import gradients, replay, sac
from shoal.learners.replay import Transition
from shoal.learners.sac import Hypers, OptStates, Params, SACConfig, SACSetup
from shoal.ops import trees
from shoal.types import Box, Discrete, EnvSpec, LearnerState, PeerTargets
from tests.learners.by_hand import (
    HIGH,
    LOW,
    Adam,
    backward,
    combine,
    forward,
    layers,
    random_rollout,
    value,
    wide,
)
from tests.learners.lab import drawn_by_numpy

KEY = jax.random.key(0)
SPEC = EnvSpec("by hand", "jax", Box((3,)), Box((2,), LOW, HIGH))
ONE = EnvSpec("one", "jax", Box((3,)), Box((1,), -1.0, 1.0))
TWO = EnvSpec("two", "jax", Box((3,)), Box((2,), -1.0, 1.0))
FIXED = EnvSpec("fixed", "jax", Box((3,)), Box((3,), np.array([-1, 0.5, 0.0]), np.array([1, 0.5, 2.0])))
SMALL = {
    "num_envs": 2,
    "num_steps": 8,
    "gradient_steps": 2,
    "batch_size": 16,
    "buffer_size": 40,
    "learning_starts": 20,
    "learning_rate": 3e-3,
    "gamma": 0.9,
    "tau": 0.3,
    "hidden": (5,),
}
RATES = {"actor_learning_rate": 3e-3, "alpha_learning_rate": 3e-3}
GIVEN = {"n_step": 3, "alpha": 0.2, "gradient_steps": 1, "hidden": (5, 4), **RATES}
LEARNED = {"optimiser": "sgd", "prox_coef": 0.5, **RATES}


@cache
def lab(**changes):
    """A learner, its functions compiled."""
    made = sac.sac(SACConfig(**SMALL | changes), SPEC)
    init = drawn_by_numpy(made.init)
    return made._replace(init=init, act=jax.jit(made.act), update=jax.jit(made.update))


def ready(state):
    """The same learner, past its random steps."""
    buffer = state.private.buffer._replace(warming_up=np.bool_(False), num_steps=np.int32(20))
    return state._replace(private=state.private._replace(buffer=buffer))


def setup(spec=SPEC, **changes):
    return SACSetup(SACConfig(**SMALL | changes), spec, int(np.prod(spec.action.shape)))


def sampled(spec, mean, log_std, noise):
    """Actions, and their log pi, of an actor that says the same of everything it sees."""
    outputs = np.float32([*mean, *log_std])
    return jax.device_get(sampler(spec.name)(outputs, np.float32(noise)))


@cache
def sampler(name):
    here = setup({spec.name: spec for spec in (SPEC, ONE, TWO, FIXED)}[name])

    def sample(outputs, noise):
        actor = lambda obs: jnp.broadcast_to(outputs, (*obs.shape[:-1], outputs.size))
        return sac.sample(here, actor, jnp.zeros((len(noise), 3)), noise)

    return jax.jit(sample)


def saying(mean, log_std):
    """An actor that says the same of everything it sees."""
    outputs = jnp.float32([*mean, *log_std])
    return lambda obs: jnp.broadcast_to(outputs, (*obs.shape[:-1], outputs.size))


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def changed(state, **hypers):
    new = {name: np.float32(number) for name, number in hypers.items()}
    return state._replace(hypers=state.hypers._replace(**new))


# The squashed normal distribution


slope_of_log_slope = jax.jit(jax.value_and_grad(sac.log_slope))


@pytest.mark.parametrize("u", [-40.0, -10.0, -1.0, 0.0, 0.3, 10.0, 40.0])
def test_the_slope_of_tanh_in_logarithms_is_right_where_the_plain_formula_is_infinite(u):
    """log(1 - tanh(u)^2) = -2 log cosh(u), and that is 2 (log 2 - |u|) far out."""
    expected = -2 * np.log(np.cosh(np.float64(u)))
    found, slope = slope_of_log_slope(np.float32(u))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(slope, -2 * np.tanh(u), rtol=1e-5)
    if abs(u) >= 10:
        np.testing.assert_allclose(expected, 2 * (np.log(2) - abs(u)), rtol=1e-8)
        assert 1 - np.tanh(np.float32(u)) ** 2 == 0


def test_log_probabilities_are_those_of_a_change_of_variables():
    """p(a) = N(atanh a) |d atanh a / da|, the slope by a difference, the normal density written out."""
    mean, deviation = np.array([0.4, -0.7]), np.array([0.5, 1.3])
    noise = np.random.default_rng(0).normal(size=(50, 2))
    action, log_prob = sampled(SPEC, mean, np.log(deviation), noise)
    a, h = np.tanh(mean + deviation * noise), 1e-6
    np.testing.assert_allclose(action, a, atol=1e-6)
    density = np.exp(-(((np.arctanh(a) - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))
    slope = (np.arctanh(a + h * (1 - a**2)) - np.arctanh(a - h * (1 - a**2))) / (2 * h * (1 - a**2))
    np.testing.assert_allclose(log_prob, np.sum(np.log(density * slope), 1), rtol=1e-4, atol=1e-4)


def test_probabilities_add_up_to_one():
    """The integral of p(a) over [-1, 1], each action by the noise that gives it."""
    a = np.linspace(-1, 1, 4002)[1:-1]
    noise = (np.arctanh(a) - 0.5)[:, None] / 0.8
    _, log_prob = sampled(ONE, [0.5], [np.log(0.8)], noise)
    np.testing.assert_allclose(np.trapezoid(np.exp(np.float64(log_prob)), a), 1, atol=1e-3)


@pytest.mark.parametrize("mean", [-10.0, 10.0])
def test_far_out_everything_is_finite(mean):
    noise = np.float32([[0.5, -0.5]])
    action, log_prob = sampled(SPEC, [mean, mean], [-3.0, -3.0], noise)
    np.testing.assert_allclose(np.abs(action), 1, rtol=1e-6)
    u = mean + np.exp(-3) * np.float64(noise)
    normal = -(np.float64(noise) ** 2) / 2 + 3 - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(log_prob, np.sum(normal + 2 * np.log(np.cosh(u)), 1), rtol=1e-6)


@pytest.mark.parametrize(("said", "heard"), [(-50.0, -20.0), (9.0, 2.0), (-1.0, -1.0)])
def test_deviations_are_bounded(said, heard):
    found = [sampled(SPEC, [0, 0], [x, x], [[0.2, -0.1]])[1] for x in (said, heard)]
    np.testing.assert_array_equal(*found)


def test_a_number_whose_bounds_are_equal_is_held_still_and_has_no_entropy():
    """The second of three can only be 0.5: 0 inside, no part of log pi, not counted in the target."""
    noise = np.float32([[0.3, 9.0, -0.2]])
    action, log_prob = sampled(FIXED, [0.3, 5.0, 0.1], [-1, -9, -2], noise)
    fewer, expected = sampled(TWO, [0.3, 0.1], [-1, -2], noise[:, ::2])
    np.testing.assert_allclose(action, [[fewer[0, 0], 0.0, fewer[0, 1]]])
    np.testing.assert_allclose(log_prob, expected, rtol=1e-6)
    assert sac.initial_hypers(setup(FIXED)).target_entropy == -2


# Actions


def actor_says(state, obs):
    """The actor's outputs, by hand."""
    return forward(layers(state.params.actor), np.float64(obs))[0]


WANDERING = {"num_envs": 4000, "exploration": sac.SACExplorationConfig("ou", theta=0.3)}


@pytest.mark.parametrize("change", [{}, WANDERING])
def test_without_noise_a_visitor_does_the_tanh_of_the_mean_between_the_bounds(change):
    learner = lab(**change)
    state = learner.init(KEY)
    obs = np.float32(np.random.default_rng(0).normal(size=(5, 3)))
    mean = actor_says(state, obs)[:, :2]
    expected = LOW + (np.tanh(mean) + 1) / 2 * (HIGH - LOW)
    ready = learner.for_evaluation(state, 5)
    for _ in range(2):
        action, private = learner.act(ready, obs, np.zeros((5, 2), np.float32))
        ready = ready._replace(private=private)
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)


def test_actions_are_random_at_first_and_the_policys_later():
    learner = lab(num_envs=4000)
    state = learner.init(KEY)
    obs, noise = np.ones((4000, 3), np.float32), np.asarray(learner.draw(KEY, (1, 4000)))[0]
    units = lambda state: (np.asarray(learner.act(state, obs, noise)[0]) - LOW) / (HIGH - LOW) * 2 - 1
    for column in units(state).T:
        quantiles = np.quantile(column, np.linspace(0.1, 0.9, 9))
        np.testing.assert_allclose(quantiles, np.linspace(-0.8, 0.8, 9), atol=0.08)
    mean, log_std = np.split(actor_says(state, obs), 2, 1)
    drawn = units(learner.for_evaluation(state, 4000))
    np.testing.assert_allclose(drawn, np.tanh(mean + np.exp(log_std) * np.float64(noise)), atol=1e-5)


def test_correlated_noise_keeps_its_deviation():
    learner = lab(**WANDERING)
    state, found = learner.init(KEY), []
    for noise in np.asarray(learner.draw(jax.random.key(1), (3, 4000))):
        _, memory = learner.act(state, np.zeros((4000, 3), np.float32), noise)
        state = state._replace(private=memory)
        found.append(np.asarray(memory.correlated_noise))
    np.testing.assert_allclose([x.std() for x in found], 1, atol=0.05)
    np.testing.assert_allclose(np.mean(found[0] * found[2]), 0.7**2, atol=0.05)


# Targets


class Says:
    """A critic by a formula."""

    def __init__(self, slope, offset):
        self.slope, self.offset = slope, offset

    def __call__(self, obs, action):
        return self.slope * action[..., 0] + self.offset


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_targets_by_hand(alpha):
    """Three steps; two, then cut; two, then ended: rewards 1, 0.9 * 2, 0.81 * 4, and what follows.

    In the first two the value after n steps is gamma^n (min Q' - alpha log pi); after an end it is nothing.
    """
    batch = Transition(
        obs=np.zeros((3, 3), np.float32),
        action=np.zeros((3, 2), np.float32),
        reward=np.float32([[1, 2, 4], [1, 2, 0], [1, 2, 0]]),
        steps=np.int32([3, 2, 2]),
        next_obs=np.zeros((3, 3), np.float32),
        terminated=np.array([False, False, True]),
    )
    noise = np.array([[0.5, -1.0], [-2.0, 0.1], [0.0, 0.0]])
    config = setup(alpha=alpha, n_step=3)
    actor = saying([0.2, -0.3], [np.log(0.5), np.log(0.4)])
    params = Params(actor, (), (Says(2.0, 1.0), Says(-1.0, 1.5)), np.log(np.float32(0.7)))
    hypers = sac.initial_hypers(config)
    found = jax.jit(lambda batch, noise: sac.targets(config, hypers, params, batch, noise))(
        batch, np.float32(noise)
    )
    u = np.array([0.2, -0.3]) + np.array([0.5, 0.4]) * noise
    normal = -(noise**2) / 2 - np.log([0.5, 0.4]) - np.log(2 * np.pi) / 2
    log_pi = np.sum(normal - np.log(1 - np.tanh(u) ** 2), 1)
    a = np.tanh(u[:, 0])
    soft = np.minimum(2 * a + 1, 1.5 - a) - (0.3 if alpha else 0.7) * log_pi
    expected = [1 + 0.9 * 2 + 0.81 * 4 + 0.729 * soft[0], 1 + 0.9 * 2 + 0.81 * soft[1], 1 + 0.9 * 2]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (2 * a + 1 < 1.5 - a).any()
    assert (2 * a + 1 > 1.5 - a).any()


# The temperature


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_more_entropy_than_the_target_lowers_the_temperature(optimiser):
    """d/d log alpha = entropy - target, by a plain step; either way the sign is that."""
    config = setup(optimiser=optimiser, alpha_learning_rate=0.1, target_entropy=-1.0)
    start = gradients.optimiser(optimiser, 0.0).init(jnp.float32(0))
    carry = (Params((), (), (), np.float32(0)), OptStates((), (), start))
    state = LearnerState((), (), (), hypers=sac.initial_hypers(config), private=())
    step = jax.jit(partial(sac.update_temperature, config, state, carry))
    for entropy, sign in ((-0.5, -1), (-1.5, 1)):
        params, _ = step(np.float32(entropy))
        size = 0.1 if optimiser == "adam" else 0.1 * 0.5
        np.testing.assert_allclose(params.log_alpha, sign * size, rtol=1e-4)
    assert step(np.float32(-1.0))[0].log_alpha == 0


def test_a_temperature_that_is_given_stays():
    learner = lab(**GIVEN)
    state = ready(learner.init(KEY))
    start = state.params.log_alpha
    for number in range(3):
        state, metrics = learner.update(KEY, state, random_rollout(number))
        assert metrics["alpha"] == np.float32(0.2)
    assert same(state.params.log_alpha, start)
    assert not same(state.params.actor, learner.init(KEY).params.actor)


def test_the_target_is_minus_the_numbers_of_an_action_unless_given():
    assert sac.initial_hypers(setup()).target_entropy == -2
    assert sac.initial_hypers(setup(target_entropy=0.0)).target_entropy == 0


# Whole updates


class ByHand:
    """SAC in one place, networks as lists of arrays."""

    def __init__(self, config, params):
        self.config = config
        self.actor, self.log_alpha = layers(params.actor), float(params.log_alpha)
        self.critics = [layers(critic) for critic in params.critic]
        self.target_critics = [layers(critic) for critic in params.target_critic]
        self.anchor = (self.actor, self.critics)
        adam = lambda: Adam(config.optimiser, config.learning_rate)
        self.actor_adam, self.alpha_adam, self.critic_adams = adam(), adam(), [adam(), adam()]

    def drawn(self, actor, obs, noise):
        """What the layers were given, and an action with its log pi."""
        outputs, given = forward(actor, obs)
        mean, log_std = np.split(outputs, 2, 1)
        action = np.tanh(mean + np.exp(log_std) * noise)
        normal = -(noise**2) / 2 - log_std - np.log(2 * np.pi) / 2
        return given, log_std, action, np.sum(normal - np.log(1 - action**2), 1)

    def learn(self, batch, noise):
        config, alpha = self.config, np.exp(self.log_alpha)
        entropy = self.improve(batch, *noise, config.alpha if config.alpha is not None else alpha)
        if config.alpha is None:
            slope = [(np.array(entropy + 2.0),)]  # of two numbers
            self.log_alpha = float(self.alpha_adam.step([(np.array(self.log_alpha),)], slope)[0][0])
        move = lambda target, network: combine(
            lambda t, x: (1 - config.tau) * t + config.tau * x, target, network
        )
        self.target_critics = [*map(move, self.target_critics, self.critics)]

    def improve(self, batch, noise, noise_next, alpha):
        config, size = self.config, len(batch.steps)
        *_, action, log_pi = self.drawn(self.actor, batch.next_obs, noise_next)
        soft = np.min([value(c, batch.next_obs, action)[0] for c in self.target_critics], 0) - alpha * log_pi
        target = batch.reward @ config.gamma ** np.arange(config.n_step)
        target = target + np.where(batch.terminated, 0, config.gamma**batch.steps * soft)
        for i, critic in enumerate(self.critics):
            q, given = value(critic, batch.obs, batch.action)
            gradient, _ = backward(critic, given, (2 * (q - target) / size)[:, None])
            gradient = self.held(gradient, critic, self.anchor[1][i])
            self.critics[i] = self.critic_adams[i].step(critic, gradient)

        given, log_std, action, log_pi = self.drawn(self.actor, batch.obs, noise)
        values, slopes = [], []
        for critic in self.critics:
            q, given_critic = value(critic, batch.obs, action)
            values.append(q)
            slopes.append(backward(critic, given_critic, np.ones((size, 1)))[1][:, 3:])
        rising = np.where((values[0] < values[1])[:, None], *slopes)
        by_u = (2 * alpha * action - rising * (1 - action**2)) / size
        by_log_std = by_u * np.exp(log_std) * noise - alpha / size
        gradient, _ = backward(self.actor, given, np.concatenate([by_u, by_log_std], 1))
        gradient = self.held(gradient, self.actor, self.anchor[0])
        self.actor = self.actor_adam.step(self.actor, gradient)
        return -np.mean(log_pi)

    def held(self, gradient, network, anchor):
        """With the pull of the anchor, 2 beta (theta - anchor)."""
        beta = self.config.prox_coef
        return combine(lambda g, x, a: g + 2 * beta * (x - a), gradient, network, anchor)


def unlike(made, seed):
    """A learner whose targets lag behind."""
    state, rng = made.init(jax.random.key(seed)), np.random.default_rng(1)
    shaken = jax.tree.map(lambda x: x + np.float32(rng.normal(0, 0.8, x.shape)), state.params.target_critic)
    return ready(state._replace(params=state.params._replace(target_critic=shaken)))


@partial(jax.jit, static_argnums=(2, 3))
def draws(key, ring, num, size):
    """The batches and the noise of an update."""
    key_sample, key_noise = jax.random.split(key)
    return replay.sample(ring, key_sample, (num, size)), jax.random.normal(key_noise, (num, 2, size, 2))


@pytest.mark.parametrize("change", [{}, GIVEN, LEARNED])
def test_whole_updates_by_hand(change):
    """Critics, then the actor by the smaller of them, then the temperature, then the targets; four times."""
    config, learner = SACConfig(**SMALL | change), lab(**change)
    state = unlike(learner, 0)
    hand = ByHand(config, state.params)
    if config.prox_coef:
        anchor = unlike(learner, 9).params
        state = state._replace(anchor=anchor)
        hand.anchor = (layers(anchor.actor), [layers(critic) for critic in anchor.critic])
    for number in range(4):
        key = jax.random.key(number)
        state, _ = jax.device_get(learner.update(key, state, random_rollout(number)))
        num = config.num_gradients
        batches, noise = wide(draws(key, state.private.buffer.ring, num, config.batch_size))
        for g in range(num):
            hand.learn(trees.take(batches, g), noise[g])
        found = [state.params.actor, *state.params.critic, *state.params.target_critic]
        expected = [hand.actor, *hand.critics, *hand.target_critics]
        close = partial(np.testing.assert_allclose, rtol=1e-4, atol=5e-6)
        for ours, theirs in zip(found, expected, strict=True):
            combine(close, layers(ours), theirs)
        close(state.params.log_alpha, hand.log_alpha)


def test_nothing_is_learned_before_learning_starts():
    learner = lab()
    state = learner.init(KEY)
    after, metrics = learner.update(KEY, state, random_rollout(0))
    assert same((after.params, after.opt_state), (state.params, state.opt_state))
    assert metrics["updates_per_step"] == metrics["loss/total"] == 0
    after, metrics = jax.device_get(learner.update(KEY, after, random_rollout(1)))
    different = jax.tree.map(lambda a, b: bool(np.any(a != b)), state.params, after.params)
    assert all(jax.tree.leaves(different)), different
    assert metrics["updates_per_step"] == 2 / 16


def test_hypers_take_effect_and_compile_nothing():
    """Those of a given temperature and of a learned one; the two rates that can follow the critics'."""
    new = {"learning_rate": 0.1, "gamma": 0.1, "tau": 0.5, "actor_learning_rate": 0.1}
    learned = new | {"target_entropy": 3.0, "alpha_learning_rate": 0.5}
    assert {*learned, "alpha", "comm_penalty_coeff", "prox_coef"} == {*Hypers._fields}
    for learner, hypers in ((lab(**LEARNED), learned), (lab(**GIVEN), new | {"alpha": 3.0})):
        state, _ = jax.device_get(learner.update(KEY, ready(learner.init(KEY)), random_rollout(0)))
        compiled = learner.update._cache_size()
        before, _ = learner.update(KEY, state, random_rollout(1))
        for name, number in hypers.items():
            after, _ = learner.update(KEY, changed(state, **{name: number}), random_rollout(1))
            assert not same(after.params, before.params), name
        assert learner.update._cache_size() == compiled


def test_rates_that_are_not_given_follow_the_critics():
    learner = lab()
    state, _ = learner.update(KEY, ready(learner.init(KEY)), random_rollout(0))
    after, _ = learner.update(KEY, changed(state, learning_rate=0.0), random_rollout(1))
    moving = lambda params: (params.actor, params.critic, params.log_alpha)
    assert same(moving(after.params), moving(state.params))


def test_neighbours_move_the_greedy_action_unless_they_agree():
    learner = lab()
    state, other = (ready(learner.init(jax.random.key(seed))) for seed in (0, 1))
    rollout, terms = random_rollout(0), jax.jit(learner.policy_terms)
    one = np.ones(rollout.reward.shape, np.float32)
    peers = lambda who: rollout._replace(peer_targets=(PeerTargets(one, terms(who, rollout.obs)),))
    _, agreed = learner.update(KEY, state, peers(state))
    after, metrics = learner.update(KEY, state, peers(other))
    assert abs(agreed["loss/neighbours"]) < 1e-4
    apart = np.asarray(jax.jit(learner.distance)(state, other, rollout.obs))
    own, theirs = (np.tanh(actor_says(s, rollout.obs)[..., :2]) for s in (state, other))
    np.testing.assert_allclose(apart, np.sum((own - theirs) ** 2, -1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["loss/neighbours"], 0.1 * apart[rollout.valid].mean(), rtol=0.05)
    assert not same(after.params.actor, learner.update(KEY, state, rollout)[0].params.actor)


def test_outputs_are_kept_near_an_anchor():
    """Of an anchor that is the learner itself there is nothing to pay at first; of another there is."""
    learner = lab(prox_coef=2.0, prox_form="outputs", gradient_steps=1)
    state, other = (ready(learner.init(jax.random.key(seed))) for seed in (0, 1))
    for anchor, pays in ((state, False), (other, True)):
        _, metrics = learner.update(KEY, state._replace(anchor=anchor.params), random_rollout(0))
        assert (metrics["loss/actor_prox"] > 0) == (metrics["loss/critic_prox"] > 0) == pays


# Settings


@pytest.mark.parametrize("space", [Discrete(3), Box((2,)), Box((2,), [-1.0, -np.inf], 1.0)])
def test_actions_without_bounds_are_refused_in_one_line(space):
    with pytest.raises(ShoalError, match="sac needs continuous actions between bounds, which odd does not"):
        sac.sac(SACConfig(), EnvSpec("odd", "jax", Box((3,)), space))


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 0},
        {"actor_learning_rate": 0.0},
        {"alpha_learning_rate": -1.0},
        {"initial_alpha": 0.0},
        {"alpha": -0.1},
        {"prox_form": "dreams"},
    ],
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(ShoalError, match=next(iter(change))):
        SACConfig(**change)


@pytest.mark.parametrize("change", [{"theta": 0.0}, {"kind": "levy"}])
def test_impossible_exploration_is_refused(change):
    with pytest.raises(ShoalError, match=next(iter(change))):
        sac.SACExplorationConfig(**change)


def test_hyperparameters_without_effect():
    assert {*SACConfig().idle} == {"prox_coef", "actor_learning_rate", "alpha", "alpha_learning_rate"}
    given = SACConfig(alpha=0.1, actor_learning_rate=0.1, alpha_learning_rate=0.1, prox_coef=0.1)
    assert {*given.idle} == {"target_entropy", "alpha_learning_rate"}
