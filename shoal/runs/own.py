"""Parts of the user's own: taken as objects, named by their import paths, found again in another program."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shoal.envs.registry import env_name, make
from shoal.errors import NotFound, ShoalError
from shoal.exchanges.registry import ExchangeEntry, find_exchange, give_exchange
from shoal.imports import import_path
from shoal.nets.actor_critic import NetworkMaker
from shoal.nets.recurrent import RecurrentNetworkMaker
from shoal.runs.config import expanded, from_settings, to_settings
from shoal.runs.presets import preset
from shoal.training.config import TrainConfig
from shoal.training.parts import LearnerMaker
from shoal.types import EnvRecipe, Exchange

Found = TypeVar("Found")


class OwnParts(NamedTuple):
    """Parts of the user's own as objects; for one that is None the settings say which."""

    env: Any = None  # a JaxEnv, a Gymnasium environment, its class, or a function that makes one of them
    network: NetworkMaker | RecurrentNetworkMaker | None = None
    learner: LearnerMaker | None = None
    exchange: Exchange | None = None

    def recipe(self, config: TrainConfig) -> EnvRecipe:
        """The environment of a run."""
        return make(config.env if self.env is None else self.env, **config.options)

    @property
    def trained(self) -> dict[str, Any]:
        """Those that `make_trainer` takes beside the environment."""
        return {name: part for name, part in self._asdict().items() if name != "env" and part is not None}


NO_PARTS = OwnParts()


def read_call(start: Any, parts: dict[str, Any], settings: dict[str, Any]) -> tuple[TrainConfig, OwnParts]:
    """What a call of `shoal.run` or `shoal.train` asks for: the configuration, and the objects it gave.

    `start` is a configuration, an environment's name, whose preset is taken, or an environment. The
    configuration has the import paths of what was given.
    """
    env = start if parts["env"] is None else parts["env"]
    if env is None:
        raise ShoalError("no environment is given; try shoal.run('CartPole-v1')")
    own, named = {}, {}
    for name in ("network", "learner", "exchange"):
        setting, own[name] = read_part(name, parts[name])
        named |= setting
    if not isinstance(env, TrainConfig):
        own["env"] = None if isinstance(env, str) else env
        named["env"] = env_name(env)
    settings = settings | named
    if isinstance(start, TrainConfig):
        before = to_settings(start)
        config = from_settings(before | expanded(settings, before["algo"])) if settings else start
    else:
        config = preset(settings.pop("env"), **settings)
    return config, OwnParts(**own)


def read_part(name: str, part: Any) -> tuple[dict[str, Any], Any]:
    """A part as a setting, and as the object that it is; None where the setting says it all."""
    if part is None:
        return {}, None
    if name == "exchange" and (callable(part) or isinstance(part, ExchangeEntry)):
        return {"exchange": give_exchange(part)}, None
    if callable(part) or isinstance(part, Exchange):
        return {f"own.{name}": import_path(part)}, part
    is_path = name == "learner" or (name == "network" and isinstance(part, str) and ":" in part)
    return {f"own.{name}" if is_path else name: part}, None


def find_again(folder: Path, kind: str, path: str, find: Callable[[], Found]) -> Found:
    """What a run names by its import path; where it is not found, how to give it is said."""
    try:
        return find()
    except NotFound as error:
        reason = re.split(r"; | \(", str(error).removeprefix(f"{path}: "))[0]
        remedy = f"give it: shoal.load({str(folder)!r}, {kind}=...)"
        raise ShoalError(f"{folder} needs its {kind} {path}: {reason}; {remedy}") from error


def find_exchange_again(folder: Path, name: Any, given: Any = None) -> None:
    """Make the exchange of a run's settings known, which may be one that was given in Python."""
    if given is not None and not isinstance(given, Exchange):
        give_exchange(given, name)
    elif isinstance(name, str) and ":" in name:
        find_again(folder, "exchange", name, lambda: find_exchange(name))
