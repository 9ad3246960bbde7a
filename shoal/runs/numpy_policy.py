"""Policies that act in NumPy: a run's description of its policies, and the weights in a checkpoint.

A process that loads one imports no JAX.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ShoalError
from shoal.ops.ranking import best_learner
from shoal.runs import checkpoint_files
from shoal.runs.files import read_json, write_text
from shoal.runs.graphs.graph import Port, read_graph
from shoal.runs.graphs.program import Program, bind
from shoal.runs.graphs.spaces import read_space
from shoal.runs.policy import Actor, Policy
from shoal.runs.stored_leaves import array_of, read

DESCRIPTION, FORMAT = "policy_graph.json", 1
"""The file in a run's folder, and the number of its format."""


class Part(NamedTuple):
    """One of a learner's policies and the agents that follow it; None where there is no axis of agents."""

    agents: list[int] | None
    program: Program

    def states(self) -> list[Port]:
        """What it keeps from step to step."""
        return [port for port in self.program.inputs if port.kind == "state"]


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write a description (`export.policies.describe_policies`) into a run's folder."""
    write_text(folder / DESCRIPTION, json.dumps({"format": FORMAT} | dict(description)))


def read_description(folder: Path) -> dict[str, Any] | None:
    """The description in a run's folder; None where there is none, or one of another format."""
    path = folder / DESCRIPTION
    found = read_json(path) if path.exists() else {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


@contextmanager
def reading_description(folder: Path) -> Iterator[None]:
    """Turns what a damaged description raises into one line."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, AssertionError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ShoalError(
            f"{folder / DESCRIPTION} does not fit its checkpoints ({shorten(reason, 80)}); remove it: "
            "shoal.load(...).policy() then needs JAX"
        ) from error


def read_learner(
    folder: Path, description: Mapping[str, Any], which: int | str, checkpoint: int | str
) -> dict[str, np.ndarray]:
    """The state of one learner in a checkpoint, by paths such as params/actor/layers/0/weight."""
    leaves, meta = checkpoint_files.find(folder, checkpoint, read, description["rollout_size"])
    index = choose(which, best_learner(meta["scores"]), len(meta["scores"]))
    graphs = [one[kind] for one in description["policies"] for kind in ("greedy", "sampled")]
    names = {name for graph in graphs for name in graph["weights"]}
    return {name: array_of(leaves[f"cohort/{name}"])[index] for name in names}


def choose(which: int | str, best: int, num: int) -> int:
    """The number of a learner among `num`: `best`, or a number.

    >>> choose("best", 2, 4), choose("1", 2, 4)
    (2, 1)
    """
    if which == "all":
        raise ShoalError("one learner can play at a time, not all; choose best, mean or a number")
    text = str(which)
    if text != "best" and not (text.isdigit() and int(text) < num):
        raise ShoalError(f"no learner {text!r}; choose best, mean, all or 0 to {num - 1}")
    return best if text == "best" else int(text)


def numpy_policy(
    description: Mapping[str, Any], state: Mapping[str, np.ndarray], *, sampled: bool = False, seed: int = 0
) -> Policy:
    """The policy of one learner, by its state as `read_learner` gives it."""
    kind, rng = "sampled" if sampled else "greedy", np.random.default_rng(seed)
    parts = [
        Part(one["agents"], Program(bind(read_graph(one[kind]), state))) for one in description["policies"]
    ]

    def begin(rows: int, obs: Any) -> list[dict[str, np.ndarray]]:
        count = lambda part: rows * len(part.agents or [0])
        zeros = lambda part, port: np.zeros((count(part), *port.shape), port.dtype)
        return [{port.name: zeros(part, port) for port in part.states()} for part in parts]

    def act(step: int, states: Any, obs: Any, starts: np.ndarray) -> tuple[np.ndarray, Any]:
        named = obs if isinstance(obs, dict) else {"obs": obs}
        acted = [act_part(*each, named, starts, rng) for each in zip(parts, states, strict=True)]
        actions, states = zip(*acted, strict=True)
        return join(parts, actions), states

    spaces = {name: read_space(space) for name, space in description["observation"].items()}
    observation = spaces if description["is_named"] else spaces["obs"]
    actor = Actor(begin, act, has_state=any(part.states() for part in parts))
    return Policy(
        description["env"], observation, read_space(description["action"]), actor, description["agents"]
    )


def act_part(
    part: Part,
    state: Mapping[str, np.ndarray],
    obs: Mapping[str, np.ndarray],
    starts: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Actions (B, ...), or (B, n, ...) of the n agents that follow this policy, and its next state."""
    agents, rows = part.agents, len(starts)

    def fill(port: Port) -> np.ndarray:
        match port.kind:
            case "state":
                return state[port.name]
            case "episode_start":
                return np.repeat(starts, len(agents or [0]))
            case "noise":
                draw = getattr(rng, port.about["distribution"])
                return draw(size=(rows * len(agents or [0]), *port.shape)).astype(port.dtype)
        if agents is None:
            return obs[port.name]
        if port.name not in obs:  # which agent this is, one-hot
            return np.tile(np.eye(*port.shape, dtype=port.dtype)[agents], (rows, 1))
        return obs[port.name][:, agents].reshape(-1, *port.shape)

    after = part.program({port.name: fill(port) for port in part.program.inputs})
    action = after.pop("action")
    return action if agents is None else action.reshape(rows, len(agents), *action.shape[1:]), after


def join(parts: list[Part], actions: Any) -> np.ndarray:
    """The actions of all agents in their order (B, A, ...); without agents, those of the only policy."""
    if parts[0].agents is None:
        return actions[0]
    order = np.argsort([agent for part in parts for agent in part.agents or ()])
    return np.concatenate(actions, 1)[:, order]
