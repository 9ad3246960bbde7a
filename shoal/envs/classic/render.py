"""Pictures of the built-in environments, drawn by Gymnasium's own renderers from our state."""

import io
import os
import sys
from contextlib import redirect_stdout
from functools import lru_cache
from typing import Any

import numpy as np

from shoal.errors import ShoalError


def picture(name: str, **attributes: Any) -> np.ndarray:
    """The picture (H, W, 3) uint8 that Gymnasium draws of `name` when its attributes are these."""
    renderer = _renderer(name)
    vars(renderer).update(attributes)
    return renderer.render()


@lru_cache
def _renderer(name: str) -> Any:
    """One Gymnasium environment per name, kept, of which only `render` is used."""
    _no_window()
    try:
        import gymnasium

        with redirect_stdout(io.StringIO()):  # pygame greets on stdout, which may be carrying JSON
            import pygame  # noqa: F401
    except ImportError as error:
        message = f"A picture of {name} needs {error.name}: pip install 'gymnasium[classic-control]'"
        raise ShoalError(message) from error
    return gymnasium.make(name, render_mode="rgb_array", disable_env_checker=True).unwrapped


def _no_window() -> None:
    """Let SDL draw without a screen where there is none; where there is one, change nothing."""
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
