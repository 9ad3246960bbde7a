"""Worlds with several agents in them, written in JAX."""

from shoal.types import JaxEnv

TEAMS: dict[str, JaxEnv] = {}
"""Every built-in world of several agents by its id."""
