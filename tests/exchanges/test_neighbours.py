"""Neighbours' policies: who hears whom, what was frozen when, and what it costs."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from shoal.distributed import mesh
from shoal.errors import ShoalError
from shoal.exchanges import topology
from shoal.exchanges.builders import penalty_weights
from shoal.exchanges.combinators import every, part_names, participate
from shoal.exchanges.config import ExchangeConfig, ExchangeContext
from shoal.exchanges.neighbours import anchor, neighbours, neighbours_in_pairs, policy_inputs
from shoal.exchanges.registry import make_exchange
from shoal.exchanges.routing import ONE_DEVICE, Transport
from shoal.learners import sequences
from shoal.learners.context import LearnerContext
from shoal.learners.dqn import DQNConfig
from shoal.learners.ppo import PPOConfig, ppo
from shoal.learners.ppo_setup import make_setup
from shoal.learners.registry import make_registered
from shoal.learners.sac import SACConfig
from shoal.learners.td3 import TD3Config
from shoal.ops import peers, trees
from shoal.ops.statistics import Running
from shoal.settings import with_settings
from shoal.types import Box, Discrete, EnvSpec, Exchange, ExchangeState, Learner, LearnerState, Rollout
from tests.exchanges.meetings import made_up, scores

T, E, SIZE = 3, 2, 4
KEY = jax.random.key(0)
SPEC = EnvSpec("two choices", "jax", Box((3,)), Discrete(2))
SPECS = {"discrete": SPEC, "continuous": EnvSpec("a lever", "jax", Box((3,)), Box((1,), -1.0, 1.0))}
TOY_SPEC = EnvSpec("toy", "jax", Box((SIZE,)), Discrete(2))
# Learner 0 hears 1 (twice as much) and 3, 1 hears 0 and itself, 2 nobody, 3 only 0; 2 is heard by nobody.
DIRECTED = np.float32([[0, 2, 0, 1], [3, 0.5, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])


def says(state: LearnerState, obs):
    """An opinion that tells the speaker's parameters and statistics apart: (w . (s obs), w_0)."""
    everywhere = np.ones(obs.shape[:-1], np.float32)
    return obs @ (state.statistics * state.params["w"]), everywhere * state.params["w"][0]


def silent(*_):
    raise AssertionError("not asked")


def begin(key):
    return trees.take(cohort_of(1), 0)


TOY = Learner(begin, silent, silent, silent, says)


def cohort_of(num, seed=0):
    random = np.random.default_rng(seed)
    params = {"w": np.float32(random.normal(size=(num, SIZE)))}
    statistics = np.float32(random.uniform(1, 2, size=(num, SIZE)))
    zeros = np.zeros((num, 7), np.float32)
    return LearnerState(params, statistics, zeros, zeros[:, 0], ())


def rollout_of(num, seed=1, size=SIZE):
    obs = np.float32(np.random.default_rng(seed).normal(size=(T, num, E, size)))
    blank = np.zeros((T, num, E), np.float32)
    return Rollout(obs, blank, blank, blank > 0, blank > 0, blank == 0, obs[0])


def everyone(num, absent=()):
    here = np.ones(num, bool)
    here[list(absent)] = False
    return scores(num)._replace(present=here)


def by_loop(learner, matrix, cohort, rollout):
    """sum_j W_ij opinion_j(obs_i), an edge at a time; the weights (L,) and the opinions, L first."""
    rows, policy_terms = [], says if learner is TOY else jax.jit(learner.policy_terms)
    for i in range(len(matrix)):
        opinion = lambda j, i=i: jax.device_get(policy_terms(trees.take(cohort, j), rollout.obs[:, i]))
        zero = jax.tree.map(np.zeros_like, opinion(0))
        for j in np.flatnonzero(matrix[i]):
            zero = jax.tree.map(lambda a, b, w=matrix[i, j]: a + w * b, zero, opinion(j))
        rows.append(zero)
    return matrix.sum(1), jax.tree.map(lambda *rows: np.stack(rows), *rows)


def assert_heard(given, expected, atol=1e-5):
    """Advice (T, L, E) is what the loop says (L, T, E)."""
    total, opinions = expected
    np.testing.assert_allclose(given.weight, np.broadcast_to(total[None, :, None], given.weight.shape))
    first = jax.tree.map(lambda x: np.moveaxis(x, 1, 0), given.terms)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=atol), first, opinions)


@cache
def compiled(exchange):
    return Exchange(jax.jit(exchange.init), jax.jit(exchange.apply), jax.jit(exchange.add_peer_targets))


def begun(exchange, cohort):
    """The exchange's state before the first meeting."""
    return jax.device_get(compiled(exchange).init(cohort)[0])


def after(exchange, state, cohort, scores=None, key=KEY):
    """Memory, cohort and metrics after another meeting."""
    scores = scores or everyone(trees.num_rows(cohort))
    return jax.device_get(compiled(exchange).apply(key, state, cohort, scores))


def met(exchange, cohort, scores=None, state=None):
    """The exchange's state after one meeting."""
    state = begun(exchange, cohort) if state is None else state
    return after(exchange, state, cohort, scores)[0]


def heard(exchange, state, rollout):
    """The advice of each link that gives any."""
    return jax.device_get(compiled(exchange).add_peer_targets(state, rollout).peer_targets)


HEARS = neighbours(TOY, TOY_SPEC, DIRECTED)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_advice_is_a_loop_over_the_edges(group):
    """Directed edges, a self edge, a learner that nobody advises; however many are asked at a time."""
    cohort, rollout = cohort_of(4), rollout_of(4)
    exchange = neighbours(TOY, TOY_SPEC, DIRECTED, group=group)
    (given,) = heard(exchange, met(exchange, cohort), rollout)
    assert_heard(given, by_loop(TOY, DIRECTED, cohort, rollout))
    assert not given.weight[:, 2].any()
    assert not given.terms[0][:, 2].any()


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_a_ppo_learners_advice_is_a_loop_too(kind):
    """With observations standardised by the statistics of the one who is asked."""
    learner, cohort = ppos(kind)
    matrix = DIRECTED[:3, :3] + np.float32(np.eye(3))
    exchange = neighbours(learner, SPECS[kind], matrix)
    rollout = rollout_of(3, size=3)
    (given,) = heard(exchange, met(exchange, cohort), rollout)
    assert_heard(given, by_loop(learner, matrix, cohort, rollout), atol=1e-4)
    mine = cohort._replace(statistics=jax.tree.map(lambda x: np.roll(x, 1, 0), cohort.statistics))
    other, _ = by_loop(learner, matrix, mine, rollout)[1]
    assert np.abs(np.moveaxis(given.terms[0], 1, 0) - other).max() > 1e-3


@cache
def ppos(kind="discrete"):
    """Three learners whose networks and whose moments of observations differ."""
    learner = ppo(
        PPOConfig(num_envs=E, num_steps=T, num_minibatches=1, hidden=(4,), norm_obs=True),
        SPECS[kind],
        LearnerContext(5),
    )
    cohort = made_up(learner, 3)
    cohort = cohort._replace(params=jax.tree.map(lambda x: x - np.float32(1.2), cohort.params))
    counts = np.float32([10, 20, 30])
    mean = np.float32(np.random.default_rng(0).normal(size=(3, 3)))
    moments = {"obs": Running(counts, mean, 4 * np.repeat(counts[:, None], 3, 1))}
    return learner, cohort._replace(statistics=cohort.statistics._replace(obs=moments))


def test_nobody_is_heard_before_the_first_meeting():
    exchange = every(3, HEARS)
    cohort, rollout = cohort_of(4), rollout_of(4)
    state = begun(exchange, cohort)
    for meeting in (False, False, True):
        (given,) = heard(exchange, state, rollout)
        assert not given.weight.any()
        assert not any(x.any() for x in jax.tree.leaves(given.terms))
        state, _, metrics = after(exchange, state, cohort)
        assert metrics["exchange/bytes"].any() == meeting
    (given,) = heard(exchange, state, rollout)
    assert_heard(given, by_loop(TOY, DIRECTED, cohort, rollout))


def test_policies_are_frozen_until_the_next_meeting():
    exchange = every(2, HEARS)
    old, new, rollout = cohort_of(4), cohort_of(4, seed=8), rollout_of(4)
    state = begun(exchange, old)
    speaking = {1: None, 2: old, 3: old, 4: new}
    for update, speakers in speaking.items():
        cohort = old if update <= 2 else new  # they learn on, and nobody hears of it
        state, unchanged, _ = after(exchange, state, cohort)
        jax.tree.map(np.testing.assert_array_equal, unchanged, cohort)
        (given,) = heard(exchange, state, rollout)
        if speakers is not None:
            assert_heard(given, by_loop(TOY, DIRECTED, speakers, rollout))


def test_two_who_are_both_there_hear_each_other_anew():
    """Learner 3 stays away the second time: what it said and what it heard stay as they were."""
    old, new = cohort_of(4), cohort_of(4, seed=8)
    state = met(HEARS, new, everyone(4, absent=[3]), state=met(HEARS, old))
    (given,) = heard(HEARS, state, rollout_of(4))
    fresh, stale = DIRECTED.copy(), np.zeros_like(DIRECTED)
    for place in ((0, 3), (3, 0)):
        stale[place], fresh[place] = DIRECTED[place], 0
    parts = [by_loop(TOY, m, c, rollout_of(4)) for m, c in ((fresh, new), (stale, old))]
    assert_heard(given, jax.tree.map(np.add, *parts))


def test_who_was_never_there_is_never_heard():
    cohort = cohort_of(4)
    (given,) = heard(HEARS, met(HEARS, cohort, everyone(4, absent=[1])), rollout_of(4))
    left = DIRECTED.copy()
    left[1], left[:, 1] = 0, 0
    assert_heard(given, by_loop(TOY, left, cohort, rollout_of(4)))


@pytest.mark.parametrize("matrix", [DIRECTED, np.kron(np.eye(2), np.ones((4, 4))), topology.star(8)])
def test_two_devices_say_what_one_says(matrix):
    num, matrix = len(matrix), np.float32(matrix)
    cohort, rollout = cohort_of(num), rollout_of(num)
    devices = Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("learners", "data"))
    one, two = neighbours(TOY, TOY_SPEC, matrix), neighbours(TOY, TOY_SPEC, matrix, Transport(devices))
    (alone,) = heard(one, met(one, cohort), rollout)

    def add_peer_targets(
        state, obs
    ):  # a device has its own learners, counted from 0; L goes first to be divided
        here = obs.shape[0]
        given = two.add_peer_targets(state, rollout_of(here)._replace(obs=jnp.moveaxis(obs, 0, 1)))
        return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), given.peer_targets)

    spread = mesh.on_each_device(
        devices, add_peer_targets, (mesh.BY_LEARNER, mesh.BY_LEARNER), mesh.BY_LEARNER
    )
    (divided,) = jax.device_get(jax.jit(spread)(met(two, cohort), np.moveaxis(rollout.obs, 1, 0)))
    divided = jax.tree.map(lambda x: np.moveaxis(x, 0, 1), divided)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), divided, alone)


def test_a_star_of_sixteen_keeps_thirty_policies():
    """One for each edge: the hub hears fifteen, fifteen hear the hub."""
    cohort = cohort_of(16)
    two = Transport(Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("learners", "data")))
    for transport, rows in ((ONE_DEVICE, 30), (two, 2 * (15 + 7))):  # the hub's device has the longer share
        state, _ = jax.eval_shape(neighbours(TOY, TOY_SPEC, topology.star(16), transport).init, cohort)
        snapshots, _, _ = state.per_learner
        assert {leaf.shape[0] for leaf in jax.tree.leaves(snapshots)} == {rows}
    state, _ = jax.eval_shape(neighbours_in_pairs(TOY, TOY_SPEC, 16).init, cohort)
    assert state.per_learner[0].rows.target.shape == (16,)


def test_bytes_are_counted_where_a_policy_leaves():
    """A policy is 4 numbers and its statistics 4, of 4 bytes; hearing oneself costs nothing."""
    cohort = cohort_of(4)
    state, _, metrics = after(HEARS, begun(HEARS, cohort), cohort)
    assert metrics["exchange/bytes"].tolist() == [64.0, 32.0, 0.0, 32.0]  # learner 0 speaks to 1 and 3
    state, _, metrics = after(HEARS, state, cohort, everyone(4, absent=[1]))
    assert metrics["exchange/bytes"].tolist() == [96.0, 32.0, 0.0, 64.0]


def test_rounds_are_the_meetings_with_others():
    """Learner 2 has no neighbours; one's own policy is no meeting."""
    for matrix, rounds in ((DIRECTED, [1, 1, 0, 1]), (np.eye(4), [0, 0, 0, 0])):
        exchange = neighbours(TOY, TOY_SPEC, matrix)
        state, _ = exchange.init(cohort_of(4))
        state, _, metrics = exchange.apply(KEY, state, cohort_of(4), everyone(4))
        assert metrics["exchange/rounds"].tolist() == rounds
        _, _, metrics = exchange.apply(KEY, state, cohort_of(4), everyone(4, absent=[1]))
        assert metrics["exchange/rounds"].tolist() == [2 * rounds[0], rounds[1], 0, 2 * rounds[3]]


PPO = PPOConfig(num_envs=2, num_steps=2, hidden=(4,))


@pytest.mark.parametrize(
    ("config", "kind", "parts", "moments"),
    [
        (PPO, "discrete", {"actor"}, False),
        (with_settings(PPO, norm_obs=True), "discrete", {"actor"}, True),
        (with_settings(PPO, curiosity=True), "continuous", {"actor", "log_std"}, False),
        (TD3Config(hidden=(4,), norm_obs=True), "continuous", {"actor"}, True),
        (SACConfig(hidden=(4,)), "continuous", {"actor"}, False),
        (DQNConfig(hidden=(4,)), "discrete", {"critic"}, False),
        (with_settings(PPO, memory="lstm", num_minibatches=1), "continuous", {"actor", "log_std"}, False),
        (with_settings(PPO, memory="gru", num_minibatches=1, norm_obs=True), "discrete", {"actor"}, True),
    ],
)
def test_a_snapshot_is_what_the_policy_reads(config, kind, parts, moments):
    """No critic beside an actor, no target, no curiosity; moments where observations are standardised."""
    policy = policy_inputs(make_registered(config, SPECS[kind], LearnerContext(5)), SPECS[kind])
    params, statistics = policy.take(*policy.shapes)
    assert part_names(params) == parts
    read = sorted(leaf.shape for leaf in jax.tree.leaves(statistics))
    assert read == ([(), (3,), (3,)] if moments else [])
    assert policy.num_bytes == 4 * trees.size((params, statistics))


def test_every_part_that_a_policy_reads_matters():
    """Terms from the part are those of the whole state, to the bit."""
    learner, cohort = ppos()
    state, obs = trees.take(cohort, 1), rollout_of(3, size=3).obs[:, 0]
    policy = policy_inputs(learner, SPEC)
    given = policy.evaluate(*policy.take(state.params, state.statistics), obs)
    jax.tree.map(np.testing.assert_array_equal, given, learner.policy_terms(state, obs))


def test_a_recurrent_neighbour_is_asked_along_the_sequence_without_memory_at_its_start():
    """sum_j W_ij terms_j, each from a policy that acts step by step and forgets where episodes start."""
    config = PPOConfig(num_envs=E, num_steps=T, num_minibatches=1, hidden=())
    setup = make_setup(with_settings(config, memory="gru", memory_size=3), SPEC, LearnerContext(5))
    learner = ppo(setup.config, SPEC, LearnerContext(5))
    cohort = jax.device_get(jax.vmap(learner.init)(jax.random.split(KEY, 4)))._replace(private=())
    starts = np.zeros((T, 4, E), bool)
    starts[1, :, 0] = starts[2, 2] = True
    rollout = rollout_of(4, size=3)._replace(episode_starts=starts)

    @jax.jit
    def terms(state, obs, starts):
        carry, outputs = state.params.initial_carry(E), []
        for step in range(T):
            one, carry = sequences.advance(state.params, carry, obs[step], starts[step])
            outputs.append(one)
        return peers.policy_terms(setup.distribution, "forward", "sum", jnp.stack(outputs))

    exchange = neighbours(learner, SPEC, DIRECTED)
    ((given,), again) = heard(exchange, met(exchange, cohort), rollout), []
    for i, row in enumerate(DIRECTED):
        each = [terms(trees.take(cohort, j), rollout.obs[:, i], starts[:, i]) for j in range(4)]
        again.append(jax.tree.map(lambda *x, row=row: np.tensordot(row, np.stack(x), 1), *each))
    expected = jax.tree.map(lambda *rows: np.stack(rows), *again)
    assert_heard(given, (DIRECTED.sum(1), expected))


@pytest.mark.parametrize("num", [6, 5])
def test_pairs_are_drawn_anew(num):
    """Everybody hears one other; of an even number, the one that hears it."""
    exchange, cohort = neighbours_in_pairs(TOY, TOY_SPEC, num), cohort_of(num)
    state = begun(exchange, cohort)
    assert not heard(exchange, state, rollout_of(num))[0].weight.any()
    seen = set()
    for seed in range(8):
        state, _, _ = after(exchange, state, cohort, key=jax.random.key(seed))
        rows = state.per_learner[0].rows.params["w"]
        partner = [int(np.flatnonzero((cohort.params["w"] == row).all(1))[0]) for row in rows]
        assert all(i != j for i, j in enumerate(partner))
        if num % 2 == 0:
            assert all(partner[j] == i for i, j in enumerate(partner))
        seen.add(tuple(partner))
        (given,) = heard(exchange, state, rollout_of(num))
        assert (given.weight == 1).all()
    assert len(seen) > 3


def test_the_update_leaves_the_policies_it_heard_alone():
    """No gradient reaches a neighbour: opinions are data by the time a learner learns."""
    learner, cohort = ppos()
    exchange = neighbours(learner, SPEC, topology.complete(3))
    state = met(exchange, cohort)

    @jax.jit
    def learn(state, cohort):
        obs = rollout_of(3, size=3)
        rollout = exchange.add_peer_targets(state, obs._replace(action=np.int32(obs.action)))
        axes = Rollout(1, 1, 1, 1, 1, 1, last_obs=0, peer_targets=1)
        keys = jax.random.split(KEY, 3)
        return jax.vmap(learner.update, (0, 0, axes))(keys, cohort, rollout)

    state = jax.device_put(state)
    before = jax.tree.map(np.array, state)
    learned, metrics = jax.device_get(learn(state, cohort))
    jax.tree.map(np.testing.assert_array_equal, state, before)
    assert (metrics["loss/neighbours"] > 0).all()
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), learned.params, cohort.params)
    assert all(jax.tree.leaves(moved))


@pytest.mark.parametrize(
    ("settings", "matrix"),
    [
        ({"topology": "ring"}, [[0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0]]),
        (
            {"comm_matrix": {"comm_matrix": {"0": {"1": 100}}}},
            np.eye(4)[[1]].repeat(4, 0) * [[100], [0], [0], [0]],
        ),
        (
            {"comm_matrix": [[0, 7, 0, 0]] + [[0] * 4] * 3, "symmetrise": True},
            [[0, 7, 0, 0], [7, 0, 0, 0]] + [[0] * 4] * 2,
        ),
    ],
)
def test_a_topology_gives_the_mean_and_a_file_its_own_weights(settings, matrix):
    config = with_settings(ExchangeConfig(exchange="neighbours"), **settings)
    np.testing.assert_array_equal(penalty_weights(config, ExchangeContext(4, TOY, TOY_SPEC)), matrix)


def test_a_penalty_beside_averaging_holds_a_learner_near_what_it_received():
    """After the mixing: everyone hears itself as it then was."""
    config = ExchangeConfig(
        exchange="average", local_updates=1, use_comm_penalty=True, share_statistics=False
    )
    exchange, cohort = make_exchange((config,), ExchangeContext(4, TOY, TOY_SPEC)), cohort_of(4)
    state, cohort = begun(exchange, cohort), cohort_of(4, seed=5)
    state, mixed, _ = after(exchange, state, cohort)
    np.testing.assert_allclose(mixed.params["w"], np.tile(cohort.params["w"].mean(0), (4, 1)), rtol=1e-5)
    (given,) = heard(exchange, state, rollout_of(4))
    assert_heard(given, by_loop(TOY, np.eye(4, dtype=np.float32), mixed, rollout_of(4)))


def test_neighbours_that_average_too_are_heard_after_averaging():
    settings = {
        "exchange": "neighbours",
        "topology": "complete",
        "local_updates": 1,
        "share_statistics": False,
    }
    exchange = make_exchange(
        (with_settings(ExchangeConfig(average_weights=True), **settings),), ExchangeContext(4, TOY, TOY_SPEC)
    )
    cohort = cohort_of(4, seed=5)
    state, mixed, _ = after(exchange, begun(exchange, cohort_of(4)), cohort)
    np.testing.assert_allclose(mixed.params["w"], np.tile(cohort.params["w"].mean(0), (4, 1)), rtol=1e-5)
    (given,) = heard(exchange, state, rollout_of(4))
    matrix = (np.ones((4, 4), np.float32) - np.eye(4, dtype=np.float32)) / 3
    assert_heard(given, by_loop(TOY, matrix, mixed, rollout_of(4)))


def test_some_of_them_meet():
    """With a participation of one half, edges between the two who came are fresh, and no others."""
    exchange = participate(0.5, neighbours(TOY, TOY_SPEC, topology.complete(4)))
    state, _, metrics = after(exchange, begun(exchange, cohort_of(4)), cohort_of(4))
    (given,) = heard(exchange, state, rollout_of(4))
    assert sorted(given.weight[0, :, 0].tolist()) == [0.0, 0.0, 1.0, 1.0]
    assert sorted(metrics["exchange/bytes"].tolist()) == [0.0, 0.0, 32.0, 32.0]


def test_two_exchanges_give_two_pieces_of_advice():
    configs = [ExchangeConfig(exchange="neighbours", local_updates=1, topology=t) for t in ("ring", "star")]
    exchange, cohort = make_exchange(tuple(configs), ExchangeContext(4, TOY, TOY_SPEC)), cohort_of(4)
    peer_targets = heard(exchange, met(exchange, cohort), rollout_of(4))
    for given, config in zip(peer_targets, configs, strict=True):
        assert_heard(
            given,
            by_loop(TOY, penalty_weights(config, ExchangeContext(4, TOY, TOY_SPEC)), cohort, rollout_of(4)),
        )


def test_an_anchor_is_what_those_who_came_hold_now():
    cohort = cohort_of(3)._replace(anchor=cohort_of(3).params)
    moved = cohort._replace(params=cohort_of(3, seed=8).params)
    _, now, metrics = jax.device_get(
        jax.jit(anchor().apply)(KEY, ExchangeState(), moved, everyone(3, absent=[1]))
    )
    assert metrics == {}
    for i, where in enumerate((moved, cohort, moved)):
        np.testing.assert_array_equal(now.anchor["w"][i], where.params["w"][i])
    jax.tree.map(np.testing.assert_array_equal, now.params, moved.params)


def test_a_learner_without_opinions_cannot_be_a_neighbour():
    with pytest.raises(ShoalError, match="cannot be evaluated at the observations of others"):
        neighbours(TOY._replace(policy_terms=None), TOY_SPEC, DIRECTED)
