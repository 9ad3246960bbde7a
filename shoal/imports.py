"""Code of the user's own, by its import path."""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from shoal.errors import ShoalError


def import_attribute(path: str) -> Any:
    """What MODULE:NAME names.

    >>> import_attribute("math:pi")
    3.141592653589793
    """
    module, _, name = path.partition(":")
    found = import_user_module(module, path)
    if name not in vars(found):
        raise ShoalError(f"{path}: module {module} has no {name!r}; write MODULE:NAME")
    return vars(found)[name]


def import_user_module(module: str, wanted_by: str) -> ModuleType:
    """A module here or among the installed packages; errors begin with what asked for it."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ShoalError(
                f"{wanted_by}: module {module} needs {error.name}, which is not installed; install it"
            ) from error
        raise ShoalError(f"{wanted_by}: no module {module!r} here or among the installed packages") from error
    except Exception as error:
        raise ShoalError(
            f"{wanted_by}: importing {module} raised {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
