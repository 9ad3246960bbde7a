"""How each algorithm acts, as ONNX: the mirror of its function `act`."""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from shoal.learners import sac
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.recurrent import RecurrentActorCritic
from shoal.nets.single_head import VectorNetwork
from shoal.ops.distributions import distribution_for
from shoal.runs.export import actions
from shoal.runs.export.networks import add_encoder, add_mlp, add_recurrent_head, refuse
from shoal.runs.export.observations import add_cast
from shoal.runs.export.traced import add_network
from shoal.runs.graphs.graph import Graph
from shoal.training.config import TrainConfig
from shoal.types import Box, EnvSpec, LearnerState, MultiBinary

EPISODE_START = "episode_start"
"""The input that says in which rows an episode starts; only policies with a state have it."""


class Acting(NamedTuple):
    """What a graph of actions is built from."""

    config: TrainConfig
    spec: EnvSpec
    state: LearnerState
    seen: dict[str, str]  # observations by name as the network sees them
    allowed: str | None  # (B, n) bool: the choices that the environment allows
    sampled: bool


AddActions: TypeAlias = Callable[[Graph, Acting], str]
"""Adds an algorithm's actions to a graph, whose inputs are there, and returns their name."""


def add_ppo(graph: Graph, acting: Acting) -> str:
    """The largest of the logits, with noise on them a sample; or means, with noise a normal distribution."""
    space, network = acting.spec.action, acting.state.params
    outputs, log_std = add_ppo_outputs(graph, acting, network)
    if isinstance(space, Box):
        if acting.sampled:
            noise = actions.add_noise(graph, prod(space.shape), "normal")
            outputs = actions.add_normal(graph, outputs, graph.add("Exp", log_std), noise)
        return actions.add_bounded(graph, space, outputs)
    scores = actions.add_restricted(graph, outputs, acting.allowed)
    if acting.sampled:
        kind = "logistic" if isinstance(space, MultiBinary) else "gumbel"
        noise = actions.add_noise(graph, distribution_for(space).num_outputs, kind)
        scores = graph.add("Add", scores, noise)
    return actions.add_choice(graph, space, scores)


def add_ppo_outputs(graph: Graph, acting: Acting, network: Any) -> tuple[str, Any]:
    """The logits, or the means, and the logarithms of the deviations of real actions."""
    if type(network) is ActorCritic:
        features = add_encoder(graph, network.encoder, acting.seen)
        return add_mlp(graph, network.actor, features), network.log_std
    if type(network) is RecurrentActorCritic:
        features = add_encoder(graph, network.encoder, acting.seen)
        return add_recurrent_head(graph, network.actor, features, EPISODE_START), network.log_std
    if acting.config.algo.recurrent:
        raise refuse(network)
    outputs, space = add_network(graph, network, acting.spec.observation, acting.seen), acting.spec.action
    if not isinstance(space, Box):
        return outputs, ""
    size = prod(space.shape)
    mean, log_std = graph.add_several("Split", 2, outputs, np.array([size, size]), axis=-1)
    return mean, log_std


def add_td3(graph: Graph, acting: Acting) -> str:
    """tanh of the actor's outputs; a sample has exploration_noise, clipped to [-1, 1]."""
    action = graph.add("Tanh", add_vector(graph, acting, acting.state.params.actor))
    if acting.sampled:
        noise = add_exploration(graph, acting)
        noisy = actions.add_normal(graph, action, acting.state.hypers.exploration_noise, noise)
        action = graph.add("Clip", noisy, np.float32(-1), np.float32(1))
    return add_to_bounds(graph, acting, action)


def add_sac(graph: Graph, acting: Acting) -> str:
    """tanh of the mean, or of a sample of the normal distribution."""
    outputs = add_vector(graph, acting, acting.state.params.actor)
    size = acting.state.params.actor.head.layers[-1].bias.shape[0] // 2
    mean, log_std = graph.add_several("Split", 2, outputs, np.array([size, size]), axis=-1)
    if acting.sampled:
        deviation = graph.add("Exp", graph.add("Clip", log_std, *map(np.float32, sac.LOG_STD)))
        mean = actions.add_normal(graph, mean, deviation, add_exploration(graph, acting))
    return add_to_bounds(graph, acting, graph.add("Tanh", mean))


def add_dqn(graph: Graph, acting: Acting) -> str:
    """The action of the highest value; a sample is a random one with the present probability."""
    space, num = acting.spec.action, acting.state.params.critic.head.layers[-1].bias.shape[0]
    values = actions.add_restricted(
        graph, add_vector(graph, acting, acting.state.params.critic), acting.allowed
    )
    best = actions.add_choice(graph, space, values)
    if not acting.sampled:
        return best
    noise = actions.add_noise(graph, 2, "uniform")
    whether, which = (graph.add("Gather", noise, np.int64(i), axis=-1) for i in range(2))
    random = actions.add_random_choice(graph, num, acting.allowed, which)
    is_random = graph.add("Greater", whether, graph.add("Sub", np.float32(1), add_epsilon(graph, acting)))
    return graph.add("Where", is_random, random, best)


def add_epsilon(graph: Graph, acting: Acting) -> str:
    """The present probability of a random action: `dqn.epsilon`."""
    config, hypers = acting.config, acting.state.hypers
    span = max(config.num_annealed * config.algo.rollout_size * config.algo.exploration.fraction, 1)
    so_far = add_cast(graph, acting.state.private.num_steps, "float32")
    done = graph.add("Min", graph.add("Div", so_far, np.float32(span)), np.float32(1))
    change = graph.add("Sub", hypers.exploration_final, hypers.exploration_initial)
    return graph.add("Add", hypers.exploration_initial, graph.add("Mul", done, change))


def add_vector(graph: Graph, acting: Acting, network: Any) -> str:
    """The outputs of a network with one head."""
    if not isinstance(network, VectorNetwork):
        raise refuse(network)
    return add_mlp(graph, network.head, add_encoder(graph, network.encoder, acting.seen))


def add_exploration(graph: Graph, acting: Acting) -> str:
    """Normal noise, for exploration ou correlated in time (`bounded_actions.correlate_noise`)."""
    space, exploration = acting.spec.action, acting.config.algo.exploration
    assert isinstance(space, Box)
    size = prod(space.shape)
    noise = actions.add_noise(graph, size, "normal")
    if exploration.kind != "ou":
        return noise
    before = graph.add_input("correlated_noise", "state", "float32", (size,))
    keep = 1 - exploration.theta
    kept = graph.add("Mul", before, np.float32(keep))
    after = actions.add_normal(graph, kept, np.float32((1 - keep**2) ** 0.5), noise)
    graph.add_output("next.correlated_noise", "state", "float32", (size,), after, of="correlated_noise")
    return after


def add_to_bounds(graph: Graph, acting: Acting, action: str) -> str:
    """Actions in [-1, 1] as the environment takes them."""
    space = acting.spec.action
    assert isinstance(space, Box)
    return actions.add_bounded(graph, space, actions.add_scaled(graph, space, action))


ALGORITHMS: dict[str, AddActions] = {"ppo": add_ppo, "td3": add_td3, "sac": add_sac, "dqn": add_dqn}
"""By their names in `learners/registry.py`."""
