"""A graph with the values of its weights: what depends on them alone is computed; it runs in NumPy."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from shoal.runs.graphs.graph import Graph, Node
from shoal.runs.graphs.operators import OPERATORS


def bind(graph: Graph, values: Mapping[str, np.ndarray]) -> Graph:
    """The graph with the values of its weights among its constants; what only depends on them becomes one.

    >>> from shoal.runs.graphs.graph import Weight
    >>> graph = Graph()
    >>> x = graph.add_input("x", "observation", "float32", (3,))
    >>> scale = graph.add("Exp", Weight("log_scale", ()))
    >>> graph.add_output("y", "action", "float32", (3,), graph.add("Mul", x, scale))
    >>> bound = bind(graph, {"log_scale": np.zeros(())})
    >>> [node.op for node in bound.nodes], bound.constants
    (['Mul', 'Identity'], {'Exp_0': np.float64(1.0)})
    """
    known: dict[str, Any] = graph.constants | {name: values[name] for name in graph.weights}
    bound = Graph()
    bound.inputs, bound.outputs = graph.inputs, graph.outputs
    for node in graph.nodes:
        if all(not name or name in known for name in node.inputs):
            known |= run_node(node, known)
        else:
            bound.nodes.append(node)
    used = {name for node in bound.nodes for name in node.inputs}
    bound.constants = {name: value for name, value in known.items() if name in used}
    return bound


def run_node(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """The results of one operator by name."""
    results = OPERATORS[node.op](*map(values.get, node.inputs), **node.attributes)
    return dict(zip(node.outputs, results if len(node.outputs) > 1 else (results,), strict=True))


class Program:
    """A graph that has all its values, ready to be run in NumPy many times."""

    def __init__(self, graph: Graph):
        self.inputs = graph.inputs
        self._constants = graph.constants | {"": None}  # an input that is left out
        self._steps = [
            (partial(OPERATORS[node.op], **node.attributes), node.inputs, node.outputs)
            for node in graph.nodes
        ]
        self._outputs = [(port.about.get("of", port.name), port.name) for port in graph.outputs]

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, for inputs by name; the next value of a state has the name of that state."""
        values = {**self._constants, **inputs}
        for function, names, outputs in self._steps:
            results = function(*[values[name] for name in names])
            if len(outputs) == 1:
                values[outputs[0]] = results
            else:
                values.update(zip(outputs, results, strict=True))
        return {of: values[name] for of, name in self._outputs}
