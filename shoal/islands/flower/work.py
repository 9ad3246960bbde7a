"""What an organisation does with a message: its island lives in a folder and trains to the next meeting."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.exchanges.channels import epsilon
from shoal.islands.changes import STATISTICS, Outgoing, leave
from shoal.islands.flower.settings import Federation, Organisation
from shoal.islands.island import Island
from shoal.islands.meeting import METRICS
from shoal.islands.messages import (
    BadMessage,
    Message,
    Template,
    check_finite,
    check_form,
    decode,
    encode,
    template_of,
)
from shoal.islands.plan import named_models
from shoal.runs.files import FolderLock, make_folder, replacing
from shoal.training.validation import make_validation

OUTBOX = "outbox.safetensors"
"""The last message that left, and what is kept for the next one."""
RESIDUAL, BEFORE, RELEASES = "kept/residual", "kept/before", "kept/releases"


class Order(NamedTuple):
    """What an organisation is asked to do with a message."""

    organisation: str
    island: int
    train: bool  # until the next meeting; otherwise only take what the message says
    evaluate: int = 0  # episodes in its own worlds, before it trains


def serve(federation: Federation, organisation: Organisation, answer: Message, order: Order) -> bytes:
    """What is sent for an answer of the server's; no bytes where it was only to be taken."""
    if not re.fullmatch(r"\w[\w-]*", answer.run):
        raise BadMessage(f"the name of its run cannot be a folder's: {ascii(answer.run)[:60]}")
    lock = FolderLock()
    lock.take(make_folder(organisation.folder / answer.run))
    try:
        outbox = read_outbox(organisation.folder / answer.run / OUTBOX)
        if order.train and outbox is not None and outbox.sent.round == answer.round + 1:
            return encode(outbox.sent)  # its reply was lost, or this is asked again
        return _serve(federation, organisation, answer, order, outbox)
    finally:
        lock.release()


class Outbox(NamedTuple):
    """The last message that left an organisation, and what stays there."""

    sent: Message
    kept: dict[str, np.ndarray]


def _serve(
    federation: Federation, organisation: Organisation, answer: Message, order: Order, outbox: Outbox | None
) -> bytes:
    folder, outgoing = organisation.folder / answer.run, federation.outgoing
    members = federation.members(order.island)
    island = Island(organisation.own(federation.config, members), order.island, members, folder / "islands")
    check_answer(island, answer, members)
    island.take(with_own(outgoing, answer, outbox))
    evaluated = evaluate(island, order)
    if not order.train:
        island.save()
        said = {} if outgoing.is_private else evaluated
        return encode(Message(answer.run, order.island, answer.round, members, said))
    message = island.train()
    island.save()
    arrays = message.arrays | evaluated
    residual = residual_of(answer, outbox)
    left, lost = leave(outgoing, message._replace(arrays=arrays), answer, residual)
    kept = kept_of(outgoing, message, residual, lost, outbox)
    write_outbox(folder / OUTBOX, Outbox(left, kept))
    if outgoing.is_private:
        spent = epsilon(outgoing.noise, int(kept[RELEASES][0]), outgoing.delta)
        print(f"{order.organisation}, round {message.round}: epsilon {spent:.3f}", flush=True)
    return encode(left)


def evaluate(island: Island, order: Order) -> dict[str, np.ndarray]:
    """Greedy episodes of each learner in its own world, with the parameters that it begins from."""
    if not order.evaluate:
        return {}
    found = make_validation(island.trainer.parts, order.evaluate)(island.state.cohort)
    listed = ", ".join(f"{name} {np.round(x, 2).tolist()}" for name, x in sorted(found.items()))
    print(f"{order.organisation}, round {island.round}: {listed}", flush=True)
    return {METRICS + name: x for name, x in found.items()}


def check_answer(island: Island, answer: Message, members: tuple[int, ...]) -> None:
    """Raise where the server's message is not what this island can go on from."""
    shapes = template_of(_like(island), members, island.number).arrays
    there = {name: x for name, x in answer.arrays.items() if not name.startswith("peers/")}
    check_form(
        answer._replace(arrays=there), Template(members, shapes, island.number), answer.run, answer.round
    )
    check_finite(answer, ("params", "statistics", "anchor"))


def _like(island: Island) -> Mapping[str, Any]:
    """Arrays of the form that an answer has."""
    count = np.zeros(len(island.members), np.int32)
    return named_models(island.state.cohort, island.plan.answered) | {"iteration": count, "seen": count}


def with_own(outgoing: Outgoing, answer: Message, outbox: Outbox | None) -> Message:
    """The answer with this organisation's own statistics, where they never left it."""
    if outgoing.shares_statistics or outbox is None:
        return answer
    own = {
        name.removeprefix("kept/"): x
        for name, x in outbox.kept.items()
        if name.startswith("kept/" + STATISTICS)
    }
    return answer._replace(arrays=answer.arrays | own)


def residual_of(answer: Message, outbox: Outbox | None) -> np.ndarray | None:
    """What compression has lost so far: without the last message, where that did not count."""
    if outbox is None or RESIDUAL not in outbox.kept:
        return None
    counted = (answer.arrays["seen"] >= outbox.sent.arrays["iteration"]).all()
    return outbox.kept[RESIDUAL if counted else BEFORE]


def kept_of(
    outgoing: Outgoing,
    message: Message,
    before: np.ndarray | None,
    residual: np.ndarray | None,
    outbox: Outbox | None,
) -> dict[str, np.ndarray]:
    """What stays in the organisation for its next message."""
    releases = 0 if outbox is None else outbox.kept[RELEASES]
    kept = {RELEASES: np.full(len(message.members), 1, np.int32) + releases}
    if residual is not None:
        kept |= {RESIDUAL: residual, BEFORE: np.zeros_like(residual) if before is None else before}
    if not outgoing.shares_statistics:
        kept |= {f"kept/{name}": x for name, x in message.arrays.items() if name.startswith(STATISTICS)}
    return kept


def read_outbox(path: Path) -> Outbox | None:
    """The last message that left; None where there is none."""
    if not path.is_file():
        return None
    message = decode(path.read_bytes())
    sent = {name: x for name, x in message.arrays.items() if not name.startswith("kept/")}
    kept = {name: x for name, x in message.arrays.items() if name.startswith("kept/")}
    return Outbox(message._replace(arrays=sent), kept)


def write_outbox(path: Path, outbox: Outbox) -> None:
    """Write it, whole or not at all, before it leaves."""
    data = encode(outbox.sent._replace(arrays=outbox.sent.arrays | outbox.kept))
    with replacing(path) as (temporary,):
        temporary.write_bytes(data)
