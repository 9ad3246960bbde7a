"""Which arguments a function depends on, through compiled functions and from shapes alone."""

import jax
import jax.numpy as jnp
import pytest

from shoal.ops.dependence import used_arguments

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)


def first_of_two(x, y):
    """y is computed with, but not returned."""
    return x + 1, y * 2


@pytest.mark.parametrize("function", [first_of_two, jax.jit(first_of_two), jax.jit(jax.jit(first_of_two))])
def test_a_result_that_is_dropped_uses_nothing(function):
    assert used_arguments(lambda x, y: function(x, y)[0], NUMBER, NUMBER) == (True, False)
    assert used_arguments(lambda x, y: function(x, y)[1], NUMBER, NUMBER) == (False, True)
    assert used_arguments(function, NUMBER, NUMBER) == (True, True)


def test_results_that_are_arguments_or_constants():
    assert used_arguments(lambda x, y: (y, 3.0), NUMBER, NUMBER) == (False, True)
    assert used_arguments(lambda x, y: 3.0, NUMBER, NUMBER) == (False, False)


def test_what_decides_is_used():
    choose = lambda flag, x, y: jax.lax.cond(flag > 0, lambda: x, lambda: x + 1)
    assert used_arguments(choose, NUMBER, NUMBER, NUMBER) == (True, True, False)


def test_a_scan_uses_what_reaches_the_results_in_any_later_step():
    """b takes a step to reach a, and c two; d goes its own way."""

    def run(a, b, c, d, xs, ys):
        step = lambda carry, x: ((carry[0] + carry[1], carry[2], carry[2], carry[3] + x[1]), x[0])
        return jax.lax.scan(step, (a, b, c, d), (xs, ys))

    row = jax.ShapeDtypeStruct((3,), jnp.float32)
    arguments = (NUMBER, NUMBER, NUMBER, NUMBER, row, row)
    used = lambda pick: used_arguments(lambda *x: pick(run(*x)), *arguments)
    assert used(lambda out: out[0][0]) == (True, True, True, False, False, False)
    assert used(lambda out: out[0][2]) == (False, False, True, False, False, False)
    assert used(lambda out: out[0][3]) == (False, False, False, True, False, True)
    assert used(lambda out: out[1]) == (False, False, False, False, True, False)


def test_the_answer_has_the_structure_of_the_arguments():
    tree = {"a": (jnp.ones(2), ()), "b": [jnp.ones(3), None]}
    assert used_arguments(lambda tree: tree["b"][0].sum(), tree) == ({"a": (False, ()), "b": [True, None]},)
