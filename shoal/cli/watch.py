"""`shoal watch`: a page with the runs, live while they train."""

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from shoal.cli.arguments import read_arguments
from shoal.cli.status import STATUS
from shoal.runs.catalogue import find_run
from shoal.runs.naming import ROOT


@dataclass(frozen=True)
class Watch:
    """Show runs on a page in the browser: live while they train, as good for finished and copied ones.

    The page is made from the runs' folders alone. It can only be read, and nothing leaves this machine.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[RUN_OR_FOLDER ...]")] = ()
    """Runs by folder or by name, or folders with runs below them; runs/ unless given."""
    port: int = 8080
    """The port of the page; 0 takes any that is free."""
    open: bool = False
    """Open the page in this machine's browser."""
    host: str = "127.0.0.1"
    """The address that is served; another one, such as 0.0.0.0, lets other machines in and needs --token."""
    token: str | None = None
    """A word of at least 8 characters that the page's address must have."""
    debug: bool = False
    """Show the whole traceback of an error."""


def main(arguments: list[str]) -> int:
    """Serve the page until Ctrl-C."""
    import jax

    options = read_arguments(Watch, "shoal watch", arguments)
    jax.config.update("jax_platforms", "cpu")  # the memory of a GPU belongs to training

    from shoal.watch.answers import Answers
    from shoal.watch.guard import make_guard
    from shoal.watch.server import PageServer
    from shoal.watch.shelf import Shelf

    guard = make_guard(options.host, options.port, options.token)
    roots = [root if root.is_dir() else find_run(root) for root in options.runs] or [ROOT]
    server = PageServer(Answers(Shelf(roots)), guard)
    STATUS.clear()
    print(f"{' and '.join(map(str, roots))} at {server.url} (Ctrl-C ends it)", flush=True)
    if options.open:
        webbrowser.open(server.url)
    with server:
        server.serve_forever()
    return 0
