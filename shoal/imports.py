"""Code that is not Shoal's: the user's own by its import path, other packages and how to install them."""

import importlib
import os
import sys
from types import FunctionType, ModuleType
from typing import Any

from shoal.errors import NotFound, ShoalError

SCRIPTS = ("__main__", "__mp_main__")
"""The names of the program itself among the modules."""

EXTRAS = {
    "Box2D": "box2d",
    "mujoco": "mujoco",
    "ale_py": "atari",
    "minigrid": "minigrid",
    "pettingzoo": "pettingzoo",
    "mpe2": "pettingzoo",
    "pybullet": "pybullet",
    "pybullet_envs_gymnasium": "pybullet",
    "dp_accounting": "privacy",
    "gymnax": "gymnax",
    "jaxmarl": "jaxmarl",
    "pgx": "pgx",
    "resvg_py": "pgx",
    "brax": "brax",
    "jumanji": "jumanji",
    "craftax": "craftax",
    "xminigrid": "xminigrid",
    "mujoco_playground": "playground",
}
"""Modules that an extra of Shoal installs."""


class MissingPackage(ShoalError):
    """Something needs a package that is not installed."""


def needs(name: str, module: str) -> MissingPackage:
    """What to say where something needs a module that is not installed.

    >>> print(needs("LunarLander-v3", "Box2D"))
    LunarLander-v3 needs Box2D: pip install 'shoal[box2d]'
    >>> print(needs("toys:Ball-v0", "toys"))
    toys:Ball-v0 needs toys: pip install toys
    """
    package = f"'shoal[{EXTRAS[module]}]'" if module in EXTRAS else module
    return MissingPackage(f"{name} needs {module}: pip install {package}")


def missing_module(error: BaseException | None) -> str | None:
    """The package whose absence an exception is about, or the one that it was raised from."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    return error.name.partition(".")[0] if error and error.name else None


def import_attribute(path: str) -> Any:
    """What MODULE:NAME names.

    >>> import_attribute("math:pi")
    3.141592653589793
    """
    module, _, name = path.partition(":")
    found = import_user_module(module, path)
    if name not in vars(found):
        raise NotFound(f"{path}: module {module} has no {name!r}; write MODULE:NAME")
    return vars(found)[name]


def import_path(thing: Any) -> str:
    """The MODULE:NAME by which a module has something; where none has it, a description in the same form.

    A lambda, what a function defines and a notebook's definitions cannot be imported elsewhere. An object
    that no module names is described by its class, `MODULE:CLASS()`.

    >>> import_path(import_path), import_path(object())
    ('shoal.imports:import_path', 'builtins:object()')
    """
    kind = thing if isinstance(thing, FunctionType | type) else type(thing)
    others = sorted(sys.modules, key=lambda name: name in SCRIPTS)  # which may import it from elsewhere
    for name in (kind.__module__, *others):
        module = sys.modules.get(name)
        for attribute, value in list(vars(module).items()) if isinstance(module, ModuleType) else []:
            if value is thing:
                return f"{name}:{attribute}"
    return f"{kind.__module__}:{kind.__qualname__}{'()' * (kind is not thing)}"


def import_user_module(module: str, wanted_by: str) -> ModuleType:
    """A module here or among the installed packages; errors begin with what asked for it."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        absent = missing_module(error)
        if absent in EXTRAS:
            raise needs(wanted_by, absent) from error
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ShoalError(
                f"{wanted_by}: module {module} needs {error.name}, which is not installed; install it"
            ) from error
        raise NotFound(f"{wanted_by}: no module {module!r} here or among the installed packages") from error
    except Exception as error:
        raise ShoalError(
            f"{wanted_by}: importing {module} raised {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
