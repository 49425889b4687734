"""The history of control records and of what they act on, as the topics have it once all is at rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from sidecar.changelog.codec import CHECKPOINT_KEY, decode_checkpoint
from sidecar.contract.control import ControlKind, Outcome
from sidecar.contract.status import OutcomeRecord, parse_outcome_key
from sidecar.model import TimerId
from tests.broker import Read, read_committed
from tests.integration.sidecars import Stage

MARK: Final = "test"
"""Header by which a message or control record says that it is wrong on purpose."""
DEAD: Final = b"dead"
REFUSED: Final = b"refused"


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
    rolled_back: Mapping[int, Sequence[Turn]] = field(default_factory=dict)
    """Of each input partition the transactions that are committed but for their part in the changelog."""


def read_history(
    stage: Stage,
    origins: Sequence[str],
    waiting: Sequence[TimerId],
    answers: Sequence[Answer],
    deadline_s: float = 60.0,
    earlier: Mapping[int, Sequence[Turn]] = {},
) -> History:
    """Read all that is committed; call it when no writer is running.

    Args:
        stage: The topics.
        origins: The origin topics, stamped by the broker.
        waiting: What a listing of all messages shows.
        answers: What the clients were told.
        deadline_s: For the reading.
        earlier: The transactions that stood in changelogs which were deleted.
    """
    inner = (stage.input_topic, stage.changelog_topic, stage.status_topic, stage.dlq_topic)
    topics: defaultdict[str, list[Read]] = defaultdict(list)
    for record in read_committed(stage.bootstrap, [*inner, *origins], deadline_s):
        topics[record.topic].append(record)
    checkpoints = (each for each in topics[stage.changelog_topic] if each.key == CHECKPOINT_KEY)
    return History(
        turns=_turns(checkpoints, stage.partitions, earlier),
        items={(each.partition, each.offset): _item(each) for each in topics[stage.input_topic]},
        told=[told for each in topics[stage.status_topic] if (told := _told(each)) is not None],
        delivered=[_delivery(each) for name in origins for each in topics[name]],
        dead=[_source(each) for each in topics[stage.dlq_topic]],
        waiting=list(waiting),
        answers=list(answers),
    )


def _turns(
    checkpoints: Iterable[Read], partitions: int, earlier: Mapping[int, Sequence[Turn]]
) -> dict[int, list[Turn]]:
    turns = {number: list(earlier.get(number, ())) for number in range(partitions)}
    for each in sorted(checkpoints, key=lambda record: (record.partition, record.offset)):
        turn = turn_of(each)
        # The checkpoint that ends the rebuild of a changelog is the one before it once more.
        if turn not in turns[each.partition][-1:]:
            turns[each.partition].append(turn)
    for number, found in turns.items():
        ordered = all(one.next_offset <= two.next_offset and one.at_ms <= two.at_ms for one, two in pairwise(found))
        assert ordered, f"partition {number} went back: {found}"
    return turns


def turn_of(checkpoint: Read) -> Turn:
    """Return the transaction that a checkpoint ends."""
    found = decode_checkpoint(checkpoint.value or b"")
    return Turn(found.next_input_offset, found.wall_ms)


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
