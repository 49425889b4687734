"""The protocol of header dialects: the names and words in which a sender says what it wants."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import NamedTuple, Protocol

from sidecar.model import Headers, Record, Rejection, Request, Scope

HeaderValues = Mapping[str, bytes | None]
"""`dict(headers)`: the last value of each name. It is shorter than the headers when a name repeats."""


class Delays(Enum):
    """The setting that has the delays of a dialect. The value is its name in messages to people."""

    LIST = "DELAYS"
    """A list of any length; MAX_ATTEMPTS can allow more or fewer retries."""
    THREE = "FIRST/SECOND/THIRD_DELAY_MS"
    """One retry for each."""


class Check(Enum):
    """A question that the policy asks of a request. Its value says what happens when the answer is yes."""

    DROPPABLE = "its exception is on DROPPABLE_EXCEPTION: dropped"
    DLQ_AS_ORIGIN = "its origin is the DLQ: dropped"
    ORIGIN = "its origin is not allowed: DLQ `origin-not-allowed`"
    DELAY = "it is due too far ahead: DLQ `delay-out-of-range`"
    RETRIABLE = "its exception is on RETRIABLE_EXCEPTION and attempts are left: retried"
    AGE = "it would be retried later than MAX_AGE after its first failure: DLQ `too-old`"
    EXHAUSTED = "no attempts are left: DLQ `attempts-exhausted`"
    FATAL = "its exception is on FATAL_EXCEPTION: DLQ `fatal`"
    UNKNOWN = "its exception is on no list, and RETRIABLE_EXCEPTION is not empty: DLQ `unknown-exception`"


class Cancel(NamedTuple):
    """The request to take away what this dialect's senders have pending under an id: a tombstone."""

    retry_id: bytes
    scope: Scope


Message = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers."""


class Dialect(Protocol):
    """Reads requests in one set of header names and writes fired records in the same.

    Attributes are data, the same for every record; methods are pure.
    """

    @property
    def name(self) -> str:
        """Return the name of the dialect in the setting PROFILES."""
        ...

    @property
    def code(self) -> int:
        """Return the number, 1 to 255, that is stored with each timer. Never reused for another dialect."""
        ...

    @property
    def names(self) -> AbstractSet[str]:
        """Return every header that a message may have once."""
        ...

    @property
    def origin_header(self) -> str:
        """Return the header that names the origin topic; empty when none does."""
        ...

    @property
    def exception_headers(self) -> tuple[str, ...]:
        """Return the headers that name the exception class, the most precise one first."""
        ...

    @property
    def attempt_header(self) -> str:
        """Return the header that counts the retries already made; empty when none does."""
        ...

    @property
    def delays(self) -> Delays:
        """Return which delays count for a message that names no due time and no delay."""
        ...

    @property
    def checks(self) -> tuple[Check, ...]:
        """Return the order in which the policy asks: the first yes decides, and without one the message is retried.

        Where ORIGIN is first the origin must exist as well before anything else is asked; where it is not, only a
        message that is to be retried needs an origin that exists.
        """
        ...

    def bare(self, value: bytes | None) -> bytes | None:
        """Return the value of a header without what this dialect's senders may put around it."""
        ...

    def attempt_of(self, values: HeaderValues) -> int:
        """Return the retries already made; 0 when no header counts them.

        Raises:
            HeaderError: The count cannot be read.
        """
        ...

    @property
    def reads_payload(self) -> bool:
        """Return whether key or value are a part of the request, so that `takes` and `delivered` must be called."""
        ...

    def claims(self, values: HeaderValues) -> bool:
        """Return whether a record with these headers speaks this dialect."""
        ...

    def takes(self, record: Record, values: HeaderValues) -> bool:
        """Return whether a record whose headers it does not claim speaks this dialect by its key and value."""
        ...

    def origin_of(self, values: HeaderValues) -> bytes | None:
        """Return the origin topic that headers name, without what senders may put around it; None when they do not."""
        ...

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection | Cancel:
        """Read a record that this dialect claims or takes. Never raises, whatever the bytes are.

        Args:
            record: Its headers are readable, that is, not None.
            values: `dict(record.headers)`.
        """
        ...

    def render(
        self, headers: Headers, attempt: int, limit: int, timer_id: tuple[int, int, int], due_ms: int
    ) -> Headers:
        """Return the headers of the fired record, as a new list.

        Args:
            headers: The headers as they came.
            attempt: Retries made before this one.
            limit: Attempts allowed in all.
            timer_id: The fields of its TimerId.
            due_ms: The instant that was asked for, which a deferral or a clock step does not change.
        """
        ...

    def delivered(self, message: Message, timestamp_ms: int) -> Message:
        """Return key, value and headers for the origin, of a message with the headers that `render` returned.

        Args:
            message: The key and the value as they came.
            timestamp_ms: The record's.
        """
        ...

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:
        """Return the headers with which a dead letter goes to the retry topic again, as a new list.

        Args:
            headers: The headers as they came, without those of its death. They need not speak this dialect.
            due_ms: The instant that the redrive asks for, epoch ms.
            keep_attempts: The count of retries stays; else it starts at 0.
            to_origin: The topic that it goes to; empty: the one that the headers name.
        """
        ...
