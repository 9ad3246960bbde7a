"""The variants of the warehouse: their ids, sizes and maps."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from shoal.errors import ShoalError

Payment = Literal["indiv", "global", "twostage"]

SIZES = {"tiny": (1, 3), "small": (2, 3), "medium": (2, 5), "large": (3, 5)}
"""Rows and columns of shelf blocks."""
DEMAND = {"": 1.0, "-easy": 2.0, "-hard": 0.5}
"""Requests per robot."""


@dataclass(frozen=True)
class Rules:
    """The rules of one variant."""

    agents: int
    requests: int
    """How many shelves are requested at any time."""
    rows: int = 1
    columns: int = 3
    """Blocks of shelves, two wide, with highways around them; an odd number of columns."""
    height: int = 8
    """How many shelves a block is high."""
    sight: int = 1
    """How many cells away a robot sees."""
    payment: Payment = "indiv"
    """A delivery pays 1 to the robot that brings the shelf, 1 to all, or 0.5 and 0.5 for putting it back."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the map, without the edge."""
        return (self.height + 1) * self.rows + 2, 3 * self.columns + 1

    @property
    def stride(self) -> int:
        """The width of the map and its edge: the distance between a cell and the one below it."""
        return self.shape[1] + 2 * self.sight

    @property
    def goals(self) -> tuple[int, int]:
        """The two cells in the middle of the last row."""
        height, width = self.shape
        right = self.cell(height - 1, width // 2)
        return right - 1, right

    def cell(self, row: Any, col: Any) -> Any:
        """The number of the cell at a row and column of the map."""
        return (row + self.sight) * self.stride + col + self.sight

    def row_col(self, cell: Any) -> tuple[Any, Any]:
        """The row and column of a cell of the map."""
        return cell // self.stride - self.sight, cell % self.stride - self.sight


@lru_cache
def highways(rules: Rules) -> np.ndarray:
    """The cells (cells,) where no shelf may be put down: between blocks, around and before the goals."""
    (height, width), middle = rules.shape, rules.shape[1] // 2
    row, col = np.indices((height, width))
    lane = (row > height - rules.height - 3) & ((col == middle - 1) | (col == middle))
    free = (col % 3 == 0) | (row % (rules.height + 1) == 0) | (row == height - 1) | lane
    return np.pad(free, rules.sight, constant_values=True).reshape(-1)  # (cells,)


@lru_cache
def first_shelves(rules: Rules) -> np.ndarray:
    """The shelf in each cell when an episode begins: one in every cell that is no highway, row by row."""
    here = ~highways(rules)
    return np.where(here, here.cumsum(), 0).astype(np.min_scalar_type(here.sum()))  # (cells,)


_ID = re.compile(
    r"rware(-(?P<sight>\d+)s)?-((?P<size>[a-z]+)|(?P<rows>\d+)x(?P<columns>\d+))(-(?P<height>\d+)h)?"
    r"-(?P<agents>\d+)ag(-(?P<requests>\d+)req|(?P<demand>-easy|-hard))?(-(?P<payment>\w+))?-v2"
)


def read_rules(name: str) -> Rules | None:
    """The rules that an id means to the package, short or long; None for other names.

    >>> read_rules("rware-1x5-4h-3ag-2req-global-v2")
    Rules(agents=3, requests=2, rows=1, columns=5, height=4, sight=1, payment='global')
    """
    found = _ID.fullmatch(name)
    if found is None or (found["size"] and found["size"] not in SIZES):
        return None
    size = SIZES.get(found["size"]) or (int(found["rows"]), int(found["columns"]))
    agents = int(found["agents"])
    requests = int(found["requests"] or agents * DEMAND[found["demand"] or ""])
    sizes = {"height": int(found["height"] or 8), "sight": int(found["sight"] or 1)}
    rules = Rules(agents, requests, *size, **sizes, payment=found["payment"] or "indiv")
    _check(name, rules)
    return rules


def _check(name: str, rules: Rules) -> None:
    """Raise where these rules make no warehouse."""
    if rules.columns % 2 == 0 or rules.rows * rules.height * rules.sight == 0:
        raise ShoalError(f"{name}: a warehouse must have shelves, in an odd number of columns, and sight")
    if rules.payment not in get_args(Payment):
        choices = ", ".join(get_args(Payment))
        raise ShoalError(f"{name}: payment must be one of {choices}, not {rules.payment}")
    shelves, room = int(first_shelves(rules).max()), rules.shape[0] * rules.shape[1]
    if not 0 < rules.requests < shelves or not 0 < rules.agents <= room:
        raise ShoalError(
            f"{name}: {rules.agents} robots and {rules.requests} requests do not fit {room} cells and "
            f"{shelves} shelves; have 1 or more of both, and fewer requests than shelves"
        )


WAREHOUSES = [
    f"rware-{size}-{agents}ag{demand}-v2"
    for size in ("tiny", "small")
    for agents in (2, 3, 4)
    for demand in DEMAND
]
"""The ids that are listed."""
