"""TD3 learners who share gradients or parameters, against one learner that has all their samples."""

from functools import partial

import jax
import numpy as np
import pytest

from shoal.exchanges.config import ExchangeConfig, ExchangeContext
from shoal.exchanges.registry import make_exchange
from shoal.learners import td3
from shoal.learners.replay import Transition
from shoal.learners.td3 import TD3Config, TD3Setup
from shoal.ops import trees
from shoal.types import Box, EnvSpec, Rollout, Scores
from tests.learners.lab import drawn_by_numpy, stack

KEY = jax.random.key(2)
SPEC = EnvSpec("together", "jax", Box((3,)), Box((2,), -1.0, 1.0))
NUM, BATCH = 3, 8
SETTINGS = {
    "num_envs": 1,
    "num_steps": 2,
    "batch_size": BATCH,
    "buffer_size": 10,
    "hidden": (6,),
    "activation": "tanh",
    "tau": 0.2,
    "learning_starts": 0,
    "learning_rate": 0.05,
}
ZERO = np.zeros(NUM, np.float32)
EVERYONE = Scores(ZERO, ZERO, np.zeros(NUM, np.int32), np.ones(NUM, bool))


def random_batches(seed, num_steps):
    """Each learner's own batches and noise, (L, G, B, ...)."""
    rng = np.random.default_rng(seed)
    shape = (NUM, num_steps, BATCH)
    real = lambda *more: np.float32(rng.normal(size=(*shape, *more)) + rng.normal(size=(NUM, 1, 1, *more)))
    batch = Transition(
        obs=real(3),
        action=np.tanh(real(2)),
        reward=real(1),
        steps=np.ones(shape, np.int32),
        next_obs=real(3),
        terminated=rng.random(shape) < 0.2,
    )
    return batch, real(2)


def pooled(tree):
    """(L, G, B, ...) -> (G, L * B, ...): one learner's, as large as all together."""
    return jax.tree.map(lambda x: np.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), tree)


def learned(setup, state, batches, noise):
    """The learner after its steps on given batches, which no replay has to hold."""
    (params, opt_state), _ = td3.learn(setup, state, no_rollout(), batches, noise)
    done = state.private.num_gradients + noise.shape[0]
    return state._replace(
        params=params, opt_state=opt_state, private=state.private._replace(num_gradients=done)
    )


def no_rollout():
    """There are no peer targets, so nothing of it is read."""
    return Rollout((), (), (), (), (), (), ())


def gap(a, b):
    a, b = jax.device_get((a, b))
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)))


@pytest.mark.parametrize(
    ("optimiser", "gradient_steps"),
    [("adam", 1), ("sgd", 2), pytest.param("adam", 4, marks=pytest.mark.slow)],
)
def test_learners_who_average_gradients_are_one_learner_of_all_their_samples(optimiser, gradient_steps):
    """Over six updates, in both ways to keep the delay; Adam alone would not tell a sum from a mean."""
    config = TD3Config(**SETTINGS, gradient_steps=gradient_steps, optimiser=optimiser)
    many, one = TD3Setup(config, SPEC, 2, ("group",)), TD3Setup(config, SPEC, 2)
    step_many = jax.jit(jax.vmap(partial(learned, many), axis_name="group"))
    step_one = jax.jit(partial(learned, one))
    alone = begun = drawn_by_numpy(partial(td3.init, one))(KEY)
    cohort = stack([alone] * NUM)
    for seed in range(6):
        batches, noise = random_batches(seed, gradient_steps)
        cohort = jax.device_get(step_many(cohort, batches, noise))
        alone = jax.device_get(step_one(alone, *pooled((batches, noise))))
        for i in range(NUM):
            assert gap(trees.take(cohort.params, i), alone.params) < 1e-4
            assert gap(trees.take(cohort.params, i), trees.take(cohort.params, 0)) == 0
    assert gap(alone.params, begun.params) > 0.02
    others = (step_one(begun, *pooled(random_batches(seed, gradient_steps))) for seed in (6, 7))
    assert gap(*(other.params for other in others)) > 0.01  # as they would be apart


CRITICS = ExchangeConfig("average", parts=("critic", "target_critic"), local_updates=1)
ACTORS = ExchangeConfig("average", parts=("actor", "target_actor"), local_updates=2)


def meeting(num_updates, learning_rate):
    """Learners who average after each plain critic step, and a learner of all samples, after every update."""
    settings = SETTINGS | {"optimiser": "sgd", "gradient_steps": 1, "learning_rate": learning_rate}
    config = TD3Config(**settings, actor_learning_rate=0.2)
    setup, one = TD3Setup(config, SPEC, 2), td3.td3(config, SPEC)
    exchange = make_exchange((CRITICS, ACTORS), ExchangeContext(NUM, one, SPEC))
    alone = drawn_by_numpy(one.init)(KEY)
    memory, cohort = jax.device_get(jax.jit(exchange.init)(stack([alone] * NUM)))

    @jax.jit
    def advance(memory, cohort, alone, batches, noise, together):
        cohort = jax.vmap(partial(learned, setup))(cohort, batches, noise)
        memory, cohort, _ = exchange.apply(KEY, memory, cohort, EVERYONE)
        return memory, cohort, learned(setup, alone, *together)

    found = []
    for seed in range(num_updates):
        given = random_batches(seed, 1)
        memory, cohort, alone = jax.device_get(advance(memory, cohort, alone, *given, pooled(given)))
        found.append((trees.take(cohort.params, 1), alone.params))
        same = lambda part: gap(trees.take(part, 0), trees.take(part, 2))
        assert same(cohort.params.critic) == 0
        assert same(cohort.params.actor) == 0  # moved at every second update, and then averaged
    return found


def test_critics_averaged_after_every_step_are_one_critic_of_all_samples():
    """With plain steps, as long as the actor that judges is one: until it has moved."""
    (one, alone), (two, alone_two) = meeting(2, learning_rate=0.05)
    for found, expected in ((one, alone), (two, alone_two)):
        assert gap(found.critic, expected.critic) < 1e-6
        assert gap(found.target_critic, expected.target_critic) < 1e-6
    assert gap(one.critic, two.critic) > 0.01
    assert gap(one.actor, two.actor) > 1e-3


@pytest.mark.slow
def test_the_gap_to_centralised_td3_is_of_the_order_of_the_critics_step():
    """It comes from that one step alone: a tenth of the step leaves about a tenth of the gap."""
    large, small = (
        gap(found.actor, expected.actor)
        for found, expected in (meeting(2, learning_rate=rate)[-1] for rate in (0.05, 0.005))
    )
    assert 5 < large / small < 20
