"""Environments in JAX with several agents in one world."""

from shoal.envs.teams.adversary import SIMPLE_ADVERSARY
from shoal.envs.teams.spread import SIMPLE_SPREAD
from shoal.envs.teams.tag import SIMPLE_TAG
from shoal.types import JaxEnv

TEAMS: dict[str, JaxEnv] = {env.spec.name: env for env in (*SIMPLE_SPREAD, *SIMPLE_ADVERSARY, *SIMPLE_TAG)}
"""Every environment for a team by its id."""
