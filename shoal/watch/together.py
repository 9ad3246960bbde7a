"""Learners together: the lineage of a population, the graph of a federation, worlds and their scores."""

from typing import Any

import numpy as np

from shoal.envs.classic import BUILTIN
from shoal.envs.registry import make
from shoal.envs.worlds.gymnasium import OURS
from shoal.envs.worlds.parameters import named
from shoal.errors import ShoalError
from shoal.exchanges.builders import communication_graph
from shoal.runs.lineage import ancestors, read_lineage
from shoal.runs.plots.lineage import side_by_side, survivors
from shoal.runs.plots.words import words
from shoal.training.config import TrainConfig
from shoal.training.parts import worlds_of
from shoal.training.scores import best_learner
from shoal.watch.numbers import plain
from shoal.watch.shelf import Entry

MOST_LINKS = 4_000
"""Of more links only the heaviest are shown."""


def last_scores(entry: Entry, learners: int) -> np.ndarray:
    """The learners' mean returns at the last report, (L,)."""
    table, scores = entry.tail.read("step", "learner", "return_mean"), np.full(learners, np.nan)
    if "return_mean" in table:
        last = table["step"] == table["step"][-1]
        index = table["learner"][last].astype(int)
        scores[index[index < learners]] = table["return_mean"][last][index < learners]
    return scores


def lineage_page(entry: Entry) -> dict[str, Any]:
    """The tree of copies, hyperparameters over time, who was replaced when."""
    lineage = read_lineage(entry.folder)
    num_learners = lineage.parent.shape[1]
    table = entry.tail.read("step")
    scores = last_scores(entry, num_learners)
    best = best_learner(scores) if np.isfinite(scores).any() else 0
    line = ancestors(lineage, best)
    events, learners = np.nonzero(lineage.parent[1:] != np.arange(num_learners))
    records = (lineage.steps[events + 1], learners, lineage.parent[events + 1, learners])
    replaced = [
        {"step": int(step), "learner": int(learner), "parent": int(parent)}
        for step, learner, parent in zip(*records, strict=True)
    ]
    return {
        "steps": lineage.steps.tolist(),
        "end": int(max(table["step"][-1] if table else 0, lineage.steps[-1])),
        "parent": lineage.parent.tolist(),
        "places": side_by_side(lineage).tolist(),
        "remains": survivors(lineage).astype(int).tolist(),
        "line": line.tolist(),
        "best": best,
        "scores": plain(scores),
        "hypers": {words(name): plain(values) for name, values in lineage.hypers.items()},
        "replaced": replaced,
    }


def graph_page(entry: Entry) -> dict[str, Any]:
    """Who sends to whom, with the learners' scores, and who attacks."""
    config = entry.config()
    graphs = []
    for exchange in config.exchanges:
        matrix = communication_graph(exchange, config.learners, config.seed)
        graphs.append(
            {
                "exchange": exchange.exchange,
                "links": None if matrix is None else _links(np.asarray(matrix)),
                "attackers": exchange.attack.count,
            }
        )
    return {
        "learners": config.learners,
        "scores": plain(last_scores(entry, config.learners)),
        "graphs": graphs,
    }


def _links(matrix: np.ndarray) -> list[list[float]]:
    """[receiver, sender, weight] of each link, the heaviest first."""
    weights = np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)
    receivers, senders = np.nonzero(weights)
    order = np.argsort(-weights[receivers, senders], kind="stable")[:MOST_LINKS]
    return [[int(receivers[i]), int(senders[i]), plain(weights[receivers[i], senders[i]])] for i in order]


def worlds_page(entry: Entry) -> dict[str, Any]:
    """The physical parameters in which the learners' worlds differ, with their scores."""
    config = entry.config()
    worlds = _worlds(config)
    varied = {name: plain(values) for name, values in worlds.items() if np.ptp(values) > 0}
    return {"worlds": varied, "scores": plain(last_scores(entry, config.learners))}


def _worlds(config: TrainConfig) -> dict[str, np.ndarray]:
    # Others are not made here: the page runs nobody else's code.
    if config.env.removeprefix("jax:") not in {*BUILTIN, *OURS}:
        raise ShoalError(f"the worlds of {config.env} are known to its own program; shoal eval shows them")
    return {
        name: np.asarray(values)
        for name, values in named(worlds_of(config, make(config.env, **config.options).spec)).items()
    }
