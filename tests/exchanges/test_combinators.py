"""The grammar of exchanges: who meets when, with which of their parameters, and what the others keep."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.exchanges.combinators import (
    UNITS,
    chain,
    common_start,
    empty_scores,
    every,
    none,
    only_parts,
    participate,
)
from shoal.exchanges.mixing import average
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig, ppo
from shoal.ops import trees
from shoal.ops.statistics import Running
from shoal.settings import with_settings
from shoal.types import Exchange, ExchangeState, LearnerState, Rollout
from tests.exchanges.meetings import made_up, met, scores

KEY = jax.random.key(5)


class Net(NamedTuple):
    """Parameters with the names that networks have."""

    actor: dict
    critic: dict
    log_std: jax.Array


def cohort_of(params):
    return LearnerState(params, (), (), (), ())


def numbers(*values):
    """Learners of one parameter each."""
    return cohort_of({"w": np.array(values, np.float32)[:, None]})


def net(num_learners, seed=0):
    """Learners of an actor, a critic and a spread, all different."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=(num_learners, *shape)).astype(np.float32)
    return Net({"w": draw(2, 3), "b": draw(3)}, {"w": draw(2)}, draw(1))


@cache
def compiled(exchange):
    return jax.jit(exchange.apply)


def after(exchange, state, cohort, scores, key=KEY):
    """Memory, cohort and metrics after a meeting."""
    return jax.device_get(compiled(exchange)(key, state, cohort, scores))


def change(function, name="met", add_peer_targets=None):
    """w <- function(key, w, standing) for everyone, and a count of the meetings as the metric `name`."""

    def apply(key, state, cohort, now):
        params = jax.tree.map(lambda w: function(key, w, now), cohort.params)
        state = ExchangeState(state.per_learner + 1)
        return state, cohort._replace(params=params), {name: state.per_learner.astype(jnp.float32)}

    def init(cohort):
        return ExchangeState(jnp.zeros(trees.num_rows(cohort), jnp.int32)), cohort

    exchange = Exchange(init, apply)
    return exchange if add_peer_targets is None else exchange._replace(add_peer_targets=add_peer_targets)


def rewarded(value):
    """One learner's rollout of one step, with this reward."""
    one = np.full((1, 1, 1), value, np.float32)
    return Rollout(one, one, one, one < 0, one < 0, one > 0, one[0])


def bits(tree):
    return [(x.shape, str(x.dtype), np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


# Nothing, and one after another


def test_none_does_nothing():
    exchange, cohort = none(), numbers(1, 2)
    state, begun = exchange.init(cohort)
    assert begun is cohort
    assert exchange.apply(KEY, state, cohort, scores(2)) == (ExchangeState(), cohort, {})
    rollout = rewarded(1.0)
    assert exchange.add_peer_targets(state, rollout) is rollout
    assert exchange.derive_metrics({}) == {}


def test_a_chain_goes_in_order_and_adds_metrics_of_the_same_name():
    """(1, 2) -> (2, 4) -> (5, 7); both links count `met`, one alone counts `other`."""
    double, plus = change(lambda _, w, now: 2 * w), change(lambda _, w, now: w + 3)
    exchange = chain(double, plus, change(lambda _, w, now: w, "other"))
    state, cohort = exchange.init(numbers(1, 2))
    state, cohort, metrics = after(exchange, state, cohort, scores(2))
    assert cohort.params["w"][:, 0].tolist() == [5, 7]
    assert {name: x.tolist() for name, x in metrics.items()} == {"met": [2, 2], "other": [1, 1]}
    _, cohort, metrics = after(exchange, state, cohort, scores(2))
    assert cohort.params["w"][:, 0].tolist() == [13, 17]
    assert {name: x.tolist() for name, x in metrics.items()} == {"met": [4, 4], "other": [2, 2]}


def test_every_link_has_a_key_of_its_own():
    bits_of = lambda key: tuple(jax.random.key_data(key).tolist())
    seen = [bits_of(KEY)]
    note = lambda key, w, now: seen.append(bits_of(key)) or w
    exchange = chain(*[change(note)] * 3)
    state, cohort = exchange.init(numbers(1, 2))
    exchange.apply(KEY, state, cohort, scores(2))
    assert len({*seen}) == len(seen) == 4


def test_links_begin_in_order_and_each_sees_what_the_one_before_left():
    seen = []

    def begin(cohort):
        seen.append(cohort.params["w"][0, 0].item())
        return ExchangeState(), jax.tree.map(lambda w: w + 1, cohort)

    _, cohort = chain(*[none()._replace(init=begin)] * 3).init(numbers(1, 2))
    assert seen == [1, 2, 3]
    assert cohort.params["w"][:, 0].tolist() == [4, 5]


def test_advice_is_given_in_order_each_link_with_its_own_state():
    """(1 x 3) + 10: the links' states are the 3 and the 10."""
    times = lambda state, rollout: rollout._replace(reward=rollout.reward * state.per_learner)
    plus = lambda state, rollout: rollout._replace(reward=rollout.reward + state.shared)
    links = [none()._replace(add_peer_targets=add_peer_targets) for add_peer_targets in (times, plus)]
    rows, whole = (np.full((1, 1, 1), 3.0), ()), ((), np.full((1, 1, 1), 10.0))
    found = chain(*links).add_peer_targets(ExchangeState(rows, whole), rewarded(1.0))
    assert found.reward.item() == 13


def test_a_chain_accounts_for_all_its_links():
    links = [none()._replace(derive_metrics=lambda m, n=n: {n: m["x"]}) for n in ("a", "b")]
    assert chain(*links).derive_metrics({"x": 4}) == {"a": 4, "b": 4}


# Now and then


def test_every_third_update_they_meet_and_in_between_nothing_changes():
    """Six parameters' bits, the samples that the meeting sees, and the metrics, over eight updates."""
    exchange = every(3, change(lambda _, w, now: w + now.samples[:, None]))
    state, cohort = exchange.init(numbers(0.1, 0.2))
    values, metrics = [], []
    for update in range(1, 9):
        before = bits(cohort)
        now = scores(2, samples=[update, 10.0 * update])
        state, cohort, found = after(exchange, state, cohort, now)
        assert (bits(cohort) == before) == (update not in (3, 6))
        values.append(cohort.params["w"][:, 0].tolist())
        metrics.append(found["met"].tolist())
    assert values[2] == pytest.approx([6.1, 60.2])  # 1 + 2 + 3
    assert values[5] == pytest.approx([21.1, 210.2])  # and 4 + 5 + 6, not all six
    assert metrics == [[0, 0]] * 2 + [[1, 1]] * 3 + [[2, 2]] * 3


def test_every_update_is_the_exchange_itself():
    exchange = average()
    assert every(1, exchange) is exchange
    with pytest.raises(ShoalError, match="local_updates must be at least 1, not 0"):
        every(0, exchange)


def test_in_between_advice_goes_on():
    times = lambda state, rollout: rollout._replace(reward=rollout.reward * state.per_learner[0])
    exchange = every(4, change(lambda _, w, now: w, add_peer_targets=times))
    state, cohort = exchange.init(numbers(1))
    for expected in (0, 0, 0, 0, 1, 1, 1, 1, 2):
        assert exchange.add_peer_targets(state, rewarded(1.0)).reward.item() == expected
        state, cohort, _ = after(exchange, state, cohort, scores(1))


def test_every_passes_the_account_on():
    spent = lambda metrics: {"spent": 1}
    assert every(3, none()._replace(derive_metrics=spent)).derive_metrics({}) == {"spent": 1}


def test_schedules_nest():
    """Every second update, and of those every third: at the sixth."""
    exchange = every(2, every(3, change(lambda _, w, now: w + now.samples[:, None])))
    state, cohort = exchange.init(numbers(0))
    values = []
    for _ in range(12):
        state, cohort, _ = after(exchange, state, cohort, scores(1, samples=[1.0]))
        values.append(cohort.params["w"].item())
    assert values == [0] * 5 + [6] * 6 + [12]


# Some learners


PRESENCE = change(lambda _, w, now: w + now.present[:, None])


def takers(exchange, num_draws, now):
    """Who takes part, (draws, learners)."""
    num = len(now.present)
    state, cohort = exchange.init(numbers(*[0] * num))
    draw = lambda key: exchange.apply(key, state, cohort, now)[1].params["w"][:, 0]
    return np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(KEY, num_draws)))


@pytest.mark.parametrize(
    ("fraction", "num_learners", "expected"),
    [(0.5, 6, 3), (0.4, 5, 2), (0.01, 5, 1), (0.99, 10, 10), (0.3, 10, 3), (1.0, 4, 4)],
)
def test_exactly_so_many_take_part(fraction, num_learners, expected):
    drawn = takers(participate(fraction, PRESENCE), 10, scores(num_learners))
    assert (drawn.sum(1) == expected).all()
    assert {*np.unique(drawn)} <= {0, 1}


def test_they_are_drawn_anew_each_time_and_all_get_their_turn():
    """200 draws of 2 in 5: each learner about 80 times, 6.9 the deviation, and all ten pairs occur."""
    drawn = takers(participate(0.4, PRESENCE), 200, scores(5))
    assert np.all(np.abs(drawn.sum(0) - 80) < 28)
    assert len(np.unique(drawn, axis=0)) == 10


def test_who_was_absent_before_stays_absent():
    drawn = takers(participate(0.5, PRESENCE), 50, scores(6, present=np.arange(6) < 2))
    assert np.all(drawn[:, 2:] == 0)
    assert set(drawn.sum(1)) == {0, 1, 2}


def test_the_others_go_on_untouched_bit_for_bit():
    exchange = participate(0.5, average())
    state, cohort = jax.device_get(jax.jit(exchange.init)(cohort_of(net(4))))
    for i in range(4):
        _, now, metrics = after(exchange, state, cohort, scores(4), jax.random.key(i))
        present = metrics["exchange/rounds"] == 1
        assert present.sum() == 2
        for learner in range(4):
            same = bits(trees.take(now, learner)) == bits(trees.take(cohort, learner))
            assert same == (not present[learner])


def test_the_draw_is_not_the_inner_exchanges_randomness():
    seen = []
    note = lambda key, w, now: seen.append(jax.random.key_data(key).tolist()) or w
    exchange = participate(0.5, change(note))
    state, cohort = exchange.init(numbers(1, 2))
    exchange.apply(KEY, state, cohort, scores(2))
    key_draw, key_inner = (jax.random.key_data(key).tolist() for key in jax.random.split(KEY))
    assert seen == [key_inner]
    assert key_inner != key_draw


@pytest.mark.parametrize("fraction", [0, -0.5, 1.5])
def test_impossible_fractions_are_refused(fraction):
    with pytest.raises(ShoalError, match="participation must be above 0 and at most 1"):
        participate(fraction, none())


# Some parameters


@pytest.mark.parametrize(
    ("parts", "changed"),
    [(["actor"], {"actor", "log_std"}), (["critic"], {"critic"}), (["actor", "critic"], {*Net._fields})],
)
def test_only_the_named_parts_change_and_log_std_goes_with_the_actor(parts, changed):
    exchange = only_parts(parts, average())
    before = cohort_of(net(3))
    _, begun = jax.jit(exchange.init)(before)
    assert bits(begun) == bits(before)
    now, metrics = met(exchange, before)
    for name in Net._fields:
        old, new = getattr(before.params, name), getattr(now.params, name)
        if name in changed:
            mean = jax.tree.map(lambda x: np.broadcast_to(np.mean(x, 0), x.shape), old)
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), new, mean)
        else:
            assert bits(new) == bits(old)
    sizes = {"actor": 9, "critic": 2, "log_std": 1}
    sent = 4 * sum(sizes[name] for name in changed)
    assert metrics["exchange/bytes"].tolist() == [sent] * 3


def test_the_parts_of_a_real_network():
    """Pendulum's actor is continuous, so there is a log_std."""
    learner = ppo(PPOConfig(hidden=(4,)), make("Pendulum-v1").spec, LearnerContext(1))
    before = made_up(learner, 2)
    now, _ = met(only_parts(["actor"], average()), before)
    assert bits(now.params.critic) == bits(before.params.critic)
    of = lambda params: (params.actor, params.log_std)
    halfway = jax.tree.map(lambda x: np.repeat(x.mean(0, keepdims=True), 2, 0), of(before.params))
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, of(now.params), halfway)
    assert jax.tree.structure(now) == jax.tree.structure(before)


@pytest.mark.parametrize("parts", [["actor"], ["critic"]])
def test_what_a_critics_numbers_are_measured_by_goes_with_the_critic(parts):
    config = with_settings(PPOConfig(), hidden=(4,), norm_obs=True, norm_reward=True, norm_value=True)
    learner = ppo(config, make("CartPole-v1").spec, LearnerContext(1))
    before = made_up(learner, 2)
    now, _ = met(only_parts(parts, average()), before)
    stayed = [bits(getattr(now.statistics, n)) == bits(getattr(before.statistics, n)) for n in UNITS]
    assert stayed == [parts == ["actor"]] * 2
    assert bits(now.statistics.obs) != bits(before.statistics.obs)


def test_unknown_parts_are_named_with_those_there_are():
    message = "no parameters are called head, torso; there are actor, critic, log_std"
    exchange = only_parts(["torso", "actor", "head"], average())
    with pytest.raises(ShoalError, match=message):
        exchange.init(cohort_of(net(2)))


def test_without_a_log_std_an_actor_goes_alone():
    exchange = only_parts(["actor"], average())
    params = {"actor": np.float32([[1], [3]]), "critic": np.float32([[1], [3]])}
    now, _ = met(exchange, cohort_of(params))
    assert jax.tree.map(lambda x: x[:, 0].tolist(), now.params) == {"actor": [2, 2], "critic": [1, 3]}


# The start


def test_together_all_begin_as_the_first():
    exchange = common_start(average())
    before = cohort_of(net(3))._replace(
        hypers=np.arange(3, dtype=np.float32), opt_state=np.arange(3, dtype=np.int32)
    )
    begin = lambda cohort: jax.device_get(jax.jit(exchange.init)(cohort)[1])
    begun = begin(before)
    for learner in range(3):
        assert bits(trees.take(begun.params, learner)) == bits(trees.take(before.params, 0))
    assert bits(begun._replace(params=())) == bits(before._replace(params=()))
    begun = begin(before._replace(anchor=net(3)))
    assert bits(begun.anchor) == bits(begun.params)


def test_together_the_exchange_begins_with_the_common_parameters():
    seen = []
    watch = none()._replace(init=lambda cohort: seen.append(cohort) or (ExchangeState(), cohort))
    common_start(watch).init(numbers(4, 5))
    assert seen[0].params["w"][:, 0].tolist() == [4, 4]


def test_nobody_is_absents_standing():
    nobody = jax.device_get(empty_scores(3))
    assert nobody.present.tolist() == [False] * 3
    assert nobody.samples.tolist() == nobody.returns.tolist() == nobody.episodes.tolist() == [0] * 3
    assert nobody.episodes.dtype == jnp.int32


def test_the_moments_of_a_policy_that_is_not_exchanged_stay():
    """Two teams' policies lie side by side: exchanging one leaves the other's running moments alone."""
    weights = lambda seed: np.random.default_rng(seed).normal(size=(3, 2)).astype(np.float32)
    ones = np.ones(3, np.float32)
    moments = lambda mean: Running(4 * ones, np.float32([0, 1, 2]) + np.float32(mean), ones)
    cohort = LearnerState(
        params={"team0": weights(0), "team1": weights(1)},
        statistics={"team0": {"obs": moments(0.0)}, "team1": {"obs": moments(9.0)}},
        opt_state=(),
        hypers=(),
        private=(),
    )
    now, _ = met(only_parts(["team0"], average()), cohort)
    np.testing.assert_array_equal(now.statistics["team1"]["obs"].mean, [9.0, 10.0, 11.0])
    np.testing.assert_allclose(now.statistics["team0"]["obs"].mean, [1.0, 1.0, 1.0])
