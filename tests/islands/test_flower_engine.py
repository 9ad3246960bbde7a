"""Flower's engine knows who is there: orders wait for nodes, and nobody waits for a node that is gone."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from shoal.islands.engine import Arrived, Lost, Order
from shoal.islands.flower import engine as engines
from shoal.islands.flower import parcels
from shoal.islands.flower.settings import read_federation
from shoal.islands.messages import Message, decode

GIVEN = {"organisations": "north south", "shoal.env": "CartPole-v1", "shoal.exchange": "average"}


class Grid:
    """Nodes that come and go, and letters that are answered when a test says so."""

    def __init__(self):
        self.nodes, self.letters, self.replies = [], {}, []

    def get_nodes(self):
        return self.nodes

    def push_messages(self, letters):
        number = str(len(self.letters))
        self.letters[number] = letters[0]
        return [number]

    def pull_messages(self, numbers):
        found = [one for one in self.replies if one.metadata.reply_to_message_id in numbers]
        self.replies = [one for one in self.replies if one not in found]
        return found

    def reply(self, number, data=b"", error=None):
        self.replies.append(
            SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=number),
                has_error=lambda: error is not None,
                error=SimpleNamespace(reason=error),
                content=parcels.pack(data),
            )
        )


def node(name, began="1"):
    return SimpleNamespace(name=name, node_id=len(name), last_activated_at=began)


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(engines, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(engines, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(engines, "Letter", lambda parcel, node, kind, group_id: parcel)
    zero = np.zeros(1, np.int32)
    known = {i: Message("test", i, 3, (i,), {"iteration": zero}) for i in range(2)}
    made = engines.FlowerEngine(Grid(), read_federation(GIVEN), SimpleNamespace(known=known))
    for island in range(2):
        made.start(island, (island,))
        made.send(island, Order(b""))
    return made


def test_an_order_waits_for_its_node(engine):
    engine.grid.nodes = [node("south")]
    assert engine.events(0) == []
    assert len(engine.grid.letters) == 1
    order = parcels.order_of(engine.grid.letters["0"])
    assert (order.organisation, order.island, order.train) == ("south", 1, True)
    assert decode(parcels.unpack(engine.grid.letters["0"])).round == 3
    engine.grid.reply("0", b"done")
    assert engine.events(0) == [Arrived(1, b"done")]
    engine.grid.nodes += [node("north")]
    engine.events(0)
    assert len(engine.grid.letters) == 2


def test_a_node_that_is_gone_or_began_anew_is_lost(engine):
    engine.grid.nodes = [node("north"), node("south")]
    engine.events(0)
    for number in "01":
        engine.grid.reply(number)
    assert len(engine.events(0)) == 2
    for island in range(2):
        engine.send(island, Order(b""))
    engine.events(0)
    engine.grid.nodes = [node("south", began="2")]
    assert engine.events(0) == [Lost(0, "its node is gone"), Lost(1, "its node began anew")]
    engine.grid.reply("2", b"late")  # it was sent before the node went
    assert engine.events(0) == [Arrived(0, b"late")]


def test_a_client_that_fails_is_asked_again_later(engine, monkeypatch):
    engine.grid.nodes = [node("north")]
    engine.events(0)
    engine.grid.reply("0", error="<class 'ShoalError'>:<'no such file'>")
    with pytest.warns(RuntimeWarning, match="north is asked again in 20 s: .*no such file"):
        assert engine.events(0) == []  # it has never come: the run goes on waiting for it
    engine.events(0)
    assert len(engine.grid.letters) == 1
    monkeypatch.setattr(engines.time, "monotonic", lambda: 1e9)
    engine.events(0)
    assert len(engine.grid.letters) == 2


def test_a_node_of_nobody_gets_nothing(engine):
    engine.grid.nodes = [node("stranger")]
    with pytest.warns(RuntimeWarning, match="'stranger'. is not one of the organisations"):
        assert engine.events(0) == []
    assert not engine.grid.letters
