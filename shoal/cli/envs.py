"""`shoal envs`: the environments by name."""

from dataclasses import dataclass

import tyro

from shoal.cli.arguments import read_arguments
from shoal.cli.status import STATUS
from shoal.envs.registry import list_environments
from shoal.errors import ShoalError


@dataclass(frozen=True)
class Envs:
    """List environments and their suites; a name picks the first one, SUITE:NAME another."""

    pattern: tyro.conf.Positional[str] = ""
    """Part of a name, or a shell pattern."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """List environments."""
    options = read_arguments(Envs, "shoal envs", arguments)
    found = list_environments(options.pattern or None)
    if not found:
        raise ShoalError(f"no environment matches {options.pattern!r}; shoal envs lists them all")
    STATUS.clear()
    suites: dict[str, list[str]] = {}
    for name, suite in found:
        suites.setdefault(name, []).append(suite)
    for name, prefixes in suites.items():
        print(f"{name:<48} {', '.join(prefixes)}")
    return 0
