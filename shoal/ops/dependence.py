"""Dependence: which arguments the results of a function depend on."""

from collections.abc import Callable, Sequence
from typing import Any

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
        if equation.primitive.name in ("jit", "scan"):
            inner = _used_by_scan if equation.primitive.name == "scan" else _used_by_call
            inputs = [var for var, use in zip(inputs, inner(equation, needed), strict=True) if use]
        used |= {var for var in inputs if isinstance(var, Var)}
    return [var in used for var in jaxpr.invars]


def _used_by_call(call: Any, needed: Sequence[bool]) -> list[bool]:
    """Whether the outputs of a function that are needed depend on each of its inputs."""
    return _used_inputs(call.params["jaxpr"].jaxpr, needed)


def _used_by_scan(scan: Any, needed: Sequence[bool]) -> list[bool]:
    """The same of a scan: a carry is needed, too, where a later step reads it for what is needed.

    Constants and carries have the same shape inside, while what is scanned has an axis less: releases of JAX
    do not agree on how else to count them.
    """
    body = scan.params["jaxpr"].jaxpr
    rank = lambda var: len(var.aval.shape)
    same = lambda outer, inner: sum(rank(a) == rank(b) for a, b in zip(outer, inner, strict=True))
    carry = same(scan.outvars, body.outvars)
    consts = same(scan.invars, body.invars) - carry
    needed, before = list(needed), []
    used: list[bool] = []
    while needed != before:
        before = needed
        used = _used_inputs(body, needed)
        read = used[consts : consts + carry]
        needed = [a or b for a, b in zip(needed[:carry], read, strict=True)] + needed[carry:]
    return used
