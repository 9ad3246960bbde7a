"""Flower: islands of organisations that do not give away their data, as a ServerApp and a ClientApp."""

from typing import Any

from shoal.errors import ShoalError


def server_app() -> Any:
    """A federation's ServerApp: it holds the meetings in a run's folder, and goes on where that one ended.

    The app's run configuration has the names of the organisations, and in its table `shoal` the settings of
    `shoal train`.
    """
    _check_flower()
    from shoal.islands.flower.server import make_server_app

    return make_server_app()


def client_app() -> Any:
    """An organisation's ClientApp; `--node-config` of its SuperNode names its folder and its worlds.

    Each message of the server starts a process: it goes on from the folder, trains until the next meeting,
    writes the folder, and answers. One that was killed goes on from what is in the folder.
    """
    _check_flower()
    from shoal.islands.flower.client import make_client_app

    return make_client_app()


def _check_flower() -> None:
    """Raise where Flower is not installed."""
    try:
        import flwr  # pyright: ignore[reportMissingImports]  # noqa: F401
    except ImportError as error:
        raise ShoalError("Flower is not installed: pip install 'shoal[flower]'") from error
