"""The command: shoal train | sweep | eval | play | watch | plot | compare | export | runs | envs | check."""

import gc
import importlib
import sys
import warnings

from shoal.cli.interrupts import end_at_signals
from shoal.cli.status import STATUS
from shoal.errors import ShoalError

COMMANDS = {
    "train": "ENV            train; the same command again resumes",
    "sweep": "ENV            train many settings, several seeds each, in one program",
    "eval": "[RUN]          play whole episodes and print their returns",
    "play": "[RUN]          watch a trained learner: GIF, MP4 or window",
    "watch": "[RUN ...]      show runs on a page in the browser, live",
    "plot": "[RUN ...]      plot learning curves and the best policy",
    "compare": "RUN ...        compare runs: means, intervals, which is better",
    "export": "[RUN]          write a policy as ONNX, and a program that plays it",
    "runs": "[FOLDER ...]   list runs: state, steps, returns, settings that differ",
    "envs": "[PATTERN]      list environments, or tell of a few",
    "check": "ENV            try an environment: spaces, numbers, resets, speed",
}
"""Each is a module of its own, with a function `main`."""
RARELY = 100_000
"""New objects between two collections of garbage; with Python's 700 the start takes an eighth longer."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; mistakes of the user are one line and exit code 2."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"shoal {version('shoal')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        return _complain(f"unknown command {name!r}; choose from {', '.join(COMMANDS)}")
    if argv is None:  # a process of our own
        gc.set_threshold(RARELY)
        end_at_signals()
    warnings.showwarning = _warn
    STATUS.show("starting")
    if "--trust" in rest:
        importlib.import_module("shoal.runs.trust").trust_all()
    try:
        return importlib.import_module(f"shoal.cli.{name}").main(rest)
    except ShoalError as error:
        STATUS.clear()
        if "--debug" in rest:
            raise
        print(error.traceback_text, file=sys.stderr, end="")
        return _complain(str(error))
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        STATUS.clear()


def usage() -> str:
    """What `shoal --help` prints."""
    lines = [f"  shoal {name:<7} {text}" for name, text in COMMANDS.items()]
    more = [
        "A RUN is its folder, or its name in runs/; without one, the newest run is taken.",
        "`shoal COMMAND --help` says more; `shoal train ENV --help` shows the settings for an environment.",
    ]
    return "\n".join(["usage: shoal COMMAND ...", "", *lines, "", *more])


def _warn(message: Warning | str, *_, **__) -> None:
    STATUS.clear()
    print(f"shoal: warning: {message}", file=sys.stderr)


def _complain(message: str) -> int:
    print(f"shoal: {message}", file=sys.stderr)
    return 2
