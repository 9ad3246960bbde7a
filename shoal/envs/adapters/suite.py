"""What an environment suite offers: the contract between an adapter and the registry of environments."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.types import EnvRecipe


class UnknownOptions(ShoalError):
    """An implementation of an environment does not have the options it was given."""


@contextmanager
def option_errors(name: str, options: dict[str, Any]) -> Iterator[None]:
    """Turn Python's error about unknown keyword arguments into `UnknownOptions`."""
    try:
        yield
    except TypeError as error:
        if not options or "unexpected keyword" not in str(error):
            raise
        raise UnknownOptions(f"{name} does not take these options: {error}") from error


class Suite(NamedTuple):
    """One library of environments. Nothing of the library is imported before one of these is called.

    recipe(name, options) -> EnvRecipe      raises UnknownOptions where options are not the environment's
    names() -> the names to list            called only where the library is installed
    knows(name) -> bool                     whether there is such an environment; without it, those listed
    needs_prefix(name) -> bool              whether `name` without a prefix never means this suite
    """

    recipe: Callable[[str, dict[str, Any]], EnvRecipe]
    names: Callable[[], Collection[str]]
    knows: Callable[[str], bool] | None = None
    needs_prefix: Callable[[str], bool] = lambda name: True
    library: str | None = None
    """The module that must be installed, if any; pip calls the package the same."""

    def has(self, name: str) -> bool:
        """Whether the suite has an environment called `name`."""
        return self.knows(name) if self.knows else name in self.names()
