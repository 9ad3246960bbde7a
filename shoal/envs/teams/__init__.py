"""Worlds with several agents in them, written in JAX."""

from shoal.envs.teams.adversary import SIMPLE_ADVERSARY
from shoal.envs.teams.pressure_plate import PRESSURE_PLATES
from shoal.envs.teams.spread import SIMPLE_SPREAD
from shoal.envs.teams.tag import SIMPLE_TAG
from shoal.types import JaxEnv

_ALL = (*SIMPLE_SPREAD, *SIMPLE_ADVERSARY, *SIMPLE_TAG, *PRESSURE_PLATES)

TEAMS: dict[str, JaxEnv] = {env.spec.name: env for env in _ALL}
"""Every built-in world of several agents by its id."""
