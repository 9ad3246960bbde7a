"""`shoal envs`: the environments by name, and what a few of them are."""

from dataclasses import dataclass

import tyro

from shoal.cli.arguments import read_arguments
from shoal.cli.status import STATUS
from shoal.envs.describe import describe
from shoal.envs.registry import SUITES, absent_suites, list_environments, make
from shoal.errors import ShoalError
from shoal.learners.registry import ALGORITHMS
from shoal.runs.presets import names_of_presets, preset_settings

FEW = 3
"""Up to so many names are told of in detail."""


@dataclass(frozen=True)
class Envs:
    """List environments and their suites: a name picks the first, SUITE:NAME another. Few are described.

    Suites that are not installed come last, with the command that installs them.
    """

    pattern: tyro.conf.Positional[str] = ""
    """Part of a name, a shell pattern, or a suite."""
    details: bool = False
    """Describe each: spaces, limits, presets, and the command that trains it."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """List environments."""
    options = read_arguments(Envs, "shoal envs", arguments)
    suites = find(options.pattern)
    STATUS.clear()
    described = options.details or len(suites) <= FEW
    forced = options.pattern.rpartition(":")[0]
    for name, prefixes in suites.items():
        full = name if ":" in name or not forced else f"{forced}:{name}"
        mark = "preset" if algorithms_with_preset(full) else ""
        print(f"{name:<48} {', '.join(prefixes):<24} {mark}".rstrip())
        if described:
            print(*details(full), sep="\n")
    if not options.pattern:
        print(*absent_suites().values(), sep="\n")
    return 0


def find(pattern: str) -> dict[str, list[str]]:
    """The names that match, each with its suites; one that is the whole name, or SUITE:NAME, is alone.

    A pattern that is a suite means all of it. Names that mean nothing without their suite come as SUITE:NAME.
    """
    prefix, _, name = f"{pattern}:".rpartition(":") if pattern in SUITES else pattern.rpartition(":")
    suites: dict[str, list[str]] = {}
    for known, suite in list_environments(name or None):
        if prefix in ("", suite):
            suites.setdefault(known, []).append(suite)
    if not suites:
        absent = absent_suites().get(prefix)
        raise absent or ShoalError(f"no environment matches {pattern!r}; shoal envs lists them all")
    exact = [known for known in suites if known.lower() == name.lower()]
    chosen = {known: suites[known] for known in exact or suites}
    bare = lambda known: any(not SUITES[suite].needs_prefix(known) for suite in suites[known])
    return {known if bare(known) else f"{chosen[known][0]}:{known}": chosen[known] for known in chosen}


def algorithms_with_preset(name: str) -> list[str]:
    """The algorithms that have a preset for an environment."""
    return [algo for algo in ALGORITHMS if preset_settings(name, algo)]


def details(name: str) -> list[str]:
    """Lines about an environment: what a learner sees and does, and how to train it."""
    try:
        told = describe(make(name).spec)
    except ShoalError as error:
        return [f"  {error}"]
    presets = algorithms_with_preset(name) + [f"--param-name {each}" for each in names_of_presets(name)]
    told |= {"presets": ", ".join(presets) or "none: settings start from the defaults"}
    lines = [f"  {key:<13} {value}" for key, value in told.items()]
    return [*lines, f"  {'train':<13} shoal train {name}"]
