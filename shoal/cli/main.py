"""The command: shoal train | eval | play | plot | export | envs."""

import importlib
import sys
import warnings
from importlib.metadata import version

from shoal.errors import ShoalError

COMMANDS = {
    "train": "ENV            train; the same command again resumes",
    "eval": "RUN            play whole episodes and print their returns",
    "play": "RUN            watch a trained learner: GIF, MP4 or window",
    "plot": "RUN [RUN ...]  plot learning curves and the best policy",
    "export": "RUN            write a policy as ONNX, and a program that plays it",
    "envs": "[PATTERN]      list environments",
}
"""Each is a module of its own, with a function `main`."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; mistakes of the user are one line and exit code 2."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"shoal {version('shoal')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        return _complain(f"unknown command {name!r}; choose from {', '.join(COMMANDS)}")
    warnings.showwarning = lambda message, *_, **__: print(f"shoal: warning: {message}", file=sys.stderr)
    try:
        return importlib.import_module(f"shoal.cli.{name}").main(rest)
    except ShoalError as error:
        if "--debug" in rest:
            raise
        print(error.traceback_text, file=sys.stderr, end="")
        return _complain(str(error))
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return 130


def usage() -> str:
    """What `shoal --help` prints."""
    lines = [f"  shoal {name:<6} {text}" for name, text in COMMANDS.items()]
    more = "`shoal COMMAND --help` says more; `shoal train ENV --help` shows the settings for an environment."
    return "\n".join(["usage: shoal COMMAND ...", "", *lines, "", more])


def _complain(message: str) -> int:
    print(f"shoal: {message}", file=sys.stderr)
    return 2
