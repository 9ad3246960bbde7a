"""Messages of islands: a few arrays of some learners as bytes, and the refusal of all that is not a message.

The bytes are a safetensors file. Its metadata hold a `schema` (JSON: version, run, island, round, members,
type and shape of each array) and a `crc32` of schema and data. Nothing is pickled. The header must be, byte
for byte, the one that its schema says; so what is not refused is what was sent.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.errors import ShoalError
from shoal.runs.stored_leaves import DTYPES

VERSION = 1
MAX_BYTES = 2**30
"""The longest message that is read, unless the reader says otherwise."""
MAX_HEADER = 2**20
"""The longest header: a few thousand arrays, or a hundred thousand learners."""
MAX_AXES = 16

_NUMPY = {short: jnp.dtype(name) for short, name in DTYPES.items()}
_SHORT = {dtype: short for short, dtype in _NUMPY.items()}


class BadMessage(ShoalError):
    """A message that is left out, and why."""


class Message(NamedTuple):
    """What an island sends of its learners, or receives for them."""

    run: str  # the name that the run's islands have agreed on
    island: int
    round: int  # the number of the meeting
    members: tuple[int, ...]  # the learners' numbers in the run
    arrays: dict[
        str, np.ndarray
    ]  # by name, such as params/actor/0/weight; the leading axis is that of members


class Template(NamedTuple):
    """What the receiver of a message expects of it."""

    members: tuple[int, ...]  # the learners that it may be about
    arrays: dict[str, tuple[tuple[int, ...], np.dtype]]  # shape and type, without the axis of members
    island: int | None = None  # who it comes from; None for any


def template_of(arrays: Mapping[str, Any], members: tuple[int, ...], island: int | None = None) -> Template:
    """The template of messages with arrays like these, which have a leading axis of any length.

    >>> template_of({"w": np.zeros((2, 3), np.float32)}, (0, 1)).arrays
    {'w': ((3,), dtype('float32'))}
    """
    shapes = {name: (tuple(x.shape[1:]), np.dtype(x.dtype)) for name, x in arrays.items()}
    return Template(members, shapes, island)


def encode(message: Message) -> bytes:
    """A message as bytes.

    >>> hello = Message("pendulum", 0, 3, (4, 5), {"params/w": np.zeros((2, 3), np.float32)})
    >>> data = encode(hello)
    >>> decode(data).members, decode(data[:-1])
    Traceback (most recent call last):
    shoal.islands.messages.BadMessage: it has 23 bytes of data, where its schema says 24
    """
    arrays = {name: np.ascontiguousarray(x) for name, x in message.arrays.items()}
    for name, array in arrays.items():
        if array.dtype not in _SHORT:
            raise ShoalError(f"messages do not hold arrays of type {array.dtype}, as {name} is")
    shapes = {name: [_SHORT[x.dtype], list(x.shape)] for name, x in arrays.items()}
    schema = {
        "version": VERSION,
        **message._asdict(),
        "members": [*map(int, message.members)],
        "arrays": shapes,
    }
    text = json.dumps(schema)
    _read_schema(text)
    data = b"".join(x.tobytes() for x in arrays.values())
    header = _header(text, shapes, zlib.crc32(data, zlib.crc32(text.encode())))
    if len(header) > MAX_HEADER:
        raise BadMessage(f"its header has {len(header):,} bytes, more than {MAX_HEADER:,}")
    return header + data


def decode(data: bytes, max_bytes: int = MAX_BYTES) -> Message:
    """The message that bytes hold; `BadMessage` for all other bytes. The arrays are views into the bytes."""
    if len(data) > max_bytes:
        raise BadMessage(f"it has {len(data):,} bytes, more than {max_bytes:,}")
    size = 8 + struct.unpack_from("<Q", data)[0] if len(data) >= 8 else 0
    if not 8 < size <= min(len(data), MAX_HEADER):
        raise BadMessage("it is not a safetensors file")
    try:
        metadata = json.loads(data[8:size])["__metadata__"]
        text, crc32 = str(metadata["schema"]), int(metadata["crc32"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise BadMessage("its header is not that of a message") from None
    message, shapes = _read_schema(text)
    length = sum(map(_num_bytes, shapes.values()))
    if len(data) - size != length:
        raise BadMessage(f"it has {len(data) - size:,} bytes of data, where its schema says {length:,}")
    if bytes(data[:size]) != _header(text, shapes, crc32):
        raise BadMessage("its header is not the one of its schema")
    if zlib.crc32(memoryview(data)[size:], zlib.crc32(text.encode())) != crc32:
        raise BadMessage("its checksum is not the one recorded")
    return message._replace(arrays=_arrays(data, size, shapes))


def check(message: Message, template: Template, run: str, round: int) -> None:
    """Raise `BadMessage` unless the message is of this run and round, as expected, and finite."""
    check_form(message, template, run, round)
    check_finite(message)


def check_form(message: Message, template: Template, run: str, round: int) -> None:
    """Raise `BadMessage` unless the message is of this run, island and round and has the arrays expected."""
    if message.run != run:
        raise BadMessage(f"it belongs to the run {_short(message.run)}, not {_short(run)}")
    if template.island is not None and message.island != template.island:
        raise BadMessage(f"it says it comes from island {message.island}, not {template.island}")
    if message.round != round:
        age = "an old" if message.round < round else "a future"
        raise BadMessage(f"it is of {age} round, {message.round}, not {round}")
    if unknown := sorted({*message.members} - {*template.members}):
        raise BadMessage(f"learner {unknown[0]} is not one of its sender's")
    for difference, names in (
        ("lacks", template.arrays.keys() - message.arrays.keys()),
        ("has an unknown", message.arrays.keys() - template.arrays.keys()),
    ):
        if names:
            raise BadMessage(f"it {difference} {_short(min(names))}")
    for name, (shape, dtype) in template.arrays.items():
        array, needed = message.arrays[name], (len(message.members), *shape)
        if array.shape != needed:
            raise BadMessage(f"{name} has the shape {list(array.shape)}, not {list(needed)}")
        if array.dtype != dtype:
            raise BadMessage(f"{name} has the type {array.dtype}, not {dtype}")


def check_finite(message: Message, prefixes: tuple[str, ...] = ("params", "statistics")) -> None:
    """Raise `BadMessage` where a number of an array with such a name is not finite."""
    for name, array in message.arrays.items():
        if name.split("/")[0] in prefixes and (bad := np.flatnonzero(~_finite(array))).size:
            raise BadMessage(f"{name} of learner {message.members[bad[0]]} is not finite")


def _finite(array: np.ndarray) -> np.ndarray:
    """Which rows are finite."""
    if array.dtype.kind in "biu":
        return np.ones(len(array), bool)
    wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    return np.asarray(np.isfinite(wide).reshape(len(array), -1).all(1))


def _header(text: str, shapes: Mapping[str, Any], crc32: int) -> bytes:
    """The beginning of the file, from its schema."""
    header: dict[str, Any] = {"__metadata__": {"schema": text, "crc32": str(crc32)}}
    end = 0
    for name, (short, shape) in shapes.items():
        begin, end = end, end + _num_bytes((short, shape))
        header[name] = {"dtype": short, "shape": shape, "data_offsets": [begin, end]}
    contents = json.dumps(header).encode()
    contents += b" " * (-len(contents) % 8)
    return struct.pack("<Q", len(contents)) + contents


def _read_schema(text: str) -> tuple[Message, dict[str, tuple[str, list[int]]]]:
    """A message without its arrays, and their types and shapes."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise BadMessage("its schema is not JSON") from None
    keys = {"version", *Message._fields}
    if not isinstance(schema, dict) or schema.keys() != keys:
        raise BadMessage(f"its schema has not the entries {', '.join(sorted(keys))}")
    if schema["version"] != VERSION:
        raise BadMessage(f"its version is {_short(schema['version'])}, not {VERSION}")
    members, shapes = schema["members"], schema["arrays"]
    if not isinstance(schema["run"], str):
        raise BadMessage("its run is not a name")
    for name in ("island", "round"):
        if not _is_count(schema[name]):
            raise BadMessage(f"its {name} is not a number from 0")
    if not isinstance(members, list) or not members or not all(map(_is_count, members)):
        raise BadMessage("its members are not learners' numbers")
    if len({*members}) < len(members):
        raise BadMessage("a learner is in it twice")
    if not isinstance(shapes, dict) or "__metadata__" in shapes:
        raise BadMessage("its arrays have no names")
    for name, entry in shapes.items():
        _check_shape(name, entry, len(members))
    message = Message(schema["run"], schema["island"], schema["round"], tuple(members), {})
    return message, {name: (short, shape) for name, (short, shape) in shapes.items()}


def _check_shape(name: str, entry: Any, num_members: int) -> None:
    """Raise unless an entry of the schema is a type and a shape with an axis of members."""
    short, shape = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
    if not isinstance(short, str) or short not in _NUMPY:
        raise BadMessage(f"the type of {_short(name)} is not known")
    if not isinstance(shape, list) or len(shape) > MAX_AXES or not all(map(_is_count, shape)):
        raise BadMessage(f"the shape of {_short(name)} is not a shape")
    if prod(max(n, 1) for n in shape) > 2**48:
        raise BadMessage(f"{_short(name)} is too large")
    if shape[:1] != [num_members]:
        raise BadMessage(f"{_short(name)} has not a row for each of the {num_members} learners")


def _arrays(data: bytes, start: int, shapes: Mapping[str, tuple[str, list[int]]]) -> dict[str, np.ndarray]:
    """The arrays in the data section."""
    arrays = {}
    for name, (short, shape) in shapes.items():
        array = np.frombuffer(data, _NUMPY[short], prod(shape), start).reshape(shape)
        if short == "BOOL" and array.view(np.uint8).max(initial=0) > 1:
            raise BadMessage(f"{_short(name)} has values that are neither true nor false")
        arrays[name], start = array, start + array.nbytes
    return arrays


def _num_bytes(entry: tuple[str, list[int]]) -> int:
    return _NUMPY[entry[0]].itemsize * prod(entry[1])


def _is_count(value: Any) -> bool:
    """Whether a value is a whole number from 0 that fits 63 bits."""
    return type(value) is int and 0 <= value < 2**63


def _short(text: Any) -> str:
    """Text of a stranger as it may stand in an error: one line, not long."""
    shown = ascii(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
