"""Networks of one's own as ONNX: what JAX traces for one observation, operator by operator."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from shoal.errors import ShoalError
from shoal.runs.export.observations import ONNX_TYPES
from shoal.runs.graphs.graph import Graph, Operand, Weight
from shoal.types import ObservationSpace, Tree

TYPES, CAST_FROM = {"float32", "bool"}, {"uint8", "int32"}
"""What graphs compute with; what observations and constants may be before they are cast."""
UNSEEN = "unseen"
"""In place of observations that only critics see."""


class Value(NamedTuple):
    """A value of the trace; ONNX's has an axis of rows before its shape where it depends on observations."""

    operand: Operand
    shape: tuple[int, ...]
    has_rows: bool


class NoForm(Exception):
    """What has no form in ONNX here, in words."""


def add_network(graph: Graph, network: Any, space: ObservationSpace, seen: dict[str, str]) -> str:
    """The outputs (B, n) of a network, whose leaves are `Weight`s; what only its value needs is left out."""
    leaves, structure = jax.tree.flatten(network)
    if not leaves or not all(isinstance(leaf, Weight) for leaf in leaves):
        raise no_form(network, "its leaves are not arrays")
    weights = [jax.ShapeDtypeStruct(leaf.shape, np.float32) for leaf in leaves]
    named = space if isinstance(space, dict) else {"obs": space}
    parts = {name: jax.ShapeDtypeStruct(box.shape, box.dtype) for name, box in named.items()}

    def outputs(weights: list[Tree], parts: dict[str, Tree]) -> Tree:
        obs = parts if isinstance(space, dict) else parts["obs"]
        return jax.tree.unflatten(structure, weights)(obs)[0]

    try:
        traced = jax.make_jaxpr(outputs)(weights, parts)
    except Exception as error:
        raise no_form(network, f"it does not take a single observation ({error})") from error
    given = [Value(leaf, leaf.shape, False) for leaf in leaves]
    for name in sorted(parts):  # as JAX orders them; what only the critic sees is not there
        given.append(Value(seen.get(name, UNSEEN), parts[name].shape, True))
    try:
        (found,) = add_trace(graph, traced, given)
        return str(with_rows(graph, found, _any_rows(given)).operand)
    except (NoForm, LookupError, TypeError, ValueError) as reason:  # a run trains whatever its network is
        raise no_form(network, str(reason)) from reason


def no_form(network: Any, why: str) -> ShoalError:
    """The error for a network that has no form in ONNX."""
    return ShoalError(f"cannot export a {type(network).__name__}: {why}")


def add_trace(graph: Graph, traced: Any, given: Sequence[Value]) -> list[Value]:
    """The results of a traced function, of which only what they need is added."""
    is_closed = hasattr(traced, "consts")  # before jax 0.12 a trace without constants is of another class
    jaxpr, constants = (traced.jaxpr, traced.consts) if is_closed else (traced, ())
    known = dict(zip(jaxpr.invars, given, strict=True))
    known |= {var: constant(x) for var, x in zip(jaxpr.constvars, constants, strict=True)}
    read = lambda atom: constant(atom.val) if isinstance(atom, core.Literal) else known[atom]
    for equation in needed(jaxpr):
        results = add_equation(graph, equation, list(map(read, equation.invars)))
        known |= dict(zip(equation.outvars, results, strict=True))
    return list(map(read, jaxpr.outvars))


def needed(jaxpr: core.Jaxpr) -> list[Any]:
    """The equations that the results depend on, in their order."""
    wanted, kept = {id(var) for var in jaxpr.outvars}, []
    for equation in reversed(jaxpr.eqns):
        if wanted & {id(var) for var in equation.outvars}:
            wanted |= {id(var) for var in equation.invars}
            kept.append(equation)
    return kept[::-1]


def constant(x: Any) -> Value:
    """A number or an array of the network itself, in a type that graphs have."""
    x = np.asarray(x)
    kind = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}.get(x.dtype.kind, np.float32)
    return Value(x.astype(kind), x.shape, False)


def add_equation(graph: Graph, equation: Any, values: list[Value]) -> list[Value]:
    """The results of one equation of a trace."""
    name, params = equation.primitive.name, equation.params
    if name == "platform_index":
        return [constant(0)]
    if name == "cond" and "branches_platforms" in params:
        return add_trace(graph, params["branches"][-1], values[1:])  # that of any platform
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in params:
            return add_trace(graph, params[key], values)
    if any(x.operand is UNSEEN for x in values):
        raise NoForm("its policy reads what only a critic sees")
    shapes = [tuple(var.aval.shape) for var in equation.outvars]
    if name == "split":
        return add_split(graph, values[0], params["sizes"], params["axis"], shapes)
    if name in SHAPED:
        return [SHAPED[name](graph, params, values, shapes[0])]
    if name not in ELEMENTWISE:
        raise NoForm(f"{name} has no form in ONNX here")
    type_names = lambda atoms: {np.dtype(atom.aval.dtype).name for atom in atoms}
    known = TYPES | CAST_FROM if name == "convert_element_type" else TYPES
    if others := (type_names(equation.invars) - known) | (type_names(equation.outvars) - TYPES):
        raise NoForm(f"{name} of {' and '.join(sorted(others))} has no form in ONNX here")
    if any(len(x.shape) < len(shapes[0]) and x.has_rows for x in values):
        raise NoForm(f"{name} of values of several shapes has no form in ONNX here")
    operand = ELEMENTWISE[name](graph, params, *(x.operand for x in values))
    return [Value(operand, shapes[0], _any_rows(values))]


def with_rows(graph: Graph, x: Value, many: bool) -> Value:
    """The same value for each row, where others have rows."""
    if x.has_rows or not many:
        return x
    rows = graph.add_slice(graph.add("Shape", graph.inputs[0].name), 0, 1)
    shape = graph.add("Concat", rows, np.array(x.shape, np.int64), axis=0)
    return Value(graph.add("Expand", x.operand, shape), x.shape, True)


def add_reshape(graph: Graph, x: Value, shape: tuple[int, ...]) -> Value:
    """The same numbers in another shape."""
    target = np.array([-1] * x.has_rows + list(shape), np.int64)
    return Value(graph.add("Reshape", x.operand, target), shape, x.has_rows)


def add_transpose(graph: Graph, x: Value, order: Sequence[int]) -> Value:
    """The same numbers with their axes in another order."""
    perm = [0] * x.has_rows + [axis + x.has_rows for axis in order]
    return Value(graph.add("Transpose", x.operand, perm=perm), tuple(x.shape[i] for i in order), x.has_rows)


def add_broadcast(graph: Graph, params: dict, values: list[Value], shape: tuple[int, ...]) -> Value:
    """broadcast_in_dim: the axes of a value at their places among those of a larger one."""
    inner = [1] * len(shape)
    for size, axis in zip(values[0].shape, params["broadcast_dimensions"], strict=True):
        inner[axis] = size
    x = add_reshape(graph, values[0], tuple(inner))
    if tuple(inner) == shape:
        return x
    target = np.array([1] * x.has_rows + list(shape), np.int64)
    return Value(graph.add("Expand", x.operand, target), shape, x.has_rows)


def add_concatenation(graph: Graph, params: dict, values: list[Value], shape: tuple[int, ...]) -> Value:
    """concatenate."""
    many = _any_rows(values)
    parts = [with_rows(graph, x, many).operand for x in values]
    return Value(graph.add("Concat", *parts, axis=params["dimension"] + many), shape, many)


def add_stack(graph: Graph, params: dict, values: list[Value], shape: tuple[int, ...]) -> Value:
    """stack: a concatenation along a new axis."""
    axis = params["axis"]
    longer = [add_reshape(graph, x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in values]
    return add_concatenation(graph, {"dimension": axis}, longer, shape)


def add_slice(graph: Graph, params: dict, values: list[Value], shape: tuple[int, ...]) -> Value:
    """slice, without strides."""
    (x,) = values
    if any(step != 1 for step in params["strides"] or ()):
        raise NoForm("a slice with a stride has no form in ONNX here")
    axes = np.arange(len(shape)) + x.has_rows
    start, end = (np.array(params[f"{side}_indices"], np.int64) for side in ("start", "limit"))
    return Value(graph.add("Slice", x.operand, start, end, axes), shape, x.has_rows)


def add_split(
    graph: Graph, x: Value, sizes: Sequence[int], axis: int, shapes: list[tuple[int, ...]]
) -> list[Value]:
    """split."""
    if len(sizes) == 1:
        return [x]
    parts = graph.add_several("Split", len(sizes), x.operand, np.array(sizes), axis=axis + x.has_rows)
    return [Value(part, shape, x.has_rows) for part, shape in zip(parts, shapes, strict=True)]


def add_product(graph: Graph, params: dict, values: list[Value], shape: tuple[int, ...]) -> Value:
    """dot_general, as a product of stacked matrices: (D, F, K) (D, K, G) -> (D, F, G)."""
    (summed, stacked), matrices, free = params["dimension_numbers"], [], []
    for x, contracted, together in zip(values, summed, stacked, strict=True):
        rest = [i for i in range(len(x.shape)) if i not in (*contracted, *together)]
        free.append(prod(x.shape[i] for i in rest))
        stack, depth = (prod(x.shape[i] for i in axes) for axes in (together, contracted))
        last = [*rest, *contracted] if not matrices else [*contracted, *rest]
        sizes = (stack, free[-1], depth) if not matrices else (stack, depth, free[-1])
        turned = add_transpose(graph, x, [*together, *last]) if x.shape else x
        matrices.append(add_reshape(graph, turned, sizes))
    product = graph.add("MatMul", *(x.operand for x in matrices))
    return add_reshape(graph, Value(product, (), _any_rows(values)), shape)


def add_reduction(op: str) -> Callable[..., Value]:
    """reduce_max and its kind."""

    def add(graph: Graph, params: dict, values: list[Value], shape: tuple[int, ...]) -> Value:
        (x,) = values
        axes = [axis + x.has_rows for axis in params["axes"]]
        if op == "ReduceSum":  # the only one whose axes are an input
            return Value(graph.add(op, x.operand, np.array(axes), keepdims=0), shape, x.has_rows)
        return Value(graph.add(op, x.operand, axes=axes, keepdims=0), shape, x.has_rows)

    return add


def _any_rows(values: Sequence[Value]) -> bool:
    return any(x.has_rows for x in values)


def _operator(op: str) -> Callable[..., Operand]:
    return lambda graph, _, *x: graph.add(op, *x)


def _cast(graph: Graph, params: dict, x: Operand) -> Operand:
    return graph.add("Cast", x, to=ONNX_TYPES[np.dtype(params["new_dtype"]).name])


ONE = np.float32(1)
SHAPED: dict[str, Callable[..., Value]] = {
    "broadcast_in_dim": add_broadcast,
    "concatenate": add_concatenation,
    "dot_general": add_product,
    "reduce_max": add_reduction("ReduceMax"),
    "reduce_min": add_reduction("ReduceMin"),
    "reduce_sum": add_reduction("ReduceSum"),
    "reshape": lambda graph, _, values, shape: add_reshape(graph, values[0], shape),
    "slice": add_slice,
    "stack": add_stack,
    "squeeze": lambda graph, _, values, shape: add_reshape(graph, values[0], shape),
    "transpose": lambda graph, params, values, _: add_transpose(graph, values[0], params["permutation"]),
}
"""What changes shapes, by JAX's names."""
ELEMENTWISE: dict[str, Callable[..., Operand]] = {
    **{name: lambda graph, _, x: x for name in ("stop_gradient", "copy", "copy_p", "reduce_precision")},
    **{name: _operator(name.capitalize()) for name in ("add", "sub", "mul", "div", "max", "min", "pow")},
    **{name: _operator(name.capitalize()) for name in ("tanh", "exp", "log", "abs", "sqrt", "sin", "cos")},
    **{name: _operator(name.capitalize()) for name in ("neg", "sign", "floor", "erf", "not", "and", "or")},
    "logistic": _operator("Sigmoid"),
    "gt": _operator("Greater"),
    "ge": _operator("GreaterOrEqual"),
    "lt": _operator("Less"),
    "le": _operator("LessOrEqual"),
    "eq": _operator("Equal"),
    "ne": lambda graph, _, x, y: graph.add("Not", graph.add("Equal", x, y)),
    "square": lambda graph, _, x: graph.add("Mul", x, x),
    "integer_pow": lambda graph, params, x: graph.add("Pow", x, np.float32(params["y"])),
    "erfc": lambda graph, _, x: graph.add("Sub", ONE, graph.add("Erf", x)),
    "rsqrt": lambda graph, _, x: graph.add("Div", ONE, graph.add("Sqrt", x)),
    "expm1": lambda graph, _, x: graph.add("Sub", graph.add("Exp", x), ONE),
    "log1p": lambda graph, _, x: graph.add("Log", graph.add("Add", x, ONE)),
    "clamp": lambda graph, _, low, x, high: graph.add("Min", graph.add("Max", x, low), high),
    "select_n": lambda graph, _, which, no, yes: graph.add("Where", which, yes, no),
    "convert_element_type": _cast,
}
"""The others, by JAX's names."""
