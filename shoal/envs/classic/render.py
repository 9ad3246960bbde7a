"""Pictures of the built-in environments, by Gymnasium's own renderers from our state."""

import io
import os
import sys
from contextlib import redirect_stdout
from functools import lru_cache
from typing import Any

import numpy as np

from shoal.errors import ShoalError


def picture(name: str, **attributes: Any) -> np.ndarray:
    """Gymnasium's picture (H, W, 3) uint8 of the environment `name` with these attributes."""
    renderer = _renderer(name)
    vars(renderer).update(attributes)
    return renderer.render()


@lru_cache
def _renderer(name: str) -> Any:
    """One Gymnasium environment per name, cached; only its `render` is used."""
    _no_window()
    try:
        import gymnasium

        with redirect_stdout(io.StringIO()):  # pygame prints to stdout, which may carry JSON
            import pygame  # noqa: F401
    except ImportError as error:
        message = f"A picture of {name} needs {error.name}: pip install 'gymnasium[classic-control]'"
        raise ShoalError(message) from error
    return gymnasium.make(name, render_mode="rgb_array", disable_env_checker=True).unwrapped


def _no_window() -> None:
    """Make SDL render without a screen where there is none."""
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
