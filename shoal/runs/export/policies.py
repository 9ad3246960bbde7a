"""The policies of a learner, each as a graph."""

from typing import Any, NamedTuple

import jax

from shoal.errors import ShoalError
from shoal.learners.registry import name_of
from shoal.learners.team_config import mapping
from shoal.learners.wrappers.curiosity import policy_of
from shoal.learners.wrappers.team_views import agent_space
from shoal.ops.masks import ACTION_MASK
from shoal.runs.checkpoint import named_leaves
from shoal.runs.export import actions
from shoal.runs.export.algorithms import ALGORITHMS, EPISODE_START, Acting
from shoal.runs.export.observations import View, add_observations
from shoal.runs.graphs.graph import Graph, Weight, to_dict
from shoal.runs.graphs.spaces import describe_parts, describe_space
from shoal.training.config import TrainConfig
from shoal.types import EnvSpec, LearnerState, ObservationSpace, Tree


class OnePolicy(NamedTuple):
    """A policy of a learner: the only one, or one of a team's."""

    name: str
    agents: tuple[int, ...] | None  # who follows it; None where there is no axis of agents
    spec: EnvSpec  # of one agent, with stacked frames
    state: LearnerState  # that of its own learner; its leaves are `Weight`s


def weights_of(state: LearnerState, leading: int = 0) -> LearnerState:
    """The state with a `Weight` for every leaf; `leading` axes of the leaves are left out of its shape."""
    leaves = named_leaves(state)
    weights = [Weight(name, tuple(leaf.shape[leading:])) for name, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(state), weights)


def split_policies(config: TrainConfig, spec: EnvSpec, state: LearnerState) -> list[OnePolicy]:
    """The policies of a learner; `spec` is that of the environment with stacked frames.

    The leaves of `state` are those of `weights_of`.
    """
    if spec.agents is None:
        return [OnePolicy("policy", None, spec, policy_of(state))]
    followers = mapping(config.algo.team, spec)
    agent_spec = EnvSpec(spec.name, spec.backend, agent_space(config.algo.team, spec), spec.action)

    def part(tree: Tree, name: str) -> Tree:
        return tree if len(followers) == 1 else tree[name]

    def own(name: str) -> LearnerState:
        params, statistics = part(state.params, name), part(state.statistics, name)
        return policy_of(LearnerState(params, statistics, (), state.hypers, ()))

    return [OnePolicy(name, agents, agent_spec, own(name)) for name, agents in followers.items()]


def make_graph(config: TrainConfig, policy: OnePolicy, frame: ObservationSpace, sampled: bool) -> Graph:
    """A policy as a graph; `frame` is what the environment shows, without stacked frames."""
    algo, spec, graph = name_of(config.algo), policy.spec, Graph()
    if algo not in ALGORITHMS:
        raise ShoalError(f"cannot export {algo}; shoal export knows {', '.join(ALGORITHMS)}")
    of_ppo, statistics = algo == "ppo", policy.state.statistics
    if config.frame_stack > 1 or (of_ppo and config.algo.recurrent):
        graph.add_input(EPISODE_START, EPISODE_START, "bool", ())
    moments = statistics.obs if of_ppo else statistics
    clip = config.algo.inputs.clip_obs if of_ppo else config.algo.clip_obs
    view = View(spec.observation, frame, config.frame_stack, moments, clip)
    seen = add_observations(graph, view, EPISODE_START)
    has_mask = isinstance(spec.observation, dict) and ACTION_MASK in seen
    allowed = actions.add_allowed(graph, spec.action, seen[ACTION_MASK]) if has_mask else None
    acting = Acting(config, spec, policy.state, seen, allowed, sampled)
    actions.add_action(graph, spec.action, ALGORITHMS[algo](graph, acting))
    return graph


def describe_policies(
    config: TrainConfig, spec: EnvSpec, frame: ObservationSpace, cohort: LearnerState
) -> dict[str, Any]:
    """What a program needs to act as any learner of a run, beside a checkpoint, for a JSON file.

    `spec` is that of the environment with stacked frames, `frame` what it shows without; of the cohort the
    structure counts.
    """
    graphs = lambda policy: {
        kind: to_dict(make_graph(config, policy, frame, kind == "sampled")) for kind in ("greedy", "sampled")
    }
    policies = split_policies(config, spec, weights_of(cohort, leading=1))
    return {
        "env": spec.name,
        "agents": spec.agents,
        "is_named": isinstance(frame, dict),
        "observation": describe_parts(frame),
        "action": describe_space(spec.action),
        "rollout_size": config.algo.rollout_size,
        "policies": [{"agents": policy.agents} | graphs(policy) for policy in policies],
    }
