"""The disposition of each message: the rule of the audit, and what it reads from single records."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.contract import dead_letter
from sidecar.contract.control import ControlKind, ControlRequest, signature_problem
from sidecar.contract.dialects import native
from sidecar.contract.dialects.dialect import Dialect
from sidecar.contract.dialects.registry import parse
from sidecar.contract.filter import MessageFilter
from sidecar.contract.status import OutcomeRecord, parse_outcome_key
from sidecar.model import Drop, Record, Rejection, TimerId
from sidecar.policy import Policy


class RecordKind(StrEnum):
    """The kind of a record of the input, by its headers and the settings."""

    MESSAGE = "message"
    DROPPED = "dropped"
    REJECTED = "rejected"
    CANCEL = "cancel"
    CONTROL = "control"


class Disposition(StrEnum):
    """The disposition of a message: what became of it."""

    WAITING = "waiting"
    """The message is not ingested yet."""
    PENDING = "pending"
    FIRED = "fired"
    DROPPED = "dropped"
    DEAD = "dead-lettered"
    CANCELLED = "cancelled"
    LOST = "lost"
    TWICE = "twice"
    EARLY = "early"


OFFENCES: Final = (Disposition.LOST, Disposition.TWICE, Disposition.EARLY)


class Sent(NamedTuple):
    """A record of the input."""

    kind: RecordKind
    origin: str | None
    retry_id: bytes | None
    ends: int | None
    """The offset of the timer that a cancel names."""
    ends_id: bytes | None
    """The retry id whose timers before it a cancel or a replacing message ends."""
    ends_origin: str | None = None
    """The origin of these timers; None: any. A group that narrows them further is not looked at."""
    trusted: bool = True
    """False for a cancel that is not signed with the token."""
    ends_all: bool = False
    """Whether a cancel has a filter. It ends timers before it, of all ids; what it names besides the origin is not
    looked at."""


class Fired(NamedTuple):
    """A record on an origin that the sidecar sent."""

    partition: int
    offset: int
    early_ms: int
    """The time by which it was early; 0 when it was not."""


def sent_of(
    record: Record, policy: Policy, dialects: list[Dialect], *, input_topic: str = "", token: str | None = None
) -> Sent:
    """Return what a record of the input asks for. Never raises.

    Args:
        record: The record; key and value may be left out.
        policy: Decides on messages.
        dialects: The dialects in the order of preference.
        input_topic: The topic for which control records are signed.
        token: The token that signs control records; None: they need no signature.
    """
    request = parse(record, dialects)
    if isinstance(request, Rejection):
        return Sent(RecordKind.REJECTED, None, None, None, None)
    if isinstance(request, ControlRequest):
        if request.kind is not ControlKind.CANCEL or request.problem:
            return Sent(RecordKind.CONTROL, None, None, None, None)
        headers, target = dict(record.headers or ()), request.target
        trusted = not signature_problem(headers, token, input_topic, record.partition, record.timestamp_ms)
        ends = target.offset if isinstance(target, TimerId) else None
        ends_id = target if isinstance(target, bytes) else None
        origin = request.scope.origin or (target.origin if isinstance(target, MessageFilter) else None)
        by_filter = isinstance(target, MessageFilter)
        return Sent(RecordKind.CANCEL, None, None, ends, ends_id, origin or None, trusted, by_filter)
    verdict = policy.decide(request, record.timestamp_ms, record.timestamp_ms, record.partition, record.offset)
    if isinstance(verdict, Drop | Rejection):
        kind = RecordKind.DROPPED if isinstance(verdict, Drop) else RecordKind.REJECTED
        return Sent(kind, request.origin, request.retry_id, None, None)
    ends_id = request.retry_id if request.replace else None
    return Sent(RecordKind.MESSAGE, request.origin, request.retry_id, None, ends_id, request.origin)


def outcome_of(record: Record) -> tuple[int, int, bool] | None:
    """Return partition and offset of a control record and whether it had an effect, from its outcome.

    None for all other records of the status topic.
    """
    key = parse_outcome_key(record.key)
    outcome = None if key is None or record.value is None else OutcomeRecord.from_json(record.value)
    return None if key is None or outcome is None else (outcome.partition, key[1], outcome.count > 0)


def fired_of(record: Record) -> Fired | None:
    """Return the message that a record on an origin is; None for one that the sidecar did not send."""
    headers = dict(record.headers or ())
    timer_id = TimerId.parse((headers.get(native.TIMER_ID) or b"").decode("ascii", "replace"))
    due = headers.get(native.WAS_DUE_MS) or b""
    if timer_id is None or not due.isdigit():
        return None
    return Fired(timer_id.partition, timer_id.offset, max(0, int(due) - record.timestamp_ms))


def dead_of(record: Record, input_topic: str) -> tuple[int, int, int | None] | None:
    """Return partition, offset and timestamp of the message that a dead letter was; None for another topic's.

    The timestamp is None when the dead letter does not have it.
    """
    headers: Mapping[str, bytes | None] = dict(record.headers or ())
    partition, offset = (
        headers.get(dead_letter.CONNECT_PARTITION) or b"",
        headers.get(dead_letter.CONNECT_OFFSET) or b"",
    )
    if headers.get(dead_letter.CONNECT_TOPIC) != input_topic.encode() or not (partition.isdigit() and offset.isdigit()):
        return None
    stamp = headers.get(dead_letter.TIMESTAMP_MS) or b""
    return int(partition), int(offset), int(stamp) if stamp.isdigit() else None


def disposition_of(
    kind: str, *, ingested: bool, fired: int, early_ms: int, dead: int, pending: int, cancelled: bool
) -> Disposition:
    """Return what became of a message.

    Args:
        kind: The kind of the record, not a control record.
        ingested: Whether it lies before the committed offset.
        fired: The number of its records on origins.
        early_ms: The greatest time by which one of these was early.
        dead: The number of its records on the DLQ.
        pending: The number of its timers in the state.
        cancelled: Whether a later cancel or replacing message names it.
    """
    found = fired + dead + pending
    if found > 1:
        return Disposition.TWICE
    if early_ms > 0:
        return Disposition.EARLY
    if fired:
        return Disposition.FIRED
    if dead:
        return Disposition.DEAD
    if pending:
        return Disposition.PENDING
    if not ingested:
        return Disposition.WAITING
    if kind == RecordKind.DROPPED:
        return Disposition.DROPPED
    return Disposition.CANCELLED if cancelled else Disposition.LOST
