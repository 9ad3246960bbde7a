"""What a compiled program moves between devices: bytes per call, by kind, read from its text."""

import math
import re

SIZES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
SIZES |= {"s64": 8, "u64": 8, "f64": 8}
KINDS = ("collective-permute", "all-gather", "all-reduce", "reduce-scatter", "all-to-all")
OPERATION = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(-start)?\((.*)")
SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")


def traffic(text: str, num_devices: int) -> dict[str, int]:
    """Bytes that arrive at all devices together, by kind of operation; loops count as one turn.

    n devices that hold s bytes each after an all-gather have received s (n - 1) together, as many after an
    all-to-all or before a reduce-scatter, and twice as many for an all-reduce: what rings of them move.

    >>> text = "x = f32[2,8] collective-permute(y), source_target_pairs={{0,1},{1,0},{2,2}}"
    >>> traffic(text, 3)
    {'collective-permute': 128}
    >>> traffic("x = (f32[4], u32[8]) all-reduce(a, b), replica_groups={{0,1},{2,3}}, to_apply=add", 4)
    {'all-reduce': 192}
    """
    total: dict[str, int] = {}
    for line in text.splitlines():
        found = OPERATION.search(line)
        if found is None:
            continue
        shapes, kind, started, rest = found.groups()
        sizes = [_size(*shape) for shape in SHAPE.findall(shapes) if shape[0] in SIZES]
        size = max(sizes) if started else sum(sizes)  # one that only starts lists what it reads, too
        total[kind] = total.get(kind, 0) + size * _copies(kind, rest, num_devices)
    return total


def _size(dtype: str, shape: str) -> int:
    return SIZES[dtype] * math.prod(int(n) for n in shape.split(",") if n)


def _copies(kind: str, rest: str, num_devices: int) -> int:
    """How many times a result's size arrives anywhere."""
    if kind == "collective-permute":
        pairs = re.findall(
            r"\{(\d+),(\d+)\}", rest.partition("source_target_pairs=")[2].partition("}}")[0] + "}"
        )
        return sum(source != target for source, target in pairs)
    members = _group_size(rest, num_devices)
    received = num_devices * (members - 1)
    if kind == "all-reduce":
        return 2 * received // members
    return received if kind == "reduce-scatter" else received // members


def _group_size(rest: str, num_devices: int) -> int:
    """How many devices take part in one operation: {{0,1},{2,3}}, [2,4]<=[8] or mesh['x'=4,'y'=2] {'x'}."""
    groups = rest.partition("replica_groups=")[2]
    if listed := re.match(r"\{\{([\d,]+)\}", groups):
        return len(listed[1].split(","))
    if counted := re.match(r"\[\d+,(\d+)\]<=", groups):
        return int(counted[1])
    if named := re.match(r"mesh\[(.*?)\]\s*\{(.*?)\}", groups):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", named[2]))
    return num_devices
