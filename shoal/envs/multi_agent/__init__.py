"""Environments with several agents, written in JAX."""

from shoal.envs.multi_agent.adversary import SIMPLE_ADVERSARY
from shoal.envs.multi_agent.foraging import FIELDS, foraging
from shoal.envs.multi_agent.pressure_plate import PRESSURE_PLATES
from shoal.envs.multi_agent.spread import SIMPLE_SPREAD
from shoal.envs.multi_agent.tag import SIMPLE_TAG
from shoal.envs.multi_agent.warehouse import warehouse
from shoal.envs.multi_agent.warehouse_rules import WAREHOUSES
from shoal.types import JaxEnv

_FAMILIES = (warehouse, foraging)
"""Each makes the environment of an id with sizes and numbers in it; None for other ids."""


def find(name: str) -> JaxEnv | None:
    """The environment of an id; None where there is none.

    >>> find("rware-tiny-2ag-v2").spec.agents, find("Foraging-9x9-3p-1f-v3").spec.agents, find("Pong-v5")
    (2, 3, None)
    """
    return ENVIRONMENTS.get(name) or next((env for make in _FAMILIES if (env := make(name))), None)


ENVIRONMENTS: dict[str, JaxEnv] = {
    **{name: env for name in WAREHOUSES if (env := warehouse(name))},
    **{name: env for name in FIELDS if (env := foraging(name))},
    **{env.spec.name: env for env in (*SIMPLE_SPREAD, *SIMPLE_ADVERSARY, *SIMPLE_TAG, *PRESSURE_PLATES)},
}
"""The usual environments by their ids; `find` makes other sizes too."""
