"""Messages of islands arrive as they were sent, and nothing else is taken for one."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors

from shoal.islands.messages import (
    BadMessage,
    Message,
    check,
    check_form,
    decode,
    encode,
    template_of,
)

ARRAYS = {
    "params/w": np.arange(12, dtype=np.float32).reshape(2, 3, 2),
    "params/b": np.ones((2, 2), ml_dtypes.bfloat16),
    "statistics/count": np.array([3, 4], np.int64),
    "present": np.array([True, False]),
    "none": np.zeros((2, 0), np.uint8),
}
SENT = Message("pendulum", 1, 7, (4, 9), ARRAYS)
TEMPLATE = template_of(ARRAYS, (4, 9, 11), island=1)


def equal(one: Message, other: Message) -> bool:
    same = one[:-1] == other[:-1] and [*one.arrays] == [*other.arrays]
    pairs = zip(one.arrays.values(), other.arrays.values(), strict=True)
    return same and all(a.dtype == b.dtype and a.shape == b.shape and (a == b).all() for a, b in pairs)


def test_a_message_arrives_as_it_was_sent():
    data = encode(SENT)
    assert equal(decode(data), SENT)
    assert encode(decode(data)) == data
    check(decode(data), TEMPLATE, "pendulum", 7)


def test_the_bytes_are_a_safetensors_file():
    stored = dict(safetensors.deserialize(encode(SENT)))
    assert stored["params/w"]["shape"] == [2, 3, 2]
    assert bytes(stored["params/w"]["data"]) == ARRAYS["params/w"].tobytes()


@pytest.mark.parametrize("seed", range(4))
def test_mutated_bytes_are_refused_or_the_same_message(seed):
    data, rng, refused = encode(SENT), np.random.default_rng(seed), 0
    for _ in range(2_500):
        mutated = mutate(data, rng)
        try:
            assert mutated == data or equal(decode(mutated), SENT)
        except BadMessage as error:
            refused += "\n" not in str(error)
    assert refused > 2_000


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed, cut out, put in, moved, or all of them random."""
    changed, kind = bytearray(data), rng.integers(6)
    for _ in range(rng.integers(1, 4)):
        at, length = rng.integers(len(changed)), int(rng.integers(1, 40))
        match kind:
            case 0:
                changed[at] ^= 1 << rng.integers(8)
            case 1:
                changed[at] = rng.choice(bytearray(b'0129-"{}[],:. eE\\'))
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = rng.bytes(length)
            case 4:
                part = changed[at : at + length]
                changed[(to := rng.integers(len(changed))) : to] = part
            case _:
                changed = bytearray(rng.bytes(int(rng.integers(1, 400))))
        if not changed:
            break
    return bytes(changed)


def with_schema(change) -> bytes:
    """A message whose schema, checksum and header agree, with a schema that no island writes."""
    from shoal.islands import messages

    data = encode(SENT)
    size = 8 + struct.unpack_from("<Q", data)[0]
    schema = json.loads(json.loads(data[8:size])["__metadata__"]["schema"])
    change(schema)
    text, body = json.dumps(schema), data[size:]
    shapes = {name: entry for name, entry in schema["arrays"].items() if entry[0] in messages._NUMPY}
    crc32 = messages.zlib.crc32(body, messages.zlib.crc32(text.encode()))
    return messages._header(text, shapes, crc32) + body


def put(**values):
    return lambda schema: schema.update(values)


def reshape(name, *entry):
    return lambda schema: schema["arrays"].update({name: [*entry]})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put(version=2), "its version is 2, not 1"),
        (put(round=-1), "its round is not a number"),
        (put(island=True), "its island is not a number"),
        (put(round=10**400), "its round is not a number"),
        (put(members=[4, 4]), "a learner is in it twice"),
        (put(members=[]), "its members are not"),
        (put(run=3), "its run is not a name"),
        (put(extra=1), "has not the entries"),
        (reshape("params/w", "F32", [3, 2, 2]), "has not a row for each of the 2 learners"),
        (reshape("params/w", "F32", [2, 2**62]), "is too large"),
        (reshape("params/w", "F32", [2, 2**40]), "bytes of data, where its schema says"),
        (reshape("params/w", "F99", [2, 3, 2]), "the type of 'params/w' is not known"),
        (reshape("params/w", "F32", [2, 3, -2]), "is not a shape"),
    ],
)
def test_schemas_that_no_island_writes_are_refused(change, why):
    with pytest.raises(BadMessage, match=why):
        decode(with_schema(change))


def test_garbage_takes_no_memory():
    claimed = struct.pack("<Q", 2**62) + b"{" * 100
    with pytest.raises(BadMessage, match="not a safetensors file"):
        decode(claimed)
    nested = b"[" * 100_000
    with pytest.raises(BadMessage, match="header is not that of a message"):
        decode(struct.pack("<Q", len(nested)) + nested)
    with pytest.raises(BadMessage, match="more than 100"):
        decode(encode(SENT), max_bytes=100)


def altered(**arrays) -> dict[str, np.ndarray]:
    return ARRAYS | {name.replace("_", "/"): array for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"run": "other\n"}, r"it belongs to the run 'other\\n', not 'pendulum'"),
        ({"island": 2}, "it says it comes from island 2, not 1"),
        ({"round": 6}, "an old round, 6, not 7"),
        ({"round": 8}, "a future round, 8, not 7"),
        ({"members": (4, 5)}, "learner 5 is not one of its sender's"),
        ({"arrays": {"params/w": ARRAYS["params/w"]}}, "it lacks 'none'"),
        ({"arrays": altered(more=np.zeros(2))}, "it has an unknown 'more'"),
        (
            {"arrays": altered(params_w=np.zeros((2, 2, 3), np.float32))},
            r"shape \[2, 2, 3\], not \[2, 3, 2\]",
        ),
        ({"arrays": altered(params_w=np.zeros((2, 3, 2)))}, "type float64, not float32"),
        ({"arrays": altered(params_w=ARRAYS["params/w"] * np.nan)}, "params/w of learner 4 is not finite"),
        ({"arrays": altered(params_b=ARRAYS["params/b"] * np.float32("inf"))}, "type float32, not bfloat16"),
        (
            {"arrays": altered(params_b=np.array([[1, 1], [1, np.inf]], ml_dtypes.bfloat16))},
            "learner 9 is not",
        ),
    ],
)
def test_what_is_wrong_is_named(change, why):
    with pytest.raises(BadMessage, match=why):
        check(decode(encode(SENT._replace(**change))), TEMPLATE, "pendulum", 7)


def test_a_lost_learner_may_be_told_apart_from_a_bad_form():
    lost = decode(encode(SENT._replace(arrays=altered(params_w=ARRAYS["params/w"] * np.nan))))
    check_form(lost, TEMPLATE, "pendulum", 7)
