"""TD3's update against arithmetic written out, in double precision, with NumPy alone."""

from functools import cache
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
from shoal.types import Box, EnvSpec, PeerTargets, Rollout, Scores

KEY = jax.random.key(3)
LOW, HIGH = np.array([-1.0, -2.0]), np.array([3.0, 2.0])
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
    "hidden": (5, 4),
}
CASES = {
    "usual": {},
    "two rounds": {"gradient_steps": 4},
    "out of step with the delay": {"gradient_steps": 3},
    "fewer steps than the delay": {"gradient_steps": 1},
    "no delay": {"gradient_steps": 2, "policy_delay": 1},
    "three steps": {"gradient_steps": 3, "policy_delay": 3, "n_step": 3},
    "plain steps, standardised": {"optimiser": "sgd", "learning_rate": 0.1, "norm_obs": True},
    "near an anchor": {"prox_coef": 0.5},
    "near an anchor's outputs": {"prox_coef": 2.0, "prox_form": "outputs"},
}


# A network is a list of (weight, bias), with relu between them.


def layers(network):
    return [(np.float64(layer.weight), np.float64(layer.bias)) for layer in network.head.layers]


def forward(network, x):
    """The output, and what every layer was given."""
    given = []
    for i, (weight, bias) in enumerate(network):
        given.append(x)
        x = x @ weight + bias
        x = np.maximum(x, 0) if i < len(network) - 1 else x
    return x, given


def backward(network, given, slope):
    """The gradient of the parameters and of the input, from that of the output."""
    found = []
    for i in reversed(range(len(network))):
        found.insert(0, (given[i].T @ slope, slope.sum(0)))
        slope = slope @ network[i][0].T
        slope = slope * (given[i] > 0) if i else slope
    return found, slope


def combine(function, *networks):
    return [
        tuple(function(*leaves) for leaves in zip(*layer, strict=True))
        for layer in zip(*networks, strict=True)
    ]


def value(critic, obs, action):
    q, given = forward(critic, np.concatenate([obs, action], 1))
    return q[:, 0], given


class Adam:
    """Kingma and Ba (2015), with its usual constants; or steps down the gradient itself."""

    def __init__(self, kind, rate):
        self.kind, self.rate, self.count, self.mean, self.square = kind, rate, 0, None, None

    def step(self, network, slope):
        if self.kind == "sgd":
            return combine(lambda x, g: x - self.rate * g, network, slope)
        self.count += 1
        zero = combine(np.zeros_like, slope)
        self.mean = combine(lambda m, g: 0.9 * m + 0.1 * g, self.mean or zero, slope)
        self.square = combine(lambda v, g: 0.999 * v + 0.001 * g**2, self.square or zero, slope)

        def moved(x, m, v):
            m, v = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
            return x - self.rate * m / (np.sqrt(v) + 1e-8)

        return combine(moved, network, self.mean, self.square)


class Told(NamedTuple):
    """Others' actions at a rollout's observations, and how much each counts."""

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

    def learn(self, batch, noise, told=None):
        """One critic step, and in its turn the actor's."""
        self.improve_critics(batch, noise)
        self.count += 1
        if self.count % self.config.policy_delay == 0:
            self.improve_actor(batch, told)
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

    def improve_actor(self, batch, told):
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
        if told:
            before, given = forward(self.actor, told.obs)
            own = np.tanh(before)
            slope = sum(2 * w * (own - a) for w, a in zip(told.weights, told.actions, strict=True))
            slope = told.coefficient * slope / len(own)
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


def random_rollout(seed, num_steps=8, num_envs=2):
    """Steps with an end, a cut and their resets, rewards and observations of order 1."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    flag = lambda *places: jnp.zeros(shape, bool).at[tuple(zip(*places, strict=True))].set(True)
    real = lambda *shape: jnp.float32(rng.normal(size=shape))
    action = jnp.float32(rng.uniform(LOW, HIGH, (*shape, 2)))
    terminated, truncated = flag((2, 0), (5, 1)), flag((5, 0), (0, 1))
    resets = flag((3, 0), (6, 0), (1, 1), (6, 1))
    obs, last = real(*shape, 3), real(num_envs, 3)
    return Rollout(obs, action, real(*shape), terminated, truncated, ~resets, last)


@cache
def learner(**changes):
    """A learner and its update; one for each configuration."""
    config = with_settings(TD3Config(), **BASE | changes)
    made = td3(config, SPEC)
    return config, made, jax.jit(made.update)


def begin(made, key=KEY):
    """A learner whose policy reaches the bounds, whose critics disagree and whose targets lag behind."""
    state = made.init(key)
    rng = np.random.default_rng(1)
    shaken = jax.tree.map(lambda x: x + jnp.float32(rng.normal(0, 0.8, x.shape)), state.params)
    targets = {"target_actor": shaken.target_actor, "target_critic": shaken.target_critic}
    return state._replace(params=state.params._replace(**targets))


def drawn(config, key, after):
    """The batches and the noise of an update, as it draws them, as NumPy."""
    key_sample, key_noise = jax.random.split(key)
    shape = (config.num_gradients, config.batch_size)
    batches = replay.sample(after.private.buffer.ring, key_sample, shape)
    noise = jax.random.normal(key_noise, (*shape, 2))
    wide = lambda x: np.float64(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.asarray(x)
    return jax.tree.map(wide, batches), np.float64(noise)


class Seen:
    """Standardises by the mean and the deviation of all that was valid so far."""

    def __init__(self):
        self.all = []

    def update_moments(self, rollout):
        self.all.extend(np.float64(rollout.obs)[np.asarray(rollout.valid)])

    def __call__(self, obs):
        return (obs - np.mean(self.all, 0)) / np.sqrt(np.var(self.all, 0) + 1e-8)


@pytest.mark.parametrize("name", CASES)
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
        key, rollout = jax.random.fold_in(KEY, number), random_rollout(number)
        state, metrics = update(key, state, rollout)
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
    config, made, _ = learner(comm_penalty_coeff=0.7)
    matrix = np.float32([[0, 2, 0.5], [1, 0, 0], [0, 0, 0]])
    cohort = trees.stack([begin(made, jax.random.key(seed)) for seed in range(3)])
    exchange = neighbours(made, SPEC, matrix)
    rollouts = [random_rollout(seed) for seed in range(3)]
    memory, cohort = exchange.init(cohort)
    everyone = Scores(jnp.zeros(3), jnp.zeros(3), jnp.zeros(3, jnp.int32), jnp.ones(3, bool))
    memory, cohort, _ = exchange.apply(KEY, memory, cohort, everyone)
    side = lambda axis: lambda *x: jnp.stack(x, axis)
    together = jax.tree.map(side(1), *[r._replace(last_obs=()) for r in rollouts])
    together = together._replace(last_obs=side(0)(*[r.last_obs for r in rollouts]))
    together = exchange.add_peer_targets(memory, together)
    keys, axes = jax.random.split(KEY, 3), Rollout(1, 1, 1, 1, 1, 1, last_obs=0, peer_targets=1)
    after, metrics = jax.jit(jax.vmap(made.update, (0, 0, axes)))(keys, cohort, together)

    for i in range(3):
        hand = ByHand(config, trees.take(cohort.params, i))
        obs = np.float64(rollouts[i].obs)[np.asarray(rollouts[i].valid)]
        others = [layers(trees.take(cohort.params.actor, j)) for j in range(3)]
        actions = [np.tanh(forward(other, obs)[0]) for other in others]
        batches, noise = drawn(config, keys[i], trees.take(after, i))
        own = np.tanh(forward(hand.actor, obs)[0])
        told = Told(obs, actions, matrix[i].tolist(), coefficient=0.7)
        for g in range(2):
            hand.learn(trees.take(batches, g), noise[g], told)
        assert_same(trees.take(after.params, i), hand)
        apart = sum(w * np.sum((own - a) ** 2, 1) for w, a in zip(matrix[i], actions, strict=True))
        np.testing.assert_allclose(metrics["loss/neighbours"][i], 0.7 * np.mean(apart), rtol=1e-4, atol=1e-6)
    assert metrics["loss/neighbours"][2] == 0
    assert (metrics["loss/neighbours"][:2] > 0.01).all()


def test_neighbours_who_agree_pull_nowhere():
    _, made, update = learner(comm_penalty_coeff=0.7)
    state, rollout = begin(made), random_rollout(0)
    policy_terms = made.policy_terms(state, rollout.obs)
    three = PeerTargets(jnp.full(rollout.reward.shape, 3.0), jax.tree.map(lambda x: 3 * x, policy_terms))
    peers = rollout._replace(peer_targets=(three,))
    quiet, _ = update(KEY, state, rollout)
    pulled, metrics = update(KEY, state, peers)
    assert abs(metrics["loss/neighbours"]) < 1e-6
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=3e-6)
    jax.tree.map(close, pulled.params.target_critic, quiet.params.target_critic)
    jax.tree.map(close, pulled.opt_state.critic, quiet.opt_state.critic)


@pytest.mark.parametrize("form", ["parameters", "outputs"])
def test_the_anchor_costs_nothing_to_who_is_there(form):
    """At the anchor the first critic step has no penalty, and pays none."""
    _, made, update = learner(prox_coef=0.5, prox_form=form, gradient_steps=1, policy_delay=1)
    state = made.init(KEY)
    _, metrics = update(KEY, state, random_rollout(0))
    assert metrics["loss/critic_prox"] == metrics["loss/actor_prox"] == 0
    far = state._replace(anchor=jax.tree.map(lambda x: x + 1.0, state.params))
    _, metrics = update(KEY, far, random_rollout(0))
    assert metrics["loss/critic_prox"] > 0
    assert metrics["loss/actor_prox"] > 0
    if form == "parameters":  # beta times as many ones
        num = trees.size(state.params.critic)
        np.testing.assert_allclose(metrics["loss/critic_prox"], 0.5 * num, rtol=1e-5)
        np.testing.assert_allclose(
            metrics["loss/actor_prox"], 0.5 * trees.size(state.params.actor), rtol=1e-5
        )
