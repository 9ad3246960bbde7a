"""Shoal trains groups of reinforcement-learning agents that learn together."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shoal.public import *  # noqa: F403
else:
    LIGHT = {"load": "shoal.runs.loaded", "ShoalError": "shoal.errors"}
    """What needs no JAX, and its modules."""

    def __getattr__(name: str) -> Any:
        """A public name. All are imported when the first is used: the command answers before JAX is there."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        if name in LIGHT:
            return getattr(import_module(LIGHT[name]), name)
        public = import_module("shoal.public")
        globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
        if name not in globals():
            raise AttributeError(f"module 'shoal' has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("shoal.public").__all__})
