"""Mistakes the user can mend."""


class ShoalError(Exception):
    """A mistake the user can mend: the command line prints the message alone and exits with 2.

    >>> import shoal
    >>> try:
    ...     shoal.make("CartPole-v9")
    ... except shoal.ShoalError as error:
    ...     print(str(error).split(";")[0])
    unknown environment 'CartPole-v9'
    """

    traceback_text: str = ""
    """The traceback of the user's own code, where that is what failed; printed before the message."""


class NotFound(ShoalError):
    """Nothing here has that name, or that import path."""
