"""The process of an island: orders in, messages out.

Orders and messages are frames: a byte that says what it is, eight with its length, then the bytes.
"""

import os
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

from shoal.errors import ShoalError
from shoal.islands.engine import Order

SAVE, TRAIN = 1, 2
"""What an order says beside its answer, added up."""
MESSAGE, ERROR = 0, 1
"""What a frame to the driver is."""


class Worker:
    """An island as engines see it: bytes in, bytes out."""

    def __init__(
        self, settings: str, number: int, members: tuple[int, ...], folder: Path | None, mesh: str | None
    ):
        """`settings` are those of the whole run, as in its config.yaml."""
        from shoal.islands.island import Island
        from shoal.runs.cache import cache_compilations
        from shoal.runs.config import from_settings, parse_yaml

        cache_compilations()
        self.island = Island(from_settings(parse_yaml(settings)), number, members, folder, mesh)

    def work(self, order: Order) -> bytes:
        """Carry out an order; the message that results, or no bytes."""
        self.take(order)
        return self.train() if order.train else b""

    def take(self, order: Order) -> None:
        """Take an order's answer, and save where it says so: all that needs the island's folder."""
        from shoal.islands.messages import decode

        self.island.take(decode(order.answer))
        if order.save:
            self.island.save()

    def train(self) -> bytes:
        """The message to the next meeting."""
        from shoal.islands.messages import encode

        return encode(self.island.train())


def write_frame(file: BinaryIO, kind: int, data: bytes) -> None:
    """Write a frame."""
    file.write(struct.pack("<BQ", kind, len(data)))
    file.write(data)
    file.flush()


def read_frame(file: BinaryIO) -> tuple[int, bytes] | None:
    """Read a frame; None where the other side is gone."""
    head = file.read(9)
    if len(head) < 9:
        return None
    kind, length = struct.unpack("<BQ", head)
    data = file.read(length)
    return None if len(data) < length else (kind, data)


def flags_of(order: Order) -> int:
    """What an order says beside its answer, in a byte."""
    return SAVE * order.save + TRAIN * order.train


def main() -> None:
    """Read orders from the standard input until it ends, and write messages to the standard output."""
    import json
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the driver ends its islands
    orders, messages = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what environments print must not be among the frames
    try:
        first = read_frame(orders)
        assert first is not None, "the driver says which island this is"
        given: dict[str, Any] = json.loads(first[1])
        folder = Path(given["folder"]) if given["folder"] else None
        worker = Worker(given["settings"], given["number"], tuple(given["members"]), folder, given["mesh"])
        while frame := read_frame(orders):
            kind, answer = frame
            write_frame(messages, MESSAGE, worker.work(Order(answer, bool(kind & SAVE), bool(kind & TRAIN))))
    except BrokenPipeError:
        os._exit(0)  # the driver is gone, and nobody else has ended its islands
    except ShoalError as error:
        write_frame(messages, ERROR, str(error).encode())
    except Exception:
        write_frame(messages, ERROR, traceback.format_exc(limit=-4).encode())


if __name__ == "__main__":
    main()
