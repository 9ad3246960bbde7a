"""What updates are checked against: networks and optimisers in NumPy, in double precision, and rollouts."""

import jax
import numpy as np

from shoal.types import Rollout

LOW, HIGH = np.array([-1.0, -2.0]), np.array([3.0, 2.0])


# A network is a list of (weight, bias), with relu between them.


def layers(network):
    return [(np.float64(layer.weight), np.float64(layer.bias)) for layer in network.head.layers]


def forward(network, x):
    """The output, and what every layer was given."""
    given = []
    for i, (weight, bias) in enumerate(network):
        given.append(x)
        x = x @ weight + bias
        x = np.maximum(x, 0) if i < len(network) - 1 else x
    return x, given


def backward(network, given, slope):
    """The gradient of the parameters and of the input, from that of the output."""
    found = []
    for i in reversed(range(len(network))):
        found.insert(0, (given[i].T @ slope, slope.sum(0)))
        slope = slope @ network[i][0].T
        slope = slope * (given[i] > 0) if i else slope
    return found, slope


def combine(function, *networks):
    return [
        tuple(function(*leaves) for leaves in zip(*layer, strict=True))
        for layer in zip(*networks, strict=True)
    ]


def value(critic, obs, action):
    q, given = forward(critic, np.concatenate([obs, action], 1))
    return q[:, 0], given


class Adam:
    """Kingma and Ba (2015), with its usual constants; or steps down the gradient itself."""

    def __init__(self, kind, rate):
        self.kind, self.rate, self.count, self.mean, self.square = kind, rate, 0, None, None

    def step(self, network, slope):
        if self.kind == "sgd":
            return combine(lambda x, g: x - self.rate * g, network, slope)
        self.count += 1
        zero = combine(np.zeros_like, slope)
        self.mean = combine(lambda m, g: 0.9 * m + 0.1 * g, self.mean or zero, slope)
        self.square = combine(lambda v, g: 0.999 * v + 0.001 * g**2, self.square or zero, slope)

        def moved(x, m, v):
            m, v = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
            return x - self.rate * m / (np.sqrt(v) + 1e-8)

        return combine(moved, network, self.mean, self.square)


def random_rollout(seed, num_steps=8, num_envs=2):
    """Steps with an end, a cut and their resets, rewards and observations of order 1."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    real = lambda *shape: np.float32(rng.normal(size=shape))

    def flag(*places):
        flags = np.zeros(shape, bool)
        flags[tuple(zip(*places, strict=True))] = True
        return flags

    action = np.float32(rng.uniform(LOW, HIGH, (*shape, 2)))
    terminated, truncated = flag((2, 0), (5, 1)), flag((5, 0), (0, 1))
    resets = flag((3, 0), (6, 0), (1, 1), (6, 1))
    obs, last = real(*shape, 3), real(num_envs, 3)
    return Rollout(obs, action, real(*shape), terminated, truncated, ~resets, last)


def wide(tree):
    """As NumPy, in double precision."""
    convert = lambda x: np.float64(x) if np.issubdtype(x.dtype, np.floating) else x
    return jax.tree.map(convert, jax.device_get(tree))
