"""PPO in parts, for its tests: its functions compiled once for each configuration, and made-up rollouts."""

from functools import cache, cached_property, partial

import jax
import numpy as np
import pytest

from shoal.learners import ppo
from shoal.learners.ppo import PPOConfig, PPOSetup
from shoal.learners.ppo_batch import make_batch
from shoal.nets import actor_critic
from shoal.nets.layers import INITIALIZERS
from shoal.ops.distributions import distribution_for
from shoal.settings import with_settings
from shoal.types import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Rollout

SMALL = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "update_epochs": 3, "hidden": (8,)}
BASE = with_settings(PPOConfig(), **SMALL, target_kl=1e9, anneal_ent=True, norm_obs=True)
PLAIN = PPOConfig(**SMALL)
ONCE = PPOConfig(**SMALL | {"num_minibatches": 1, "update_epochs": 1}, norm_obs=True, norm_reward=True)
KEY = jax.random.key(0)
PICTURE = Box((36, 36, 1), 0, 255, "uint8")
SPECS = {
    "discrete": EnvSpec("discrete", "jax", Box((3,)), Discrete(2)),
    "multi-discrete": EnvSpec("multi-discrete", "jax", Box((3,)), MultiDiscrete((2, 3))),
    "multi-binary": EnvSpec("multi-binary", "jax", Box((2, 2)), MultiBinary(3)),
    "continuous": EnvSpec("continuous", "jax", Box((3,)), Box((2, 1), -1.0, 1.0)),
    "nature": EnvSpec("nature", "jax", {"eye": PICTURE, "ear": Box((2,))}, Discrete(3)),
    "impala": EnvSpec("impala", "jax", PICTURE, Discrete(2)),
}


class Lab:
    """A learner's functions, compiled on first use; `lab` keeps one for each configuration."""

    def __init__(self, config, kind):
        spec = SPECS[kind]
        network = plainly(actor_critic.actor_critic(hidden=config.hidden, images=config.network.images))
        self.setup = PPOSetup(config, spec, distribution_for(spec.action), network, num_updates=10)
        self.make_batch = jax.jit(partial(make_batch, self.setup))
        self.act = jax.jit(partial(ppo.act, self.setup))
        self.update = jax.jit(partial(ppo.update, self.setup))
        self.update_two = jax.jit(jax.vmap(partial(ppo.update, self.setup)))
        self.state = jax.device_get(ppo.init(self.setup, KEY))

    @cached_property
    def rollout(self):
        return self.play(self.state)[0]

    def play(self, state, seed=0):
        """Actions of the learner's own on random observations, with ends of both kinds; and their noise."""
        shape = (self.setup.config.num_steps, self.setup.config.num_envs)
        rng = np.random.default_rng(seed)
        terminated, truncated, valid = random_ends(rng, shape)
        obs, last_obs = (random_obs(rng, self.setup.spec.observation, s) for s in (shape, shape[1:]))
        noise = np.asarray(self.setup.distribution.draw(jax.random.key(seed), shape))
        action = np.asarray(self.act(state, obs, noise)[0])
        reward = np.float32(np.where(valid, rng.normal(size=shape), 0.0))
        return Rollout(obs, action, reward, terminated, truncated, valid, last_obs), noise


def random_ends(rng, shape):
    """(terminated, truncated, valid), (T, E) each: after an end comes a reset step, which is not valid."""
    terminated, truncated, valid = np.zeros((3, *shape), bool)
    over = np.zeros(shape[1], bool)
    for t in range(shape[0]):
        valid[t] = ~over
        terminated[t], truncated[t] = valid[t] & (rng.random((2, shape[1])) < 0.2)
        over = terminated[t] | truncated[t]
    return terminated, truncated, valid


@cache
def lab(config=BASE, kind="discrete"):
    return Lab(config, kind)


def plainly(make):
    """The same network with normal weights that NumPy draws: orthogonal ones take long to compile."""

    def fill(key, spec, num_outputs):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        scale = lambda shape: np.prod(shape[:-1]) ** -0.5 if len(shape) > 1 else 0.1
        shapes = jax.eval_shape(lambda: make(key, spec, num_outputs))
        return jax.tree.map(lambda s: np.float32(rng.normal(0, scale(s.shape), s.shape)), shapes)

    return fill


def drawn_by_numpy(init):
    """`init` whose weights NumPy draws, uniformly by fan-in: compiling what draws them takes long."""

    def draw(key, shape):
        bound = np.prod(shape[:-1]) ** -0.5
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return np.float32(rng.uniform(-bound, bound, shape))

    def drawn(key):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(INITIALIZERS, "fan_in", draw)
            patch.setattr(jax.nn.initializers, "he_uniform", lambda: draw)
            return jax.device_get(init(key))

    return drawn


def random_obs(rng, space, shape):
    if isinstance(space, dict):
        return {name: random_obs(rng, box, shape) for name, box in space.items()}
    if space.dtype == "uint8":
        return rng.integers(0, 256, (*shape, *space.shape)).astype(np.uint8)
    return np.float32(rng.normal(3.0, 2.0, (*shape, *space.shape)))


def twice(tree):
    return stack([tree, tree])


def stack(rows):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_finite(tree):
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(tree)))


def differ(a, b):
    return any(np.any(np.asarray(x) != y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def caught_batch(monkeypatch, setup, state, rollout):
    """What `update` is about to learn from."""
    monkeypatch.setattr(ppo, "learn", lambda setup, key, state, rollout, batch: (state, batch))
    return jax.jit(partial(ppo.update, setup))(KEY, state, rollout)[1]
