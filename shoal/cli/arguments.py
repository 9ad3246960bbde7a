"""Reads arguments with tyro, and reports its errors in one line."""

import io
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any, TextIO

import tyro

from shoal.cli.status import STATUS
from shoal.errors import ShoalError
from shoal.runs.catalogue import find_run, newest_run

RunFolder = Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[RUN]")]


LONGEST = 300
"""Letters of a message of tyro's, which repeats all that was typed."""


def choose_run(given: Path | None, out: TextIO | None = None) -> Path:
    """The folder of the run that is meant: the newest one unless given, and then its name is printed."""
    if given:
        return find_run(given)
    newest = newest_run()
    STATUS.clear()
    print(f"newest run: {newest}", file=out)
    return newest


def read_arguments(cls: type, command: str, arguments: list[str], **how: Any) -> Any:
    """The options of a command, as an instance of `cls`; `how` goes to tyro."""
    if {"-h", "--help"} & {*arguments}:
        STATUS.clear()
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            return tyro.cli(cls, prog=command, args=arguments, **how)
    except SystemExit as end:
        if not end.code:  # tyro printed its help
            raise
        raise ShoalError(one_line(printed.getvalue(), command)) from None


def one_line(box: str, command: str) -> str:
    """The message in a box of tyro's, with the first option that it suggests.

    >>> box = "╭─ Error ───╮ │ Unrecognized options: --stepz │ ───── │ Perhaps you meant: --steps │ ╰─────╯"
    >>> one_line(box, "shoal train")
    'unrecognized options: --stepz; did you mean --steps? (shoal train --help lists the options)'
    """
    plain = re.sub(r"\x1b\[[\d;]*m|[│╭╮╰╯]", " ", box)
    parts = re.split(r"\s[─-]{3,}(?=\s|$)", f" {' '.join(plain.split())}")  # the title, the message, more
    _, message, *more = [*parts, "unreadable arguments"]
    suggested = re.search(r"Perhaps you meant: (--[^\s,/]+)", " ".join(more))
    question = f"; did you mean {suggested[1]}?" if suggested else ""
    message = message.strip() or "unreadable arguments"
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]} ..."
    return f"{message[0].lower()}{message[1:]}{question} ({command} --help lists the options)"
