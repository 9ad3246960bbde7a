"""Procgen's own words: games by their bare names, and modes by name, as the ids and numbers of EnvPool."""

import re
from collections.abc import Mapping
from typing import Any

from shoal.errors import ShoalError

GAMES = (
    "bigfish",
    "bossfight",
    "caveflyer",
    "chaser",
    "climber",
    "coinrun",
    "dodgeball",
    "fruitbot",
    "heist",
    "jumper",
    "leaper",
    "maze",
    "miner",
    "ninja",
    "plunder",
    "starpilot",
)
MODES = {"easy": 0, "hard": 1, "extreme": 2, "memory": 10, "exploration": 20}
"""Procgen's names of the distributions of levels, and their numbers."""
MODE = "distribution_mode"
DEFAULT = "hard"
"""The mode of a bare game, as in Procgen itself."""
LEVELS = (MODE, "num_levels", "start_level")
"""The options that choose levels."""


def game_of(name: str) -> str | None:
    """The game that a bare name means; None where it means none.

    >>> game_of("bigfish"), game_of("procgen-coinrun-v0"), game_of("BigfishEasy-v0")
    ('bigfish', 'coinrun', None)
    """
    bare = re.fullmatch(r"(?:procgen:)?procgen-(\w+)-v0|(\w+)", name.removeprefix("envpool:"))
    word = (bare[1] or bare[2]) if bare else None
    return word if word in GAMES else None


def is_procgen(name: str) -> bool:
    """Whether a name is a game's, bare or an id of EnvPool's.

    >>> is_procgen("bigfish"), is_procgen("envpool:BigfishEasy-v0"), is_procgen("CartPole-v1")
    (True, True, False)
    """
    titled = [word.capitalize() for word in MODES]
    found = re.fullmatch(rf"(?:envpool:)?(\w+?)(?:{'|'.join(titled)})-v0", name)
    return game_of(name) is not None or bool(found and found[1].lower() in GAMES)


def by_id(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A bare game as its id, of the mode among the options; for an id the mode's name as its number.

    Other environments stay as they are.

    >>> by_id("bigfish", {"distribution_mode": "easy", "num_levels": 200})
    ('BigfishEasy-v0', {'num_levels': 200})
    >>> by_id("bigfish", {}), by_id("BigfishEasy-v0", {"distribution_mode": "hard"})
    (('BigfishHard-v0', {}), ('BigfishEasy-v0', {'distribution_mode': 1}))
    """
    options, game = dict(options), game_of(name)
    if game is not None:
        prefix = "envpool:" if name.startswith("envpool:") else ""
        mode = _mode(options.pop(MODE, DEFAULT))
        return f"{prefix}{game.capitalize()}{mode.capitalize()}-v0", options
    if MODE in options and is_procgen(name):
        options[MODE] = MODES[_mode(options[MODE])]
    return name, options


def _mode(value: Any) -> str:
    """The name of a mode, given by name or number."""
    found = next((name for name, number in MODES.items() if value in (name, number)), None)
    if found is None or isinstance(value, bool):
        known = ", ".join(f"{name} ({number})" for name, number in MODES.items())
        raise ShoalError(f"{MODE} must be one of {known}, not {value!r}")
    return found
