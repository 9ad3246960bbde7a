"""The driver of a run on islands: meeting after meeting, whoever comes, until the run's end."""

import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

from shoal.errors import ShoalError
from shoal.islands.attendance import Attendance
from shoal.islands.engine import Arrived, Engine, Lost, Order
from shoal.islands.meeting import Meeting
from shoal.islands.messages import BadMessage, Message, decode, encode
from shoal.islands.plan import divide
from shoal.islands.record import Progress, Record
from shoal.training.waiting import Waiting

POLL_SECONDS = 0.1
"""How often the driver looks whether it should stop."""
STOP_SECONDS = 10.0
"""How long a run that should stop waits for the meeting under way."""
REGROUP_SECONDS = 10.0
"""How long there must be room for another number of islands before the learners are divided anew."""
TRIES = 3
"""After so many meetings to which nobody came, because all were left out, or so many errors of an island's
program, one after the other, the run ends."""


class Crowd(NamedTuple):
    """How many islands a run has: as many as there is room for, between two numbers.

    >>> Crowd.read("8"), Crowd.read("2..16")
    (Crowd(least=8, most=8), Crowd(least=2, most=16))
    """

    least: int
    most: int

    @staticmethod
    def read(text: str) -> "Crowd":
        """A number, or two with dots between them."""
        low, dots, high = text.partition("..")
        words = (low, high if dots else low)
        if not all(word.strip().isdecimal() and int(word) for word in words) or int(words[0]) > int(words[1]):
            raise ShoalError(f"islands must be a number such as 8, or two such as 2..16, not {text!r}")
        return Crowd(int(words[0]), int(words[1]))

    def fitting(self, room: int) -> int:
        """The number of islands where there is room for so many."""
        return min(max(room, self.least), self.most)


class Driver:
    """Holds the meetings of a run whose islands an engine runs; `wait` is in seconds.

    A meeting waits for all islands that train towards it, but no longer than `wait` once half of them have
    come. Those that come later are absent from it, and later ones do not wait for them; they go on from their
    own work. A lost one is started again, and is absent until its first message.
    """

    def __init__(self, meeting: Meeting, record: Record, engine: Engine, crowd: Crowd, wait: float = 30.0):
        self.meeting, self.record, self.engine, self.crowd, self.wait = meeting, record, engine, crowd, wait
        self.waiting = Waiting()
        self.members: dict[int, tuple[int, ...]] = {}
        self.working: dict[int, int] = {}  # the round towards which an island trains
        self.returning: set[int] = set()  # lost islands that have sent nothing since they were started again
        self.begun = False  # whether any island has sent anything
        self.failures: dict[int, int] = {}  # errors of an island's program since it last sent something
        self.sent: dict[int, int] = {}  # bytes, since the last meeting
        self.received: dict[int, int] = {}
        self.other_room_since: float | None = None
        self.empty = 0  # meetings to which nobody came, one after the other

    def run(self, show: Callable[[Progress], None]) -> dict:
        """Train to the end, or until a stop; the summary."""
        plan = self.meeting.plan
        try:
            self._divide(self.crowd.fitting(self.engine.room()))
            while self.meeting.state.iteration < plan.config.num_iterations and not self.waiting.stopping:
                before = self.meeting.state.iteration
                progress = self._hold(before)
                if progress is None:
                    break
                show(progress)
            if self.record.step:
                self._end()
        finally:
            self.engine.close()
        interrupted = self.meeting.state.iteration < plan.config.num_iterations
        return self.record.finish(interrupted) if self.record.totals["meetings"] else {}

    def _divide(self, islands: int) -> None:
        """Start so many islands, each with its share of the learners."""
        config = self.meeting.plan.config
        for island in self.members:
            self.engine.stop(island)
        self.members = dict(enumerate(divide(config.learners, min(islands, config.learners))))
        self.working, self.returning = {}, set()
        for island in self.members:
            self._start(island)

    def _start(self, island: int) -> None:
        """Start an island, or start it again, on the way to the next meeting."""
        self.engine.start(island, self.members[island])
        self._send(self.meeting.answer(island, self.members[island]))

    def _send(self, answer: Message, save: bool = False, train: bool = True) -> None:
        data = encode(answer)
        self.sent[answer.island] = self.sent.get(answer.island, 0) + len(data)
        self.working[answer.island] = self.meeting.round + 1
        self.engine.send(answer.island, Order(data, save, train))

    def _hold(self, before: int) -> Progress | None:
        """One meeting; None where a stop was asked for and not enough had come."""
        round, began = self.meeting.round + 1, time.monotonic()
        came, absent = self._gather(round)
        if self.waiting.stopping and len(came) + len(absent) < len(self.members):
            return None
        gathered = time.monotonic()
        held = self.meeting.meet(list(came.values()))
        absent |= {island: f"left out: {why}" for island, why in held.left_out.items()}
        self.empty = 0 if came.keys() - held.left_out.keys() else self.empty + 1
        if self.empty >= TRIES:
            named = "; ".join(f"island {island}: {why}" for island, why in sorted(absent.items()))
            raise ShoalError(f"nobody came to the last {TRIES} meetings; {named}")
        attendance = Attendance(
            absent, gathered - began, time.monotonic() - gathered, dict(self.received), dict(self.sent)
        )
        for island, why in absent.items():
            if why.startswith("left out"):
                warnings.warn(f"island {island} is left out of meeting {round}: {why[10:]}", RuntimeWarning)
        self.received, self.sent = {}, {}
        progress = self.record.write(before, held, attendance, self.members)
        if (save := self.record.must_save(before)) or self.waiting.stopping:
            self.record.save(before)
        if (
            self.meeting.state.iteration < self.meeting.plan.config.num_iterations
            and not self.waiting.stopping
        ):
            self._go_on(came, absent, save)
        return progress

    def _go_on(self, came: dict[int, Message], absent: dict[int, str], save: bool) -> None:
        """Answer all that wait for it, or divide the learners anew where there is other room."""
        waiting = [island for island in self.members if self.working.get(island) is None]
        if (islands := self._other_number()) is not None:
            self._settle(waiting)
            self._divide(islands)
            return
        for island in waiting:
            self._send(self.meeting.answer(island, self.members[island]), save)

    def _other_number(self) -> int | None:
        """Another number of islands, where there has been room for it for a while."""
        if self.crowd.least == self.crowd.most:
            return None
        wanted = min(self.crowd.fitting(self.engine.room()), self.meeting.plan.config.learners)
        if wanted == len(self.members):
            self.other_room_since = None
            return None
        now = time.monotonic()
        self.other_room_since = self.other_room_since or now
        if now - self.other_room_since < REGROUP_SECONDS:
            return None
        self.other_room_since = None
        return wanted

    def _settle(self, islands: list[int]) -> None:
        """Have islands take their answers and save, without training on; waits until they have."""
        for island in islands:
            self._send(self.meeting.answer(island, self.members[island]), save=True, train=False)
        patience = STOP_SECONDS if self.waiting.stopping else max(self.wait, STOP_SECONDS)
        pending, deadline = {*islands}, time.monotonic() + patience
        while pending and time.monotonic() < deadline:
            for event in self.engine.events(POLL_SECONDS):
                pending.discard(event.island)

    def _end(self) -> None:
        """Save what there is, so that the run can go on from here."""
        self._settle([island for island in self.members if self.working.get(island) is None])
        self.record.save(self.meeting.state.iteration)

    def _gather(self, round: int) -> tuple[dict[int, Message], dict[int, str]]:
        """The messages of a round, and who is absent and why."""
        came: dict[int, Message] = {}
        absent: dict[int, str] = {}
        deadline, stop = None, None
        while True:
            there = {island for island, towards in self.working.items() if towards == round}
            missing = there - self.returning - came.keys() - absent.keys()
            if not missing and came:
                break
            if not missing and absent and all(why.startswith("left out") for why in absent.values()):
                break
            now = time.monotonic()
            if deadline is None and 2 * len(came) >= len(self.members) - len(absent) > 0:
                deadline = now + self.wait
            if self.waiting.stopping:
                stop = stop or now + min(STOP_SECONDS, self.wait)
            if (deadline is not None and now > deadline and came) or (stop is not None and now > stop):
                break
            for event in self.engine.events(POLL_SECONDS):
                self._note(event, round, came, absent)
        if not self.waiting.stopping:
            others = self.members.keys() - came.keys() - absent.keys()
            absent |= {island: "returning" if island in self.returning else "late" for island in others}
        return came, {island: why for island, why in absent.items() if island not in came}

    def _note(
        self, event: Arrived | Lost, round: int, came: dict[int, Message], absent: dict[int, str]
    ) -> None:
        """What an event means for the meeting of a round."""
        island = event.island
        if isinstance(event, Lost):
            why = event.why.splitlines()[-1]
            self.failures[island] = self.failures.get(island, 0) + event.failed
            if event.failed and (not self.begun or self.failures[island] >= TRIES):
                raise ShoalError(f"island {island} cannot train: {why}")
            absent[island] = f"lost: {why}"
            came.pop(island, None)
            self.returning.add(island)
            self.record.totals["restarts"] += 1
            self._start(island)
            return
        self.received[island] = self.received.get(island, 0) + len(event.data)
        self.begun = True
        self.failures.pop(island, None)
        self.returning.discard(island)
        try:
            message = decode(event.data)
            if message.island != island or message.members != self.members[island]:
                raise BadMessage("it speaks for learners that are not its own")
        except BadMessage as bad:
            absent[island] = f"left out: {bad}"
            self.working.pop(island, None)
            return
        if message.round < round and self.working.get(island, round) < round:
            self._send_alone(island)
            return
        self.working.pop(island, None)
        came[island] = message

    def _send_alone(self, island: int) -> None:
        """Have an island that was late go on from its own work, in step with the others."""
        full = self.meeting.answer(island, self.members[island])
        self._send(full._replace(arrays={"iteration": full.arrays["iteration"]}))
