"""Engines: they start islands somewhere, carry bytes to and from them, and notice which are gone."""

from typing import NamedTuple, Protocol


class Arrived(NamedTuple):
    """An island's message."""

    island: int
    data: bytes


class Lost(NamedTuple):
    """An island that is gone, and why."""

    island: int
    why: str
    failed: bool = False  # its program ended with an error, so that to start it again may not help


class Order(NamedTuple):
    """What an island is told: take this answer, save, train until the next meeting and send a message.

    One that does not train sends no bytes.
    """

    answer: bytes
    save: bool = False
    train: bool = True


class Engine(Protocol):
    """What the driver of a run asks of an engine; no call but `events` waits."""

    def start(self, island: int, members: tuple[int, ...]) -> None:
        """Start an island, or start it again, as soon as there is room."""
        ...

    def send(self, island: int, order: Order) -> None:
        """Send an order to an island that was started; it is carried out once the island runs."""
        ...

    def events(self, seconds: float) -> list[Arrived | Lost]:
        """What has happened; waits up to so many seconds where nothing has."""
        ...

    def room(self) -> int:
        """How many islands the machines there are could run together."""
        ...

    def stop(self, island: int) -> None:
        """End an island."""
        ...

    def close(self) -> None:
        """End all of them."""
        ...
