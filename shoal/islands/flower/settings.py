"""The settings of a federation, from the app's run configuration, and of an organisation, from its node's."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.islands.changes import Outgoing, divide
from shoal.runs.config import parse_yaml
from shoal.runs.files import read_json
from shoal.runs.presets import preset
from shoal.training.config import TrainConfig

PREFIX = "shoal."
"""The table of the run configuration that holds the settings of `shoal train`."""


@dataclass(frozen=True)
class Federation:
    """What all organisations of a federation know."""

    organisations: tuple[str, ...]
    """The names under which their nodes are registered; the learners are numbered in this order."""
    config: TrainConfig
    """The settings of the whole run, but for what its senders do."""
    outgoing: Outgoing
    """What senders do with their parameters."""
    folder: Path
    """Where the server keeps the run."""
    wait: float
    """Seconds after which a round ends without those that have not answered."""
    least: int
    """The number of organisations with which a round begins."""
    eval_every: int
    """Rounds between two evaluations in all worlds; the last round has one. 0 for none at all."""
    eval_episodes: int
    """Episodes of an evaluation."""
    unseen_spread: float
    """How far the unseen worlds of the server's evaluation differ; 0 for none."""

    def members(self, island: int) -> tuple[int, ...]:
        """The numbers of an organisation's learners."""
        each = self.config.learners // len(self.organisations)
        return tuple(range(island * each, (island + 1) * each))


DEFAULTS: dict[str, Any] = {
    "learners-each": 1,
    "folder": "runs/federation",
    "wait": 600.0,
    "least": 1,
    "eval-every": 0,
    "eval-episodes": 20,
    "unseen-spread": 0.0,
    "settings": "",
}


def read_federation(run_config: Mapping[str, Any]) -> Federation:
    """The federation that a run configuration describes.

    >>> given = {"organisations": "north south", "shoal.env": "CartPole-v1", "shoal.exchange": "average"}
    >>> federation = read_federation(given)
    >>> federation.members(1), federation.config.learners
    ((1,), 2)
    """
    own = {name: value for name, value in run_config.items() if not name.startswith(PREFIX)}
    if unknown := own.keys() - {*DEFAULTS, "organisations"}:
        known = ", ".join(["organisations", *DEFAULTS])
        raise ShoalError(
            f"unknown setting {min(unknown)} of the run configuration; there are {known}, shoal.NAME"
        )
    given = DEFAULTS | own
    names = tuple(str(given.get("organisations", "")).replace(",", " ").split())
    if len(names) < 2 or len({*names}) < len(names):
        raise ShoalError(f"organisations must be two or more different names, not {' '.join(names)!r}")
    for name, least in {
        "learners-each": 1,
        "least": 1,
        "eval-every": 0,
        "eval-episodes": 1,
        "wait": 1,
    }.items():
        if not given[name] >= least:
            raise ShoalError(f"{name} must be at least {least}, not {given[name]}")
    settings = {name.removeprefix(PREFIX): x for name, x in run_config.items() if name.startswith(PREFIX)}
    settings |= _listed(given["settings"])
    if "env" not in settings:
        raise ShoalError("the run configuration has no environment; add shoal.env, such as Pendulum-v1")
    whole = preset(settings.pop("env"), **settings, learners=len(names) * int(given["learners-each"]))
    config, outgoing = divide(whole)
    return Federation(
        organisations=names,
        config=config,
        outgoing=outgoing,
        folder=Path(given["folder"]).expanduser(),
        wait=float(given["wait"]),
        least=min(int(given["least"]), len(names)),
        eval_every=int(given["eval-every"]),
        eval_episodes=int(given["eval-episodes"]),
        unseen_spread=float(given["unseen-spread"]),
    )


def _listed(text: str) -> dict[str, Any]:
    """Settings that a run adds, because `flwr run --run-config` changes only those that the app names.

    >>> _listed("num_envs=4 compress=int8")
    {'num_envs': 4, 'compress': 'int8'}
    """
    pairs = [word.partition("=") for word in shlex.split(text)]
    if odd := [name for name, equals, _ in pairs if not equals]:
        raise ShoalError(f"settings must be NAME=VALUE each, not {odd[0]!r}")
    return {name: parse_yaml(value) for name, _, value in pairs}


@dataclass(frozen=True)
class Organisation:
    """What an organisation alone decides: `--node-config` of its SuperNode."""

    folder: Path
    """Where it keeps its learners, replays and environments."""
    env: str | None = None
    """Its own environment, such as mypackage:Plant; the federation's unless given."""
    env_params: Path | None = None
    """A JSON file with the physical parameters of its world, or a list of one for each of its learners."""

    def own(self, config: TrainConfig, members: tuple[int, ...]) -> TrainConfig:
        """The federation's settings with this organisation's worlds; nobody else's are known here."""
        if self.env is not None:
            config = replace(config, env=self.env)
        if self.env_params is None:
            return config
        worlds = read_json(self.env_params)
        mine = worlds if isinstance(worlds, list) else [worlds] * len(members)
        if len(mine) != len(members):
            raise ShoalError(f"{self.env_params} has {len(mine)} worlds for {len(members)} learners")
        others = [{}] * config.learners
        others[members[0] : members[-1] + 1] = mine
        return replace(config, env_params=others, env_spread=0.0)


def read_organisation(node_config: Mapping[str, Any]) -> Organisation:
    """The organisation that a node's configuration describes.

    >>> read_organisation({"folder": "/srv/shoal"}).folder.name
    'shoal'
    """
    known = ("folder", "env", "env-params")
    if unknown := node_config.keys() - {*known}:
        raise ShoalError(f"unknown setting {min(unknown)} in --node-config; there are {', '.join(known)}")
    if "folder" not in node_config:
        raise ShoalError("--node-config has no folder; add folder=FOLDER")
    params = node_config.get("env-params")
    folder = Path(str(node_config["folder"])).expanduser()
    return Organisation(
        folder, node_config.get("env"), None if params is None else Path(str(params)).expanduser()
    )
