"""Dependence: which arguments the results of a function depend on."""

from collections.abc import Callable, Sequence

import jax
from jax.extend.core import Jaxpr, Var

from shoal.types import Tree


def used_arguments(function: Callable, *arguments: Tree) -> tuple[Tree, ...]:
    """Whether the results depend on each leaf of the arguments (arrays or ShapeDtypeStructs).

    It is what the program shows: 0 * x depends on x.

    >>> import jax.numpy as jnp
    >>> used_arguments(lambda x: (x["a"] + x["b"]) * x["a"], {"a": jnp.ones(2), "b": jnp.ones(2), "c": 1.0})
    ({'a': True, 'b': True, 'c': False},)
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    used = _used_inputs(jaxpr, [True] * len(jaxpr.outvars))
    return jax.tree.unflatten(jax.tree.structure(arguments), used)


def _used_inputs(jaxpr: Jaxpr, needed: Sequence[bool]) -> list[bool]:
    """Whether the outputs that are needed depend on each input: from the last equation to the first."""
    outputs = [var for var, need in zip(jaxpr.outvars, needed, strict=True) if need]
    used = {var for var in outputs if isinstance(var, Var)}
    for equation in reversed(jaxpr.eqns):
        needed = [var in used for var in equation.outvars]
        if not any(needed):
            continue
        inputs = equation.invars
        if equation.primitive.name == "jit":
            inner = _used_inputs(equation.params["jaxpr"].jaxpr, needed)
            inputs = [var for var, use in zip(inputs, inner, strict=True) if use]
        used |= {var for var in inputs if isinstance(var, Var)}
    return [var in used for var in jaxpr.invars]
