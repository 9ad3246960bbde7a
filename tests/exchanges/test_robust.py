"""Aggregation: known answers, plain loops in NumPy, absent learners, and attackers."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.exchanges import robust

ALL = {"mean": lambda bad: robust.mean(), **robust.RULES}
COUNTING = ("trimmed-mean", "krum", "multi-krum")
"""Rules to which the number of liars makes a difference."""
PLACES = (11, 6)
SMALL = [1.0, 2.0, 3.0, 4.5, 100.0]  # one number each; the last one lies


program = cache(lambda name, bad: jax.jit(ALL[name](bad)))


def compiled(name, bad=0):
    return program(name, bad if name in COUNTING else 0)


def asked(rule, messages, weight=None, places=PLACES):
    """The answer of a compiled rule, in one shape for all cases: in the places left are absent learners."""
    messages = np.float32(messages)
    num, size = messages.shape
    filled, present = np.full(places, np.nan, np.float32), np.zeros(places[0], np.float32)
    filled[:num], filled[:num, :size] = 0, messages
    present[:num] = 1 if weight is None else weight
    return np.asarray(rule(filled, present))[:size]


def ones(num):
    return np.ones(num, np.float32)


def normal(seed, shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def column(*numbers):
    return np.float32(numbers)[:, None]


def random_case(seed):
    """Messages of eleven learners, and weights with two to ten of them absent."""
    rng = np.random.default_rng(seed)
    weight = rng.uniform(0.1, 3.0, 11) * (rng.permutation(11) < rng.integers(1, 10))
    return rng.normal(size=(11, 4)).astype(np.float32), weight.astype(np.float32)


def plain_trimmed_mean(x, bad):
    return np.array([np.mean(sorted(values)[bad : len(values) - bad]) for values in x.T])


def plain_multi_krum(x, bad, keep):
    scores = []
    for i in range(len(x)):
        distances = sorted(float(np.sum((x[i] - x[j]) ** 2)) for j in range(len(x)) if j != i)
        scores.append(sum(distances[: max(len(x) - bad - 2, 1)]))
    return np.mean([x[i] for i in np.argsort(scores, kind="stable")[:keep]], 0)


def plain_geometric_median(x):
    z = np.mean(x, 0) + 1e-3
    for _ in range(5000):
        w = 1 / np.maximum(np.linalg.norm(x - z, axis=1), 1e-12)
        z = w @ x / w.sum()
    return z


# Known answers


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (compiled("mean"), 22.1),
        (compiled("median"), 3.0),
        (compiled("trimmed-mean", 0), 22.1),
        (compiled("trimmed-mean", 1), 9.5 / 3),
        (compiled("trimmed-mean", 2), 3.0),
        (compiled("krum", 1), 2.0),  # scores 1 + 4, 1 + 1, 1 + 2.25, 2.25 + 6.25, ...
        (compiled("multi-krum", 1), 10.5 / 4),
        (jax.jit(robust.multi_krum(1, keep=2)), 2.5),
        (jax.jit(robust.multi_krum(1, keep=5)), 22.1),
        (compiled("geometric-median"), 3.0),
    ],
)
def test_five_numbers(rule, expected):
    np.testing.assert_allclose(asked(rule, column(*SMALL)), [expected], rtol=1e-4)


def test_the_mean_is_weighted():
    assert asked(compiled("mean"), column(1.0, 4.0), [2.0, 1.0]).tolist() == [2.0]


def test_coordinates_are_judged_one_by_one():
    """Nobody sent (2, 20): the middle of each column comes from another row."""
    messages = np.float32([[1.0, 20.0], [2.0, 30.0], [3.0, 10.0]])
    assert asked(compiled("median"), messages).tolist() == [2.0, 20.0]
    assert asked(compiled("trimmed-mean", 1), messages).tolist() == [2.0, 20.0]


def test_the_geometric_median_of_a_triangle_is_its_fermat_point():
    """Of (0, 0), (1, 0), (1/2, sqrt(3)/2): the centroid. Of an angle above 120 degrees: that corner."""
    regular = np.float32([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
    np.testing.assert_allclose(asked(compiled("geometric-median"), regular), [0.5, 3**0.5 / 6], rtol=1e-5)
    flat = np.float32([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.1]])
    np.testing.assert_allclose(asked(jax.jit(robust.geometric_median(256)), flat), [0.0, 0.1], atol=1e-3)


def test_more_iterations_come_closer():
    x = np.random.default_rng(3).normal(size=(7, 2)).astype(np.float32)
    error = lambda rule: np.abs(asked(rule, x) - plain_geometric_median(x)).max()
    assert error(jax.jit(robust.geometric_median(1))) > 10 * error(jax.jit(robust.geometric_median(16))) > 0


def test_the_krum_score_counts_exactly_n_minus_bad_minus_two_neighbours():
    """0, 1, 2.5 are spread, 10 and 10.1 a pair. One neighbour (bad = 2) favours the pair, two do not."""
    messages = column(0.0, 1.0, 2.5, 10.0, 10.1)
    assert asked(compiled("krum", 2), messages).tolist() == [10.0]
    assert asked(compiled("krum", 1), messages).tolist() == [1.0]


# Against plain loops


@pytest.mark.parametrize("bad", [0, 1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_against_numpy(seed, bad):
    """Where fewer than 2 bad + 1 are present, as much is trimmed as can be."""
    messages, weight = random_case(seed)
    x = messages[weight > 0]
    expected = {
        "mean": np.average(x, axis=0, weights=weight[weight > 0]),
        "median": np.median(x, 0),
        "trimmed-mean": plain_trimmed_mean(x, min(bad, (len(x) - 1) // 2)),
        "krum": plain_multi_krum(x, bad, 1),
        "multi-krum": plain_multi_krum(x, bad, max(len(x) - bad, 1)),
    }
    for name, answer in expected.items():
        found = asked(compiled(name, bad), messages, weight)
        assert found.shape == answer.shape
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, answer, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("num", [5, 8, 16])
def test_the_geometric_median_against_numpy(num):
    x = np.random.default_rng(num).normal(size=(num, 20)).astype(np.float32)
    found = asked(compiled("geometric-median"), x, places=(16, 20))
    np.testing.assert_allclose(found, plain_geometric_median(x.astype(np.float64)), atol=1e-5)


def test_distances_survive_a_large_common_part():
    """Around 1000 in 1000 places: ||x||^2 is 1e9, and float32 keeps 64 of it; distances are below 1."""
    rng = np.random.default_rng(0)
    spread = np.array([0.010, 0.011, 0.012, 0.013, 0.0005, 0.014, 0.015])
    x = (1000 + np.round(spread[:, None] * rng.normal(size=(7, 1000)) * 2**13) / 2**13).astype(np.float32)
    np.testing.assert_array_equal(compiled("krum", 2)(x, ones(7)), x[4])


# What holds for every rule


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_learners_does_not_matter(name, seed):
    rng = np.random.default_rng(100 + seed)
    messages, weight = rng.normal(size=(9, 4)).astype(np.float32), np.arange(9.0, dtype=np.float32)
    order = rng.permutation(9)
    rule = compiled(name, 2)
    found = asked(rule, messages[order], weight[order])
    np.testing.assert_allclose(found, asked(rule, messages, weight), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_a_shift_of_all_shifts_the_result_and_a_factor_scales_it(name):
    messages, rule = normal(1, (7, 3)), compiled(name, 2)
    base, shift = asked(rule, messages), np.float32([5.0, -3.0, 0.5])
    np.testing.assert_allclose(asked(rule, messages + shift[None, :]), base + shift, atol=1e-4)
    for factor in (-2.0, 1e-6, 1e6):
        np.testing.assert_allclose(asked(rule, factor * messages), factor * base, rtol=1e-3)


@pytest.mark.parametrize(
    "name",
    ["multi-krum", *[pytest.param(name, marks=pytest.mark.slow) for name in ALL if name != "multi-krum"]],
)
def test_compiled_is_the_same(name):
    """Multi-Krum, which is quick to try, asks for the median, and for a mean in the end."""
    messages, weight = jnp.asarray(normal(2, PLACES)), jnp.arange(float(PLACES[0]))
    np.testing.assert_allclose(
        compiled(name, 1)(messages, weight), ALL[name](1)(messages, weight), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e38, -1e38])
def test_the_absent_are_not_read(name, junk):
    present, rule = normal(3, (6, 4)), compiled(name, 1)
    expected = rule(present, np.arange(1.0, 7.0, dtype=np.float32))
    messages = np.full((9, 4), junk, np.float32)
    messages[[0, 2, 3, 5, 6, 7]] = present
    weight = np.float32([1.0, 0.0, 2.0, 3.0, 0.0, 4.0, 5.0, 6.0, 0.0])
    np.testing.assert_allclose(asked(rule, messages, weight), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", robust.RULES)
def test_nobody_gains_by_a_larger_weight(name):
    messages, rule = normal(4, (7, 3)), compiled(name, 1)
    np.testing.assert_array_equal(asked(rule, messages, 1e-3 + np.arange(7.0)), asked(rule, messages))


@pytest.mark.parametrize("name", ALL)
def test_all_alike(name):
    message = np.float32([3.0, -7.5, 0.0])
    found = asked(compiled(name, 2), np.tile(message[None, :], (7, 1)))
    np.testing.assert_allclose(found, message, rtol=1e-6)


# Few learners, ties


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", [0, 4])
def test_one_two_and_three_learners(name, bad):
    """Too few for the rule: it does what it can, and what it gives lies among what it got."""
    # With 4 to withstand, in their own shapes: 1, 2 and 3 places.
    run = lambda messages, weight: asked(
        compiled(name, bad), messages, weight, messages.shape if bad else PLACES
    )
    np.testing.assert_allclose(run(column(5.0), ones(1)), [5.0])
    alone = run(column(np.nan, 5.0, np.nan), np.float32([0.0, 2.0, 0.0]))
    np.testing.assert_allclose(alone, [5.0])
    for numbers in ([1.0, 4.0], [1.0, 2.0, 9.0]):
        found = float(run(column(*numbers), ones(len(numbers)))[0])
        assert min(numbers) <= found <= max(numbers)


def test_too_many_to_trim_leaves_the_median():
    assert asked(compiled("trimmed-mean", 4), column(1.0, 2.0, 9.0)).tolist() == [2.0]
    assert asked(compiled("trimmed-mean", 4), column(1.0, 2.0, 4.0, 9.0)).tolist() == [3.0]


@pytest.mark.parametrize("name", ALL)
def test_nobody_present_gives_zero(name):
    found = asked(compiled(name, 1), np.full((4, 2), np.nan), np.zeros(4))
    assert found.tolist() == [0.0, 0.0]


def test_ties():
    messages = column(2.0, 1.0, 2.0, 2.0, 7.0)
    assert asked(compiled("median"), messages).tolist() == [2.0]
    assert asked(compiled("trimmed-mean", 1), messages).tolist() == [2.0]
    assert asked(compiled("krum", 1), messages).tolist() == [2.0]
    assert asked(compiled("geometric-median"), messages).tolist() == [2.0]
    assert asked(compiled("krum", 0), column(1.0, 3.0)).tolist() == [1.0]  # of equals, the first


# Liars

LIES = {
    "nan": lambda rng, shape: np.full(shape, np.nan),
    "inf": lambda rng, shape: np.full(shape, np.inf),
    "-inf": lambda rng, shape: np.full(shape, -np.inf),
    "one nan": lambda rng, shape: np.where(np.arange(shape[1]) == 0, np.nan, 0.5)[None] * np.ones(shape),
    "mixed": lambda rng, shape: rng.choice([np.nan, np.inf, -np.inf, 3e38, -3e38], shape),
    "huge": lambda rng, shape: rng.choice([-1.0, 1.0], shape) * 1e30,
    "one-sided": lambda rng, shape: np.full(shape, 3e38),
    "large": lambda rng, shape: rng.choice([-1.0, 1.0], shape) * 1e6,
    "together": lambda rng, shape: np.full(shape, 50.0),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", robust.RULES)
def test_attackers_do_not_move_a_robust_rule_far(name, lie):
    """4 of 11: coordinate by coordinate within the honest, or near the honest mean."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        honest = rng.normal(size=(7, 6)).astype(np.float32)
        messages = np.concatenate([honest, LIES[lie](rng, (4, 6)).astype(np.float32)])[rng.permutation(11)]
        robust.check_bad(name, 11, 4)
        found = asked(compiled(name, 4), messages)
        if name in ("median", "trimmed-mean"):
            assert (found >= honest.min(0)).all()
            assert (found <= honest.max(0)).all()
        elif name == "krum":
            assert lie == "one nan" or (found == honest).all(1).any()
        assert np.linalg.norm(found - honest.mean(0)) < 6


@pytest.mark.parametrize("lie", ["huge", "large", "together"])
def test_one_attacker_is_enough_to_move_the_mean(lie):
    messages = np.concatenate([np.zeros((10, 2)), LIES[lie](np.random.default_rng(0), (1, 2))])
    assert np.abs(asked(compiled("mean"), messages)).max() > 4


@pytest.mark.parametrize("name", robust.RULES)
@pytest.mark.parametrize("numbers", [[np.nan, 3.0], [np.inf, 3.0, np.nan], [-np.inf] * 3 + [3.0]])
def test_the_only_finite_one_wins(name, numbers):
    assert asked(compiled(name, 1), column(*numbers)).tolist() == [3.0]


@pytest.mark.parametrize("name", robust.RULES)
def test_nothing_finite_gives_zero_and_opposite_giants_a_finite_number(name):
    rule = compiled(name, 1)
    assert asked(rule, column(np.nan, np.inf, -np.inf)).tolist() == [0.0]
    assert np.isfinite(asked(rule, column(3e38, -3e38))).all()
    assert np.isfinite(asked(rule, column(3e38, 3e38, 3e38))).all()


def test_a_sum_that_overflows_still_has_a_mean_among_the_messages():
    messages = column(3e38, 3e38)
    assert asked(compiled("trimmed-mean", 0), messages).tolist() == messages[0].tolist()


def test_below_and_above_are_told_apart():
    trimmed = compiled("trimmed-mean", 1)
    assert asked(trimmed, column(1.0, 2.0, 6.0, -np.inf)).tolist() == [1.5]
    assert asked(trimmed, column(1.0, 2.0, 6.0, np.inf)).tolist() == [4.0]
    assert asked(trimmed, column(1.0, 2.0, 6.0, np.nan)).tolist() == [4.0]


# Messages to the user


@pytest.mark.parametrize(
    ("rule", "num_learners", "largest"),
    [
        ("median", 5, 2),
        ("median", 6, 2),
        ("trimmed-mean", 1, 0),
        ("trimmed-mean", 5, 2),
        ("trimmed-mean", 6, 2),
        ("krum", 3, 0),
        ("krum", 8, 2),
        ("krum", 9, 3),
        ("multi-krum", 9, 3),
        ("geometric-median", 4, 1),
    ],
)
def test_how_many_each_rule_withstands(rule, num_learners, largest):
    robust.check_bad(rule, num_learners, 0)
    robust.check_bad(rule, num_learners, largest)
    expected = f"{rule} tolerates at most {largest} bad of {num_learners} learners, not {largest + 1} "
    with pytest.raises(ShoalError, match=expected):
        robust.check_bad(rule, num_learners, largest + 1)


def test_errors_say_what_is_wrong():
    with pytest.raises(ShoalError, match=r"^krum needs 3 or more learners, not 2$"):
        robust.check_bad("krum", 2, 0)
    with pytest.raises(ShoalError, match=r"unknown robust rule 'bulyan'.*median, trimmed-mean, krum"):
        robust.check_bad("bulyan", 9, 1)
    for make in (
        robust.trimmed_mean,
        robust.krum,
        robust.multi_krum,
        lambda bad: robust.check_bad("median", 5, bad),
    ):
        with pytest.raises(ShoalError, match="bad must be at least 0, not -1"):
            make(-1)
    with pytest.raises(ShoalError, match="keep must be at least 1, not 0"):
        robust.multi_krum(1, keep=0)
    with pytest.raises(ShoalError, match="iterations must be at least 1, not 0"):
        robust.geometric_median(0)
