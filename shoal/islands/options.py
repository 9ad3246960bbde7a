"""How a run is divided into islands, as the command line says it: how many, by which engine."""

from dataclasses import dataclass
from typing import Literal

from shoal.errors import ShoalError


@dataclass(frozen=True)
class Islands:
    """Islands: one run as several programs that meet."""

    islands: str | None = None
    """Divide the learners among so many programs that meet, e.g. 8; with 2..16 as many as there is room
    for."""
    engine: Literal["local"] = "local"
    """What runs the islands: processes of this machine."""
    wait: float = 30.0
    """Seconds that a meeting waits for slow islands once half of them have come."""

    def __post_init__(self):
        if not self.wait > 0:
            raise ShoalError(f"wait must be above 0 seconds, not {self.wait:g}")
