"""An independent judge of what control records did: was every outcome true, and was nothing lost, twice or early?

It reads what is committed: the input, the origins, the DLQ, the outcomes on the status topic, and from the changelog
only where each transaction of a partition ends (its next input offset and its instant). From these it acts the whole
history of every partition again, transaction by transaction: first the input records that the transaction took in, in
their order, then what came due. A record on an origin topic belongs to the last transaction of its partition whose
instant is not after the broker's stamp: the next one is not planned before this one is committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from sidecar.changelog.codec import CHECKPOINT_KEY, decode_checkpoint
from sidecar.contract.control import ControlKind, Outcome
from sidecar.contract.status import OutcomeRecord, parse_outcome_key
from sidecar.model import DUE_MS_MAX, TimerId
from tests.broker import Read, read_committed
from tests.integration.sidecars import Stage

MARK: Final = "test"
"""Header by which a message or control record says that it is wrong on purpose."""
DEAD: Final = b"dead"
REFUSED: Final = b"refused"

_EFFECT: Final = {
    ControlKind.CANCEL: Outcome.CANCELLED,
    ControlKind.RESCHEDULE: Outcome.RESCHEDULED,
    ControlKind.FIRE: Outcome.FIRED,
    ControlKind.PAUSE: Outcome.PAUSED,
    ControlKind.RESUME: Outcome.RESUMED,
}


_UNREACHABLE = "is unreachable"
"""Ends the detail of an outcome that leaves messages where they are because their origin gives no answer."""


class Rule(StrEnum):
    """A rule that every history must satisfy."""

    LOST = "nothing is lost"
    TWICE = "nothing comes twice"
    EARLY = "nothing comes before its due, unless it is fired by command"
    OTHER_DUE = "a message comes for the due that it has then"
    CANCELLED = "what is cancelled is never delivered"
    NOT_PENDING = "not-pending is said only of what does not wait"
    UNTRUE = "an outcome says what the history before it gives"
    NOT_FIRED = "what is answered as fired is delivered in the transaction of the answer"
    PAUSED = "a paused origin gets nothing"
    UNANSWERED = "every control record has one outcome"
    TORN = "an outcome is committed with its control record"
    MISTOLD = "a client is told what is committed"


class Fault(NamedTuple):
    """A rule that was broken."""

    rule: Rule
    text: str


class Message(NamedTuple):
    """A message on the input topic."""

    due_ms: int
    origin: str
    retry_id: bytes | None = None
    dead: bool = False
    """It has no place but the DLQ."""
    replaces: bool = False
    """It takes the place of all that wait for its origin with its retry id."""


class Asked(NamedTuple):
    """A control record on the input topic."""

    control_id: str
    kind: ControlKind
    target: str
    due_ms: int = 0
    stamp_ms: int = 0
    """When it was sent."""
    refused: bool = False
    """It is wrong on purpose."""


class Told(NamedTuple):
    """An outcome on the status topic."""

    partition: int
    offset: int
    """Of the control record."""
    record: OutcomeRecord


class Delivery(NamedTuple):
    """A record on an origin topic."""

    timer: TimerId
    origin: str
    stamp_ms: int
    """By the broker."""
    was_due_ms: int


class Turn(NamedTuple):
    """A committed transaction of a partition."""

    next_offset: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a client's control record; the outcome is None when no answer came in time."""

    control_id: str
    outcome: Outcome | None
    count: int


@dataclass(slots=True)
class History:
    """All that is committed, at rest."""

    turns: dict[int, list[Turn]]
    """Of each input partition."""
    items: dict[tuple[int, int], Message | Asked]
    """By input partition and offset."""
    told: list[Told] = field(default_factory=list)
    delivered: list[Delivery] = field(default_factory=list)
    dead: list[tuple[int, int]] = field(default_factory=list)
    """Input partition and offset of what is on the DLQ."""
    waiting: list[TimerId] = field(default_factory=list)
    """What a listing shows in the end."""
    answers: list[Answer] = field(default_factory=list)
    origins_fail: bool = False
    """Origins can be unreachable: what is fired by command then waits, and the outcome says so."""


def judge(history: History) -> list[Fault]:
    """Return every rule that is broken, with where."""
    faults: list[Fault] = []
    for number in sorted(history.turns):
        faults += _Partition(number, history).judged()
    faults += _twice(history)
    faults += _paused_by_time(history)
    faults += _mistold(history)
    return faults


class _Partition:
    """One input partition, acted again."""

    def __init__(self, number: int, history: History) -> None:
        self._number = number
        self._history = history
        self._faults: list[Fault] = []
        self._waiting: dict[int, int] = {}
        """Due of what waits, by offset."""
        self._gone: dict[int, Outcome | None] = {}
        """What became of the others: CANCELLED, FIRED, None for a dead letter."""
        self._paused: set[str] = set()
        self._fired: dict[int, Delivery] = {}
        """What the transaction at hand delivered and is not accounted for yet."""
        self._now_ms = 0
        self._told: defaultdict[int, list[Told]] = defaultdict(list)
        for told in history.told:
            if told.partition == number:
                self._told[told.offset].append(told)

    def judged(self) -> list[Fault]:
        turns = self._history.turns[self._number]
        delivered = self._by_turn(turns)
        begin = 0
        for at, turn in enumerate(turns):
            self._now_ms, self._fired = turn.at_ms, delivered.get(at, {})
            for offset in range(begin, turn.next_offset):
                item = self._history.items.get((self._number, offset))
                if isinstance(item, Message):
                    self._arrive(offset, item)
                elif item is not None:
                    self._act(offset, item)
            self._come_due()
            begin = turn.next_offset
        self._end(begin)
        return self._faults

    def _by_turn(self, turns: Sequence[Turn]) -> dict[int, dict[int, Delivery]]:
        starts = [turn.at_ms for turn in turns]
        found: dict[int, dict[int, Delivery]] = {}
        for each in self._history.delivered:
            if each.timer.partition == self._number:
                turn = bisect_right(starts, each.stamp_ms) - 1
                found.setdefault(turn, {}).setdefault(each.timer.offset, each)
        if lost := found.pop(-1, None):
            self._fault(Rule.EARLY, f"before any transaction: {list(lost.values())[:3]}")
        return found

    def _fault(self, rule: Rule, text: str) -> None:
        self._faults.append(Fault(rule, f"partition {self._number}, transaction at {self._now_ms}: {text}"))

    # Input

    def _message(self, offset: int) -> Message:
        item = self._history.items[self._number, offset]
        assert isinstance(item, Message)
        return item

    def _arrive(self, offset: int, message: Message) -> None:
        if message.dead:
            self._gone[offset] = None
            return
        for other in self._named(message.retry_id) if message.replaces else ():
            if self._message(other).origin != message.origin:
                continue
            del self._waiting[other]
            self._gone[other] = Outcome.CANCELLED
        self._waiting[offset] = message.due_ms
        if message.due_ms <= self._now_ms and offset in self._fired and message.origin not in self._paused:
            self._deliver(offset)

    def _act(self, offset: int, asked: Asked) -> None:
        targets = self._targets(asked)
        expected, count = self._expected(asked, targets)
        tellings = self._told[offset]
        if len(tellings) != 1:
            self._fault(Rule.UNANSWERED, f"{asked} at {offset} has {len(tellings)} outcomes")
            return
        told = tellings[0].record
        if self._history.origins_fail and asked.kind is ControlKind.FIRE and told.detail.endswith(_UNREACHABLE):
            reached = [offset for offset in self._open(targets) if offset in self._fired]
            expected, count = (Outcome.FIRED if reached else Outcome.ORIGIN_PAUSED), len(reached)
            targets = reached or targets
        if told.outcome is Outcome.NOT_PENDING and targets:
            self._fault(Rule.NOT_PENDING, f"{told} at {offset}, but {self._shown(targets)} wait")
        elif (told.outcome, told.count) != (expected, count):
            self._fault(Rule.UNTRUE, f"{told} at {offset}, not {expected} {count}: {asked}")
        if told.at_ms != self._now_ms:
            self._fault(Rule.TORN, f"{told} at {offset}: another transaction took its control record in")
        if told.outcome is expected:
            self._take_effect(asked, expected, targets)

    def _targets(self, asked: Asked) -> list[int]:
        if asked.kind.is_for_origins or asked.refused:
            return []
        if asked.target.startswith("id:"):
            return self._named(asked.target[3:].encode())
        timer = TimerId.parse(asked.target)
        known = timer is not None and timer.offset in self._waiting and self._shown([timer.offset]) == [asked.target]
        return [timer.offset] if timer is not None and known else []

    def _named(self, retry_id: bytes | None) -> list[int]:
        return [offset for offset in self._waiting if self._message(offset).retry_id == retry_id]

    def _expected(self, asked: Asked, targets: Sequence[int]) -> tuple[Outcome, int]:
        if asked.refused:
            return Outcome.BAD_REQUEST, 0
        if asked.kind.is_for_origins:
            count = sum(self._message(offset).origin == asked.target for offset in self._waiting)
            return _EFFECT[asked.kind], count
        open_ones = self._open(targets) if asked.kind is ControlKind.FIRE else targets
        if open_ones:
            return _EFFECT[asked.kind], len(open_ones)
        return (Outcome.ORIGIN_PAUSED if targets else Outcome.NOT_PENDING), 0

    def _open(self, offsets: Iterable[int]) -> list[int]:
        return [offset for offset in offsets if self._message(offset).origin not in self._paused]

    def _take_effect(self, asked: Asked, outcome: Outcome, targets: Sequence[int]) -> None:
        if outcome is Outcome.PAUSED:
            self._paused.add(asked.target)
        elif outcome is Outcome.RESUMED:
            self._paused.discard(asked.target)
        elif outcome is Outcome.CANCELLED:
            for offset in targets:
                del self._waiting[offset]
                self._gone[offset] = Outcome.CANCELLED
        elif outcome is Outcome.RESCHEDULED:
            self._waiting.update(dict.fromkeys(targets, asked.due_ms))
        at_once = outcome is Outcome.FIRED or (outcome is Outcome.RESCHEDULED and asked.due_ms <= self._now_ms)
        for offset in self._open(targets) if at_once else ():
            if offset in self._fired:
                self._deliver(offset)
            elif not (self._history.origins_fail and outcome is Outcome.RESCHEDULED):
                self._fault(Rule.NOT_FIRED, f"{outcome} by {asked}, and {self._shown([offset])} did not come with it")
                del self._waiting[offset]
                self._gone[offset] = Outcome.FIRED

    # Output

    def _deliver(self, offset: int) -> None:
        delivery, due_ms = self._fired.pop(offset), self._waiting.pop(offset)
        self._gone[offset] = Outcome.FIRED
        if delivery.was_due_ms != due_ms:
            self._fault(Rule.OTHER_DUE, f"{delivery}, but it was due at {due_ms}")

    def _come_due(self) -> None:
        for offset, delivery in self._fired.copy().items():
            if self._gone.get(offset) is Outcome.CANCELLED:
                self._fault(Rule.CANCELLED, f"{delivery}, but it was cancelled")
            elif offset in self._gone:
                self._fault(Rule.TWICE, f"{delivery}, but it was gone")
            elif offset not in self._waiting:
                self._fault(Rule.EARLY, f"{delivery}, but it was not taken in yet")
            else:
                due_ms = self._waiting[offset]
                if delivery.origin in self._paused:
                    self._fault(Rule.PAUSED, f"{delivery}, while its origin is paused")
                elif self._now_ms < due_ms or delivery.stamp_ms < due_ms:
                    self._fault(Rule.EARLY, f"{delivery}, {due_ms - self._now_ms} ms before its due {due_ms}")
                self._deliver(offset)

    def _end(self, next_offset: int) -> None:
        history, number = self._history, self._number
        waits = Counter(timer.offset for timer in history.waiting if timer.partition == number)
        dead = {offset for partition, offset in history.dead if partition == number}
        for offset in self._waiting.keys() - waits.keys():
            self._fault(Rule.LOST, f"{self._shown([offset])} should wait, due at {self._waiting[offset]}")
        for offset in waits.keys() - self._waiting.keys():
            rule = Rule.CANCELLED if self._gone.get(offset) is Outcome.CANCELLED else Rule.TWICE
            self._fault(rule, f"{self._shown([offset])} still waits")
        letters = {offset for offset, became in self._gone.items() if became is None}
        if wrong := letters ^ dead:
            self._fault(Rule.LOST, f"dead letters that should be, or should not: {sorted(wrong)[:5]}")
        unread = [offset for partition, offset in history.items if partition == number and offset >= next_offset]
        if unread:
            self._fault(Rule.LOST, f"from {min(unread)} on nothing was taken in")

    def _shown(self, offsets: Iterable[int]) -> list[str]:
        return [str(TimerId(self._number, offset, self._message(offset).due_ms)) for offset in offsets]


def _twice(history: History) -> list[Fault]:
    places = [(each.timer.partition, each.timer.offset) for each in history.delivered]
    counted = Counter([*places, *history.dead])
    return [Fault(Rule.TWICE, f"{place}: {count} records") for place, count in counted.items() if count > 1]


def _paused_by_time(history: History) -> list[Fault]:
    """Look at clocks alone: from the outcomes of a pause until somebody asks for a resume nothing may come.

    The transaction of an outcome may deliver what stood before the control record: the time begins with the next.
    """
    faults = []
    asked = [item for item in history.items.values() if isinstance(item, Asked) and item.kind.is_for_origins]
    begins_ms: defaultdict[str, list[int]] = defaultdict(list)
    for told in history.told:
        item = history.items[told.partition, told.offset]
        if isinstance(item, Asked):
            later = (turn.at_ms for turn in history.turns[told.partition] if turn.at_ms > told.record.at_ms)
            begins_ms[item.control_id].append(min(later, default=DUE_MS_MAX))
    for control_id, origin in {(each.control_id, each.target) for each in asked if each.kind is ControlKind.PAUSE}:
        first_ms = min(each.stamp_ms for each in asked if each.control_id == control_id)
        resumes = (each for each in asked if each.kind is ControlKind.RESUME and each.target == origin)
        begin_ms = max(begins_ms[control_id], default=DUE_MS_MAX)
        end_ms = min((each.stamp_ms for each in resumes if each.stamp_ms >= first_ms), default=DUE_MS_MAX)
        within = [each for each in history.delivered if each.origin == origin and begin_ms < each.stamp_ms < end_ms]
        if within and len(begins_ms[control_id]) == len(history.turns):
            faults.append(Fault(Rule.PAUSED, f"{len(within)} between {begin_ms} and {end_ms}: {within[:3]}"))
    return faults


def _mistold(history: History) -> list[Fault]:
    committed: defaultdict[str, list[OutcomeRecord]] = defaultdict(list)
    for told in history.told:
        item = history.items[told.partition, told.offset]
        if isinstance(item, Asked):
            committed[item.control_id].append(told.record)
    faults = []
    for answer in history.answers:
        if answer.outcome is None:
            continue
        records = committed[answer.control_id]
        outcomes = {each.outcome for each in records}
        hidden = answer.outcome is Outcome.NOT_PENDING and outcomes != {Outcome.NOT_PENDING}
        if answer.outcome not in outcomes or hidden or answer.count != sum(each.count for each in records):
            faults.append(Fault(Rule.MISTOLD, f"{answer}, but committed is {records}"))
    return faults


# Reading


def read_history(
    stage: Stage,
    origins: Sequence[str],
    waiting: Sequence[TimerId],
    answers: Sequence[Answer],
    deadline_s: float = 60.0,
) -> History:
    """Read all that is committed; call it when no writer is running.

    Args:
        stage: The topics.
        origins: The origin topics, stamped by the broker.
        waiting: What a listing of all messages shows.
        answers: What the clients were told.
        deadline_s: For the reading.
    """
    inner = (stage.input_topic, stage.changelog_topic, stage.status_topic, stage.dlq_topic)
    topics: defaultdict[str, list[Read]] = defaultdict(list)
    for record in read_committed(stage.bootstrap, [*inner, *origins], deadline_s):
        topics[record.topic].append(record)
    checkpoints = (each for each in topics[stage.changelog_topic] if each.key == CHECKPOINT_KEY)
    return History(
        turns=_turns(checkpoints, stage.partitions),
        items={(each.partition, each.offset): _item(each) for each in topics[stage.input_topic]},
        told=[told for each in topics[stage.status_topic] if (told := _told(each)) is not None],
        delivered=[_delivery(each) for name in origins for each in topics[name]],
        dead=[_source(each) for each in topics[stage.dlq_topic]],
        waiting=list(waiting),
        answers=list(answers),
    )


def _turns(checkpoints: Iterable[Read], partitions: int) -> dict[int, list[Turn]]:
    turns: dict[int, list[Turn]] = {number: [] for number in range(partitions)}
    for each in sorted(checkpoints, key=lambda record: (record.partition, record.offset)):
        checkpoint = decode_checkpoint(each.value or b"")
        turns[each.partition].append(Turn(checkpoint.next_input_offset, checkpoint.wall_ms))
    for number, found in turns.items():
        ordered = all(one.next_offset <= two.next_offset and one.at_ms <= two.at_ms for one, two in pairwise(found))
        assert ordered, f"partition {number} went back: {found}"
    return turns


def _item(record: Read) -> Message | Asked:
    headers = dict(record.headers)
    due_ms = int(headers.get("retry-due-ms") or 0)
    if (kind := headers.get("retry-control")) is None:
        origin = (headers.get("retry-origin-topic") or b"").decode()
        replaces = headers.get("retry-replace") == b"true"
        return Message(due_ms, origin, headers.get("retry-id"), headers.get(MARK) == DEAD, replaces)
    control_id, target = _text(headers, "retry-control-id"), _text(headers, "retry-target")
    refused = headers.get(MARK) == REFUSED
    return Asked(control_id, ControlKind(kind.decode()), target, due_ms, record.timestamp_ms, refused)


def _told(record: Read) -> Told | None:
    named = parse_outcome_key(record.key)
    outcome = OutcomeRecord.from_json(record.value or b"")
    if named is None or outcome is None:
        return None
    return Told(record.partition, named[1], outcome)


def _delivery(record: Read) -> Delivery:
    timer = TimerId.parse((record.header("retry-timer-id") or b"").decode())
    assert timer is not None, record
    return Delivery(timer, record.topic, record.timestamp_ms, int(record.header("retry-was-due-ms") or 0))


def _source(record: Read) -> tuple[int, int]:
    headers = dict(record.headers)
    return int(_text(headers, "__connect.errors.partition")), int(_text(headers, "__connect.errors.offset"))


def _text(headers: Mapping[str, bytes | None], name: str) -> str:
    return (headers[name] or b"").decode()
