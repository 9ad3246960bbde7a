"""What a policy computes, as a graph of ONNX operators: built, kept as JSON, written as a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from shoal.errors import ShoalError

OPSET, IR_VERSION = 17, 8
"""Of the format: everything that reads ONNX 1.12 (2022) or a later one reads these files."""


@dataclass(frozen=True)
class Weight:
    """A part of a learner's state by its path, e.g. params/actor/layers/0/weight; `bind` gives its value."""

    name: str
    shape: tuple[int, ...]


Operand: TypeAlias = str | Weight | np.ndarray | np.generic
"""The name of a value, a part of the learner's state, or a constant."""


class Node(NamedTuple):
    """One operator: from values to values, by name."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


class Port(NamedTuple):
    """An input or an output of the graph: (B, *shape)."""

    name: str
    kind: str  # observation, episode_start, state, noise; of outputs action, state
    dtype: str
    shape: tuple[int, ...]
    about: dict[str, str]  # what else its user must know

    def to_dict(self) -> dict[str, Any]:
        """For policy.json."""
        named = {"name": self.name, "kind": self.kind}
        return named | {"dtype": self.dtype, "shape": list(self.shape)} | self.about


def read_port(port: Mapping[str, Any]) -> Port:
    """The inverse of `Port.to_dict`."""
    about = {key: value for key, value in port.items() if key not in Port._fields}
    return Port(port["name"], port["kind"], port["dtype"], tuple(port["shape"]), about)


class Graph:
    """A graph under construction, whose values have B rows; `add` returns the name of its operator's result.

    >>> graph = Graph()
    >>> x = graph.add_input("x", "observation", "float32", (3,))
    >>> graph.add_output("y", "action", "float32", (3,), graph.add("Mul", x, np.float32(2)))
    >>> [(node.op, node.inputs, node.outputs) for node in graph.nodes]
    [('Mul', ['x', 'Mul_0.1'], ['Mul_0']), ('Identity', ['Mul_0'], ['y'])]
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self.weights: list[str] = []
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []

    def add_input(self, name: str, kind: str, dtype: str, shape: tuple[int, ...], **about: str) -> str:
        """An input of the graph."""
        self._check_free(name)
        self.inputs.append(Port(name, kind, dtype, shape, about))
        return name

    def add_output(
        self, name: str, kind: str, dtype: str, shape: tuple[int, ...], value: str, **about: str
    ) -> None:
        """An output of the graph: this value, under this name."""
        self._check_free(name)
        self.nodes.append(Node("Identity", [value], [name], {}))
        self.outputs.append(Port(name, kind, dtype, shape, about))

    def add(self, op: str, *inputs: Operand, **attributes: Any) -> str:
        """An operator with one result; constants among its inputs are stored in the file."""
        return self.add_several(op, 1, *inputs, **attributes)[0]

    def add_several(self, op: str, count: int, *inputs: Operand, **attributes: Any) -> list[str]:
        """An operator with `count` results."""
        name = f"{op}_{len(self.nodes)}"
        names = [self._name(f"{name}.{i}", operand) for i, operand in enumerate(inputs)]
        outputs = [name] if count == 1 else [f"{name}:{i}" for i in range(count)]
        self.nodes.append(Node(op, names, outputs, attributes))
        return outputs

    def add_slice(self, x: str, start: int, end: int = np.iinfo(np.int64).max) -> str:
        """x[..., start:end]."""
        return self.add("Slice", x, np.array([start]), np.array([end]), np.array([-1]))

    def _check_free(self, name: str) -> None:
        """Raise where an observation has a name that the graph needs itself."""
        if name in (port.name for port in self.inputs):
            raise ShoalError(
                f"cannot export a policy that observes {name!r}: the file needs this name itself"
            )

    def _name(self, name: str, operand: Operand) -> str:
        if isinstance(operand, str):
            return operand
        if isinstance(operand, Weight):
            self.weights.append(operand.name)
            return operand.name
        self.constants[name] = np.asarray(operand)
        return name


def to_dict(graph: Graph) -> dict[str, Any]:
    """A graph for a JSON file, without the values of its weights."""
    constant = lambda x: {"dtype": x.dtype.name, "value": x.tolist()}
    return {
        "nodes": [list(node) for node in graph.nodes],
        "constants": {name: constant(x) for name, x in graph.constants.items()},
        "weights": graph.weights,
        "inputs": [port.to_dict() for port in graph.inputs],
        "outputs": [port.to_dict() for port in graph.outputs],
    }


def read_graph(saved: Mapping[str, Any]) -> Graph:
    """The inverse of `to_dict`."""
    graph = Graph()
    graph.nodes = [Node(*node) for node in saved["nodes"]]
    graph.constants = {name: np.array(x["value"], x["dtype"]) for name, x in saved["constants"].items()}
    graph.weights = saved["weights"]
    graph.inputs, graph.outputs = (list(map(read_port, saved[side])) for side in ("inputs", "outputs"))
    return graph


def to_model(graph: Graph, doc: str) -> bytes:
    """A graph with its values as the contents of an .onnx file, checked; `doc` is what viewers show."""
    try:
        import onnx
    except ImportError as error:
        raise ShoalError("onnx is not installed; pip install 'shoal[onnx]'") from error
    helper = onnx.helper
    tensor_type = lambda dtype: helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = lambda port: helper.make_tensor_value_info(port.name, tensor_type(port.dtype), ["B", *port.shape])
    made = helper.make_graph(
        [helper.make_node(op, ins, outs, name=outs[0], **how) for op, ins, outs, how in graph.nodes],
        "policy",
        list(map(info, graph.inputs)),
        list(map(info, graph.outputs)),
        [onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in graph.constants.items()],
        doc_string=doc,
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(made, opset_imports=[opset], producer_name="shoal", ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()
