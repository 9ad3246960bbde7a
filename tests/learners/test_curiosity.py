"""Curiosity: its bonus and errors by hand, apart from the policy, and with all that learners do together."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges.combinators import only_parts
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.mixing import average
from shoal.exchanges.selection import copy_parents
from shoal.learners import ppo
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig
from shoal.learners.wrappers import curiosity_model
from shoal.learners.wrappers.curiosity import WithCuriosity, curious, policy_of
from shoal.nets.actor_critic import actor_critic
from shoal.ops import trees
from shoal.ops.statistics import Running
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.program import make_trainer
from shoal.types import Box, Discrete, EnvSpec, LearnerState, MultiBinary, MultiDiscrete, Rollout, Scores

jax.devices()  # two of them, before a trainer divides the cores its own way

KEY = jax.random.key(0)
SMALL = {
    "num_envs": 4,
    "num_steps": 8,
    "num_minibatches": 2,
    "update_epochs": 2,
    "hidden": (8,),
    "curiosity": True,
    "icm_size": 6,
    "norm_obs": True,
}
CONFIG = with_settings(PPOConfig(), **SMALL, intrinsic_coef=3.0, extrinsic_coef=0.5)
VECTOR = EnvSpec("vector", "jax", Box((3,)), Discrete(3))


@cache
def learner():
    plain = ppo.ppo(
        CONFIG, VECTOR, LearnerContext(num_updates=10, network=plainly(actor_critic(hidden=(8,))))
    )
    return plain, curious(plain, CONFIG, VECTOR)


def plainly(make):
    """The same network with other weights: orthogonal ones take long to compile."""

    def fill(key, spec, num_outputs):
        shapes = jax.eval_shape(lambda: make(key, spec, num_outputs))
        return jax.tree.map(lambda s: 0.3 * jax.random.normal(key, s.shape), shapes)

    return fill


@cache
def state():
    """A learner whose moments and bonuses so far are not those of the beginning."""
    made = jax.jit(learner()[1].init)(KEY)
    moments = Running(jnp.float32(10), jnp.array([1.0, 2.0, 3.0]), jnp.array([10.0, 40.0, 90.0]))
    sums = made.private.curiosity._replace(running=jnp.array([0.0, 1.0, 2.0, 3.0]))
    return made._replace(
        statistics=made.statistics._replace(obs={"obs": moments}),
        private=made.private._replace(curiosity=sums),
    )


@cache
def rollout():
    """Random steps in which environment 0 ends at 2, and is reset at 3, and environment 1 ends at 7."""
    rng = np.random.default_rng(0)
    terminated, truncated = np.zeros((2, 8, 4), bool)
    terminated[2, 0] = truncated[7, 1] = True
    valid = np.ones((8, 4), bool)
    valid[3, 0] = False
    obs = jnp.float32(rng.normal(2.0, 2.0, (9, 4, 3)))
    action = jnp.asarray(rng.integers(3, size=(8, 4)), jnp.int32)
    reward = jnp.float32(np.where(valid, rng.normal(size=(8, 4)), 0))
    return Rollout(obs[:8], action, reward, *map(jnp.asarray, (terminated, truncated, valid)), obs[8])


def layers(mlp, x):
    """An MLP in NumPy."""
    first, last = mlp.layers
    hidden = np.maximum(x @ np.asarray(first.weight) + np.asarray(first.bias), 0)
    return hidden @ np.asarray(last.weight) + np.asarray(last.bias)


def bonus_by_hand():
    model, seen = state().params.curiosity, np.concatenate([rollout().obs, rollout().last_obs[None]])
    features = layers(model.features, np.clip((seen - [1, 2, 3]) / [1, 2, 3], -10, 10))
    described = np.concatenate([features[:-1], np.eye(3)[np.asarray(rollout().action)]], -1)
    squared = np.sum((layers(model.forward, described) - features[1:]) ** 2, -1)
    return 0.01 / 2 * squared * np.asarray(rollout().valid)


@cache
def updated():
    return jax.jit(learner()[1].update)(KEY, state(), rollout())


@cache
def plain_update():
    return jax.jit(learner()[0].update)


def assert_close(a, b, rtol=1e-5, atol=1e-6):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), a, b)


def test_the_bonus_by_hand():
    """That of the model before it learns; and its sums over episodes, which began with 0, 1, 2 and 3."""
    after, metrics = updated()
    bonus = bonus_by_hand()
    assert bonus.min() == 0 < np.median(bonus)
    np.testing.assert_allclose(metrics["curiosity/bonus"], bonus.sum() / 31, rtol=1e-5)
    finished = (bonus[:3, 0].sum() + 1 + bonus[:, 1].sum()) / 2
    np.testing.assert_allclose(metrics["curiosity/return"], finished, rtol=1e-5)
    running = [bonus[4:, 0].sum(), 0, 2 + bonus[:, 2].sum(), 3 + bonus[:, 3].sum()]
    np.testing.assert_allclose(after.private.curiosity.running, running, rtol=1e-5, atol=1e-7)


def test_the_policy_learns_from_both_rewards_and_from_nothing_else():
    """As without curiosity from 0.5 reward + 3 bonus; the model's loss does not move it."""
    told = rollout()._replace(reward=0.5 * rollout().reward + 3 * jnp.float32(bonus_by_hand()))
    key_policy, _ = jax.random.split(KEY)
    alone, metrics = plain_update()(key_policy, policy_of(state()), told)
    after, found = updated()
    assert_close(policy_of(after), alone)
    assert_close({name: found[name] for name in metrics}, metrics, rtol=1e-3)


def test_the_model_learns_whatever_the_policy():
    after, _ = updated()
    zeros = jax.tree.map(jnp.zeros_like, state().params.policy)
    other = state()._replace(params=state().params._replace(policy=zeros))
    again, _ = jax.jit(learner()[1].update)(KEY, other, rollout())
    model = (after.params.curiosity, after.opt_state.curiosity)
    jax.tree.map(np.testing.assert_array_equal, model, (again.params.curiosity, again.opt_state.curiosity))
    moved = jax.tree.map(lambda a, b: np.any(a != b), after.params.curiosity, state().params.curiosity)
    assert all(jax.tree.leaves(moved))


def test_the_reset_step_teaches_nothing():
    """What was done at 3, where environment 0 was reset, changes nothing."""
    other = rollout()._replace(action=rollout().action.at[3, 0].add(1))
    assert other.action[3, 0] != rollout().action[3, 0]
    again, _ = jax.jit(learner()[1].update)(KEY, state(), other)
    jax.tree.map(np.testing.assert_array_equal, again.params.curiosity, updated()[0].params.curiosity)


SPACES = {
    "discrete": (Discrete(3), np.array(2)),
    "multi-discrete": (MultiDiscrete((2, 3)), np.array([1, 0])),
    "multi-binary": (MultiBinary(2), np.array([1, 0])),
    "continuous": (Box((2, 1), [[-2.0], [0.0]], [[2.0], [10.0]]), np.array([[1.0], [11.0]])),
}


@pytest.mark.parametrize("kind", SPACES)
def test_the_inverse_error_by_hand(kind):
    space, action = SPACES[kind]
    spec = EnvSpec(kind, "jax", Box((3,)), space)
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: curiosity_model.make_model(KEY, spec, 6, "nature"))
    model = jax.tree.map(lambda s: jnp.float32(rng.normal(size=s.shape)), shapes)
    before, after = np.float32(rng.normal(size=(2, 6)))
    guess = layers(model.inverse, np.concatenate([before, after]))
    log_softmax = lambda x: x - np.log(np.exp(x).sum())
    expected = {
        "discrete": lambda: -log_softmax(guess)[2],
        "multi-discrete": lambda: -log_softmax(guess[:2])[1] - log_softmax(guess[2:])[0],
        "multi-binary": lambda: np.log1p(np.exp(-guess[0])) + np.log1p(np.exp(guess[1])),
        "continuous": lambda: ((guess[0] - 0.5) ** 2 + (guess[1] - 1) ** 2) / 2,
    }[kind]()
    found = jax.jit(lambda *seen: curiosity_model.inverse_error(model, space, *seen))(before, after, action)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_loss_weighs_the_two_errors():
    obs = rollout().obs[0]
    batch = curiosity_model.Transitions(
        obs, rollout().action[0], rollout().obs[1], jnp.array([1.0, 1.0, 0.0, 1.0])
    )
    total, metrics = curiosity_model.curiosity_loss(0.3, VECTOR.action, state().params.curiosity, batch)
    expected = 0.7 * metrics["curiosity/forward"] + 0.3 * metrics["curiosity/inverse"]
    np.testing.assert_allclose(total, expected, rtol=1e-6)


def test_others_see_the_policy():
    plain, whole = learner()
    obs, bare = rollout().obs, LearnerState(state().params, state().statistics, (), (), ())
    inner = policy_of(bare)
    assert_close(whole.policy_terms(bare, obs), plain.policy_terms(inner, obs))
    assert_close(whole.value(state(), obs), plain.value(policy_of(state()), obs))
    assert whole.distance(bare, bare, obs).max() < 1e-6
    left = whole.on_restart(state())
    assert not np.any(left.private.curiosity.running)
    visitor = whole.for_evaluation(state(), 9)
    noise = jnp.zeros((9, 3))
    action, memory = whole.act(visitor, obs[0, :1].repeat(9, 0), noise, jnp.ones(9, bool))
    np.testing.assert_array_equal(action, plain.act(policy_of(visitor), obs[0, :1].repeat(9, 0), noise)[0])
    assert jax.tree.structure(memory) == jax.tree.structure(state().private)


@pytest.mark.parametrize(
    ("observation", "action", "settings"),
    [
        ({"eye": Box((36, 36, 1), 0, 255, "uint8"), "ear": Box((2,))}, Box((2,), -1.0, 1.0), {}),
        (Box((3,)), MultiBinary(2), {"memory": "lstm", "prox_coef": 0.1, "grad_accumulation": 2}),
    ],
)
def test_every_kind_of_learner_may_be_curious(observation, action, settings):
    """Nothing is run: the shapes say that the parts fit."""
    config = with_settings(PPOConfig(), **SMALL, **settings)
    spec = EnvSpec("kind", "jax", observation, action)
    made = curious(ppo.ppo(config, spec, LearnerContext(num_updates=10)), config, spec)

    def learn(key):
        state, flags = made.init(key), jnp.zeros((8, 4), bool)
        boxes = observation if isinstance(observation, dict) else {"obs": observation}
        obs = {name: jnp.zeros((8, 4, *box.shape), box.dtype) for name, box in boxes.items()}
        obs = obs if isinstance(observation, dict) else obs["obs"]
        noise, first = made.draw(key, (8, 4)), trees.take(obs, 0)
        chosen, memory = made.act(state, first, noise[0], flags[0])
        actions = jnp.broadcast_to(chosen, (8, *chosen.shape))
        seen = Rollout(obs, actions, jnp.zeros((8, 4)), flags, flags, ~flags, first, episode_starts=flags)
        return state, made.update(key, state._replace(private=memory), seen)[0]

    before, after = jax.eval_shape(learn, KEY)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (before, after)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("wrong", [{"icm_size": 0}, {"icm_beta": 1.1}, {"intrinsic_coef": -1.0}])
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ShoalError, match=r"curiosity\.(size|beta|coef)"):
        with_settings(PPOConfig(), **wrong)


# Learning together


@cache
def two():
    """Two learners that differ in everything."""
    return jax.tree.map(lambda x: np.stack([x, 2 * x + 1]), state())


@pytest.mark.parametrize("part", ["curiosity", "actor"])
def test_averages_are_of_the_named_part(part):
    exchange = only_parts((part,), average())
    here = Scores(jnp.ones(2), jnp.ones(2), jnp.ones(2, jnp.int32), jnp.ones(2, bool))
    memory, cohort = exchange.init(two()._replace(private=()))
    _, cohort, _ = exchange.apply(KEY, memory, cohort, here)
    before, after = two().params, cohort.params
    parts = lambda params: {
        "curiosity": params.curiosity,
        "actor": params.policy.actor,
        "critic": params.policy.critic,
    }
    mean = jax.tree.map(lambda x: jnp.broadcast_to(x.mean(0), x.shape), parts(before)[part])
    assert_close(parts(after)[part], mean)
    for other in parts(before).keys() - {part}:
        jax.tree.map(np.testing.assert_array_equal, parts(after)[other], parts(before)[other])


def test_parts_that_are_not_there_are_named():
    with pytest.raises(ShoalError, match="called policy; there are actor, critic, curiosity"):
        only_parts(("policy",), average()).init(two()._replace(private=()))


def test_a_copy_is_as_curious_as_its_parent():
    copied = copy_parents(two(), jnp.array([1, 1]))
    for tree in (copied.params, copied.opt_state):
        assert isinstance(tree, WithCuriosity)
        jax.tree.map(lambda x: np.testing.assert_array_equal(x[0], x[1]), tree.curiosity)


RUN = TrainConfig(
    "CartPole-v1",
    algo=with_settings(
        PPOConfig(), **SMALL, init="xavier", norm_reward=True, learning_rate=0.01, icm_learning_rate=0.01
    ),
    steps=32 * 12,
    seed=3,
    reports=6,
)


@pytest.mark.parametrize(
    ("kind", "settings"), [("average", {"prox_coef": 0.1}), ("neighbours", {}), ("gradients", {})]
)
def test_exchanges_take_curious_learners(kind, settings):
    """Nothing is run: the shapes say that the parts fit."""
    config = replace(
        RUN, algo=with_settings(RUN.algo, **settings), learners=2, exchanges=(ExchangeConfig(kind),)
    )
    trainer = make_trainer(config, mesh="1x1")
    begun = jax.eval_shape(trainer.init)
    after, progress = jax.eval_shape(trainer.advance, begun, jnp.int32(3))
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, begun)
    assert progress.metrics["curiosity/bonus"].shape == (2,)
