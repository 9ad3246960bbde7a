"""Islands in one process, without an engine: for tests of what their meetings do."""

from pathlib import Path

from shoal.islands.island import Island
from shoal.islands.meeting import Held, Meeting
from shoal.islands.messages import decode, encode
from shoal.islands.plan import divide, make_plan
from shoal.runs.config import from_settings

SMALL = {
    "env": "CartPole-v1",
    "num_envs": 2,
    "num_steps": 8,
    "num_minibatches": 2,
    "update_epochs": 2,
    "hidden": (8,),
    "learning_rate": 0.01,
    "learners": 8,
    "seed": 3,
    "norm_obs": True,
    "steps": 16 * 12,
}


def config_with(**settings):
    return from_settings(SMALL | {name.replace("__", "."): x for name, x in settings.items()})


def begin(config, islands: int, folder: Path | None = None) -> tuple[Meeting, list[Island]]:
    """A meeting and its islands, each with what it begins with."""
    meeting = Meeting(make_plan(config), "run")
    parts = enumerate(divide(config.learners, islands))
    crowd = [Island(config, number, members, folder, mesh="1x1") for number, members in parts]
    for island in crowd:
        island.take(meeting.answer(island.number, island.members))
    return meeting, crowd


def hold(meeting: Meeting, crowd: list[Island], absent: tuple[int, ...] = ()) -> Held:
    """One meeting of all but the absent islands, which train on alone."""
    messages = {island.number: island.train() for island in crowd}
    came = [decode(encode(message)) for number, message in messages.items() if number not in absent]
    held = meeting.meet(came)
    for answer in held.answers:
        crowd[answer.island].take(decode(encode(answer)))
    for number in absent:
        answer = meeting.answer(number, crowd[number].members)
        crowd[number].take(answer._replace(arrays={"iteration": answer.arrays["iteration"]}))
    return held


def train(meeting: Meeting, crowd: list[Island]) -> Held:
    """All meetings that are left."""
    held = None
    while meeting.round < meeting.plan.last_round:
        held = hold(meeting, crowd)
        assert not held.left_out
    assert held is not None
    return held
