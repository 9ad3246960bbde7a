"""Parcels: what Flower carries, a message of islands as bytes and what is to be done with it."""

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict  # pyright: ignore[reportMissingImports]

from shoal.islands.flower.work import Order
from shoal.islands.messages import BadMessage

MESSAGE, ORDER = "message", "order"
"""The records of a parcel."""


def pack(data: bytes, order: Order | None = None) -> RecordDict:
    """Bytes as a parcel; Flower cuts an array that is long into pieces."""
    records = {MESSAGE: ArrayRecord({"bytes": Array("uint8", (len(data),), "shoal", data)})}
    if order is not None:
        records[ORDER] = ConfigRecord(order._asdict())
    return RecordDict(records)


def unpack(parcel: RecordDict) -> bytes:
    """The bytes in a parcel."""
    try:
        data = parcel.array_records[MESSAGE]["bytes"].data
    except (KeyError, TypeError, AttributeError):
        raise BadMessage("it is not a parcel of Shoal's") from None
    return bytes(data)


def order_of(parcel: RecordDict) -> Order:
    """What is to be done with it."""
    try:
        given = dict(parcel[ORDER])
        return Order(**{name: kind(given[name]) for name, kind in Order.__annotations__.items()})
    except (KeyError, TypeError, ValueError):
        raise BadMessage("it has no order of Shoal's") from None
