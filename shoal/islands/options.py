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
    engine: Literal["local", "ray"] = "local"
    """What runs the islands: processes of this machine, or a Ray cluster."""
    wait: float = 30.0
    """Seconds that a meeting waits for slow islands once half of them have come."""
    ray_address: str | None = None
    """The Ray cluster to join: HOST:PORT, or auto for the one of this machine; a new one unless given."""
    island_cpus: float = 1.0
    """Cores that Ray keeps for an island."""
    island_gpus: float = 0.0
    """GPUs that Ray keeps for an island; with a fraction several islands share a card and its memory."""

    def __post_init__(self):
        if not self.wait > 0:
            raise ShoalError(f"wait must be above 0 seconds, not {self.wait:g}")
        if self.island_cpus < 0 or self.island_gpus < 0:
            raise ShoalError("island_cpus and island_gpus cannot be below 0")
        if self.ray_address is not None and self.engine != "ray":
            raise ShoalError("ray_address needs --engine ray")
