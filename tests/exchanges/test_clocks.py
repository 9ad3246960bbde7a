"""Parts of a network that meet at clocks of their own: who moves when, and how often they met."""

from functools import cache

import jax
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig, ExchangeContext
from shoal.exchanges.registry import make_exchange, split_by_interval
from shoal.learners.td3 import TD3Config, td3
from shoal.training.config import TrainConfig
from shoal.training.loop import progress_reports
from shoal.training.program import make_trainer
from shoal.types import Box, EnvSpec
from tests.exchanges.meetings import made_up, scores

KEY = jax.random.key(2)
SPEC = EnvSpec("a line", "jax", Box((2,)), Box((1,), -1.0, 1.0))
PARTS = ("critic:2", "target_critic:2", "actor:4", "target_actor:4")


@cache
def learner(prox_coef=0.0):
    return td3(TD3Config(hidden=(3,), buffer_size=4, prox_coef=prox_coef), SPEC)


@cache
def cohort(prox_coef=0.0):
    """Three learners that are all different."""
    return made_up(learner(prox_coef), 3)._replace(private=())


def apart(tree):
    """Whether the learners differ in any leaf."""
    return any(bool(np.any(x != x[:1])) for x in jax.tree.leaves(tree))


def test_each_part_meets_at_its_own_clock():
    exchange = make_exchange(
        (ExchangeConfig("average", parts=PARTS, common_start=False),), ExchangeContext(3, learner(), SPEC)
    )
    state, now = jax.device_get(jax.jit(exchange.init)(cohort()))
    apply, rounds = jax.jit(exchange.apply), []
    for update in range(1, 9):
        # Whatever met stays together, for nothing is learned in between: so begin anew each time.
        state, met, metrics = jax.device_get(apply(KEY, state, cohort(), scores(3)))
        assert apart(met.params.critic) == apart(met.params.target_critic) == bool(update % 2)
        assert apart(met.params.actor) == apart(met.params.target_actor) == bool(update % 4)
        rounds.append(metrics["exchange/rounds"].tolist())
    assert now.params is not None
    counted = [update // 2 + update // 4 for update in range(1, 9)]
    assert rounds == [[float(count)] * 3 for count in counted]


def test_an_anchor_keeps_the_part_that_did_not_meet():
    exchange = make_exchange(
        (ExchangeConfig("average", parts=("critic:1", "actor:2"), common_start=False),),
        ExchangeContext(3, learner(0.1), SPEC, anchored=True),
    )
    state, now = jax.device_get(jax.jit(exchange.init)(cohort(0.1)))
    apply = jax.jit(exchange.apply)
    moved = now._replace(params=jax.tree.map(lambda x: x + 1, now.params))
    same = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)
    state, first, _ = jax.device_get(apply(KEY, state, moved, scores(3)))
    same(first.anchor.critic, first.params.critic)
    same(first.anchor.actor, now.params.actor)
    _, second, _ = jax.device_get(apply(KEY, state, first, scores(3)))
    same(second.anchor.actor, second.params.actor)
    assert not apart(second.anchor.actor)


def test_parts_without_a_clock_meet_at_the_usual_one():
    config = ExchangeConfig("average", local_updates=7, parts=("actor", "critic:3"))
    assert [(one.parts, one.local_updates) for one in split_by_interval(config)] == [
        (("actor",), 7),
        (("critic",), 3),
    ]
    assert split_by_interval(ExchangeConfig("average")) == [ExchangeConfig("average")]


@pytest.mark.parametrize("part", ["critic:", "critic:0", "critic:x", "critic:-1"])
def test_a_clock_is_a_number(part):
    with pytest.raises(ShoalError, match=r"after the colon comes a number of updates, e\.g\. critic:50$"):
        split_by_interval(ExchangeConfig("average", parts=(part,)))


def test_staying_near_what_was_received_needs_both_networks():
    rule = (ExchangeConfig("average", parts=("actor",)),)
    config = TrainConfig("Pendulum-v1", TD3Config(prox_coef=0.1), learners=2, exchanges=rule)
    with pytest.raises(ShoalError, match="needs an exchange of actor and critic"):
        config.check()


@pytest.mark.slow
def test_a_run_reports_its_rounds():
    """T / N + T / (M L): 24 steps, critics every 4, actors every 8."""
    algo = TD3Config(num_steps=2, hidden=(3,), batch_size=4, buffer_size=24, learning_starts=2)
    rule = (ExchangeConfig("average", parts=PARTS),)
    config = TrainConfig("Pendulum-v1", algo, steps=24, learners=2, reports=1, exchanges=rule)
    trainer = make_trainer(config)
    *_, last = progress_reports(trainer, trainer.init())
    assert last.metrics["exchange/rounds"].tolist() == [24 / 4 + 24 / 8] * 2
