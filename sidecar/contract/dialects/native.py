"""Profile `native`: the headers `retry-*` of this project."""

from __future__ import annotations

from typing import Final

from sidecar.contract.dialects.dialect import Check, Delays, HeaderValues, Message
from sidecar.contract.values import (
    INT32_MAX,
    HeaderError,
    read_number,
    read_text,
    read_topic,
    refuse_repeats,
    shown,
)
from sidecar.model import (
    ANY_PARTITION,
    ATTEMPTS_MAX,
    DUE_MS_MAX,
    RETRY_ID_BYTES_MAX,
    Headers,
    Reason,
    Record,
    Rejection,
    Request,
)

ORIGIN_TOPIC: Final = "retry-origin-topic"
DUE_MS: Final = "retry-due-ms"
DELAY_MS: Final = "retry-delay-ms"
ATTEMPT: Final = "retry-attempt"
MAX_ATTEMPTS: Final = "retry-max-attempts"
REMAINING: Final = "retry-remaining"
EXCEPTION: Final = "retry-exception"
GROUP: Final = "retry-group"
ORIGIN_PARTITION: Final = "retry-origin-partition"
RETRY_ID: Final = "retry-id"
REPLACE: Final = "retry-replace"
POLICY: Final = "retry-policy"
FIRST_MS: Final = "retry-first-ms"
"""When the message failed for the first time; it travels with the message, like POLICY."""
TIMER_ID: Final = "retry-timer-id"
WAS_DUE_MS: Final = "retry-was-due-ms"
TARGET: Final = "retry-target"
CONTROL: Final = "retry-control"
"""A control record has this header; every name that begins with it belongs to control records."""

NAMES: Final = frozenset(
    {
        ORIGIN_TOPIC,
        DUE_MS,
        DELAY_MS,
        ATTEMPT,
        MAX_ATTEMPTS,
        REMAINING,
        EXCEPTION,
        GROUP,
        ORIGIN_PARTITION,
        RETRY_ID,
        REPLACE,
        POLICY,
        FIRST_MS,
        TIMER_ID,
        WAS_DUE_MS,
    }
)
"""Every header that a message may have once."""
# The fired record carries these behind all others, if they came, between what remains and the timer id.
CARRIED: Final = (ORIGIN_TOPIC, GROUP, RETRY_ID, EXCEPTION)
TAKEN_OUT: Final = frozenset(
    {*CARRIED, ATTEMPT, REMAINING, TIMER_ID, WAS_DUE_MS, DUE_MS, DELAY_MS, REPLACE, TARGET, CONTROL}
)
# A redriven record never takes the place of what waits under its id by now: that is newer.
_NOT_REDRIVEN: Final = frozenset({DUE_MS, DELAY_MS, TIMER_ID, WAS_DUE_MS, REPLACE, TARGET})
_NOT_REDRIVEN_AT_FIRST: Final = _NOT_REDRIVEN | {ATTEMPT, REMAINING, FIRST_MS}

ATTEMPTS: Final = tuple((ATTEMPT, b"%d" % (attempt + 1)) for attempt in range(ATTEMPTS_MAX))
REMAININGS: Final = tuple((REMAINING, b"%d" % left) for left in range(ATTEMPTS_MAX))


class Native:
    """The dialect of the headers `retry-*`."""

    name: Final = "native"
    code: Final = 1
    names: Final = NAMES
    origin_header: Final = ORIGIN_TOPIC
    exception_headers: Final = (EXCEPTION,)
    attempt_header: Final = ATTEMPT
    delays: Final = Delays.LIST
    checks: Final = (
        Check.ORIGIN,
        Check.DELAY,
        Check.DROPPABLE,
        Check.AGE,
        Check.EXHAUSTED,
        Check.FATAL,
        Check.UNKNOWN,
    )

    reads_payload: Final = False

    def claims(self, values: HeaderValues) -> bool:
        """Return whether the headers name an origin topic."""
        return ORIGIN_TOPIC in values

    def takes(self, record: Record, values: HeaderValues) -> bool:  # noqa: ARG002
        """Return False: a record without its headers is none of this dialect."""
        return False

    def origin_of(self, values: HeaderValues) -> bytes | None:
        """Return the origin topic that the headers name."""
        return self.bare(values.get(ORIGIN_TOPIC))

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection:
        """Read the headers; any bytes give a request or a rejection."""
        try:
            if record.headers is not None and len(values) != len(record.headers):
                refuse_repeats(record.headers, NAMES)
            return _request(values)
        except HeaderError as error:
            return Rejection(error.reason, error.detail)

    def render(
        self, headers: Headers, attempt: int, limit: int, timer_id: tuple[int, int, int], due_ms: int
    ) -> Headers:
        """Return all other headers as they came, then ours, each once."""
        fired: Headers = []
        ours = {}
        for header in headers:
            name = header[0]
            if name in TAKEN_OUT:
                ours[name] = header
            elif not name.startswith(CONTROL):
                fired.append(header)
        fired.append(ATTEMPTS[attempt] if attempt < ATTEMPTS_MAX else (ATTEMPT, b"%d" % (attempt + 1)))
        left = limit - attempt - 1
        fired.append(REMAININGS[left] if 0 <= left < ATTEMPTS_MAX else (REMAINING, b"%d" % max(0, left)))
        for name in CARRIED:
            if name in ours:
                fired.append(ours[name])
        fired.append((TIMER_ID, b"%d-%d-%d" % timer_id))
        fired.append((WAS_DUE_MS, b"%d" % due_ms))
        return fired

    def delivered(self, message: Message, timestamp_ms: int) -> Message:  # noqa: ARG002
        """Return the message as it is."""
        return message

    def bare(self, value: bytes | None) -> bytes | None:
        """Return the value as it is."""
        return value

    def attempt_of(self, values: HeaderValues) -> int:
        """Return the retries already made. Raises HeaderError."""
        return read_number(ATTEMPT, values[ATTEMPT]) if ATTEMPT in values else 0

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:
        """Return the headers with a new due time behind all others."""
        gone = _NOT_REDRIVEN if keep_attempts else _NOT_REDRIVEN_AT_FIRST
        if to_origin:
            # The partition is one of the topic that it would have gone to.
            gone |= {ORIGIN_TOPIC, ORIGIN_PARTITION}
        again = [header for header in headers if header[0] not in gone]
        if to_origin:
            again.append((ORIGIN_TOPIC, to_origin.encode()))
        again.append((DUE_MS, b"%d" % due_ms))
        return again


def _request(values: HeaderValues) -> Request:
    """Check first whether a name is there: a null value is a mistake, an absent header is not."""
    if ORIGIN_TOPIC not in values:
        raise HeaderError(f"{ORIGIN_TOPIC} is missing: name the topic to send to when due", Reason.MISSING_HEADER)
    if DUE_MS in values and DELAY_MS in values:
        raise HeaderError(f"{DUE_MS} and {DELAY_MS} contradict each other: allowed is one of them, or none")
    if GROUP in values:
        read_text(GROUP, values[GROUP])
    attempt = read_number(ATTEMPT, values[ATTEMPT]) if ATTEMPT in values else 0
    retry_id = _retry_id(values[RETRY_ID]) if RETRY_ID in values else None
    fields = (
        Native.code,
        read_topic(ORIGIN_TOPIC, values[ORIGIN_TOPIC]),
        read_number(DUE_MS, values[DUE_MS], DUE_MS_MAX) if DUE_MS in values else None,
        read_number(DELAY_MS, values[DELAY_MS]) if DELAY_MS in values else None,
        None,
        attempt,
        _own_limit(values, attempt) if MAX_ATTEMPTS in values or REMAINING in values else None,
        read_text(EXCEPTION, values[EXCEPTION]) if EXCEPTION in values else None,
        read_number(ORIGIN_PARTITION, values[ORIGIN_PARTITION], INT32_MAX)
        if ORIGIN_PARTITION in values
        else ANY_PARTITION,
        retry_id,
        _replace(values[REPLACE], retry_id) if REPLACE in values else False,
        *policy_headers(values),
        (),
    )
    return tuple.__new__(Request, fields)  # a named tuple's own constructor takes twice as long


def policy_headers(values: HeaderValues) -> tuple[str | None, int | None]:
    """Return the policy that the sender chose and when the message failed first, in any dialect. Raises HeaderError."""
    return (
        read_text(POLICY, values[POLICY]) if POLICY in values else None,
        read_number(FIRST_MS, values[FIRST_MS], DUE_MS_MAX) if FIRST_MS in values else None,
    )


def _own_limit(values: HeaderValues, attempt: int) -> int:
    limits = []
    if MAX_ATTEMPTS in values:
        limits.append(read_number(MAX_ATTEMPTS, values[MAX_ATTEMPTS]))
    if REMAINING in values:
        limits.append(attempt + read_number(REMAINING, values[REMAINING]))
    return min(limits)


def _retry_id(value: bytes | None) -> bytes:
    read_text(RETRY_ID, value)
    if not value or len(value) > RETRY_ID_BYTES_MAX:
        raise HeaderError(f"{RETRY_ID}={shown(value)}: allowed are 1 to {RETRY_ID_BYTES_MAX} bytes")
    return value


def _replace(value: bytes | None, retry_id: bytes | None) -> bool:
    if value not in {b"true", b"false"}:
        raise HeaderError(f"{REPLACE}={shown(value)}: allowed are true and false")
    if value == b"true" and retry_id is None:
        raise HeaderError(f"{REPLACE}=true needs {RETRY_ID}, which says what to replace")
    return value == b"true"
