"""Observations as a network sees them: by name, standardised by running moments."""

from jax import Array

from shoal.nets.convolutions import is_image
from shoal.ops import statistics
from shoal.ops.masks import without_mask
from shoal.ops.statistics import Running
from shoal.types import ObservationSpace, Tree


def named(tree: Tree) -> dict[str, Tree]:
    """Observations by name: a single one is called `obs`."""
    return tree if isinstance(tree, dict) else {"obs": tree}


def empty_moments(space: ObservationSpace) -> dict[str, Running]:
    """Moments, without samples, of every part that is standardised: all but images and masks."""
    boxes = without_mask(named(space))
    return {name: statistics.empty(box.shape) for name, box in boxes.items() if not is_image(box)}


def update_moments(
    moments: dict[str, Running], obs: Tree, valid: Array, axes: tuple[str, ...] = ()
) -> dict[str, Running]:
    """The moments with more observations; obs and `valid` share their leading axes.

    Observations that are divided over mapped `axes` count together.
    """
    parts = named(obs)
    return {
        name: statistics.merge(before, statistics.summarise(parts[name], valid, axes))
        for name, before in moments.items()
    }


def standardise(obs: Tree, moments: dict[str, Running], clip: float) -> Tree:
    """(x - mean) / deviation, clipped, for every part that has moments."""
    parts = {
        name: statistics.standardise(x, moments[name], clip) if name in moments else x
        for name, x in named(obs).items()
    }
    return parts if isinstance(obs, dict) else parts["obs"]
