"""Profile `custom`: a home-made retry topic, by the names and units that the setting CUSTOM_HEADERS gives.

A delivery is rendered long after the settings were read, and may be by a process with others. So each message is stored
with one header more, which says what its own headers mean; it is taken out of deliveries.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sidecar.contract.dialects import native
from sidecar.contract.dialects.dialect import HeaderValues
from sidecar.contract.dialects.scheduler import Scheduler, read_epoch_ms, read_epoch_s, with_headers
from sidecar.contract.dialects.timebridge import read_instant, shown_instant
from sidecar.contract.values import HeaderError, read_number, read_text, read_topic, refuse_repeats, shown
from sidecar.model import RETRY_ID_BYTES_MAX, Headers, Record, Rejection, Request

MEANING: Final = "retry-custom"
"""Names of headers, separated by line breaks: the one that counts attempts, then those that deliveries do not have."""
UNITS_OF_DUE: Final = ("ms", "s", "iso")
UNITS_OF_DELAY: Final = ("ms", "s")


class CustomHeaders(NamedTuple):
    """The names of headers and the units of their values; an empty name: no header says this."""

    origin: str = ""
    """Names the topic to deliver to."""
    due: str = ""
    due_unit: str = "ms"
    """One of UNITS_OF_DUE: epoch milliseconds, epoch seconds, RFC 3339."""
    delay: str = ""
    """Counts from the record's timestamp."""
    delay_unit: str = "ms"
    attempt: str = native.ATTEMPT
    """Counts the retries made; written into deliveries."""
    max_attempts: str = ""
    exception: str = ""
    id: str = ""

    @property
    def named(self) -> tuple[str, ...]:
        """The names of the headers."""
        names = (self.origin, self.due, self.delay, self.attempt, self.max_attempts, self.exception, self.id)
        return tuple(name for name in names if name)


class Custom(Scheduler):
    """The dialect of header names that the operator gives. Values may be wrapped in double quotes."""

    name: Final = "custom"
    code: Final = 8

    def __init__(self, given: CustomHeaders | None = None) -> None:
        """Args:
        given: Without it the instance renders deliveries and reads nothing.
        """
        self._given = given or CustomHeaders(attempt="")
        self.names = frozenset(self._given.named)
        self.origin_header = self._given.origin
        self.exception_headers = (self._given.exception,) if self._given.exception else ()
        self.attempt_header = self._given.attempt
        gone = (name for name in (self._given.due, self._given.delay) if name)
        self._meaning = "\n".join((self._given.attempt, *gone)).encode()

    def claims(self, values: HeaderValues) -> bool:
        """Return whether the headers name an origin topic."""
        return bool(self.origin_header) and self.origin_header in values

    def bare(self, value: bytes | None) -> bytes | None:
        """Return the value without the double quotes around it."""
        return None if value is None else value.strip(b'"')

    def attempt_of(self, values: HeaderValues) -> int:
        """Return the retries already made. Raises HeaderError."""
        name = self.attempt_header
        return read_number(name, self.bare(values[name])) if name and name in values else 0

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection:
        """Read the headers; any bytes give a request or a rejection."""
        try:
            refuse_repeats(record.headers or [], self.names)
            return self._request({name: self.bare(values[name]) for name in self._given.named if name in values})
        except HeaderError as error:
            return Rejection(error.reason, error.detail)

    def _request(self, said: HeaderValues) -> Request:
        """Return the request of the headers that are there, without quotes. Raises HeaderError."""
        given = self._given
        if given.due in said and given.delay in said:
            raise HeaderError(f"{given.due} and {given.delay} contradict each other: allowed is one of them, or none")
        retry_id = None
        if given.id in said:
            retry_id = read_text(given.id, said[given.id]).encode()
            if len(retry_id) > RETRY_ID_BYTES_MAX:
                raise HeaderError(f"{given.id}={shown(retry_id)}: allowed are 1 to {RETRY_ID_BYTES_MAX} bytes")
        limited = given.max_attempts in said
        return Request(
            self.code,
            read_topic(given.origin, said[given.origin]),
            due_ms=self._due_ms(said[given.due]) if given.due in said else None,
            delay_ms=self._delay_ms(said[given.delay]) if given.delay in said else None,
            attempt=self.attempt_of(said),
            max_attempts=read_number(given.max_attempts, said[given.max_attempts]) if limited else None,
            exception=read_text(given.exception, said[given.exception]) if given.exception in said else None,
            retry_id=retry_id,
            noted=((MEANING, self._meaning),),
        )

    def _due_ms(self, value: bytes | None) -> int:
        read = {"ms": read_epoch_ms, "s": read_epoch_s, "iso": read_instant}[self._given.due_unit]
        return read(self._given.due, value)

    def _delay_ms(self, value: bytes | None) -> int:
        return read_number(self._given.delay, value) * (1000 if self._given.delay_unit == "s" else 1)

    def render(
        self,
        headers: Headers,
        attempt: int,
        limit: int,  # noqa: ARG002
        timer_id: tuple[int, int, int],  # noqa: ARG002
        due_ms: int,  # noqa: ARG002
    ) -> Headers:
        """Return the headers without the due time, with one more attempt, in quotes if it came in quotes."""
        meaning = (dict(headers).get(MEANING) or native.ATTEMPT.encode()).decode().split("\n")
        counts, gone = meaning[0], {MEANING, *meaning[1:]}
        came = dict(headers).get(counts)
        quoted = came is not None and came.startswith(b'"')
        count = (b'"%d"' if quoted else b"%d") % (attempt + 1)
        kept = [(name, count if name == counts else value) for name, value in headers if name not in gone]
        return kept if came is not None else [*kept, (counts, count)]

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:
        """Return the headers with a new due time, or a delay of 0 where only a delay has a name."""
        given = self._given
        gone = {MEANING, given.due, given.delay} if keep_attempts else {MEANING, given.due, given.delay, given.attempt}
        fresh: Headers = []
        if given.due:
            due = {"ms": b"%d" % due_ms, "s": b"%d" % -(-due_ms // 1000), "iso": shown_instant(due_ms)}
            fresh.append((given.due, due[given.due_unit]))
        elif given.delay:
            fresh.append((given.delay, b"0"))
        if to_origin:
            fresh.append((given.origin, to_origin.encode()))
        return with_headers([header for header in headers if header[0] not in gone], fresh)
