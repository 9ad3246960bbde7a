"""Selection: known maps, the champion, those who take no part, ties, and what travels."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges import selection
from shoal.exchanges.selection import Selected, copy_parents, subpopulations, tournament, truncation, winner
from shoal.types import LearnerState

ALL = {
    **{name: make() for name, make in selection.RULES.items()},
    "half": truncation(0.5),
    "middle": truncation(0.3, middle=True),
    "large tournament": tournament(5),
}
PLACES = 12
compiled = cache(lambda name: jax.jit(ALL[name]))
many = cache(lambda name: jax.jit(jax.vmap(ALL[name])))


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


def filled(scores, eligible=None, places=PLACES):
    """Scores and who is eligible in one shape for all cases: in the places left are learners who are not."""
    num = len(scores)
    score, usable = np.zeros(places, np.float32), np.zeros(places, bool)
    score[:num], usable[:num] = scores, True if eligible is None else eligible
    return score, usable


def chosen(rule, scores, eligible=None, seed=0, places=PLACES):
    score, usable = filled(scores, eligible, places)
    parent, mutate = jax.device_get(rule(jax.random.key(seed), score, usable))
    assert parent.dtype == np.int32
    assert mutate.dtype == bool
    assert parent.shape == mutate.shape == score.shape
    num = len(scores)
    assert parent[num:].tolist() == list(range(num, places))
    assert not mutate[num:].any()
    return parent[:num].tolist(), mutate[:num].tolist()


def drawn(name, scores, num):
    """Who becomes whom, and who changes, in so many draws: (num, learners) each, a thousand at a time."""
    score, eligible = (np.tile(x, (1000, 1)) for x in filled(scores, places=9))
    rounds = [
        many(name)(jax.random.split(jax.random.key(i), 1000), score, eligible) for i in range(num // 1000)
    ]
    return (np.concatenate(x)[:, : len(scores)] for x in zip(*jax.device_get(rounds), strict=True))


def copies(parent):
    """{learner: whom it copied}, without those who kept themselves."""
    return {i: p for i, p in enumerate(parent) if p != i}


def cases(num, size=9):
    """Scores with ties and without numbers, and who is eligible."""
    rng = np.random.default_rng(0)
    score = np.where(
        rng.random((num, 1)) < 0.5, rng.normal(size=(num, size)), rng.integers(0, 4, (num, size))
    )
    score = np.where(rng.random((num, size)) < 0.1, rng.choice([np.nan, np.inf, -np.inf], (num, size)), score)
    return score.astype(np.float32), rng.random((num, size)) < rng.random((num, 1))


# Known answers


def test_the_two_worst_of_four_copy_the_two_best():
    """The map that a population of four was published with, and got wrong."""
    seen = set()
    for seed in range(20):
        parent, mutate = chosen(compiled("half"), [15, 10, 2, 8], seed=seed)
        assert parent[:2] == [0, 1]
        assert sorted(parent[2:]) == [0, 1]
        assert mutate == [False, False, True, True]
        seen.add(tuple(parent))
    assert len(seen) == 2  # both ways of matching them


def test_a_quarter_of_eight():
    parent, mutate = chosen(compiled("truncation"), [3, 8, 1, 5, 7, 2, 6, 4])
    assert set(copies(parent)) == {2, 5}
    assert set(copies(parent).values()) == {1, 4}
    assert mutate == [i in (2, 5) for i in range(8)]


def test_the_middle_may_mutate_but_stays():
    parent, mutate = chosen(compiled("middle"), [3, 8, 1, 5, 7, 2, 6, 4])
    assert set(copies(parent)) == {2, 5}
    assert mutate == [i not in (1, 4) for i in range(8)]


def test_the_winner_takes_all():
    parent, mutate = chosen(compiled("winner"), [3, 8, 1, 5], [True, True, True, False])
    assert parent == [1, 1, 1, 3]
    assert mutate == [True, False, True, False]


def test_a_tournament_by_its_probabilities():
    """The r-th best of n stays with ((n - r) / n)^size, r from 0, and copies rank s < r with the rest."""
    order, size = [1, 3, 0, 2], 2
    parent, mutate = drawn("tournament", [3.0, 8.0, 1.0, 5.0], 4000)
    for r, learner in enumerate(order):
        at_least = lambda s: ((4 - s) / 4) ** size  # the chance that all rivals have rank s or worse
        for s, rival in enumerate(order[:r]):
            share = np.mean(parent[:, learner] == rival)
            assert abs(share - (at_least(s) - at_least(s + 1))) < 0.03
        assert abs(np.mean(parent[:, learner] == learner) - at_least(r)) < 0.03
    np.testing.assert_array_equal(mutate, parent != np.arange(4))


def test_more_rivals_make_it_harder_to_stay():
    def stay(name):
        _, mutate = drawn(name, np.arange(9), 1000)
        return np.mean(~mutate)

    assert stay("tournament") > stay("large tournament") > 0


@pytest.mark.parametrize(
    ("fraction", "num", "expected"),
    [
        *[
            (0.25, 8, 2),
            (0.25, 7, 1),
            (0.25, 2, 1),
            (0.2, 10, 2),
            (0.3, 10, 3),
            (0.29, 100, 29),
            (0.01, 5, 1),
        ],
        *[(0.5, 5, 2), (0.9, 5, 2), (1.0, 6, 3), (0.5, 3, 1), (0.001, 2, 1), (0.7, 10, 5), (0.25, 1, 0)],
    ],
)
def test_how_many_are_copied(fraction, num, expected):
    """Of n eligible, floor(fraction n), at least one and at most half; the others do not count."""
    parent, _ = chosen(truncation(fraction), range(107), [i < num for i in range(107)], places=107)
    assert set(copies(parent)) == set(range(expected))
    assert sorted(copies(parent).values()) == list(range(num - expected, num))


def test_donors_are_matched_to_victims_uniformly():
    parent, _ = drawn("half", np.arange(6), 3000)
    assert all(sorted(row) == [3, 4, 5] for row in parent[:, :3].tolist())
    _, counts = np.unique(parent[:, :3], axis=0, return_counts=True)
    assert len(counts) == 6
    assert np.abs(counts - 500).max() < 100


# What holds for every rule


@pytest.mark.parametrize("name", ALL)
def test_champions_and_outsiders_over_a_thousand_cases(name):
    scores, eligible = cases(1000)
    parent, mutate = map(np.asarray, many(name)(jax.random.split(jax.random.key(1), 1000), scores, eligible))
    usable = eligible & np.isfinite(scores)
    index = np.arange(9)
    busy = 0
    for score, fit, whom, changed in zip(scores, usable, parent, mutate, strict=True):
        np.testing.assert_array_equal(whom[~fit], index[~fit])
        assert not changed[~fit].any()
        assert fit[whom[whom != index]].all()
        assert changed[whom != index].all()
        if fit.sum() < 2:
            assert not changed.any()
            continue
        busy += 1
        champion = np.argmax(np.where(fit, score, -np.inf))
        assert whom[champion] == champion
        assert not changed[champion]
        assert (score[whom] >= score)[fit].all()
        if name != "middle":
            np.testing.assert_array_equal(changed, whom != index)
    assert busy > 500
    assert (parent != index).any(1).sum() > 300


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number_is_as_good_as_absence(name, bad):
    for seed in range(5):
        found = chosen(compiled(name), [3, bad, 1, 5, bad, 9], seed=seed)
        assert found == chosen(compiled(name), [3, 7, 1, 5, -7, 9], [1, 0, 1, 1, 0, 1], seed=seed)


@pytest.mark.parametrize("name", ALL)
def test_one_two_and_three(name):
    rule = compiled(name)
    # The rules by their names in their own shapes: 1, 2 and 3 places.
    run = lambda scores, eligible=None: chosen(
        rule, scores, eligible, places=len(scores) if name in selection.RULES else PLACES
    )
    assert run([5]) == ([0], [False])
    assert run([5, 6, 7], [0, 0, 0]) == ([0, 1, 2], [False] * 3)
    assert run([5, 6, 7], [0, 1, 0]) == ([0, 1, 2], [False] * 3)
    assert run([np.nan, 6], [1, 1]) == ([0, 1], [False] * 2)
    if "tournament" in name:
        return
    assert run([5, 6]) == ([1, 1], [True, False])
    assert run([6, 5]) == ([0, 0], [False, True])
    assert run([6, 9, 5], [1, 0, 1]) == ([0, 1, 0], [False, False, True])
    three = {"winner": ([1, 1, 1], [True, False, True]), "middle": ([0, 1, 1], [True, False, True])}
    assert run([6, 7, 5]) == three.get(name, ([0, 1, 1], [False, False, True]))


def test_of_equals_the_first_is_the_better():
    assert chosen(compiled("half"), [4, 4]) == ([0, 0], [False, True])
    assert set(copies(chosen(compiled("truncation"), [2, 5, 5, 2])[0]).items()) == {(3, 1)}
    assert chosen(compiled("winner"), [1, 5, 5], [1, 1, 1])[0] == [1, 1, 1]
    assert chosen(compiled("winner"), [5, 5, 5], [0, 1, 1])[0] == [0, 1, 1]
    for seed in range(10):  # nobody is beaten by an equal
        assert chosen(compiled("large tournament"), [4, 4, 4], seed=seed) == ([0, 1, 2], [False] * 3)


@pytest.mark.parametrize("name", ALL)
def test_another_order_of_the_learners_gives_the_same_map(name):
    """Chance is drawn by place in the ranking, so without ties who sits where does not matter."""
    rng = np.random.default_rng(5)
    for seed in range(5):
        score, eligible = rng.permutation(11).astype(np.float32), rng.random(11) < 0.8
        order = rng.permutation(11)
        parent, mutate = map(np.array, chosen(compiled(name), score, eligible, seed))
        moved, changed = chosen(compiled(name), score[order], eligible[order], seed)
        np.testing.assert_array_equal(order[moved], parent[order])
        np.testing.assert_array_equal(changed, mutate[order])


@pytest.mark.parametrize(
    "name", [name if name in ("truncation", "tournament") else slow(name) for name in ALL]
)
def test_compiled_is_the_same(name):
    scores, eligible = cases(5, size=PLACES)
    for seed in range(5):
        arguments = jax.random.key(seed), jnp.array(scores[seed]), jnp.array(eligible[seed])
        for a, b in zip(compiled(name)(*arguments), ALL[name](*arguments), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "name", [name if name in ("truncation", "tournament") else slow(name) for name in ALL]
)
def test_thousands_of_learners(name):
    score = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    parent, mutate = jax.device_get(compiled(name)(jax.random.key(1), score, np.ones(5000, bool)))
    assert (score[parent] >= score).all()
    count = {"truncation": 1250, "half": 2500, "middle": 3500, "winner": 4999}
    if name in count:
        assert int(mutate.sum()) == count[name]


def test_errors_say_what_is_wrong():
    for fraction in (0, -0.1, 1.1, float("nan")):
        with pytest.raises(ShoalError, match=f"^fraction must be above 0 and at most 1, not {fraction}$"):
            truncation(fraction)
    with pytest.raises(ShoalError, match=r"^size must be at least 1, not 0$"):
        tournament(0)
    with pytest.raises(ShoalError, match=r"^groups must be at least 1, not 0$"):
        subpopulations(0, winner())
    with pytest.raises(ShoalError, match=r"^migrate_every must be at least 1, not 0$"):
        subpopulations(2, winner(), migrate_every=0)
    with pytest.raises(
        ShoalError, match=r"^ratios must be 2 numbers of at least 1, one per group, not \(1,\)$"
    ):
        subpopulations(2, winner(), ratios=(1,))
    with pytest.raises(ShoalError, match=r"^ratios must be 2 numbers .*, not \(1, 0\)$"):
        subpopulations(2, winner(), ratios=(1, 0))
    with pytest.raises(ShoalError, match=r"^3 groups do not divide 8 learners$"):
        subpopulations(3, winner())(jax.random.key(0), jnp.zeros(8), jnp.ones(8, bool), 1)


# Groups of different frequency


def stays(key, score, eligible):
    return Selected(jnp.arange(len(score)), jnp.zeros(len(score), bool))


vmap_in_groups = cache(lambda groups, rule, **settings: jax.jit(subpopulations(groups, rule, **settings)))


def migrated(scores, call, eligible=None, rule=ALL["truncation"], groups=2, **settings):
    score, eligible = filled(scores, eligible, len(scores))
    rule = vmap_in_groups(groups, rule, **settings)
    found = jax.device_get(rule(jax.random.key(0), score, eligible, np.int32(call)))
    assert [x.dtype for x in found] == [np.int32, bool, np.int32]
    return [x.tolist() for x in found]


def test_each_group_selects_by_itself_when_its_turn_comes():
    """Best first in both groups, and equally good: no reason to migrate."""
    scores = [4, 3, 2, 1, 4, 3, 2, 1]
    for call in (1, 2, 3, 4, 6, 9):
        parent, mutate, hypers = migrated(scores, call)
        assert copies(parent) == {3: 0}
        assert mutate == [i == 3 for i in range(8)]
        assert hypers == parent
    for call in (5, 10, 15):
        assert copies(migrated(scores, call)[0]) == {3: 0, 7: 4}
    assert copies(migrated(scores, 2, ratios=(3, 2))[0]) == {7: 4}
    assert copies(migrated(scores, 7, ratios=(3, 2))[0]) == {}
    assert copies(migrated(scores, 6, ratios=(3, 2))[0]) == {3: 0, 7: 4}


def test_from_a_slower_group_a_whole_learner_comes():
    parent, mutate, hypers = migrated([4, 3, 2, 1, 3, 9, 2, 1], 1)
    assert copies(parent) == {3: 5}
    assert copies(hypers) == {3: 5}
    assert mutate == [False] * 8


def test_from_a_faster_group_the_hyperparameters_stay_behind():
    parent, mutate, hypers = migrated([4, 9, 2, 1, 3, 5, 2, 1], 5)
    assert copies(parent) == {3: 1, 7: 1}
    assert copies(hypers) == {3: 1, 7: 5}  # those of the best of its own group
    assert mutate == [i == 3 for i in range(8)]


def test_between_groups_of_one_frequency_a_whole_learner_comes():
    parent, _, hypers = migrated([4, 9, 2, 1, 3, 5, 2, 1], 1, ratios=(1, 1))
    assert copies(parent) == copies(hypers) == {3: 1, 7: 1}


def test_a_migrant_must_be_better_than_whom_the_worst_would_copy():
    assert copies(migrated([4, 3, 2, 1, 4, 0, 0, 0], 1)[0]) == {3: 0}
    assert copies(migrated([4, 3, 2, 1, 2, 0, 0, 0], 1)[0]) == {3: 0}
    assert copies(migrated([4, 3, 2, 1, 2, 0, 0, 0], 1, rule=stays)[0]) == {3: 4}
    assert copies(migrated([4, 3, 2, 1, 1, 0, 0, 0], 1, rule=stays)[0]) == {}


def test_migration_at_every_second_act():
    scores = [4, 9, 2, 1, 3, 5, 2, 1]
    come = lambda call: migrated(scores, call, migrate_every=2, ratios=(1, 2))[0][7] == 1
    assert [call for call in range(1, 17) if come(call)] == [4, 8, 12, 16]
    come = lambda call: migrated(scores[4:] + scores[:4], call, migrate_every=3)[0][3] == 5
    assert [call for call in range(1, 13) if come(call)] == [3, 6, 9, 12]


def test_the_absent_neither_migrate_nor_make_room():
    present = [1, 1, 1, 0, 1, 0, 1, 1]
    parent, mutate, hypers = migrated([4, 3, 2, 1, 3, 9, 5, 1], 1, present)
    assert copies(parent) == copies(hypers) == {2: 6}
    assert not any(mutate)
    assert copies(migrated([4, 3, 2, 1, 3, 9, 5, 1], 1, [1, 0, 0, 0, 1, 1, 1, 1])[0]) == {}
    assert copies(migrated([4, 3, 2, 1, 3, 9, 5, 1], 1, [0, 0, 0, 0, 1, 1, 1, 1])[0]) == {}
    assert copies(migrated([4, 3, 2, 1, np.nan, np.nan, np.inf, 1], 1)[0]) == {3: 0}


def test_of_equals_the_last_makes_room_and_the_first_migrates():
    parent, _, hypers = migrated([4, 4, 4, 4, 3, 9, 9, 1], 1)
    assert copies(parent) == copies(hypers) == {3: 5}
    assert copies(migrated([1, 0, 5, 2, 2, 5], 1, groups=3)[0]) == {1: 2}


@pytest.mark.parametrize("name", ["truncation", slow("winner"), "tournament", slow("middle")])
def test_the_champion_of_every_group_is_safe(name):
    scores, eligible = cases(300, size=12)
    rule = subpopulations(3, ALL[name], ratios=(1, 2, 4))
    keys, calls = jax.random.split(jax.random.key(2), 300), np.arange(1, 301, dtype=np.int32)
    found = jax.jit(jax.vmap(rule))(keys, scores, eligible, calls)
    parent, mutate, hypers = map(np.asarray, found)
    usable = eligible & np.isfinite(scores)
    index, migrants = np.arange(12), 0
    for i in range(300):
        for g, ratio in enumerate((1, 2, 4)):
            rows = slice(4 * g, 4 * g + 4)
            fit, score, whom = usable[i, rows], scores[i, rows], parent[i, rows]
            still = whom == index[rows]
            assert still[~fit].all()
            assert not mutate[i, rows][~fit].any()
            assert usable[i][whom[~still]].all()
            foreign = whom // 4 != g
            assert foreign.sum() <= 1
            assert not mutate[i, rows][foreign].any()
            migrants += foreign.sum()
            np.testing.assert_array_equal(hypers[i, rows][~foreign], whom[~foreign])
            if (i + 1) % ratio:
                assert still.all()
                assert not mutate[i, rows].any()
            if fit.any():
                champion = np.argmax(np.where(fit, score, -np.inf))
                assert still[champion]
                assert not mutate[i, rows][champion]
            assert (scores[i][whom] >= score)[fit].all()
    assert migrants > 50


@pytest.mark.slow
def test_groups_compiled_are_the_same():
    arguments = jax.random.key(0), jnp.array([4.0, 9, 2, 1, 3, 5, 2, 1]), jnp.ones(8, bool)
    for call in (1, 5):
        plain = subpopulations(2, truncation())(*arguments, call)
        for a, b in zip(
            vmap_in_groups(2, ALL["truncation"])(*arguments, jnp.int32(call)), plain, strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_one_group_is_the_rule_itself():
    arguments = jax.random.key(3), np.arange(PLACES, dtype=np.float32), np.ones(PLACES, bool)
    found = vmap_in_groups(1, ALL["half"])(*arguments, np.int32(7))
    expected = compiled("half")(*arguments)
    assert found.parent.tolist() == found.hypers_parent.tolist() == expected.parent.tolist()
    assert found.mutate.tolist() == expected.mutate.tolist()


# What travels


def some_cohort(num=4):
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=(num, *shape)).astype(np.float32)
    cohort = LearnerState(
        params={"w": normal(3, 2), "b": np.ones((num, 0), np.float32)},
        statistics=(normal(), normal(2)),
        opt_state={"count": np.arange(num, dtype=np.int32), "mu": normal(3)},
        hypers=(normal(), normal()),
        private={"num_updates": np.arange(num, dtype=np.int32), "replay": normal(2)},
    )
    cohort.params["w"][:, 0, 0], cohort.statistics[1][1, 0] = -0.0, np.nan
    return cohort


COPY = jax.jit(copy_parents)


def same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x).view(np.uint8), np.asarray(y).view(np.uint8))


def rows(tree, index):
    return jax.tree.map(lambda x: x[np.array(index)], tree)


@pytest.mark.parametrize("run", [COPY, pytest.param(copy_parents, marks=pytest.mark.slow)])
def test_everything_travels_together_but_memory(run):
    cohort, parent = some_cohort(), [2, 1, 2, 1]
    found = run(cohort, np.array(parent, np.int32))
    for field in ("params", "statistics", "opt_state", "hypers"):
        same_bits(getattr(found, field), rows(getattr(cohort, field), parent))
    same_bits(found.private, cohort.private)


def test_hyperparameters_may_come_from_another():
    cohort = some_cohort()
    found = COPY(cohort, np.int32([2, 1, 2, 1]), np.int32([0, 1, 2, 3]))
    same_bits(found.hypers, cohort.hypers)
    same_bits(found.params, rows(cohort.params, [2, 1, 2, 1]))
    found = COPY(cohort, np.int32([0, 1, 2, 3]), np.int32([3, 1, 2, 0]))
    same_bits(found._replace(hypers=()), cohort._replace(hypers=()))
    same_bits(found.hypers, rows(cohort.hypers, [3, 1, 2, 0]))


def test_parents_are_as_they_were_before():
    """In a ring everyone gets the neighbour's old row: nobody passes on what it has just received."""
    cohort = some_cohort()
    same_bits(COPY(cohort, np.int32([1, 2, 3, 0])).params, rows(cohort.params, [1, 2, 3, 0]))


def test_rows_on_two_devices():
    """The same as on one, to the bit: -0 and NaN included."""
    mesh = jax.make_mesh((2,), ("learner",), axis_types=(jax.sharding.AxisType.Auto,))
    divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("learner"))
    cohort, parent = some_cohort(), np.int32([0, 1, 0, 1])
    there = jax.device_put(cohort, divided)
    found = jax.jit(copy_parents, out_shardings=divided)(there, parent)
    assert found.params["w"].sharding == divided
    same_bits(found, COPY(cohort, parent))
    same_bits(COPY(there, parent), COPY(cohort, parent))
