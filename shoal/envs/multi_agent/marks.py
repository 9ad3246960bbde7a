"""Pictures of environments on a plane: marks of a shape, a size and a colour, one over the other."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

Colour = tuple[int, int, int]

WHITE, BLACK, PALE, GREY = (255, 255, 255), (30, 30, 35), (236, 236, 230), (150, 150, 150)
RED, ORANGE, YELLOW = (205, 60, 55), (235, 140, 45), (240, 200, 70)
GREEN, TEAL, BLUE = (80, 160, 80), (60, 160, 160), (65, 105, 200)
VIOLET, LILAC = (130, 90, 180), (180, 170, 205)
_FINE = 3
"""How many points along each side of a pixel decide how much of it a mark covers."""

_DIGITS = {
    digit: np.array([list(line) for line in lines.split()]) == "#"
    for digit, lines in {
        "0": "### #.# #.# #.# ###",
        "1": ".#. ##. .#. .#. ###",
        "2": "### ..# ### #.. ###",
        "3": "### ..# .## ..# ###",
        "4": "#.# #.# ### ..# ..#",
        "5": "### #.. ### ..# ###",
        "6": "### #.. ### #.# ###",
        "7": "### ..# ..# .#. .#.",
        "8": "### #.# ### #.# ###",
        "9": "### #.# ### ..# ###",
    }.items()
}


class Mark(NamedTuple):
    """One thing in the picture. Lengths are in cells; the centre of the first cell is (0, 0)."""

    row: float
    col: float
    shape: str
    """square, disc, ring, arrow, or a digit."""
    colour: Colour
    size: float = 1.0
    """From edge to edge."""
    turn: float = 0.0
    """Quarter turns clockwise; an arrow points up without any."""


def paint(
    rows: float, cols: float, marks: Iterable[Mark], cell: int = 32, ground: Colour = PALE
) -> np.ndarray:
    """The picture (rows * cell, cols * cell, 3) uint8 of these marks, the last one on top.

    >>> picture = paint(2, 3, [Mark(0, 1, "square", RED)], cell=8)
    >>> picture.shape, picture[4, 12].tolist() == list(RED), picture[12, 12].tolist() == list(PALE)
    ((16, 24, 3), True, True)
    """
    picture = np.full((round(rows * cell), round(cols * cell), 3), ground, float)
    for mark in marks:
        _paint(picture, mark, cell)
    return np.round(picture).astype(np.uint8)


def colour_of(agent: int) -> Colour:
    """An agent's colour; from the seventh on they repeat."""
    return (BLUE, RED, GREEN, VIOLET, ORANGE, TEAL)[agent % 6]


def grid(rows: int, cols: int) -> list[Mark]:
    """The cells of a board; the ground shows as lines between them."""
    return [Mark(row, col, "square", WHITE, 0.95) for row in range(rows) for col in range(cols)]


def _paint(picture: np.ndarray, mark: Mark, cell: int) -> None:
    """Blend the mark into the pixels around it, by how much of each it covers."""
    ys, top = _points(mark.row, mark.size, cell, picture.shape[0])
    xs, left = _points(mark.col, mark.size, cell, picture.shape[1])
    angle = mark.turn * np.pi / 2
    y = np.cos(angle) * ys[:, None] - np.sin(angle) * xs
    x = np.sin(angle) * ys[:, None] + np.cos(angle) * xs
    fine = _inside(mark.shape, y, x).reshape(len(ys) // _FINE, _FINE, len(xs) // _FINE, _FINE)
    cover = fine.mean((1, 3))[..., None]
    patch = picture[top : top + cover.shape[0], left : left + cover.shape[1]]
    patch += cover * (np.array(mark.colour) - patch)


def _points(centre: float, size: float, cell: int, pixels: int) -> tuple[np.ndarray, int]:
    """The points of the pixels around a mark, from -1 to 1 over its size, and the first pixel."""
    middle, reach = (centre + 0.5) * cell, size * cell * 0.75
    first, last = max(int(middle - reach), 0), min(int(middle + reach) + 1, pixels)
    points = first + (np.arange(max(last - first, 0) * _FINE) + 0.5) / _FINE
    return (points - middle) / (size * cell / 2), first


def _inside(shape: str, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Which points are in the shape, which spans -1 to 1."""
    match shape:
        case "square":
            return (abs(y) <= 1) & (abs(x) <= 1)
        case "disc":
            return y**2 + x**2 <= 1
        case "ring":
            return (y**2 + x**2 <= 1) & (y**2 + x**2 >= 0.6)
        case "arrow":
            return (y <= 0.8) & (abs(x) * 2 <= y + 1)
        case _:
            row, col = np.floor((y + 1) * 2.5).astype(int), np.floor((x / 0.6 + 1) * 1.5).astype(int)
            within = (row >= 0) & (row < 5) & (col >= 0) & (col < 3)
            return within & _DIGITS[shape][row.clip(0, 4), col.clip(0, 2)]
