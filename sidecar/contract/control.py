"""Control records: their headers and their signature.

A control record is signed as signature.py describes; the parts are "control", the input topic, the partition in decimal
digits, and then name and value of each header of SIGNED that the record has, in the order of SIGNED.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.contract.dialects import native
from sidecar.contract.dialects.dialect import HeaderValues
from sidecar.contract.filter import FILTER_BYTES_MAX, FILTER_PREFIX, MessageFilter, read_filter
from sidecar.contract.signature import AGE_MAX_MS, sign, signed_at_ms
from sidecar.contract.values import (
    INT32_MAX,
    INT64_MAX,
    HeaderError,
    read_number,
    read_text,
    read_topic,
    refuse_repeats,
    shown,
)
from sidecar.model import (
    ANY_SCOPE,
    DUE_MS_MAX,
    RETRY_ID_BYTES_MAX,
    Headers,
    Reason,
    Record,
    Rejection,
    Scope,
    TimerId,
)

CONTROL: Final = native.CONTROL
TARGET: Final = native.TARGET
DUE_MS: Final = native.DUE_MS
CONTROL_ID: Final = "retry-control-id"
SIGNATURE: Final = "retry-control-signature"
ORIGIN: Final = native.ORIGIN_TOPIC
GROUP: Final = native.GROUP
SIGNED: Final = (CONTROL, TARGET, ORIGIN, GROUP, DUE_MS, CONTROL_ID)
"""The headers that a signature covers, in this order."""

ID_PREFIX: Final = "id:"
EVERY_ORIGIN: Final = "*"
"""Target of pause, resume and stop: the whole group, each origin of today and of tomorrow."""
CONTROL_ID_BYTES_MAX: Final = 256

_OURS: Final = frozenset({*SIGNED, SIGNATURE})
_TIMER_ID_BYTES_MAX: Final = 50
_TARGET_CHARS_SHOWN: Final = 300


class ControlKind(StrEnum):
    """The action of a control record."""

    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    FIRE = "fire"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    """A pause of EVERY_ORIGIN that Kafka Connect's tools show as STOPPED."""

    @property
    def is_for_origins(self) -> bool:
        """Whether its target is an origin topic, not timers."""
        return self in {ControlKind.PAUSE, ControlKind.RESUME, ControlKind.STOP}

    @property
    def done(self) -> Outcome:
        """The outcome when it has acted."""
        return _DONE[self]


class Outcome(StrEnum):
    """The answer to a control record."""

    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    FIRED = "fired"
    PAUSED = "paused"
    RESUMED = "resumed"
    STOPPED = "stopped"
    NOT_PENDING = "not-pending"
    ORIGIN_PAUSED = "origin-paused"
    BAD_REQUEST = "bad-request"


_DONE: Final = {
    ControlKind.CANCEL: Outcome.CANCELLED,
    ControlKind.RESCHEDULE: Outcome.RESCHEDULED,
    ControlKind.FIRE: Outcome.FIRED,
    ControlKind.PAUSE: Outcome.PAUSED,
    ControlKind.RESUME: Outcome.RESUMED,
    ControlKind.STOP: Outcome.STOPPED,
}

Target = TimerId | bytes | MessageFilter | str
"""A timer id, a retry id (bytes), a filter, or an origin topic (EVERY_ORIGIN: all of them)."""


class ControlRequest(NamedTuple):
    """The request of a control record, checked for form only."""

    control_id: str
    target_text: str
    """The target as it came, cut to a length that can be shown."""
    kind: ControlKind = ControlKind.CANCEL
    target: Target = ""
    due_ms: int = 0
    """For a reschedule."""
    problem: str = ""
    """Why it cannot be done, for a person; the rest says nothing then."""
    needs_signature: bool = True
    scope: Scope = ANY_SCOPE


def parse_control(record: Record, values: HeaderValues) -> ControlRequest | Rejection:
    """Read a record that has the header `retry-control`; never raises, whatever the bytes are.

    Args:
        record: Its headers are readable, that is, not None.
        values: `dict(record.headers)`.

    Returns:
        A rejection only when there is no control id under which an outcome could be found.
    """
    try:
        if len(values) != len(record.headers or ()):
            refuse_repeats(record.headers or [], frozenset({CONTROL_ID}))
        control_id = _control_id(values)
    except HeaderError as error:
        return Rejection(Reason.BAD_HEADER, error.detail)
    target_text = _shown_target(values.get(TARGET))
    try:
        if len(values) != len(record.headers or ()):
            refuse_repeats(record.headers or [], _OURS)
        kind = _kind(values[CONTROL])
        target = _target(kind, values, record.partition)
        scope = _scope(kind, values)
        return ControlRequest(control_id, target_text, kind, target, _due_ms(kind, values), scope=scope)
    except HeaderError as error:
        return ControlRequest(control_id, target_text, problem=error.detail)


def render_control(
    kind: ControlKind, target: Target, control_id: str, due_ms: int | None = None, scope: Scope = ANY_SCOPE
) -> Headers:
    """Return the headers of a control record; a reschedule requires `due_ms`, no other kind takes it.

    Raises:
        ValueError: They would be refused; the text says why.
    """
    text = ID_PREFIX.encode() + target if isinstance(target, bytes) else str(target).encode()
    headers: Headers = [(CONTROL, kind.encode()), (TARGET, text)]
    if scope.origin:
        headers.append((ORIGIN, scope.origin.encode()))
    if scope.group is not None:
        headers.append((GROUP, scope.group.encode()))
    if due_ms is not None:
        headers.append((DUE_MS, b"%d" % due_ms))
    headers.append((CONTROL_ID, control_id.encode()))
    parsed = parse_control(Record(partition_of(target) or 0, 0, 0, None, None, headers), dict(headers))
    problem = parsed.detail if isinstance(parsed, Rejection) else parsed.problem
    if problem:
        raise ValueError(problem)
    return headers


def parse_target(text: str) -> TimerId | bytes:
    """Return the timer id or retry id that a target names.

    Raises:
        ValueError: It names neither; the text says what is allowed.
    """
    try:
        return _timer_target(text.encode())
    except HeaderError as error:
        raise ValueError(error.detail) from None


def partition_of(target: Target) -> int | None:
    """Return the only partition that gets a record with this target, None when all of them do."""
    return target.partition if isinstance(target, TimerId | MessageFilter) else None


def sent_to(text: str) -> int | None:
    """Return the same of a target as an outcome names it; whatever the text is."""
    try:
        if text.startswith(FILTER_PREFIX):
            return read_filter(TARGET, text.encode(errors="replace")).partition
        return partition_of(_timer_target(text.encode(errors="replace")))
    except HeaderError:
        return None  # an origin, or a target that was refused


def sign_control(headers: Headers, token: str, topic: str, partition: int, at_ms: int) -> tuple[str, bytes]:
    """Return the header that signs a control record for one partition.

    Args:
        headers: All others of the record; those not in SIGNED do not matter.
        token: API_TOKEN.
        topic: The input topic.
        partition: The partition that the record is sent to.
        at_ms: Wall time now.
    """
    return SIGNATURE, sign(token, _parts(dict(headers), topic, partition), at_ms)


def signature_problem(values: HeaderValues, token: str | None, topic: str, partition: int, now_ms: int) -> str:
    """Return why a control record cannot be trusted, for a person; empty when it can be, or when no token is set."""
    if token is None:
        return ""
    if SIGNATURE not in values:
        return f"signature: {SIGNATURE} is missing: API_TOKEN is set, so control records must be signed with it"
    at_ms = signed_at_ms(token, _parts(values, topic, partition), values.get(SIGNATURE))
    if at_ms is None:
        return f"signature: {SIGNATURE} is not one that API_TOKEN makes of this record for this topic and partition"
    age_ms = now_ms - at_ms
    if abs(age_ms) > AGE_MAX_MS:
        return (
            f"signature: {SIGNATURE} was made {abs(age_ms) // 1_000} s {'before' if age_ms > 0 else 'after'} an owner "
            f"read it by its clock, and counts for {AGE_MAX_MS // 60_000} minutes: nothing was done, send it again"
        )
    return ""


def _parts(values: HeaderValues, topic: str, partition: int) -> Iterator[bytes]:
    yield from (b"control", topic.encode(), b"%d" % partition)
    for name in SIGNED:
        if name in values:
            # A null is taken for an empty value: a record with either is refused.
            yield from (name.encode(), values[name] or b"")


def _control_id(values: HeaderValues) -> str:
    if CONTROL_ID not in values:
        raise HeaderError(
            f"{CONTROL_ID} is missing: a control record ({CONTROL}) needs one, under which its outcome is"
        )
    value = values[CONTROL_ID]
    if value is not None and len(value) > CONTROL_ID_BYTES_MAX:
        raise HeaderError(f"{CONTROL_ID}={shown(value)}: allowed are 1 to {CONTROL_ID_BYTES_MAX} bytes")
    return read_text(CONTROL_ID, value)


def _kind(value: bytes | None) -> ControlKind:
    for kind in ControlKind:
        if value == kind.encode():
            return kind
    raise HeaderError(f"{CONTROL}={shown(value)}: allowed are {', '.join(ControlKind)}")


def _target(kind: ControlKind, values: HeaderValues, partition: int) -> Target:
    if TARGET not in values:
        raise HeaderError(f"{TARGET} is missing: it says what to {kind}")
    if kind.is_for_origins:
        if values[TARGET] == EVERY_ORIGIN.encode():
            return EVERY_ORIGIN
        if kind is ControlKind.STOP:
            raise HeaderError(
                f"{TARGET}={shown(values[TARGET])}: allowed is {EVERY_ORIGIN}: a stop is of the whole group"
            )
        return read_topic(TARGET, values[TARGET])
    if (values[TARGET] or b"").startswith(FILTER_PREFIX.encode()):
        wanted = read_filter(TARGET, values[TARGET] or b"")
        if wanted.partition not in {None, partition}:
            raise HeaderError(
                f"{TARGET}={wanted}: this filter is for partition {wanted.partition} and the record was sent to "
                f"{partition}: send it there"
            )
        return wanted
    target = _timer_target(values[TARGET])
    if isinstance(target, TimerId) and target.partition != partition:
        raise HeaderError(
            f"{TARGET}={target}: this timer is of partition {target.partition} and the record was sent to {partition}:"
            " send it to the partition of the timer"
        )
    return target


def _timer_target(value: bytes | None) -> TimerId | bytes:
    text = read_text(TARGET, value)
    if text.startswith(ID_PREFIX):
        retry_id = text[len(ID_PREFIX) :].encode()
        if not 0 < len(retry_id) <= RETRY_ID_BYTES_MAX:
            raise HeaderError(
                f"{TARGET}={shown(value)}: allowed are 1 to {RETRY_ID_BYTES_MAX} bytes behind {ID_PREFIX}"
            )
        return retry_id
    # The length is checked first: int() takes time quadratic in it.
    timer_id = TimerId.parse(text) if len(text) <= _TIMER_ID_BYTES_MAX else None
    fits = timer_id is not None and (
        timer_id.partition <= INT32_MAX and timer_id.offset <= INT64_MAX and timer_id.first_ms <= DUE_MS_MAX
    )
    if timer_id is None or not fits or str(timer_id) != text:
        raise HeaderError(
            f"{TARGET}={shown(value)}: allowed are a timer id (<partition>-<offset>-<due ms>) and id:<retry-id>"
        )
    return timer_id


def _scope(kind: ControlKind, values: HeaderValues) -> Scope:
    if kind.is_for_origins:
        for name in (ORIGIN, GROUP):
            if name in values:
                raise HeaderError(f"{name} is for the targets of cancel, reschedule and fire, not for {kind}")
        return ANY_SCOPE
    origin = read_topic(ORIGIN, values[ORIGIN]) if ORIGIN in values else ""
    return Scope(origin, read_text(GROUP, values[GROUP]) if GROUP in values else None)


def _due_ms(kind: ControlKind, values: HeaderValues) -> int:
    if kind is ControlKind.RESCHEDULE:
        if DUE_MS not in values:
            raise HeaderError(f"{DUE_MS} is missing: it says when, in epoch milliseconds")
        return read_number(DUE_MS, values[DUE_MS], DUE_MS_MAX)
    if DUE_MS in values:
        raise HeaderError(f"{DUE_MS} is for reschedule, not for {kind}")
    return 0


def _shown_target(value: bytes | None) -> str:
    text = "" if value is None else value[:FILTER_BYTES_MAX].decode(errors="replace")
    return text if text.startswith(FILTER_PREFIX) else text[:_TARGET_CHARS_SHOWN]
