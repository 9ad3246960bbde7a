"""The command `shoal`."""

from shoal.cli.main import main

__all__ = ["main"]
