"""The colours of curves on the page: those of the plots, and lighter ones for a dark page."""

from shoal.runs.plots.figure import PALETTE

DARK = ("#5CB3E8", "#F28E4C", "#3DC79C", "#E3A1C6", "#9AD4F5", "#F2C14E", "#F0F0F0")
"""The same hues, lighter: each has a contrast of at least 7 on the dark page."""


def colours() -> str:
    """A style sheet that names them --c0 to --c6.

    >>> print(colours().splitlines()[0][:24])
    :root { --c0: #0072B2; -
    """
    named = lambda palette: " ".join(f"--c{index}: {colour};" for index, colour in enumerate(palette))
    return f":root {{ {named(PALETTE)} }}\n:root[data-theme=dark] {{ {named(DARK)} }}\n"
