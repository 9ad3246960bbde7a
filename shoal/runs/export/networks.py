"""Networks as ONNX: dense layers, convolutional encoders, named observations, recurrent cores."""

from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.nets.convolutions import Convolution, Impala, NatureCNN, Residual
from shoal.nets.encoders import JOINT, ConcatEncoder
from shoal.nets.layers import MLP, Dense, Flatten, SplitLayer
from shoal.nets.recurrent import GRU, LSTM, RecurrentHead
from shoal.runs.graphs.graph import Graph

ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "tanh": ("Tanh", {}),
    "relu": ("Relu", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.01}),
    "elu": ("Elu", {"alpha": 1.0}),
}
"""The operators of activations by our names, but silu, which has none."""


def refuse(network: Any) -> ShoalError:
    """The error for a network that has no form in ONNX here."""
    return ShoalError(
        f"cannot export a {type(network).__name__}; only Shoal's own networks have a form in ONNX"
    )


def add_encoder(graph: Graph, encoder: Any, parts: dict[str, str]) -> str:
    """The actor's features (B, F) of float32 observations by name; what only the critic sees is left out."""
    if not isinstance(encoder, ConcatEncoder):
        return add_part_encoder(graph, encoder, parts["obs"])
    names = [name for name in encoder.order if name != JOINT]
    encoded = [add_part_encoder(graph, encoder.encoders[name], parts[name]) for name in names]
    return encoded[0] if len(encoded) == 1 else graph.add("Concat", *encoded, axis=-1)


def add_part_encoder(graph: Graph, encoder: Any, x: str) -> str:
    """The features of one observation."""
    match encoder:
        case Flatten(rank=1):
            return x
        case Flatten():
            return graph.add("Reshape", x, np.array([-1, encoder.num_out]))
        case NatureCNN():
            return add_nature(graph, encoder, x)
        case Impala():
            return add_impala(graph, encoder, x)
    raise refuse(encoder)


def add_mlp(graph: Graph, mlp: Any, x: str) -> str:
    """Dense layers with an activation between them."""
    if not isinstance(mlp, MLP):
        raise refuse(mlp)
    *hidden, last = mlp.layers
    for layer in hidden:
        x = add_activation(graph, mlp.activation, add_layer(graph, layer, x))
    return add_layer(graph, last, x)


def add_layer(graph: Graph, layer: Any, x: str) -> str:
    """x W + b, or the two parts of a split layer."""
    if isinstance(layer, SplitLayer):
        left, right = graph.add_slice(x, 0, layer.start), graph.add_slice(x, layer.start)
        outputs = add_mlp(graph, layer.left, left), add_mlp(graph, layer.right, right)
        return graph.add("Concat", *outputs, axis=-1)
    if not isinstance(layer, Dense):
        raise refuse(layer)
    return graph.add("Gemm", x, layer.weight, layer.bias)


def add_activation(graph: Graph, name: str, x: str) -> str:
    """An activation by our name."""
    if name == "silu":
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    op, attributes = ACTIVATIONS[name]
    return graph.add(op, x, **attributes)


def add_nature(graph: Graph, encoder: NatureCNN, x: str) -> str:
    """`NatureCNN`."""
    x = add_pixels(graph, x)
    for layer in encoder.layers:
        x = graph.add("Relu", add_convolution(graph, layer, x))
    channels = encoder.layers[-1].weight.shape[-1]
    return graph.add("Relu", add_dense_of_images(graph, encoder.dense, channels, x))


def add_impala(graph: Graph, encoder: Impala, x: str) -> str:
    """`Impala`."""
    x = add_pixels(graph, x)
    for enter, *residuals in encoder.blocks:
        x = add_convolution(graph, enter, x)
        x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
        for residual in residuals:
            x = add_residual(graph, residual, x)
    channels = encoder.blocks[-1][0].weight.shape[-1]
    return graph.add("Relu", add_dense_of_images(graph, encoder.dense, channels, graph.add("Relu", x)))


def add_residual(graph: Graph, block: Residual, x: str) -> str:
    """x + conv(relu(conv(relu(x))))."""
    inner = add_convolution(graph, block.first, graph.add("Relu", x))
    return graph.add("Add", x, add_convolution(graph, block.second, graph.add("Relu", inner)))


def add_pixels(graph: Graph, x: str) -> str:
    """Images (B, height, width, channels) as numbers from 0 to 1, channels first as ONNX has them."""
    return graph.add("Transpose", graph.add("Div", x, np.float32(255)), perm=[0, 3, 1, 2])


def add_convolution(graph: Graph, layer: Convolution, x: str) -> str:
    """A convolution over images, channels first."""
    weight = graph.add("Transpose", layer.weight, perm=[3, 2, 0, 1])
    padding = {"VALID": "VALID", "SAME": "SAME_UPPER"}[layer.padding]
    how = {"strides": [layer.stride] * 2, "auto_pad": padding}
    return graph.add("Conv", x, weight, layer.bias, **how)


def add_dense_of_images(graph: Graph, dense: Dense, channels: int, x: str) -> str:
    """x W + b of whole images, channels first; the rows of W are in the order of channels last."""
    shape = dense.weight.shape
    split = graph.add("Reshape", dense.weight, np.array([-1, channels, shape[-1]]))
    rows = graph.add("Reshape", graph.add("Transpose", split, perm=[1, 0, 2]), np.array(shape))
    return graph.add("Gemm", graph.add("Flatten", x), rows, dense.bias)


def add_recurrent_head(graph: Graph, head: Any, x: str, episode_start: str) -> str:
    """Dense layers, one step of a recurrent core, and an output layer."""
    if not isinstance(head, RecurrentHead):
        raise refuse(head)
    for layer in head.layers:
        x = add_activation(graph, head.activation, add_layer(graph, layer, x))
    add_core = add_lstm if isinstance(head.core, LSTM) else add_gru
    return add_layer(graph, head.head, add_core(graph, head.core, x, episode_start))


def add_lstm(graph: Graph, core: LSTM, x: str, episode_start: str) -> str:
    """One step of an LSTM; ONNX orders its gates i, o, f, g."""
    size, order = core.recurrent.shape[0], (0, 3, 1, 2)
    weights = [add_gates(graph, weight, size, order) for weight in (core.weight, core.recurrent, core.bias)]
    weights[2] = graph.add(
        "Concat", weights[2], np.zeros((1, 4 * size), np.float32), axis=-1
    )  # b, that of h U
    states = [add_state(graph, f"memory.{name}", size, episode_start) for name in "hc"]
    _, *after = graph.add_several("LSTM", 3, add_time(graph, x), *weights, "", *states, hidden_size=size)
    outputs = [graph.add("Squeeze", state, np.array([0])) for state in after]
    for name, output in zip("hc", outputs, strict=True):
        graph.add_output(f"next.memory.{name}", "state", "float32", (size,), output, of=f"memory.{name}")
    return outputs[0]


def add_gru(graph: Graph, core: GRU, x: str, episode_start: str) -> str:
    """One step of a GRU; ONNX orders its gates z, r, n; that the reset follows the product is an option."""
    size = core.recurrent.shape[0]
    weight, recurrent, bias = (
        add_gates(graph, weight, size, (1, 0, 2)) for weight in (core.weight, core.recurrent, core.bias)
    )
    inner = graph.add("Concat", np.zeros(2 * size, np.float32), core.inner, axis=0)
    biases = graph.add("Concat", bias, graph.add("Unsqueeze", inner, np.array([0])), axis=-1)
    state = add_state(graph, "memory.h", size, episode_start)
    how = {"hidden_size": size, "linear_before_reset": 1}
    _, after = graph.add_several("GRU", 2, add_time(graph, x), weight, recurrent, biases, "", state, **how)
    output = graph.add("Squeeze", after, np.array([0]))
    graph.add_output("next.memory.h", "state", "float32", (size,), output, of="memory.h")
    return output


def add_gates(graph: Graph, weight: Any, size: int, order: tuple[int, ...]) -> str:
    """Weights (..., num size) of a core as ONNX has them: (1, num size, ...), gates in this order."""
    gates = graph.add_several("Split", len(order), weight, np.array([size] * len(order)), axis=-1)
    ordered = graph.add("Concat", *(gates[i] for i in order), axis=-1)
    turned = ordered if len(weight.shape) == 1 else graph.add("Transpose", ordered, perm=[1, 0])
    return graph.add("Unsqueeze", turned, np.array([0]))


def add_state(graph: Graph, name: str, size: int, episode_start: str) -> str:
    """A state of a core (1, B, size) as an input: zeros where an episode starts."""
    before = graph.add_input(name, "state", "float32", (size,))
    starts = graph.add("Unsqueeze", episode_start, np.array([1]))
    return add_time(graph, graph.add("Where", starts, np.float32(0), before))


def add_time(graph: Graph, x: str) -> str:
    """The only step of a sequence, as recurrent operators take it: (B, ...) -> (1, B, ...)."""
    return graph.add("Unsqueeze", x, np.array([0]))
