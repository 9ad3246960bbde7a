"""Opening a run is not running it: code that its settings name is imported where the user allows it.

A run that this user trained needs no flag: training signs the names in it with a key in the user's own folder
of state. Names that are changed, or come from another user or machine, have no such signature.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from shoal.envs.registry import SUITES
from shoal.errors import ShoalError
from shoal.exchanges import builders
from shoal.exchanges.registry import ExchangeEntry, give_exchange
from shoal.runs.config import EXCHANGE, errors_in, from_settings, read_settings, to_settings
from shoal.runs.files import write_text
from shoal.training.config import TrainConfig

SIGNATURE = "trusted"
"""The file in a run's folder that says its user trained it."""
KEY_BYTES = 32
PACKAGES = ("pettingzoo", "mpe2")
"""What `pettingzoo:MODULE` may name without being asked about: Shoal installs it."""


class Named(NamedTuple):
    """Code that settings name."""

    kind: str  # env, network, learner or exchange
    path: str

    @property
    def module(self) -> str:
        """The module that would be imported."""
        prefix, _, rest = self.path.partition(":")
        if self.kind != "env" or prefix not in SUITES:
            return self.path.rpartition(":")[0]
        return rest if prefix == "pettingzoo" else rest.rpartition(":")[0]


class Untrusted(ShoalError):
    """A run would import code, and nobody has allowed that."""


_trusted: set[Path] = set()
_everything = False


def trust_all() -> None:
    """Allow this process to import what any run names: `--trust`."""
    global _everything
    _everything = True


def trust(folder: Path | str) -> None:
    """Allow this process to import what the run in a folder names."""
    _trusted.add(Path(folder).resolve())


def named_code(settings: Mapping[str, Any]) -> list[Named]:
    """The code that a file's settings name, from anywhere but Shoal's own suites.

    >>> [str(one.module) for one in named_code({"env": "gym:walk:Walk-v0", "own": {"learner": "mine:sarsa"}})]
    ['walk', 'mine']
    >>> named_code({"env": "gym:CartPole-v1", "exchange": "average"})
    []
    """
    own = settings.get("own")
    own = own if isinstance(own, dict) else {}
    given = {kind: settings.get(f"own.{kind}", own.get(kind)) for kind in ("network", "learner", "exchange")}
    found = [Named("env", str(settings.get("env", "")))]
    found += [Named(kind, str(path)) for kind, path in given.items() if path]
    several = settings.get("exchange")
    for one in several if isinstance(several, list) else [settings]:
        name = str(one.get("exchange", "")) if isinstance(one, dict) else ""
        found += [Named("exchange", name)] if ":" in name else []
    return [one for one in found if one.module and one.module.partition(".")[0] not in PACKAGES]


def trusted_config(folder: Path | str, given: Collection[str] = ()) -> TrainConfig:
    """The settings of the run in a folder. The caller has the parts of the kinds `given` already.

    An error where they name code that the user does not allow to be imported, or a file elsewhere.
    """
    path = Path(folder) / "config.yaml"
    settings = read_settings(path)
    check_code(Path(folder), settings, given)
    with errors_in(path):
        return from_settings(settings)


def look_at_config(path: Path) -> TrainConfig:
    """The settings in a file, to be shown: exchanges that it names are not imported, now or later."""
    settings = read_settings(path)
    check_files(path, settings)
    for kind, name in named_code(settings):
        if kind == "exchange":
            give_exchange(ExchangeEntry(builders.nothing, settings=tuple(EXCHANGE)), name)
    with errors_in(path):
        return from_settings(settings)


def check_code(folder: Path, settings: Mapping[str, Any], given: Collection[str] = ()) -> None:
    """Raise where a run's settings name code that the user does not allow to be imported."""
    check_files(folder / "config.yaml", settings)
    code = [one for one in named_code(settings) if one.kind not in given]
    if not code or _everything or folder.resolve() in _trusted or is_signed(folder, settings):
        return
    listed = " and ".join(f"{one.module} ({one.kind} {one.path})" for one in code)
    raise Untrusted(
        f"{folder} would import {listed}, and you did not train it here; if you trust it, add --trust, or in "
        f"Python shoal.load({str(folder)!r}, trust=True)"
    )


def check_files(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise where settings that were saved name another file; training saves what is in it."""
    several = settings.get("exchange")
    for one in (settings, *(several if isinstance(several, list) else ())):
        for name in ("env_params", "comm_matrix"):
            if isinstance(one, dict) and isinstance(one.get(name), str):
                raise ShoalError(
                    f"{path}: {name} is a file's name, {one[name]!r}; a run's settings have its content"
                )


def other_exchange(settings: Mapping[str, Any], config: TrainConfig) -> str | None:
    """An exchange that a file names and a configuration does not, which reading the file would import."""
    known = {*named_code(to_settings(config))}
    found = (one for one in named_code(settings) if one.kind == "exchange" and one not in known)
    return next((one.path for one in found), None)


def sign(folder: Path, config: TrainConfig) -> None:
    """Note that this user trains the run in a folder: its code is named by them."""
    trust(folder)
    settings = to_settings(config)
    if named_code(settings):
        with suppress(OSError):  # no home, or none that can be written: then --trust is asked for
            write_text(folder / SIGNATURE, _signature(settings, _key(make=True)) + "\n")


def is_signed(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether this user has trained a run with the code that these settings name."""
    try:
        found, key = (folder / SIGNATURE).read_text(encoding="ascii").strip(), _key(make=False)
        return hmac.compare_digest(found, _signature(settings, key))
    except (OSError, ValueError):
        return False


def _signature(settings: Mapping[str, Any], key: bytes) -> str:
    """Of the names, and of what the environment is made with."""
    signed = [sorted(named_code(settings)), settings.get("env_options") or {}]
    return hmac.new(key, json.dumps(signed, sort_keys=True, default=str).encode(), hashlib.sha256).hexdigest()


def _key(make: bool) -> bytes:
    """This user's key, which nobody else can read."""
    path = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "shoal" / "key"
    if make and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (
            suppress(FileExistsError),
            os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        ):
            file.write(secrets.token_bytes(KEY_BYTES))
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} is damaged")
    return key
