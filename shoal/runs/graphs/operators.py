"""ONNX's operators in NumPy: those that policies are made of."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

TYPES = {1: np.float32, 7: np.int64, 9: np.bool_}
"""ONNX's numbers of types."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * np.tanh(0.5 * x) + 0.5


def argmax(x: np.ndarray, axis: int, keepdims: int = 1) -> np.ndarray:
    """The index of the first of the largest numbers."""
    return np.argmax(x, axis, keepdims=bool(keepdims))


def clip(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The same as `np.clip`, in less time."""
    return np.minimum(np.maximum(x, low), high)


def elu(x: np.ndarray, alpha: float) -> np.ndarray:
    """x where it is positive, else alpha (exp(x) - 1)."""
    return np.where(x > 0, x, np.float32(alpha) * np.expm1(np.minimum(x, 0)))


def slice_axes(x: np.ndarray, start: np.ndarray, end: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """x[..., start:end] of one axis or several."""
    index = [slice(None)] * x.ndim
    for first, last, axis in zip(start, end, axes, strict=True):
        index[axis] = slice(first, last)
    return x[tuple(index)]


def expand(x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """The same numbers repeated along axes of size 1, and along axes before the first."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape)))


def reduction(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A function of whole axes, which stay with size 1 unless told otherwise."""
    return lambda x, axes, keepdims=1: function(x, axis=tuple(axes), keepdims=bool(keepdims))


def split(x: np.ndarray, sizes: np.ndarray, axis: int) -> list[np.ndarray]:
    """Parts of these sizes."""
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def windows(
    x: np.ndarray, size: Sequence[int], strides: Sequence[int], auto_pad: str, filling: float
) -> np.ndarray:
    """Every window (B, channels, rows, columns, height, width) of images (B, channels, height, width)."""
    if auto_pad == "SAME_UPPER":
        needed = [-(-n // s) * s - s + k - n for n, k, s in zip(x.shape[2:], size, strides, strict=True)]
        around = [(max(n, 0) // 2, max(n, 0) - max(n, 0) // 2) for n in needed]
        x = np.pad(x, [(0, 0), (0, 0), *around], constant_values=filling)
    return sliding_window_view(x, size, (2, 3))[:, :, :: strides[0], :: strides[1]]


def convolve(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, strides: Sequence[int], auto_pad: str
) -> np.ndarray:
    """A convolution (Conv); the weight is (out, in, height, width)."""
    seen = windows(x, weight.shape[2:], strides, auto_pad, 0.0)
    return np.moveaxis(np.tensordot(seen, weight, ([1, 4, 5], [1, 2, 3])) + bias, -1, 1)


def max_pool(x: np.ndarray, kernel_shape: Sequence[int], strides: Sequence[int], auto_pad: str) -> np.ndarray:
    """The largest number of every window."""
    return windows(x, kernel_shape, strides, auto_pad, -np.inf).max((-2, -1))


def lstm(
    x: np.ndarray,
    weight: np.ndarray,
    recurrent: np.ndarray,
    bias: np.ndarray,
    _: None,
    h: np.ndarray,
    c: np.ndarray,
    hidden_size: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One step of an LSTM, gates i, o, f, g: its outputs, and the next h and c."""
    gates = x @ weight[0].T + h @ recurrent[0].T + bias[0, : 4 * hidden_size] + bias[0, 4 * hidden_size :]
    i, o, f, g = np.split(gates, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h[:, None], h, c


def gru(
    x: np.ndarray,
    weight: np.ndarray,
    recurrent: np.ndarray,
    bias: np.ndarray,
    _: None,
    h: np.ndarray,
    hidden_size: int,
    linear_before_reset: int,
) -> tuple[np.ndarray, np.ndarray]:
    """One step of a GRU, gates z, r, n, the reset after the product: its outputs, and the next h."""
    inputs = np.split(x @ weight[0].T + bias[0, : 3 * hidden_size], 3, -1)
    before = np.split(h @ recurrent[0].T + bias[0, 3 * hidden_size :], 3, -1)
    z, r = (sigmoid(a + b) for a, b in zip(inputs[:2], before[:2], strict=True))
    h = (1 - z) * np.tanh(inputs[2] + r * before[2]) + z * h
    return h[:, None], h


OPERATORS: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "And": np.logical_and,
    "ArgMax": argmax,
    "Cast": lambda x, to: x.astype(TYPES[to]),
    "Clip": clip,
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Conv": convolve,
    "Cos": np.cos,
    "CumSum": np.cumsum,
    "Div": np.divide,
    "Elu": elu,
    "Equal": np.equal,
    "Erf": np.vectorize(math.erf, otypes=[np.float32]),
    "Exp": np.exp,
    "Expand": expand,
    "Flatten": lambda x: x.reshape(len(x), -1),
    "Floor": np.floor,
    "GRU": gru,
    "Gather": lambda x, index, axis: np.take(x, index, axis),
    "Gemm": lambda x, weight, bias: x @ weight + bias,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Identity": lambda x: x,
    "LSTM": lstm,
    "LeakyRelu": lambda x, alpha: np.where(x > 0, x, np.float32(alpha) * x),
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Log": np.log,
    "MatMul": np.matmul,
    "Max": np.maximum,
    "MaxPool": max_pool,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Pow": np.power,
    "ReduceMax": reduction(np.max),
    "ReduceMin": reduction(np.min),
    "ReduceSum": reduction(np.sum),
    "Relu": lambda x: np.maximum(x, np.float32(0)),
    "Reshape": np.reshape,
    "Shape": lambda x: np.array(x.shape, np.int64),
    "Sigmoid": sigmoid,
    "Sign": np.sign,
    "Sin": np.sin,
    "Slice": slice_axes,
    "Split": split,
    "Sqrt": np.sqrt,
    "Squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "Sub": np.subtract,
    "Tanh": np.tanh,
    "Transpose": lambda x, perm: x.transpose(perm),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes)),
    "Where": np.where,
}
"""By ONNX's names; attributes are keyword arguments."""
