"""The engine of Flower: islands are ClientApps on organisations' nodes, found by their registered names."""

import time
import warnings
from typing import Any, NamedTuple

from flwr.app import Message as Letter  # pyright: ignore[reportMissingImports]
from flwr.serverapp import Grid  # pyright: ignore[reportMissingImports]

from shoal.islands.changes import ChangesMeeting
from shoal.islands.engine import Arrived, Lost, Order
from shoal.islands.flower import parcels
from shoal.islands.flower.settings import Federation
from shoal.islands.flower.work import Order as Work
from shoal.islands.messages import BadMessage, decode, encode

POLL_SECONDS = 0.5
"""Between two looks for replies; nodes themselves ask every few seconds."""
LOOK_SECONDS = 3.0
"""Between two looks for nodes that have come or gone."""
RETRY_SECONDS = 20.0
"""After a client's error it is asked again."""
REMEMBERED = 4
"""Letters to an organisation that a reply may still come to."""


class Posted(NamedTuple):
    """A letter that a reply is waited for."""

    island: int
    train: bool
    at: float


class FlowerEngine:
    """Carries orders to the nodes that are online; the others get theirs when they come."""

    def __init__(self, grid: Grid, federation: Federation, meeting: ChangesMeeting):
        self.grid, self.federation, self.meeting = grid, federation, meeting
        self.orders: dict[int, tuple[float, Order]] = {}  # not sent yet, and when they may be
        self.posted: dict[str, Posted] = {}  # by the letter's number
        self.working: dict[int, tuple[Any, Order]] = {}  # the activation of the node that works on an order
        self.came: set[int] = set()  # islands that have sent something
        self.not_before: dict[int, float] = {}  # when an island whose client failed may be asked again
        self.nodes: dict[int, Any] = {}
        self.looked, self.unknown = 0.0, set()

    def start(self, island: int, members: tuple[int, ...]) -> None:
        """Nothing is started here: organisations start their nodes themselves."""
        self.stop(island)

    def send(self, island: int, order: Order) -> None:
        """Send an order as soon as the island's node is online."""
        self.working.pop(island, None)
        self.orders[island] = (self.not_before.get(island, 0.0), order)

    def events(self, seconds: float) -> list[Arrived | Lost]:
        """What has come, and who has gone."""
        found = self._look()
        self._post()
        found += self._pull()
        if not found:
            time.sleep(max(seconds, POLL_SECONDS))
        return found

    def room(self) -> int:
        """Every organisation is an island."""
        return len(self.federation.organisations)

    def stop(self, island: int) -> None:
        """Wait no longer for an island's reply."""
        self.orders.pop(island, None)
        self.working.pop(island, None)

    def close(self) -> None:
        """Nothing is held open."""

    def evaluate(self, episodes: int) -> dict[str, dict[str, float]]:
        """Have all organisations that are online play with the last answer; what they tell, by name."""
        order = Order(b"", save=True, train=False)
        pending = {*range(self.room())}
        for island in pending:
            self.meeting.answer(island, self.federation.members(island))
            self.send(island, order)
        told: dict[str, dict[str, float]] = {}
        deadline = time.monotonic() + self.federation.wait
        self._look(now=True)
        self._post(episodes)
        while pending & self.working.keys() and time.monotonic() < deadline:
            for event in self._pull():
                pending.discard(event.island)
                if isinstance(event, Arrived):
                    name = self.federation.organisations[event.island]
                    told[name] = _means(event.data)
            time.sleep(POLL_SECONDS)
        return told

    def _look(self, now: bool = False) -> list[Arrived | Lost]:
        """Find the nodes that are online; those that worked on an order and are gone, or began anew."""
        if not now and time.monotonic() - self.looked < LOOK_SECONDS:
            return []
        self.looked, self.nodes = time.monotonic(), {}
        for node in self.grid.get_nodes():
            if node.name in self.federation.organisations:
                self.nodes[self.federation.organisations.index(node.name)] = node
            elif node.node_id not in self.unknown:
                self.unknown.add(node.node_id)
                warnings.warn(
                    f"node {node.node_id} ({node.name!r}) is not one of the organisations", RuntimeWarning
                )
        found: list[Arrived | Lost] = []
        for island, (activation, _) in list(self.working.items()):
            node = self.nodes.get(island)
            if node is None or _activation(node) != activation:
                found += self._give_up(island, "its node is gone" if node is None else "its node began anew")
        return found

    def _give_up(self, island: int, why: str) -> list[Arrived | Lost]:
        """Wait no longer for an order; an island that has never come is asked again without a word."""
        if island not in self.working:
            return []
        _, order = self.working.pop(island)
        if island in self.came:
            return [Lost(island, why)]
        self.send(island, order)
        return []

    def _post(self, episodes: int | None = None) -> None:
        """Send the orders whose nodes are online."""
        for island, (when, order) in list(self.orders.items()):
            node = self.nodes.get(island)
            if node is None or time.monotonic() < when:
                continue
            del self.orders[island]
            answer = self.meeting.known[island]
            name, every = self.federation.organisations[island], self.federation.eval_every
            due = order.train and every > 0 and answer.round > 0 and answer.round % every == 0
            wanted = episodes or (self.federation.eval_episodes if due else 0)
            parcel = parcels.pack(encode(answer), Work(name, island, order.train, wanted))
            letter = Letter(parcel, node.node_id, "train", group_id=str(answer.round + 1))
            (number,) = self.grid.push_messages([letter])
            if number is None:
                self.orders[island] = (time.monotonic() + RETRY_SECONDS, order)
                continue
            older = [key for key, one in self.posted.items() if one.island == island]
            for key in older[: 1 - REMEMBERED]:
                del self.posted[key]
            self.posted[number] = Posted(island, order.train, time.monotonic())
            self.working[island] = (_activation(node), order)

    def _pull(self) -> list[Arrived | Lost]:
        """The replies that have come. After an error the order is sent again, after a while."""
        found: list[Arrived | Lost] = []
        for letter in self.grid.pull_messages(list(self.posted)) if self.posted else []:
            posted = self.posted.pop(letter.metadata.reply_to_message_id, None)
            if posted is None:
                continue
            island, name = posted.island, self.federation.organisations[posted.island]
            try:
                if letter.has_error():
                    raise BadMessage(str(letter.error.reason).strip().splitlines()[-1][:300])
                data = parcels.unpack(letter.content)
            except BadMessage as bad:
                warnings.warn(f"{name} is asked again in {RETRY_SECONDS:.0f} s: {bad}", RuntimeWarning)
                self.not_before[island] = time.monotonic() + RETRY_SECONDS
                found += self._give_up(island, str(bad))
                continue
            self.working.pop(island, None)
            self.came.add(island)
            found.append(Arrived(island, data))
        return found


def _activation(node: Any) -> tuple[int, str]:
    """Which of its starts a node is in."""
    return node.node_id, node.last_activated_at


def _means(data: bytes) -> dict[str, float]:
    """What an evaluation tells, as means over an organisation's learners."""
    arrays = decode(data).arrays
    return {
        name.removeprefix("metrics/"): float(x.mean()) for name, x in arrays.items() if x.dtype.kind == "f"
    }
