"""What holds for every exchange that settings can make: one suite, one row of settings each."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from shoal.distributed.mesh import BY_LEARNER, REPLICATED
from shoal.envs.registry import make
from shoal.exchanges import selection
from shoal.exchanges.config import ExchangeConfig, ExchangeContext
from shoal.exchanges.registry import EXCHANGES, make_exchange, mixes, penalises
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig, ppo
from shoal.ops import trees
from shoal.ops.statistics import Running
from shoal.settings import with_settings
from shoal.types import Exchange, ExchangeState, LearnerState, Rollout, Scores, Tree
from tests.exchanges.meetings import drawn, made_up

NUM_LEARNERS = 6
MESH = Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("learners", "data"))
KEY = jax.random.key(11)
SPEC = make("CartPole-v1").spec
ROBUST = ("median", "trimmed-mean", "krum", "multi-krum", "geometric-median")
MATRIX = {"comm_matrix": {str(i): {str((i + 1) % 6): 3.0, str((i + 2) % 6): 1.0} for i in range(6)}}


def settings(exchange, **changes):
    return (with_settings(ExchangeConfig(exchange), **{"local_updates": 1} | changes),)


CONFIGS = {
    "none": (ExchangeConfig("none"),),
    "gradients": (ExchangeConfig("gradients"),),
    "average": settings("average"),
    "average by samples": settings("average", weights="samples"),
    "average by returns": settings("average", weights="returns"),
    "average now and then": settings("average", local_updates=2),
    "average of some": settings("average", participation=0.5),
    "average of actors": settings("average", parts=("actor",)),
    "average with momentum": settings("average", server="momentum"),
    "average with adam": settings("average", server="adam", participation=0.5),
    "average with moments": settings("average", share_moments=True),
    "average of top-k": settings("average", compress="top-k", keep=0.1, participation=0.5),
    "average of bytes": settings("average", compress="int8", server="momentum"),
    "average in private": settings("average", clip=0.5, noise_multiplier=0.5),
    "average with attackers": settings("average", attack="noise", attackers=2),
    "average near it": settings("average", use_comm_penalty=True),
    "average from many starts": settings("average", common_start=False, share_statistics=False),
    **{rule: settings(rule) for rule in ROBUST},
    "median with attackers": settings("median", attack="sign-flip", attackers=2, participation=0.7),
    "krum of top-k": settings("krum", compress="top-k", keep=0.2, server="momentum"),
    "gossip": settings("gossip"),
    "gossip with all": settings("gossip", topology="complete"),
    "gossip on a star": settings("gossip", topology="star", parts=("critic",)),
    "gossip on a torus": settings("gossip", topology="torus", participation=0.5, share_moments=True),
    "gossip at random": settings("gossip", topology="random-regular", degree=3, compress="int8"),
    "gossip in pairs": settings("gossip", topology="pairs", share_moments=True),
    "gossip in noisy pairs": settings("gossip", topology="pairs", clip=0.5, noise_multiplier=0.1),
    "gossip by a file": settings("gossip", comm_matrix=MATRIX, compress="top-k", keep=0.1),
    "gossip with attackers": settings("gossip", attack="zero", attackers=1, clip=1.0),
    "neighbours": settings("neighbours"),
    "neighbours in pairs": settings("neighbours", topology="pairs", participation=0.7),
    "neighbours by a file": settings("neighbours", comm_matrix=MATRIX, symmetrise=True, local_updates=2),
    "neighbours that average": settings("neighbours", average_weights=True, topology="star"),
    "neighbours that only average": settings("neighbours", average_weights=True, use_comm_penalty=False),
    "two levels": settings("gossip", local_updates=2) + settings("average", local_updates=3),
}
ANCHORED = ("average", "gossip in pairs")  # again, with learners that stay near what they received
CASES = {name: (configs, False) for name, configs in CONFIGS.items()}
CASES |= {f"{name}, anchored": (CONFIGS[name], True) for name in ANCHORED}

QUICK = (
    "none",
    "average",
    "average with adam",
    "average of bytes",
    "average in private",
    "median with attackers",
    "gossip",
    "gossip in pairs",
    "gossip by a file",
    "neighbours",
    "two levels",
    "average, anchored",
)
"""Every kind of rule, channel, server, graph, clock and anchor at least once; the other cases are slow."""
QUICK_UNCOMPILED = ("average",)
"""One, as every operation is a program of its own; tests of rules and channels compare theirs with NumPy."""
QUICK_DIVIDED = (
    "average with adam",
    "median with attackers",
    "gossip",
    "gossip in pairs",
    "neighbours",
    "two levels",
)
"""A server's sums, a sort, every way of rows between devices, and a choice of whether to meet."""
SYMMETRIC = (
    "average",
    "average by samples",
    "average by returns",
    "average now and then",
    "average of actors",
    "average with momentum",
    "average with moments",
    "average of bytes",
    "average, anchored",
    *ROBUST,
    "gossip with all",
)


class Case(NamedTuple):
    """An exchange, and learners about to meet."""

    exchange: Exchange
    state: ExchangeState
    cohort: LearnerState


@cache
def learner(anchored):
    config = PPOConfig(hidden=(3,), num_envs=2, norm_obs=True, prox_coef=0.1 if anchored else 0.0)
    return ppo(config, SPEC, LearnerContext(10))


@cache
def fresh(anchored):
    return made_up(learner(anchored), NUM_LEARNERS)


def trained(cohort, seed):
    """As if they had trained: every number they hold has moved."""
    moved = lambda x, dx: np.asarray(x) + dx - np.float32(1.2)
    params = jax.tree.map(moved, cohort.params, drawn(cohort.params, seed))
    parts = [drawn(part, seed + i) for i, part in enumerate(cohort[1:], start=1)]
    return LearnerState(params, *parts)


@cache
def case(name):
    """The exchange after its start and two meetings, so that it has something to remember."""
    configs, anchored = CASES[name]
    exchange = make_exchange(
        configs, ExchangeContext(NUM_LEARNERS, learner(anchored), SPEC, mesh=MESH, anchored=anchored)
    )
    state, cohort = jax.device_get(jax.jit(exchange.init)(fresh(anchored)))
    for round in range(2):
        key, now = jax.random.fold_in(KEY, round), scores(round)
        state, cohort, _ = meet(exchange, key, state, trained(cohort, round), now)
    return Case(exchange, state, trained(cohort, 7))


@cache
def jitted(exchange):
    return jax.jit(exchange.apply)


@cache
def divided(exchange):
    """A meeting of learners on two devices."""
    by_learner, whole = NamedSharding(MESH, BY_LEARNER), NamedSharding(MESH, REPLICATED)
    placed = ExchangeState(by_learner, whole)
    return jax.jit(exchange.apply, out_shardings=(placed, by_learner, by_learner))


def spread(tree, spec=BY_LEARNER):
    """On two devices."""
    if isinstance(tree, ExchangeState):
        return ExchangeState(spread(tree.per_learner), spread(tree.shared, REPLICATED))
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(MESH, spec)), tree)


@cache
def advise(exchange):
    return jax.jit(exchange.add_peer_targets)


def meet(exchange, *arguments):
    """What a meeting gives, on the host: so that the next one's arguments need no other program."""
    return jax.device_get(jitted(exchange)(*arguments))


def scores(seed=3):
    rng = np.random.default_rng(seed)
    returns = np.float32(rng.normal(size=NUM_LEARNERS))
    returns[1] = np.nan
    samples = np.float32(rng.integers(1, 9, NUM_LEARNERS))
    return Scores(samples, returns, np.arange(NUM_LEARNERS, dtype=np.int32), np.ones(NUM_LEARNERS, bool))


@cache
def met(name):
    """(state, cohort, metrics) after one more meeting."""
    exchange, state, cohort = case(name)
    return meet(exchange, KEY, state, cohort, scores())


def bits(tree):
    return [(x.shape, str(x.dtype), np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


def types(tree):
    shapes = jax.tree.leaves(jax.eval_shape(lambda tree: tree, tree))
    return jax.tree.structure(tree), [(x.shape, x.dtype, x.weak_type) for x in shapes]


def assert_close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), a, b)


def picked(tree, index):
    return jax.tree.map(lambda x: np.asarray(x)[index], tree)


def finite(tree):
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def cases(names, quick=QUICK):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


every_exchange = pytest.mark.parametrize("name", cases(CASES))


def test_every_kind_of_exchange_is_here():
    kinds = EXCHANGES
    # Selections replace whole learners, which is theirs to do: test_population.py has them.
    assert {configs[0].exchange for configs in CONFIGS.values()} == {*kinds} - {*selection.RULES}


@every_exchange
def test_the_same_inputs_give_the_same_outputs(name):
    exchange, state, cohort = case(name)
    before = bits((state, cohort))
    again = meet(exchange, KEY, state, cohort, scores())
    assert bits(again) == bits(met(name))
    assert bits((state, cohort)) == before


@every_exchange
def test_shapes_and_types_never_change(name):
    """From the start to the first meeting to the second; metrics are (L,) and float32."""
    exchange, state, cohort = case(name)
    begun = jax.eval_shape(exchange.init, cohort)
    first = jax.eval_shape(exchange.apply, KEY, *begun, scores())
    second = jax.eval_shape(exchange.apply, KEY, *first[:2], scores())
    assert types(first) == types(second)
    assert types(first[:2]) == types(begun) == types((state, cohort))
    for values in first[2].values():
        assert (values.shape, values.dtype, values.weak_type) == ((NUM_LEARNERS,), jnp.float32, False)


@pytest.mark.parametrize("name", cases(QUICK, QUICK_UNCOMPILED))
def test_compiled_and_not_are_the_same(name):
    """On one device: uncompiled, every operation on every device is called by Python."""
    configs, anchored = CASES[name]
    _, state, cohort = case(name)
    exchange = make_exchange(
        configs, ExchangeContext(NUM_LEARNERS, learner(anchored), SPEC, anchored=anchored)
    )
    state = trees.unpack(trees.pack(state), jax.jit(exchange.init)(cohort)[0])
    with jax.disable_jit():
        plain = exchange.apply(KEY, state, cohort, scores())
    assert_close(trees.pack(jax.device_get(plain)), trees.pack(met(name)))


@every_exchange
def test_what_nobody_asked_to_share_stays_bit_for_bit(name):
    """Moments, hyperparameters, state, statistics; an anchor, where there is one, is what they now hold."""
    configs, anchored = CASES[name]
    before, after = case(name).cohort, met(name)[1]
    assert bits(after.hypers) == bits(before.hypers)
    if not any(config.share_moments for config in configs):
        assert bits(after.opt_state) == bits(before.opt_state)
    if not any(mixes(config) for config in configs):
        assert bits(after) == bits(before)
    if any(config.privacy.noise_multiplier or config.share_statistics is False for config in configs):
        assert bits(after.statistics) == bits(before.statistics)
    if anchored:
        assert bits(after.anchor) == bits(after.params)
    assert bits(after.private) == bits(before.private)


@every_exchange
def test_those_that_mix_do_something(name):
    configs, _ = CASES[name]
    if any(mixes(config) and config.local_updates == 1 for config in configs):
        before, after = case(name).cohort, met(name)[1]
        assert bits(after.params) != bits(before.params)


@every_exchange
def test_finite_learners_stay_finite(name):
    """With everyone there, with half of them, with one, with nobody."""
    exchange, state, cohort = case(name)
    for number in (6, 3, 1, 0):
        now = scores()._replace(present=np.arange(NUM_LEARNERS) < number)
        state, cohort, metrics = meet(exchange, jax.random.key(number), state, cohort, now)
        assert finite((state, cohort, metrics))


@every_exchange
def test_a_lost_learner_is_an_absent_one(name):
    """A weight that is NaN in one, a moment that is infinite in another: nothing of it reaches the others."""
    exchange, state, cohort = case(name)
    others = np.arange(NUM_LEARNERS) < 4
    expected = meet(exchange, KEY, state, cohort, scores()._replace(present=others))
    lost = cohort._replace(
        params=spoiled(cohort.params, 4, np.nan), opt_state=spoiled(cohort.opt_state, 5, np.inf)
    )
    found = meet(exchange, KEY, state, lost, scores())
    assert bits(picked(found[1:], others)) == bits(picked(expected[1:], others))
    assert bits(picked(found[1], ~others)) == bits(picked(lost, ~others))
    assert bits(found[0].shared) == bits(expected[0].shared)


def spoiled(tree, learner, number):
    """With that number as the first one of the first real array of a learner."""
    leaves, structure = jax.tree.flatten(tree)
    index = next(i for i, x in enumerate(leaves) if np.issubdtype(x.dtype, np.floating))
    leaves[index] = np.array(leaves[index])
    leaves[index][learner].flat[0] = number
    return jax.tree.unflatten(structure, leaves)


@pytest.mark.parametrize("name", cases(SYMMETRIC))
def test_permuted_learners_give_the_permuted_result(name):
    exchange, state, cohort = case(name)
    order = np.array([3, 0, 5, 1, 4, 2])
    permuted = state._replace(per_learner=picked(state.per_learner, order))
    found = meet(exchange, KEY, permuted, picked(cohort, order), picked(scores(), order))
    state, cohort, metrics = met(name)
    expected = (
        state._replace(per_learner=picked(state.per_learner, order)),
        *picked((cohort, metrics), order),
    )
    assert_close(found, expected)


@pytest.mark.parametrize("name", cases(CASES, QUICK_DIVIDED))
def test_two_devices_are_one(name):
    exchange, state, cohort = case(name)
    found = divided(exchange)(KEY, spread(state), spread(cohort), spread(scores()))
    for leaf in jax.tree.leaves(found[1]):
        assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {NUM_LEARNERS // 2}
    assert_close(jax.device_get(found), met(name))


@every_exchange
def test_advice_has_the_rollouts_shape_and_leaves_the_rest(name):
    """On one of two devices, with its three learners: one piece of advice for each link that gives any."""
    configs, _ = CASES[name]
    exchange, state, _ = case(name)
    mine = ExchangeState(jax.tree.map(lambda x: x[: len(x) // 2], state.per_learner), state.shared)
    rollout = rollout_of(3)
    asks = any(penalises(config) for config in configs)
    add_peer_targets = advise(exchange) if asks else exchange.add_peer_targets
    found = jax.device_get(add_peer_targets(mine, rollout))
    assert bits(found._replace(peer_targets=())) == bits(rollout)
    assert len(found.peer_targets) == sum(penalises(config) for config in configs)
    for peer_targets in found.peer_targets:
        assert peer_targets.weight.shape == rollout.reward.shape
        assert finite(peer_targets)
        for policy_terms in jax.tree.leaves(peer_targets.terms):
            assert policy_terms.shape[:3] == rollout.reward.shape


def rollout_of(num_learners) -> Tree:
    shape = (2, num_learners, 2)
    no, yes = np.zeros(shape, bool), np.ones(shape, bool)
    obs, reward = np.ones((*shape, 4), np.float32), np.ones(shape, np.float32)
    return Rollout(obs, np.int32(no), reward, no, no, yes, last_obs=obs[-1])


def test_anchored_learners_begin_near_the_common_start():
    configs, anchored = CASES["average, anchored"]
    exchange = make_exchange(
        configs, ExchangeContext(NUM_LEARNERS, learner(anchored), SPEC, anchored=anchored)
    )
    _, begun = jax.jit(exchange.init)(fresh(anchored))
    assert bits(begun.anchor) == bits(begun.params)


def test_absent_learners_keep_their_anchor():
    exchange, state, cohort = case("average, anchored")
    here = np.arange(NUM_LEARNERS) < 2
    _, after, _ = meet(exchange, KEY, state, cohort, scores()._replace(present=here))
    present, absent = np.flatnonzero(here), np.flatnonzero(~here)
    assert bits(picked(after.anchor, present)) == bits(picked(after.params, present))
    assert bits(picked(after.anchor, absent)) == bits(picked(cohort.anchor, absent))


def test_statistics_are_there_to_be_merged():
    """So that the suite means what it says: six different counts, means and spreads."""
    moments = case("average").cohort.statistics.obs["obs"]
    assert isinstance(moments, Running)
    for leaf in moments:
        assert len(np.unique(np.asarray(leaf).reshape(NUM_LEARNERS, -1)[:, 0])) == NUM_LEARNERS
