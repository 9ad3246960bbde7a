"""`shoal envs`: the environments by name."""

from dataclasses import dataclass

import tyro

from shoal.envs.registry import list_environments
from shoal.errors import ShoalError


@dataclass(frozen=True)
class Envs:
    """List environments and the suite that each name picks."""

    pattern: tyro.conf.Positional[str] = ""
    """Part of a name, or a shell pattern."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """List environments."""
    options = tyro.cli(Envs, prog="shoal envs", args=arguments)
    found = list_environments(options.pattern or None)
    if not found:
        raise ShoalError(f"no environment matches {options.pattern!r}; shoal envs lists them all")
    for name, backend in found:
        print(f"{name:<48} {backend}")
    return 0
