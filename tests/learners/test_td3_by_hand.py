"""TD3's update against arithmetic written out, in double precision, with NumPy alone."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.exchanges.neighbours import neighbours
from shoal.learners import replay
from shoal.learners.td3 import TD3Config, td3
from shoal.ops import trees
from shoal.settings import with_settings
from shoal.types import Box, EnvSpec, PeerTargets, Scores
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

KEY = jax.random.key(3)
SPEC = EnvSpec("by hand", "jax", Box((3,)), Box((2,), LOW, HIGH))
BASE = {
    "num_envs": 2,
    "num_steps": 8,
    "gradient_steps": 2,
    "batch_size": 16,
    "buffer_size": 40,
    "learning_starts": 0,
    "learning_rate": 3e-3,
    "actor_learning_rate": 1e-3,
    "gamma": 0.9,
    "tau": 0.3,
    "target_noise": 0.5,
    "target_noise_clip": 0.4,
    "hidden": (5,),
}
CASES = {
    "usual": {},
    "two rounds": {"gradient_steps": 4, "hidden": (5, 4)},
    "out of step with the delay": {"gradient_steps": 3},
    "fewer steps than the delay": {"gradient_steps": 1},
    "no delay": {"gradient_steps": 2, "policy_delay": 1, "hidden": (5, 4)},
    "three steps": {"gradient_steps": 3, "policy_delay": 3, "n_step": 3},
    "plain steps, standardised": {"optimiser": "sgd", "learning_rate": 0.1, "norm_obs": True},
    "near an anchor": {"prox_coef": 0.5},
    "near an anchor's outputs": {"prox_coef": 2.0, "prox_form": "outputs"},
}
SLOW = ("two rounds", "fewer steps than the delay")


class Neighbours(NamedTuple):
    """Neighbours' actions at a rollout's observations, and their weights."""

    obs: np.ndarray  # (R, 3), of the valid steps
    actions: list  # of (R, 2)
    weights: list
    coefficient: float


class ByHand:
    """TD3 in one place, networks as lists of arrays."""

    def __init__(self, config, params):
        self.config = config
        self.actor, self.target_actor = layers(params.actor), layers(params.target_actor)
        self.critics = [layers(critic) for critic in params.critic]
        self.target_critics = [layers(critic) for critic in params.target_critic]
        self.anchor = (self.actor, self.critics)
        self.actor_adam = Adam(config.optimiser, config.actor_learning_rate)
        self.critic_adams = [Adam(config.optimiser, config.learning_rate) for _ in range(2)]
        self.count = 0
        self.clipped = {"noise": 0, "action": 0, "min of the second": 0}

    def learn(self, batch, noise, peers=None):
        """One critic step, and in its turn the actor's."""
        self.improve_critics(batch, noise)
        self.count += 1
        if self.count % self.config.policy_delay == 0:
            self.improve_actor(batch, peers)
            tau = self.config.tau
            move = lambda target, network: combine(lambda t, x: (1 - tau) * t + tau * x, target, network)
            self.target_actor = move(self.target_actor, self.actor)
            self.target_critics = [*map(move, self.target_critics, self.critics)]

    def improve_critics(self, batch, noise):
        config, size = self.config, len(batch.steps)
        shake = np.clip(config.target.noise * noise, -config.target.clip, config.target.clip)
        shaken = np.tanh(forward(self.target_actor, batch.next_obs)[0]) + shake
        action = np.clip(shaken, -1, 1)
        first, second = (value(critic, batch.next_obs, action)[0] for critic in self.target_critics)
        self.clipped["noise"] += np.sum(np.abs(shake) == config.target.clip)
        self.clipped["action"] += np.sum(shaken != action)
        self.clipped["min of the second"] += np.sum(second < first)
        target = np.zeros(size)
        for b in range(size):
            for k in range(batch.steps[b]):
                target[b] += config.gamma**k * batch.reward[b, k]
            if not batch.terminated[b]:
                target[b] += config.gamma ** batch.steps[b] * min(first[b], second[b])
        for i, critic in enumerate(self.critics):
            q, given = value(critic, batch.obs, batch.action)
            slope = 2 * (q - target) / size
            if config.prox_coef and config.prox_form == "outputs":
                slope += (
                    config.prox_coef * 2 * (q - value(self.anchor[1][i], batch.obs, batch.action)[0]) / size
                )
            gradient, _ = backward(critic, given, slope[:, None])
            self.critics[i] = self.critic_adams[i].step(
                critic, self.held(gradient, critic, self.anchor[1][i])
            )

    def improve_actor(self, batch, peers):
        config = self.config
        before, given = forward(self.actor, batch.obs)
        action = np.tanh(before)
        q, given_critic = value(self.critics[0], batch.obs, action)
        _, slope = backward(self.critics[0], given_critic, np.full((len(q), 1), -1 / len(q)))
        slope = slope[:, 3:]
        if config.prox_coef and config.prox_form == "outputs":
            theirs = np.tanh(forward(self.anchor[0], batch.obs)[0])
            slope = slope + config.prox_coef * 2 * (action - theirs) / action.size
        gradient, _ = backward(self.actor, given, slope * (1 - action**2))
        if peers:
            before, given = forward(self.actor, peers.obs)
            own = np.tanh(before)
            slope = sum(2 * w * (own - a) for w, a in zip(peers.weights, peers.actions, strict=True))
            slope = peers.coefficient * slope / len(own)
            more, _ = backward(self.actor, given, slope * (1 - own**2))
            gradient = combine(np.add, gradient, more)
        self.actor = self.actor_adam.step(self.actor, self.held(gradient, self.actor, self.anchor[0]))

    def held(self, gradient, network, anchor):
        """With the pull of the anchor, 2 beta (theta - anchor)."""
        beta = self.config.prox_coef if self.config.prox_form == "parameters" else 0.0
        return combine(lambda g, x, a: g + 2 * beta * (x - a), gradient, network, anchor)

    @property
    def params(self):
        return [self.actor, *self.critics, self.target_actor, *self.target_critics]


def assert_same(params, hand, atol=2e-6):
    found = [params.actor, *params.critic, params.target_actor, *params.target_critic]
    for ours, theirs in zip(found, hand.params, strict=True):
        combine(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=atol), layers(ours), theirs)


@cache
def learner(**changes):
    """A learner and its update; one for each configuration."""
    config = with_settings(TD3Config(), **BASE | changes)
    made = td3(config, SPEC)
    return config, made._replace(init=drawn_by_numpy(made.init)), jax.jit(made.update)


def begin(made, key=KEY):
    """A learner whose policy reaches the bounds, whose critics disagree and whose targets lag behind."""
    state = made.init(key)
    rng = np.random.default_rng(1)
    shaken = jax.tree.map(lambda x: x + np.float32(rng.normal(0, 0.8, x.shape)), state.params)
    targets = {"target_actor": shaken.target_actor, "target_critic": shaken.target_critic}
    return state._replace(params=state.params._replace(**targets))


def drawn(config, key, after):
    """The batches and the noise of an update, as it draws them, as NumPy."""
    shape = (config.num_gradients, config.batch_size)
    return wide(draws(key, after.private.buffer.ring, shape))


@partial(jax.jit, static_argnums=2)
def draws(key, ring, shape):
    key_sample, key_noise = jax.random.split(key)
    return replay.sample(ring, key_sample, shape), jax.random.normal(key_noise, (*shape, 2))


class Seen:
    """Standardises by the mean and the deviation of all that was valid so far."""

    def __init__(self):
        self.all = []

    def update_moments(self, rollout):
        self.all.extend(np.float64(rollout.obs)[np.asarray(rollout.valid)])

    def __call__(self, obs):
        return (obs - np.mean(self.all, 0)) / np.sqrt(np.var(self.all, 0) + 1e-8)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def test_whole_updates_by_hand(name):
    """Four updates: smoothing, the smaller target, Adam, the actor after the critic, targets after both."""
    config, made, update = learner(**CASES[name])
    state = begin(made)
    hand, seen = ByHand(config, state.params), Seen()
    if config.prox_coef:  # an anchor that is elsewhere
        anchor = begin(made, jax.random.key(9)).params
        state = state._replace(anchor=anchor)
        hand.anchor = (layers(anchor.actor), [layers(critic) for critic in anchor.critic])
    for number in range(4):
        key, rollout = jax.random.key(number), random_rollout(number)
        state, metrics = jax.device_get(update(key, state, rollout))
        seen.update_moments(rollout)
        batches, noise = drawn(config, key, state)
        for g in range(config.num_gradients):
            batch = trees.take(batches, g)
            if config.norm_obs:
                batch = batch._replace(obs=seen(batch.obs), next_obs=seen(batch.next_obs))
            hand.learn(batch, noise[g])
        assert_same(state.params, hand)
        assert metrics["updates_per_step"] == config.num_gradients / 16
    assert min(hand.clipped.values()) > 3, hand.clipped
    assert state.private.num_gradients == hand.count == 4 * config.num_gradients
    if config.optimiser == "adam":
        counts = [x for x in jax.tree.leaves(state.opt_state) if x.dtype == jnp.int32]
        assert [int(x) for x in counts] == [hand.count // config.policy_delay, hand.count]


def test_neighbours_pull_by_hand():
    """Three learners: 0 heeds 1 and 2, 1 heeds 0, 2 nobody; each penalty by a loop over those heard."""
    config, made, update = learner(comm_penalty_coeff=0.7)
    matrix = np.float32([[0, 2, 0.5], [1, 0, 0], [0, 0, 0]])
    states = [begin(made, jax.random.key(seed)) for seed in range(3)]
    rollouts = [random_rollout(seed) for seed in range(3)]
    side = lambda axis: lambda *x: np.stack(x, axis)
    together = jax.tree.map(side(1), *[r._replace(last_obs=()) for r in rollouts])

    @jax.jit
    def heard(cohort, rollout):
        exchange = neighbours(td3(config, SPEC), SPEC, matrix)
        memory, cohort = exchange.init(cohort)
        everyone = Scores(jnp.zeros(3), jnp.zeros(3), jnp.zeros(3, jnp.int32), jnp.ones(3, bool))
        memory, cohort, _ = exchange.apply(KEY, memory, cohort, everyone)
        return exchange.add_peer_targets(memory, rollout).peer_targets

    told = jax.device_get(heard(jax.tree.map(side(0), *states), together))
    paid = []
    for i, (state, rollout) in enumerate(zip(states, rollouts, strict=True)):
        key, hand = jax.random.key(i), ByHand(config, state.params)
        targets = jax.tree.map(lambda x: x[:, i], told)  # noqa: B023
        after, metrics = jax.device_get(update(key, state, rollout._replace(peer_targets=targets)))
        obs = np.float64(rollout.obs)[rollout.valid]
        others = [layers(other.params.actor) for other in states]
        actions = [np.tanh(forward(other, obs)[0]) for other in others]
        batches, noise = drawn(config, key, after)
        own = np.tanh(forward(hand.actor, obs)[0])
        pull = Neighbours(obs, actions, matrix[i].tolist(), coefficient=0.7)
        for g in range(2):
            hand.learn(trees.take(batches, g), noise[g], pull)
        assert_same(after.params, hand)
        apart = sum(w * np.sum((own - a) ** 2, 1) for w, a in zip(matrix[i], actions, strict=True))
        np.testing.assert_allclose(metrics["loss/neighbours"], 0.7 * np.mean(apart), rtol=1e-4, atol=1e-6)
        paid.append(metrics["loss/neighbours"])
    assert paid[2] == 0
    assert min(paid[:2]) > 0.01


def test_neighbours_who_agree_change_nothing():
    _, made, update = learner(comm_penalty_coeff=0.7)
    state, rollout = begin(made), random_rollout(0)
    policy_terms = jax.device_get(jax.jit(made.policy_terms)(state, rollout.obs))
    weight = np.full(rollout.reward.shape, 3.0, np.float32)
    three = PeerTargets(weight, jax.tree.map(lambda x: 3 * x, policy_terms))
    peers = rollout._replace(peer_targets=(three,))
    quiet, _ = update(KEY, state, rollout)
    pulled, metrics = update(KEY, state, peers)
    assert abs(metrics["loss/neighbours"]) < 1e-6
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=3e-6)
    jax.tree.map(close, pulled.params.target_critic, quiet.params.target_critic)
    jax.tree.map(close, pulled.opt_state.critic, quiet.opt_state.critic)


@pytest.mark.parametrize("name", ["near an anchor", "near an anchor's outputs"])
def test_the_anchor_costs_nothing_to_who_is_there(name):
    """At the anchor a critic step has no penalty, and pays none: with steps of 0 it stays there."""
    config, made, update = learner(**CASES[name])
    state, zero, coefficient = made.init(KEY), np.float32(0), config.prox_coef
    still = state.hypers._replace(learning_rate=zero, actor_learning_rate=zero)
    state = state._replace(hypers=still)
    _, metrics = update(KEY, state, random_rollout(0))
    assert metrics["loss/critic_prox"] == metrics["loss/actor_prox"] == 0
    far = state._replace(anchor=jax.tree.map(lambda x: x + np.float32(1), state.params))
    _, metrics = update(KEY, far, random_rollout(0))
    assert metrics["loss/critic_prox"] > 0
    assert metrics["loss/actor_prox"] > 0
    if config.prox_form == "parameters":  # beta times as many ones
        for part, network in (("critic", state.params.critic), ("actor", state.params.actor)):
            np.testing.assert_allclose(
                metrics[f"loss/{part}_prox"], coefficient * trees.size(network), rtol=1e-5
            )
