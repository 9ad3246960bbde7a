"""One line on a terminal: the parts that fit its width, and a curve in letters."""

from collections.abc import Sequence

import numpy as np

LEVELS = "▁▂▃▄▅▆▇█"


def fitted(parts: Sequence[tuple[str, int]], width: int) -> str:
    """The parts of a line, each with its rank, without those that do not fit: the highest ranks go first.

    >>> parts = [("5k/10k", 0), ("return 9.5", 0), ("best 12.0", 2), ("3 s left", 1)]
    >>> fitted(parts, 40), fitted(parts, 30), fitted(parts, 10)
    ('5k/10k  return 9.5  best 12.0  3 s left', '5k/10k  return 9.5  3 s left', '5k/10k  return 9.5')
    """
    kept = [(text, rank) for text, rank in parts if text]
    for last in sorted({rank for _, rank in kept if rank}, reverse=True):
        if len("  ".join(text for text, _ in kept)) <= width:
            break
        kept = [(text, rank) for text, rank in kept if rank != last]
    return "  ".join(text for text, _ in kept)


def sparkline(values: Sequence[float], letters: int = 8) -> str:
    """The course of a number in so many letters, from the lowest to the highest; "" below two numbers.

    >>> sparkline([0, 1, 2, 3, 7]), sparkline([5, 5]), sparkline([1, float("nan"), 0]), sparkline([1])
    ('▁▂▃▄█', '▁▁', '█▁', '')
    """
    known = np.array([value for value in values if np.isfinite(value)], float)
    if len(known) < 2:
        return ""
    parts = np.array_split(known, min(letters, len(known)))
    means = np.array([part.mean() for part in parts])
    span = float(np.ptp(means)) or 1.0
    return "".join(LEVELS[round(7 * (mean - means.min()) / span)] for mean in means)
