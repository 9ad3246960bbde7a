"""Lost learners in every exchange: the others are as if they were absent, now, later and on two devices."""

import jax
import numpy as np
import pytest

from shoal.exchanges.config import ExchangeConfig, ExchangeContext
from shoal.exchanges.exploration import read_priors
from shoal.exchanges.registry import make_exchange, penalises
from shoal.settings import with_settings
from shoal.types import ExchangeState
from tests.exchanges import test_conformance as suite
from tests.exchanges.test_conformance import KEY, MESH, NUM_LEARNERS, SPEC, bits, meet, picked, scores

OTHERS = np.arange(NUM_LEARNERS) < 4
ABSENT = scores()._replace(present=OTHERS)


def lost(cohort):
    """With a weight that is NaN in learner 4, and a moment that is infinite in learner 5."""
    params, opt_state = suite.spoiled(cohort.params, 4, np.nan), suite.spoiled(cohort.opt_state, 5, np.inf)
    return cohort._replace(params=params, opt_state=opt_state)


@suite.every_exchange
def test_what_an_exchange_keeps_has_nothing_of_the_lost(name):
    """The next meeting, and the advice until then, of a device with three of the others."""
    exchange, state, cohort = suite.case(name)
    found, expected = (
        meet(exchange, KEY, state, lost(cohort), scores()),
        meet(exchange, KEY, state, cohort, ABSENT),
    )
    again = jax.random.fold_in(KEY, 1)
    after = [
        meet(exchange, again, found[0], found[1], scores()),
        meet(exchange, again, expected[0], expected[1], ABSENT),
    ]
    assert bits(picked(after[0][1:], OTHERS)) == bits(picked(after[1][1:], OTHERS))
    if any(map(penalises, suite.CASES[name][0])):
        advise = suite.advise(exchange)
        mine = lambda state: jax.tree.map(lambda x: x[: len(x) // 2], state.per_learner)
        advice = [
            jax.device_get(advise(ExchangeState(mine(one[0]), one[0].shared), suite.rollout_of(3)))
            for one in (found, expected)
        ]
        assert suite.finite(advice[0])
        assert bits(advice[0]) == bits(advice[1])


@pytest.mark.parametrize("name", suite.cases(suite.CASES, suite.QUICK_DIVIDED))
def test_two_devices_leave_them_out_too(name):
    exchange, state, cohort = suite.case(name)
    apply, state = suite.divided(exchange), suite.spread(state)
    found = apply(KEY, state, suite.spread(lost(cohort)), suite.spread(scores()))
    expected = apply(KEY, state, suite.spread(cohort), suite.spread(ABSENT))
    assert bits(picked(found[1:], OTHERS)) == bits(picked(expected[1:], OTHERS))
    assert bits(picked(found[1], ~OTHERS)) == bits(picked(lost(cohort), ~OTHERS))


SELECTIONS = {
    "truncation": {},
    "truncation in groups": {"groups": 2},
    "truncation of some": {"participation": 0.5},
    "winner": {},
    "tournament": {},
}


@pytest.mark.parametrize("name", suite.cases(SELECTIONS, ("truncation", "tournament")))
def test_a_selection_ranks_the_others_alone(name):
    """Whatever a lost learner scores: those that are left are chosen and changed as if it were absent."""
    settings = {"local_updates": 1, "min_episodes": 1} | SELECTIONS[name]
    config = with_settings(ExchangeConfig(name.split()[0]), **settings)
    context = ExchangeContext(
        NUM_LEARNERS, suite.learner(False), SPEC, mesh=MESH, priors=read_priors(("learning_rate",))
    )
    exchange = make_exchange((config,), context)
    state, cohort = jax.device_get(jax.jit(exchange.init)(suite.trained(suite.fresh(False), 1)))
    now = scores()._replace(
        returns=np.float32([3, 1, 4, 2, 9, -9]), episodes=np.full(NUM_LEARNERS, 9, np.int32)
    )
    replaced = 0
    for key in jax.random.split(KEY, 6):
        found = meet(exchange, key, state, lost(cohort), now)
        expected = meet(exchange, key, state, cohort, now._replace(present=OTHERS))
        assert bits(picked(found[1], OTHERS)) == bits(picked(expected[1], OTHERS))
        finite = [suite.finite(picked(found[1]._replace(private=()), [i])) for i in (4, 5)]
        replaced += sum(finite)
    assert replaced == 2 * 6
