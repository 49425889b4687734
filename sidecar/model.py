"""The values that all modules share. Times are epoch milliseconds UTC."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, NewType

Headers = list[tuple[str, bytes | None]]

StoredOffset = NewType("StoredOffset", int)
"""The offset that entries, rows, changelog keys and timer ids have: an input offset plus the partition's offset base.

Neither an input offset nor a due time can take its place by mistake. The type costs nothing: it is only made where a
value is made of an input offset or of bytes, never for each message."""

NO_TIMESTAMP = -1
ANY_PARTITION = -1
OFFSET_MAX = 2**64 - 1
DUE_MS_MAX = 2**63 - 1
ATTEMPTS_MAX = 1000
RETRY_ID_BYTES_MAX = 256


class Record(NamedTuple):
    """One record of the input topic, as consumed."""

    partition: int
    offset: int
    timestamp_ms: int
    """The record's timestamp; NO_TIMESTAMP when it has none."""
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    """None when the client library cannot read them (a header key that is not UTF-8)."""


class Reason(StrEnum):
    """The reason why a record goes to the DLQ: the values of the header `retry-dlq-reason`."""

    MISSING_HEADER = "missing-header"
    BAD_HEADER = "bad-header"
    ORIGIN_NOT_ALLOWED = "origin-not-allowed"
    ORIGIN_UNKNOWN = "origin-unknown"
    TOO_LARGE = "too-large"
    DELAY_OUT_OF_RANGE = "delay-out-of-range"
    FATAL = "fatal"
    ATTEMPTS_EXHAUSTED = "attempts-exhausted"
    TOO_OLD = "too-old"
    UNKNOWN_EXCEPTION = "unknown-exception"
    UNFIREABLE = "unfireable"


class Request(NamedTuple):
    """The request in the headers of one record, in any dialect, checked for form only."""

    dialect: int
    """The `code` of the dialect: it is kept with the timer, so that it leaves in the words it came in."""
    origin: str
    due_ms: int | None = None
    delay_ms: int | None = None
    """Relative to `base_ms`, or else to the record's timestamp. Never set together with due_ms."""
    base_ms: int | None = None
    """The instant that delays count from, where the dialect names one itself."""
    attempt: int = 0
    """Retries already made."""
    max_attempts: int | None = None
    """The sender's own limit: the least of those that its headers name."""
    exception: str | None = None
    origin_partition: int = ANY_PARTITION
    retry_id: bytes | None = None
    replace: bool = False
    policy: str | None = None
    """Name of the policy that the sender chose."""
    first_ms: int | None = None
    """When the message failed for the first time."""
    noted: tuple[tuple[str, bytes], ...] = ()
    """Headers that are stored behind the message's own: what its dialect must know when it fires."""


class Rejection(NamedTuple):
    """The record goes to the DLQ."""

    reason: Reason
    detail: str
    """For a person: names the header or setting, the value, and what is allowed."""


class Schedule(NamedTuple):
    """The record becomes a timer."""

    due_ms: int
    limit: int
    """Attempts allowed in all; what remains after this one is `limit - attempt - 1`."""
    since_ms: int | None = None
    """The first failure, to be noted in the message's headers; None when it is there, or no age limit needs it."""


class Drop(NamedTuple):
    """The record is droppable: counted and logged, and goes nowhere."""

    detail: str


class TimerId(NamedTuple):
    """`<input partition>-<offset>-<first due ms>`; the same for the life of a timer."""

    partition: int
    offset: int
    first_ms: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}-{self.first_ms}"

    @classmethod
    def parse(cls, text: str) -> TimerId | None:
        """Return the id, or None when the text has another form."""
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            return None
        return cls(*(int(part) for part in parts))


class Scope(NamedTuple):
    """What a timer must have in common with a request to be its target. Empty and None: anything."""

    origin: str = ""
    group: str | None = None
    dialects: tuple[int, ...] = ()
    """The codes of the dialects that the timer may have come in."""


ANY_SCOPE: Final = Scope()
