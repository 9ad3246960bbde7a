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
from shoal.learners.wrappers.curiosity import WithCuriosity, add_curiosity, policy_of
from shoal.nets.actor_critic import actor_critic
from shoal.ops import trees
from shoal.ops.statistics import Running
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.program import make_trainer
from shoal.types import Box, Discrete, EnvSpec, LearnerState, MultiBinary, MultiDiscrete, Rollout, Scores
from tests.learners.lab import drawn_by_numpy, plainly

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
    network = plainly(actor_critic(hidden=(8,)))
    plain = ppo.ppo(CONFIG, VECTOR, LearnerContext(num_updates=10, network=network))
    return plain, add_curiosity(plain, CONFIG, VECTOR)


@cache
def compiled(name):
    """Of the curious learner."""
    return jax.jit(getattr(learner()[1], name))


@cache
def state():
    """A learner whose moments and bonuses so far are not those of the beginning."""
    made = drawn_by_numpy(learner()[1].init)(KEY)
    moments = Running(np.float32(10), np.float32([1.0, 2.0, 3.0]), np.float32([10.0, 40.0, 90.0]))
    sums = made.private.curiosity._replace(running=np.float32([0.0, 1.0, 2.0, 3.0]))
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
    obs = np.float32(rng.normal(2.0, 2.0, (9, 4, 3)))
    action = rng.integers(3, size=(8, 4)).astype(np.int32)
    reward = np.float32(np.where(valid, rng.normal(size=(8, 4)), 0))
    return Rollout(obs[:8], action, reward, terminated, truncated, valid, obs[8])


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
    return jax.device_get(compiled("update")(KEY, state(), rollout()))


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
    both = rollout()._replace(reward=np.float32(0.5 * rollout().reward + 3 * bonus_by_hand()))
    key_policy, _ = jax.random.split(KEY)
    alone, metrics = plain_update()(key_policy, policy_of(state()), both)
    after, found = updated()
    assert_close(policy_of(after), alone)
    assert_close({name: found[name] for name in metrics}, metrics, rtol=1e-3)


def test_the_model_learns_whatever_the_policy():
    after, _ = updated()
    zeros = jax.tree.map(np.zeros_like, state().params.policy)
    other = state()._replace(params=state().params._replace(policy=zeros))
    again, _ = compiled("update")(KEY, other, rollout())
    model = (after.params.curiosity, after.opt_state.curiosity)
    jax.tree.map(np.testing.assert_array_equal, model, (again.params.curiosity, again.opt_state.curiosity))
    moved = jax.tree.map(lambda a, b: np.any(a != b), after.params.curiosity, state().params.curiosity)
    assert all(jax.tree.leaves(moved))


def test_the_reset_step_teaches_nothing():
    """What was done at 3, where environment 0 was reset, changes nothing."""
    other = rollout()._replace(action=rollout().action.copy())
    other.action[3, 0] += 1
    again, _ = compiled("update")(KEY, state(), other)
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
    model = jax.tree.map(lambda s: np.float32(rng.normal(size=s.shape)), shapes)
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
    weight = np.float32([1.0, 1.0, 0.0, 1.0])
    batch = curiosity_model.Transitions(obs, rollout().action[0], rollout().obs[1], weight)
    loss = jax.jit(partial(curiosity_model.curiosity_loss, 0.3, VECTOR.action))
    total, metrics = jax.device_get(loss(state().params.curiosity, batch))
    expected = 0.7 * metrics["curiosity/forward"] + 0.3 * metrics["curiosity/inverse"]
    np.testing.assert_allclose(total, expected, rtol=1e-6)


def test_others_see_the_policy():
    plain, whole = learner()
    obs, bare = rollout().obs, LearnerState(state().params, state().statistics, (), (), ())
    inner = policy_of(bare)
    assert_close(compiled("policy_terms")(bare, obs), jax.jit(plain.policy_terms)(inner, obs))
    assert_close(compiled("value")(state(), obs), jax.jit(plain.value)(policy_of(state()), obs))
    assert np.max(compiled("distance")(bare, bare, obs)) < 1e-6
    left = whole.on_restart(state())
    assert not np.any(left.private.curiosity.running)
    visitor = whole.for_evaluation(state(), 9)
    noise, seen = np.zeros((9, 3), np.float32), obs[0, :1].repeat(9, 0)
    action, memory = compiled("act")(visitor, seen, noise, np.ones(9, bool))
    np.testing.assert_array_equal(action, jax.jit(plain.act)(policy_of(visitor), seen, noise)[0])
    assert jax.tree.structure(memory) == jax.tree.structure(state().private)


@pytest.mark.parametrize(
    ("observation", "action", "settings"),
    [
        ({"eye": Box((36, 36, 1), 0, 255, "uint8"), "ear": Box((2,))}, Box((2,), -1.0, 1.0), {}),
        (Box((3,)), MultiBinary(2), {"memory": "lstm", "prox_coef": 0.1, "grad_accumulation": 2}),
    ],
)
def test_curiosity_works_with_every_kind_of_learner(observation, action, settings):
    """Nothing is run: the shapes say that the parts fit."""
    config = with_settings(PPOConfig(), **SMALL, **settings)
    spec = EnvSpec("kind", "jax", observation, action)
    made = add_curiosity(ppo.ppo(config, spec, LearnerContext(num_updates=10)), config, spec)

    def learn(key):
        state, flags = made.init(key), jnp.zeros((8, 4), bool)
        boxes = observation if isinstance(observation, dict) else {"obs": observation}
        obs = {name: jnp.zeros((8, 4, *box.shape), box.dtype) for name, box in boxes.items()}
        obs = obs if isinstance(observation, dict) else obs["obs"]
        noise, first = made.draw(key, (8, 4)), trees.take(obs, 0)
        chosen, private = made.act(state, first, noise[0], flags[0])
        actions = jnp.broadcast_to(chosen, (8, *chosen.shape))
        seen = Rollout(obs, actions, jnp.zeros((8, 4)), flags, flags, ~flags, first, episode_starts=flags)
        return state, made.update(key, state._replace(private=private), seen)[0]

    before, after = jax.eval_shape(learn, KEY)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (before, after)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("wrong", [{"icm_size": 0}, {"icm_beta": 1.1}, {"intrinsic_coef": -1.0}])
def test_impossible_settings_are_refused(wrong):
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
    one = np.ones(2, np.float32)
    here = Scores(one, one, np.ones(2, np.int32), np.ones(2, bool))

    @jax.jit
    def met(cohort):
        memory, cohort = exchange.init(cohort)
        return exchange.apply(KEY, memory, cohort, here)[1]

    cohort = jax.device_get(met(two()._replace(private=())))
    before, after = two().params, cohort.params
    parts = lambda params: {
        "curiosity": params.curiosity,
        "actor": params.policy.actor,
        "critic": params.policy.critic,
    }
    mean = jax.tree.map(lambda x: np.broadcast_to(x.mean(0), x.shape), parts(before)[part])
    assert_close(parts(after)[part], mean)
    for other in parts(before).keys() - {part}:
        jax.tree.map(np.testing.assert_array_equal, parts(after)[other], parts(before)[other])


def test_parts_that_are_not_there_are_named():
    with pytest.raises(ShoalError, match="called policy; there are actor, critic, curiosity"):
        only_parts(("policy",), average()).init(two()._replace(private=()))


def test_a_copy_is_as_curious_as_its_parent():
    copied = jax.device_get(jax.jit(copy_parents)(two(), np.array([1, 1])))
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
