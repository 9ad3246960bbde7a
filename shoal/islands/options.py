"""How a run is divided into islands, as the command line says it: how many, by which engine."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from shoal.errors import ShoalError
from shoal.settings import check


@dataclass(frozen=True)
class Islands:
    """Islands: one run as several programs that meet."""

    islands: str | None = None
    """Divide the learners among so many programs that meet, e.g. 8; with 2..16 as many as there is room
    for."""
    engine: Literal["local", "ray"] = "local"
    """What runs the islands: processes of this machine, or a Ray cluster."""
    wait: Annotated[float, Interval(gt=0, le=1_000_000)] = 30.0
    """Seconds that a meeting waits for slow islands once half of them have come."""
    ray_address: str | None = None
    """The Ray cluster to join: HOST:PORT, or auto for the one of this machine; a new one unless given."""
    island_cpus: Annotated[float, Interval(ge=0, le=10_000)] = 1.0
    """Cores that Ray keeps for an island."""
    island_gpus: Annotated[float, Interval(ge=0, le=10_000)] = 0.0
    """GPUs that Ray keeps for an island; with a fraction several islands share a card and its memory."""

    def __post_init__(self):
        check(self)
        if self.ray_address is not None and self.engine != "ray":
            raise ShoalError("ray_address needs --engine ray")
