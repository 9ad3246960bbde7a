"""Worlds with several agents in them, written in JAX."""

from shoal.envs.multi_agent.adversary import SIMPLE_ADVERSARY
from shoal.envs.multi_agent.foraging import FIELDS, foraging
from shoal.envs.multi_agent.pressure_plate import PRESSURE_PLATES
from shoal.envs.multi_agent.spread import SIMPLE_SPREAD
from shoal.envs.multi_agent.tag import SIMPLE_TAG
from shoal.envs.multi_agent.warehouse import WAREHOUSES, warehouse
from shoal.types import JaxEnv

_FAMILIES = (warehouse, foraging)
"""Each reads an id of its own kind, with sizes and numbers of agents in it, and leaves others."""


def team(name: str) -> JaxEnv | None:
    """The world called `name`; None where there is none.

    >>> team("rware-tiny-2ag-v2").spec.agents, team("Foraging-9x9-3p-1f-v3").spec.agents, team("Pong-v5")
    (2, 3, None)
    """
    return TEAMS.get(name) or next((env for read in _FAMILIES if (env := read(name))), None)


TEAMS: dict[str, JaxEnv] = {
    **{name: env for name in WAREHOUSES if (env := warehouse(name))},
    **{name: env for name in FIELDS if (env := foraging(name))},
    **{env.spec.name: env for env in (*SIMPLE_SPREAD, *SIMPLE_ADVERSARY, *SIMPLE_TAG, *PRESSURE_PLATES)},
}
"""The usual worlds of several agents by their ids; `team` knows those of other sizes too."""
