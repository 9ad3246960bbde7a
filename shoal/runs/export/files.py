"""The files of an export: a policy as .onnx, policy.json that describes it, play.py that plays it."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.envs.registry import SUITES, make
from shoal.learners.registry import name_of
from shoal.ops import trees
from shoal.runs.checkpoint import named_leaves
from shoal.runs.export.policies import OnePolicy, make_graph, split_policies, weights_of
from shoal.runs.files import replacing
from shoal.runs.graphs.graph import OPSET, Graph, to_model
from shoal.runs.graphs.program import bind
from shoal.runs.graphs.spaces import describe_parts, describe_space
from shoal.runs.learners import TrainedLearners, choose_learner
from shoal.types import ObservationSpace

CARD, PROGRAM = "policy.json", "play.py"


def export_learner(trained: TrainedLearners, which: int | str, folder: Path, run: str) -> list[Path]:
    """Write one learner's policies, greedy and sampled, and what belongs to them; returns the files."""
    name, cohort = choose_learner(trained, which)
    config, state = trained.config, trees.take(jax.device_get(cohort), 0)
    frame = make(config.env, **config.env_options).spec.observation
    policies = split_policies(config, trained.recipe.spec, weights_of(state))
    card, contents, values = describe(trained, name, run), {}, named_leaves(state)
    about = f"{config.env}, {card['algo']}, learner {name}, step {trained.step}; see {CARD}"
    for policy in policies:
        stem = policy.name if len(policies) > 1 else "policy"
        files = {"greedy": f"{stem}.onnx", "sampled": f"{stem}_sampled.onnx"}
        graphs = {kind: bind(make_graph(config, policy, frame, kind == "sampled"), values) for kind in files}
        contents |= {files[kind]: to_model(graph, about) for kind, graph in graphs.items()}
        described = {kind: describe_graph(files[kind], graph) for kind, graph in graphs.items()}
        card["policies"].append(describe_policy(policy, frame) | described)
    contents[CARD] = to_text(card).encode()
    contents[PROGRAM] = Path(__file__).with_name(PROGRAM).read_bytes()
    paths = [folder / file for file in contents]
    with replacing(*paths) as temporaries:
        for temporary, content in zip(temporaries, contents.values(), strict=True):
            temporary.write_bytes(content)
    return paths


def to_text(card: dict[str, Any]) -> str:
    """JSON with lists of numbers on one line.

    >>> print(to_text({"shape": [2, 3]}))
    {
     "shape": [2, 3]
    }
    """
    text = json.dumps(card, indent=1, allow_nan=False)
    return re.sub(r"\[[^][{}]*\]", lambda found: json.dumps(json.loads(found[0])), text)


def describe(trained: TrainedLearners, name: int | str, run: str) -> dict[str, Any]:
    """What policy.json says of the run; the policies follow."""
    config, spec = trained.config, trained.recipe.spec
    prefix, _, rest = config.env.partition(":")
    score = None if isinstance(name, str) or not trained.scores else trained.scores[name]
    return {
        "shoal": version("shoal"),
        "opset": OPSET,
        "run": run,
        "algo": name_of(config.algo),
        "learner": name,
        "step": trained.step,
        "score": None if score is None or not np.isfinite(score) else round(float(score), 3),
        "env": {
            "id": rest if prefix in SUITES else config.env,
            "suite": spec.backend,
            "options": dict(config.env_options),
        },
        "frame_stack": config.frame_stack,
        "policies": [],
    }


def describe_policy(policy: OnePolicy, frame: ObservationSpace) -> dict[str, Any]:
    """What it says of a policy: who follows it, what the environment shows and takes."""
    return {
        "name": policy.name,
        "agents": None if policy.agents is None else list(policy.agents),
        "observation": describe_parts(frame),
        "action": describe_space(policy.spec.action),
    }


def describe_graph(file: str, graph: Graph) -> dict[str, Any]:
    """What it says of a file: the inputs and outputs by name, without the axis of rows."""
    ports = {"inputs": graph.inputs, "outputs": graph.outputs}
    return {"file": file} | {side: [port.to_dict() for port in each] for side, each in ports.items()}
