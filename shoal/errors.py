"""Mistakes the user can mend."""

from typing import Any, Literal, get_args, get_origin, get_type_hints


class ShoalError(Exception):
    """A mistake the user can mend: the command line prints the message alone and exits with 2."""

    traceback_text: str = ""
    """The traceback of the user's own code, where that is what failed; printed before the message."""


def check_choices(settings: Any) -> None:
    """Raise where a setting that is one of several names is none of them."""
    for name, hint in get_type_hints(type(settings)).items():
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        if choices and (value := getattr(settings, name)) not in choices:
            raise ShoalError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
