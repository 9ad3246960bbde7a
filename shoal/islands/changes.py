"""What leaves an organisation: its parameters' change, clipped, noised and compressed before it is sent.

In one program a channel alters the rows of a matrix. Between organisations it has to act where the data are:
the sender alters its change and keeps what compression lost; the receiver adds the change to the parameters
that it sent before. The functions of `exchanges.channels` do both.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import ShoalError
from shoal.exchanges import channels
from shoal.exchanges.builders import make_channel
from shoal.exchanges.config import CompressConfig, ExchangeConfig, PrivacyConfig
from shoal.islands.meeting import Held, Meeting
from shoal.islands.messages import BadMessage, Message, Template, check_finite, check_form, template_of
from shoal.islands.plan import Plan
from shoal.training.config import TrainConfig

PARAMS, STATISTICS, SCORES, CHANGE = "params/", "statistics/", "scores/", "change/"
UNNOISED = (SCORES, "metrics/")
"""Beginnings of the names of numbers that depend on the data and have no noise."""
SERVERS = ("average", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median")
"""Exchanges after which all learners know the same parameters, so that changes are enough."""

Arrays = dict[str, np.ndarray]


class Outgoing(NamedTuple):
    """How an organisation's parameters leave it."""

    channel: channels.Channel = channels.PLAIN
    kind: str = "none"  # of the compression
    keep: float = 1.0  # the fraction of the coordinates that top-k sends
    noise: float = 0.0  # the multiplier; 0 for none
    delta: float = 1e-5  # the delta for which epsilon is told
    shares_statistics: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether parameters leave as they are."""
        return self.channel.is_plain

    @property
    def is_private(self) -> bool:
        """Whether nothing leaves without noise, so no statistics, scores and metrics either."""
        return self.noise > 0


def divide(config: TrainConfig) -> tuple[TrainConfig, Outgoing]:
    """The settings of a run without what its senders do, and what they do.

    >>> exchange = ExchangeConfig("average", compress=CompressConfig("int8"))
    >>> config, outgoing = divide(TrainConfig("Pendulum-v1", learners=2, exchanges=(exchange,)))
    >>> config.exchanges[0].compress.kind, outgoing.kind
    ('none', 'int8')
    """
    altered = [one for one in config.exchanges if _alters(one)]
    if any(one.parts for one in config.exchanges):
        raise ShoalError("parts between organisations would send all parts; leave parts out")
    unshared = [one for one in config.exchanges if one.share_statistics is False]
    if not altered:
        return config, Outgoing(shares_statistics=not unshared)
    if len(config.exchanges) > 1:
        raise ShoalError("privacy and compress need one exchange alone; leave the others out")
    one = altered[0]
    if one.exchange not in SERVERS or one.participation < 1:
        raise ShoalError(
            f"privacy and compress between organisations need a server that all take part in "
            f"({', '.join(SERVERS)}), not {one.exchange} with participation {one.participation:g}"
        )
    shares = not one.privacy.noise_multiplier if one.share_statistics is None else one.share_statistics
    channel = make_channel(replace(one, attack=type(one.attack)()), config.learners)
    noise, kind = one.privacy.noise_multiplier, one.compress.kind
    outgoing = Outgoing(channel, kind, one.compress.keep, noise, one.privacy.delta, shares)
    plain = replace(one, privacy=PrivacyConfig(), compress=CompressConfig(), share_statistics=shares)
    return replace(config, exchanges=(plain,)), outgoing


def _alters(one: ExchangeConfig) -> bool:
    return one.privacy.clip is not None or one.compress.kind != "none"


def matrix_of(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The parameters among named arrays as rows, (L, D)."""
    rows = [x.reshape(len(x), -1) for name, x in arrays.items() if name.startswith(PARAMS)]
    return np.concatenate([np.asarray(x, np.float32) for x in rows], 1)


def with_matrix(arrays: Mapping[str, np.ndarray], matrix: np.ndarray) -> Arrays:
    """The parameters among named arrays, with the values of such rows."""
    filled, at = {}, 0
    for name, x in arrays.items():
        if name.startswith(PARAMS):
            size = x[0].size
            filled[name] = matrix[:, at : at + size].reshape(x.shape).astype(x.dtype)
            at += size
    return filled


def pack(kind: str, keep: float, sent: np.ndarray) -> Arrays:
    """A change (L, D) that a compressor has altered, in the bytes that it takes.

    >>> {name: x.nbytes for name, x in pack("int8", 1.0, np.ones((1, 100), np.float32)).items()}
    {'change/int8': 100, 'change/scale': 4}
    """
    if kind == "int8":
        scale = (np.max(np.abs(sent), 1) / np.float32(127)).astype(np.float32)
        steps = np.nan_to_num(np.rint(sent / np.where(scale > 0, scale, 1)[:, None]))
        return {CHANGE + "int8": steps.astype(np.int8), CHANGE + "scale": scale}
    if kind == "top-k":
        kept = num_kept(sent.shape[1], keep)
        index = np.sort(np.argsort(-np.abs(sent), 1, kind="stable")[:, :kept], 1).astype(np.int32)
        return {CHANGE + "index": index, CHANGE + "value": np.take_along_axis(sent, index, 1)}
    return {CHANGE + "value": sent}


def unpack(kind: str, arrays: Mapping[str, np.ndarray], size: int) -> np.ndarray:
    """The change (L, D) as the receiver reads it; `BadMessage` where it is none."""
    if kind == "int8":
        change = arrays[CHANGE + "int8"].astype(np.float32) * arrays[CHANGE + "scale"][:, None]
    elif kind == "top-k":
        index, value = arrays[CHANGE + "index"], arrays[CHANGE + "value"]
        if index.size and (index.min() < 0 or index.max() >= size):
            raise BadMessage(f"change/index has a number outside 0 to {size - 1}")
        change = np.zeros((len(index), size), np.float32)
        np.put_along_axis(change, index, value, 1)
    else:
        change = arrays[CHANGE + "value"]
    if not np.isfinite(change).all():
        raise BadMessage("the change of its parameters is not finite")
    return change


def shapes_of(kind: str, keep: float, members: int, size: int) -> Arrays:
    """Zeros with the shapes of a change's arrays."""
    kept = num_kept(size, keep)
    return {
        "int8": {
            CHANGE + "int8": np.zeros((members, size), np.int8),
            CHANGE + "scale": np.zeros(members, "f4"),
        },
        "top-k": {
            CHANGE + "index": np.zeros((members, kept), np.int32),
            CHANGE + "value": np.zeros((members, kept), np.float32),
        },
        "none": {CHANGE + "value": np.zeros((members, size), np.float32)},
    }[kind]


def num_kept(size: int, keep: float) -> int:
    """How many coordinates top-k sends."""
    return channels.top_k(keep).message_bytes(size) // 8


def alter(outgoing: Outgoing, change: np.ndarray, residual: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """The arrays that leave for a change (L, D), and what compression has lost of it, (L, D).

    The noise is drawn from bits of this machine that nobody else knows.
    """
    key = jax.random.wrap_key_data(jnp.array([secrets.randbits(32), secrets.randbits(32)], jnp.uint32))
    feedback = channels.FeedbackState(jnp.zeros_like(change), jnp.asarray(residual))
    sent, left = jax.jit(partial(channels.send, outgoing.channel))(key, jnp.asarray(change), feedback)
    packed = pack(outgoing.kind, outgoing.keep, np.asarray(sent))
    read = unpack(outgoing.kind, packed, change.shape[1])
    return packed, np.asarray(left.residual) + np.asarray(sent) - read


def leave(
    outgoing: Outgoing, message: Message, answer: Message, residual: np.ndarray | None
) -> tuple[Message, np.ndarray | None]:
    """A message as it leaves, and what compression has lost; `answer` is what it began from."""
    arrays = {name: x for name, x in message.arrays.items() if _leaves(outgoing, name)}
    if not outgoing.is_plain:
        change = matrix_of(message.arrays) - matrix_of(answer.arrays)
        packed, residual = alter(outgoing, change, np.zeros_like(change) if residual is None else residual)
        arrays |= packed
    return message._replace(arrays=arrays), residual


def _leaves(outgoing: Outgoing, name: str) -> bool:
    """Whether an array of a message leaves as it is."""
    if name.startswith(PARAMS):
        return outgoing.is_plain
    if name.startswith(STATISTICS):
        return outgoing.shares_statistics
    return not (outgoing.is_private and name.startswith(UNNOISED))


def arrive(outgoing: Outgoing, message: Message, answer: Message, template: Template) -> Message:
    """A message as the run's meeting takes it; `answer` is what its sender began from."""
    members, size = len(answer.members), matrix_of(answer.arrays).shape[1]
    metrics = {name: x for name, x in message.arrays.items() if name.startswith("metrics/")}
    arrays = {name: x for name, x in message.arrays.items() if name not in metrics}
    expected = {name: form for name, form in template.arrays.items() if _leaves(outgoing, name)}
    if not outgoing.is_plain:
        change = shapes_of(outgoing.kind, outgoing.keep, members, size)
        expected |= template_of(change, answer.members).arrays
    form = Template(answer.members, expected, answer.island)
    check_form(message._replace(arrays=arrays), form, answer.run, answer.round + 1)
    if message.members != answer.members:
        raise BadMessage(f"it is about the learners {message.members}, not {answer.members}")
    if not outgoing.is_plain:
        known = matrix_of(answer.arrays)
        arrays |= with_matrix(answer.arrays, known + unpack(outgoing.kind, arrays, size))
    if not outgoing.shares_statistics:
        arrays |= {name: x for name, x in answer.arrays.items() if name.startswith(STATISTICS)}
    if outgoing.is_private:
        arrays |= {
            name: _unknown(name, members, dtype)
            for name, (_, dtype) in template.arrays.items()
            if name.startswith(SCORES)
        }
        metrics = {}
    arrays = {name: arrays[name] for name in template.arrays}
    whole = message._replace(arrays=arrays | metrics)
    check_finite(whole)
    return whole


def _unknown(name: str, members: int, dtype: np.dtype) -> np.ndarray:
    """The score of learners that do not tell it."""
    value = np.nan if name == SCORES + "returns" else name == SCORES + "sound"
    return np.full(members, value, dtype)


class ChangesMeeting(Meeting):
    """A meeting whose messages are what left the organisations."""

    def __init__(self, plan: Plan, run: str, outgoing: Outgoing):
        super().__init__(plan, run)
        self.outgoing = outgoing
        self.known: dict[int, Message] = {}  # what each island was answered last: its changes are from there

    def answer(self, island: int, members: tuple[int, ...]) -> Message:
        """What an island begins with, or goes on from."""
        self.known[island] = super().answer(island, members)
        return self.known[island]

    def meet(self, messages: Sequence[Message], round: int | None = None) -> Held:
        """Exchange what came; a message that is not as expected is left out."""
        came, refused = [], {}
        for message in messages:
            try:
                if message.island not in self.known:
                    raise BadMessage("nothing was sent to it")
                came.append(arrive(self.outgoing, message, self.known[message.island], self.template))
            except BadMessage as bad:
                refused[message.island] = str(bad)
        held = super().meet(came, round)
        return held._replace(left_out=refused | held.left_out)
