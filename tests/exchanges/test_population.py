"""Populations: who takes over whom, with what, and that the next update is made with it."""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig
from shoal.exchanges.exploration import PRIORS, Prior
from shoal.exchanges.population import draw_hypers, follow_hyper_plan, population
from shoal.exchanges.selection import tournament, truncation, winner
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig, ppo
from shoal.ops import trees
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.program import make_trainer
from shoal.types import Box, Discrete, EnvSpec, Rollout, Scores
from tests.exchanges.meetings import made_up

KEY = jax.random.key(5)
SCORES = (15.0, 10.0, 2.0, 8.0)
EVOLVED = {name: PRIORS[name] for name in ("learning_rate", "gamma")}
CONFIG = PPOConfig(
    num_envs=2,
    num_steps=8,
    num_minibatches=1,
    update_epochs=2,
    hidden=(3,),
    norm_obs=True,
    norm_reward=True,
    anneal_lr=False,
)
SPEC = EnvSpec("two choices", "jax", Box((3,)), Discrete(2))
LEARNER = ppo(CONFIG, SPEC, LearnerContext(10))


def experience(rng):
    """One learner's rollout of eight steps in two environments, no episode ending."""
    never = np.zeros((8, 2), bool)
    return Rollout(
        obs=rng.normal(size=(8, 2, 3)).astype(np.float32),
        action=rng.integers(0, 2, (8, 2), np.int32),
        reward=rng.normal(size=(8, 2)).astype(np.float32),
        terminated=never,
        truncated=never,
        valid=~never,
        last_obs=rng.normal(size=(2, 3)).astype(np.float32),
    )


@cache
def cohort():
    """Learners who differ in everything; their settings are those of the configuration but for two."""
    learners, count = made_up(LEARNER, 4), np.arange(4, dtype=np.int32)
    hypers = first_hypers(LEARNER)
    hypers = jax.tree.map(lambda x: np.repeat(x, 4), hypers)
    rate, gamma = np.float32(1e-3 * (1 + count)), np.float32(0.95 + 0.01 * count)
    # Moments as small as those of gradients, so that Adam notices the next one.
    optimisers = jax.tree.map(
        lambda x: x + count if np.issubdtype(x.dtype, np.integer) else x * np.float32(1e-6),
        learners.opt_state,
    )
    return learners._replace(
        params=jax.tree.map(lambda x: x - np.float32(1.2), learners.params),
        hypers=hypers._replace(learning_rate=rate, gamma=gamma),
        opt_state=optimisers,
        private=learners.private._replace(num_updates=1 + count),
    )


def first_hypers(learner):
    """The hyperparameters that `init` gives, without the network."""
    return jax.device_get(jax.jit(lambda key: learner.init(key).hypers)(KEY))


def scores(returns=SCORES, episodes=100, present=True):
    num = len(returns)
    everyone = lambda x, kind: np.broadcast_to(np.array(x, kind), (num,))
    return Scores(
        np.zeros(num, np.float32), np.float32(returns), everyone(episodes, np.int32), everyone(present, bool)
    )


class Population:
    """Learners that meet again and again; all of it on the host."""

    def __init__(self, *arguments, **settings):
        exchange = population(*arguments, **settings)
        self.init, self.apply = exchange.init, jax.jit(exchange.apply)
        self.begin()

    def begin(self):
        self.state, self.learners = jax.device_get(self.init(cohort()))
        return self

    def meet(self, now):
        """Whom each learner becomes, and the metrics."""
        arguments = KEY, self.state, self.learners, now
        self.state, self.learners, self.metrics = jax.device_get(self.apply(*arguments))
        return self.metrics["population/parent"].tolist()


@cache
def halves(evolve=False):
    """The worse half become copies of the better one; with `evolve`, two settings are perturbed."""
    return Population(truncation(0.5), EVOLVED if evolve else {}, resample=0)


def met(run, now):
    """The cohort after one meeting, and whom each learner became."""
    parent = run.begin().meet(now)
    return run.learners, [int(x) for x in parent]


def bits(tree):
    return [(x.shape, str(x.dtype), np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


def member(tree, index):
    return bits(trees.take(tree, index))


# Taking over


def test_the_two_worst_become_the_two_best_in_all_but_what_is_private():
    """Scores 15, 10, 2, 8 at 50 %: {2, 3} <- {0, 1}. Without priors the hyperparameters stay as copied."""
    before = cohort()
    after, parent = met(halves(), scores())
    assert parent[:2] == [0, 1]
    assert sorted(parent[2:]) == [0, 1]
    for name in ("params", "opt_state", "statistics", "hypers"):
        old, new = getattr(before, name), getattr(after, name)
        assert len({str(member(old, i)) for i in range(4)}) == 4, f"the test needs {name} that differ"
        assert [member(new, i) for i in range(4)] == [member(old, i) for i in parent], name
    assert bits(after.private) == bits(before.private)
    assert len({str(member(after.private, i)) for i in range(4)}) == 4


def given(hypers):
    """The hyperparameters a learner has, by name: those of the critic alone are empty unless told."""
    return {name: x for name, x in hypers._asdict().items() if jax.tree.leaves(x)}


def test_the_mutated_are_copies_but_for_the_hyperparameters_that_evolve():
    before = cohort()
    after, parent = met(halves(evolve=True), scores())
    assert bits((after.params, after.opt_state, after.statistics)) == bits(
        trees.take((before.params, before.opt_state, before.statistics), np.array(parent))
    )
    for name, old in given(before.hypers).items():
        new, copied = np.asarray(getattr(after.hypers, name)), np.asarray(old)[parent]
        assert (new != copied).tolist() == [False, False, *[name in EVOLVED] * 2], name


def test_a_migrant_from_a_hastier_group_gets_its_new_groups_hyperparameters():
    """Groups {0, 1} and {2, 3}; the first acts at every meeting, the second at every fifth.

    At the fifth, learner 3, the worst, becomes 0, whose group is hastier: with the hyperparameters of 2.
    """
    run = Population(winner(), {}, groups=2)
    for meeting in range(1, 6):
        parents = [0, 0, 2, 0] if meeting == 5 else [0, 0, 2, 3]
        assert run.meet(scores((15.0, 10.0, 8.0, 2.0), 100 * meeting)) == parents
    for name, source in {"params": 0, "statistics": 0, "hypers": 2}.items():
        assert member(getattr(run.learners, name), 3) == member(getattr(cohort(), name), source), name


def test_groups_must_divide_the_learners():
    with pytest.raises(ShoalError, match=r"^3 groups do not divide 4 learners$"):
        population(winner(), {}, groups=3).init(cohort())


def test_what_was_decided_is_in_the_metrics():
    run = Population(winner(), {})
    run.meet(scores())
    assert {name: x.tolist() for name, x in run.metrics.items()} == {
        "population/parent": [0, 0, 0, 0],
        "population/score": [*SCORES],
    }


RULES = {
    "truncation": truncation(0.5),
    "with the middle": truncation(0.25, middle=True),
    "winner": winner(),
    "tournament": tournament(),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("truncation", marks=pytest.mark.slow),
        "with the middle",
        pytest.param("winner", marks=pytest.mark.slow),
        "tournament",
    ],
)
def test_the_champion_is_the_same_to_the_bit_and_the_changed_stay_within_bounds(name):
    """Fifty selections of the same four; who is not replaced keeps every bit but those to be changed."""
    priors = EVOLVED | {"clip_coef": PRIORS["clip_coef"]}
    exchange, before, now = population(RULES[name], priors), cohort(), scores()
    state, _ = exchange.init(before)
    apply = jax.jit(
        jax.vmap(lambda key, *arguments: exchange.apply(key, *arguments)[1:], (0, None, None, None))
    )
    many, metrics = jax.device_get(apply(jax.random.split(KEY, 50), state, before, now))
    parents = metrics["population/parent"].astype(int)
    assert (parents[:, 0] == 0).all()
    for i in range(50):
        assert member(trees.take(many, i), 0) == member(before, 0)
    kept = parents == np.arange(4)
    assert kept[:, 0].all()
    assert not kept.all()
    changed = np.array([[False, "middle" in name, "middle" in name, "middle" in name]]) | ~kept
    for field, prior in priors.items():
        new, old = getattr(many.hypers, field), getattr(before.hypers, field)
        copied = old[parents]
        assert (new[~changed].view(np.int32) == copied[~changed].view(np.int32)).all(), field
        assert (new[changed] >= np.float32(prior.low)).all(), field
        assert (new[changed] <= np.float32(prior.high)).all(), field
        assert np.mean(new[changed] != copied[changed]) > 0.5, field
    untold = [name for name in given(before.hypers) if name not in priors]
    assert untold
    for field in untold:
        np.testing.assert_array_equal(getattr(many.hypers, field), getattr(before.hypers, field)[parents])


# Who is ranked


def test_a_learner_lately_replaced_is_neither_donor_nor_victim():
    """Five episodes since the last replacement are asked for.

    1: learner 2 has three; of the others 0 is the worst and becomes 1 (a third of three).
    2: 0 has four since then, 2 four in all: 3 becomes 1 though 0 and 2 score less and 0 now most.
    3: 0 has five: it is the best and 1 the worst, 2 and 3 not being asked.
    """
    run = Population(truncation(0.34), {"gamma": PRIORS["gamma"]}, min_episodes=5)
    meetings = [
        ([5.0, 9.0, 0.0, 6.0], [10, 10, 3, 10], [1, 1, 2, 3]),
        ([50.0, 9.0, 0.0, 6.0], [14, 20, 4, 20], [0, 1, 2, 1]),
        ([50.0, 9.0, 99.0, 6.0], [15, 25, 4, 24], [0, 0, 2, 3]),
    ]
    for returns, episodes, expected in meetings:
        before = run.learners
        assert run.meet(scores(returns, episodes)) == expected
        for learner in range(4):
            assert (member(run.learners, learner) == member(before, learner)) == (
                expected[learner] == learner
            )


def test_the_absent_and_the_unscored_are_left_alone():
    run = halves(evolve=True)
    _, parent = met(run, scores(present=[True, False, False, True]))
    assert parent == [0, 1, 2, 0]
    after, parent = met(run, scores((np.nan, 10.0, 2.0, np.nan)))
    assert parent == [0, 1, 1, 3]
    for learner in (0, 1, 3):
        assert member(after, learner) == member(cohort(), learner)


def test_a_lost_learner_becomes_the_best_and_is_changed():
    """Whatever it scores: learner 0, which would be the champion, and learner 3 are lost."""
    run = halves(evolve=True).begin()
    params = jax.tree.map(np.array, run.learners.params)
    for learner, number in ((0, np.nan), (3, np.inf)):
        jax.tree.leaves(params)[0][learner].flat[0] = number
    run.learners = run.learners._replace(params=params)
    assert run.meet(scores()) == [1, 1, 1, 1]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.learners.params))
    rates = run.learners.hypers.learning_rate
    assert rates[0] != rates[1] != rates[3]


def test_where_all_others_are_lost_nobody_is_replaced_before_someone_has_a_score():
    run = halves().begin()
    params = jax.tree.map(
        lambda x: np.where(np.arange(4).reshape(4, *[1] * (x.ndim - 1)) > 0, np.nan, x), run.learners.params
    )
    run.learners = run.learners._replace(params=params)
    assert run.meet(scores(returns=(np.nan, 1, 2, 3))) == [0, 1, 2, 3]
    assert run.meet(scores(returns=(5, 1, 2, 3))) == [0, 0, 0, 0]


def test_the_first_meetings_pass_without_a_selection():
    run, replaced = Population(truncation(0.5), {}, warm_up=2, min_episodes=10), []
    for _ in range(4):
        before = bits(run.learners)
        replaced.append(sum(parent != i for i, parent in enumerate(run.meet(scores(episodes=10)))))
        assert (bits(run.learners) == before) == (replaced[-1] == 0)
    assert replaced == [0, 0, 2, 1]  # at the fourth, 2 and 3 have no new episodes: 1 becomes 0


# The first hyperparameters


def many_drawn(priors, keys, hypers):
    return jax.device_get(jax.jit(lambda keys, hypers: draw_hypers(priors, keys, hypers))(keys, hypers))


def test_a_learners_draw_depends_on_its_own_key_only():
    keys, hypers = jax.random.split(KEY, 8), trees.take(cohort().hypers, np.arange(8) % 4)
    more = {"clip_coef": PRIORS["clip_coef"], **EVOLVED}
    all_eight = many_drawn(more, keys, hypers)
    alone = many_drawn(more, keys[3:4], trees.take(hypers, np.array([3])))
    assert member(all_eight, 3) == member(alone, 0)
    fewer = many_drawn(EVOLVED, keys, hypers)
    assert bits((fewer.learning_rate, fewer.gamma)) == bits((all_eight.learning_rate, all_eight.gamma))


def test_draws_follow_the_prior_and_leave_the_rest():
    keys, hypers = jax.random.split(KEY, 8), trees.take(cohort().hypers, np.arange(8) % 4)
    found = many_drawn(
        {"gamma": Prior("uniform", 0.2, 0.3), "vf_coef": Prior("choice", 1, 2, (1, 2))}, keys, hypers
    )
    assert ((found.gamma >= 0.2) & (found.gamma <= 0.3)).all()
    assert len(np.unique(found.gamma)) == 8
    assert set(found.vf_coef.tolist()) == {1, 2}
    rest = lambda x: [v for name, v in x._asdict().items() if name not in ("gamma", "vf_coef")]
    assert bits(rest(found)) == bits(rest(hypers))
    higher = many_drawn({"gamma": Prior("uniform", 0.4, 0.5)}, keys, hypers)
    np.testing.assert_allclose(higher.gamma, found.gamma + 0.2, rtol=1e-5)


# A plan


def test_a_plan_sets_the_values_at_the_updates_it_names():
    plan = [
        (0, {"learning_rate": 0.1, "gamma": 0.9}),
        (2, {"learning_rate": 0.2, "gamma": 0.9}),
        (5, {"learning_rate": 0.3, "gamma": 0.8}),
    ]
    exchange, before = follow_hyper_plan(plan), cohort()
    state, learners = jax.jit(exchange.init)(before)
    apply, seen = jax.jit(exchange.apply), [learners.hypers]
    for _ in range(6):
        state, learners, metrics = apply(KEY, state, learners, scores())
        seen.append(learners.hypers)
        assert metrics == {}
    rates, gammas = ([np.asarray(getattr(x, name)) for x in seen] for name in ("learning_rate", "gamma"))
    expect = lambda *values: np.repeat(np.float32(values)[:, None], 4, 1)
    np.testing.assert_array_equal(rates, expect(0.1, 0.1, 0.2, 0.2, 0.2, 0.3, 0.3))
    np.testing.assert_array_equal(gammas, expect(0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.8))
    rest = before._replace(hypers=before.hypers._replace(learning_rate=(), gamma=()))
    assert bits(learners._replace(hypers=learners.hypers._replace(learning_rate=(), gamma=()))) == bits(rest)


# The next update


@pytest.mark.parametrize("learner", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_mutation_is_the_value_the_next_update_is_made_with(learner):
    """As if a learner with those settings had been made; neither value alone, nor the donor's, does it."""
    before = cohort()
    after, parent = met(halves(evolve=True), scores())
    rollout = experience(np.random.default_rng(8))
    mutant, donor = trees.take(after, learner), trees.take(before, parent[learner])
    rate, gamma = mutant.hypers.learning_rate, mutant.hypers.gamma
    settings = replace(CONFIG, learning_rate=float(rate), gamma=float(gamma))
    built = ppo(settings, SPEC, LearnerContext(10))
    own = first_hypers(built)
    assert bits(own) == bits(mutant.hypers)
    solo = donor._replace(hypers=own, private=trees.take(before.private, learner))
    update = lambda made, state: jax.device_get(jax.jit(made.update)(KEY, state, rollout)[0].params)
    found = update(LEARNER, mutant)
    expected = update(built, solo)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), found, expected)
    for hypers in (
        donor.hypers,
        donor.hypers._replace(learning_rate=rate),
        donor.hypers._replace(gamma=gamma),
    ):
        other = update(LEARNER, mutant._replace(hypers=hypers))
        apart = jax.tree.map(lambda x, y: np.max(np.abs(x - y)), found, other)
        assert max(jax.tree.leaves(apart)) > 1e-5


@pytest.mark.slow
def test_many_selections_are_one_program(compilations):
    small = PPOConfig(
        num_envs=4, num_steps=16, num_minibatches=1, update_epochs=1, hidden=(4,), learning_rate=0.05
    )
    select = with_settings(
        ExchangeConfig(exchange="truncation", local_updates=2), min_episodes=1, fraction=0.5
    )
    config = TrainConfig("jax:CartPole-v1", algo=small, steps=512, learners=4, reports=4, exchanges=(select,))
    trainer = make_trainer(config)
    state, counts, rates = trainer.init(), [jnp.int32(n) for n in (2, 2, 6, 30)], []
    rates.append(np.asarray(state.cohort.hypers.learning_rate))
    with compilations() as compiled:
        for count in counts:
            state, _ = trainer.advance(state, count)
            rates.append(np.asarray(state.cohort.hypers.learning_rate))
    assert len(compiled) == 1
    assert all((one != two).any() for one, two in pairwise(rates))
