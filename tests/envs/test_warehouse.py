"""The warehouse: the package's own transitions, collisions worked out by hand, and beginnings."""

import numpy as np

from shoal.envs.teams.warehouse import WarehouseState, warehouse

CLOCKWISE = np.array([0, 2, 3, 1])
"""Our headings for the package's: up, down, left, right."""


def rules_of(name):
    return warehouse(name).reset.args[0]


def as_state(rules, trace, prefix=""):
    """The package's states as ours, one row each."""
    robots, shelves = (trace[prefix + key].astype(np.int32) for key in ("robots", "shelves"))
    edge = [(0, 0), (rules.sight, rules.sight), (rules.sight, rules.sight)]
    return WarehouseState(
        place=rules.cell(robots[..., 0], robots[..., 1]),
        heading=CLOCKWISE[robots[..., 2]].astype(np.int32),
        loaded=robots[..., 3] > 0,
        delivered=robots[..., 4] > 0,
        shelves=np.pad(shelves, edge).reshape(len(shelves), -1).astype(np.uint8),
        requests=trace[prefix + "requests"].astype(np.int32),
    )


def ambiguous(place, target):
    """Two of four robots want one cell and the others move freely: the package then goes by hashes."""
    if place.size != 4 or len({*place, *target}) != 7:
        return False
    return len({*target}) == 3
