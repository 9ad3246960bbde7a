"""One checkpoint as it is stored: its leaves by name, checked against its record."""

import re
import zlib
from pathlib import Path

import numpy as np
import safetensors

from shoal.runs.records import CorruptCheckpoint, read_record, replay_of

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
"""The names safetensors gives to the types we store."""
RENAMED = (
    (r"^cohort/memory/", "cohort/private/"),
    (r"^cohort/private/past/(?=num_steps$|replay/|tail/|warm$)", "cohort/private/buffer/"),
    (r"^cohort/private/(buffer/)?replay/", r"cohort/private/\1ring/"),
    (r"^cohort/private/(buffer/)?warm$", r"cohort/private/\1warming_up"),
    (r"^cohort/private/wander$", "cohort/private/correlated_noise"),
    (r"^exchange/rows/", "exchange/per_learner/"),
    (r"^exchange/whole/", "exchange/shared/"),
    (r"/owed(?=/|$)", "/residual"),
)
"""Leaves that version 0.1 named differently, as patterns applied one after the other."""


def read(path: Path, replay: bool = False) -> tuple[dict[str, dict], dict]:
    """One checkpoint, by the path of its data or its record: (leaves, meta).

    A leaf has its `dtype` by safetensors' name, its `shape` and its `data` as bytes. Without `replay` the
    transitions of replay buffers are left out.
    """
    data = Path(path).with_suffix(".safetensors")
    record = read_record(data)
    stored = _read_leaves(data, record)
    if replay and record.get("replay"):
        stored |= _read_leaves(replay_of(data), record["replay"])
    return {current_name(name): leaf for name, leaf in stored.items()}, record["meta"]


def array_of(leaf: dict) -> np.ndarray:
    """A leaf that `read` found, as an array."""
    dtype = DTYPES.get(leaf["dtype"], leaf["dtype"])
    return np.frombuffer(leaf["data"], dtype).reshape(leaf["shape"])


def current_name(name: str) -> str:
    """The present name of a stored leaf.

    >>> current_name("cohort/memory/past/replay/count")
    'cohort/private/buffer/ring/count'
    """
    for old, new in RENAMED:
        name = re.sub(old, new, name)
    return name


def _read_leaves(path: Path, recorded: dict) -> dict[str, dict]:
    """The leaves in a file by name, checked against what its record says of it."""
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error.strerror or error}") from None
    if len(contents) != recorded["bytes"] or zlib.crc32(contents) != recorded["crc32"]:
        raise CorruptCheckpoint(f"{path} is damaged: its size or checksum is not the one recorded")
    try:
        return dict(safetensors.deserialize(contents))
    except safetensors.SafetensorError as error:
        raise CorruptCheckpoint(f"{path} is damaged: {error}") from None
