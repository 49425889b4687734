"""Profile `ibm`: the headers of IBM's kafka-retry, so that its users change nothing but the image.

Its users' JSON header mappers wrap values in double quotes, so quotes around a value mean nothing.
"""

from __future__ import annotations

from typing import Final

from sidecar.contract.dialects.dialect import Check, Delays, HeaderValues, Message
from sidecar.contract.values import HeaderError, read_number, read_text, read_topic, refuse_repeats, shown
from sidecar.model import Headers, Reason, Record, Rejection, Request

ORIGIN_TOPIC: Final = "x-ibm-retry-origin-topic"
EXCEPTION_TYPE: Final = "x-ibm-retry-exception-type"
TIMESTAMP_MS: Final = "x-ibm-retry-timestamp-ms"
ATTEMPTS: Final = "x-ibm-retry-attempts"

_REQUIRED: Final = (ORIGIN_TOPIC, EXCEPTION_TYPE, TIMESTAMP_MS)
NAMES: Final = frozenset({*_REQUIRED, ATTEMPTS})
"""Every header that a message may have once."""


class Ibm:
    """The dialect of the headers `x-ibm-retry-*`.

    Its checks are in the order of IBM's: drop; retriable with attempts left; fatal or exhausted; anything else.
    Dropping comes before the allow-list: the list guards topics against being written to, and what is dropped is
    written nowhere, so IBM's users keep what they know. For the same reason the DLQ as origin is dropped.
    """

    name: Final = "ibm"
    code: Final = 2
    names: Final = NAMES
    origin_header: Final = ORIGIN_TOPIC
    exception_headers: Final = (EXCEPTION_TYPE,)
    attempt_header: Final = ATTEMPTS
    delays: Final = Delays.THREE
    checks: Final = (
        Check.DROPPABLE,
        Check.DLQ_AS_ORIGIN,
        Check.ORIGIN,
        Check.DELAY,
        Check.AGE,
        Check.RETRIABLE,
        Check.FATAL,
        Check.EXHAUSTED,
        Check.UNKNOWN,
    )

    reads_payload: Final = False

    def claims(self, values: HeaderValues) -> bool:
        """Return whether any of its headers is present: `parse` names those that are missing."""
        return not NAMES.isdisjoint(values)

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
            return self._request(values)
        except HeaderError as error:
            return Rejection(error.reason, error.detail)

    def render(
        self,
        headers: Headers,
        attempt: int,
        limit: int,  # noqa: ARG002
        timer_id: tuple[int, int, int],  # noqa: ARG002
        due_ms: int,  # noqa: ARG002
    ) -> Headers:
        """Return the headers as they came, with the attempts one more, in quotes if they came in quotes."""
        fired: Headers = []
        written = False
        for header in headers:
            if header[0] != ATTEMPTS:
                fired.append(header)
            elif not written:
                quoted = header[1] is not None and header[1].startswith(b'"')
                fired.append((ATTEMPTS, (b'"%d"' if quoted else b"%d") % (attempt + 1)))
                written = True
        if not written:
            fired.append((ATTEMPTS, b"%d" % (attempt + 1)))
        return fired

    def delivered(self, message: Message, timestamp_ms: int) -> Message:  # noqa: ARG002
        """Return the message as it is."""
        return message

    def bare(self, value: bytes | None) -> bytes | None:
        """Return the value without the double quotes around it."""
        return None if value is None else value.strip(b'"')

    def attempt_of(self, values: HeaderValues) -> int:
        """Return the retries already made. Raises HeaderError."""
        if ATTEMPTS not in values:
            return 0
        text = self.bare(values[ATTEMPTS])
        if text is None:
            raise HeaderError(f"{ATTEMPTS}={shown(text)}: allowed are ASCII digits")
        # A blank value counts as none at IBM too.
        return read_number(ATTEMPTS, text) if text.strip() else 0

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:
        """Return the headers with a new instant, from which the delay of the attempt counts; the dialect has no due."""
        fresh = {TIMESTAMP_MS: b"%d" % due_ms}
        if not keep_attempts:
            fresh[ATTEMPTS] = b"0"
        if to_origin:
            fresh[ORIGIN_TOPIC] = to_origin.encode()
        again: Headers = []
        written = set[str]()
        for name, value in headers:
            if name not in fresh:
                again.append((name, value))
            elif name not in written:
                quoted = value is not None and value.startswith(b'"')
                again.append((name, b'"%b"' % fresh[name] if quoted else fresh[name]))
                written.add(name)
        # No attempts are as good as 0.
        missing = fresh.keys() - written - {ATTEMPTS}
        again += [(name, value) for name, value in fresh.items() if name in missing]
        return again

    def _request(self, values: HeaderValues) -> Request:
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            raise HeaderError(
                f"{', '.join(missing)} missing: a record with x-ibm-retry headers needs {', '.join(_REQUIRED)}",
                Reason.MISSING_HEADER,
            )
        return Request(
            self.code,
            read_topic(ORIGIN_TOPIC, self.bare(values[ORIGIN_TOPIC])),
            base_ms=read_number(TIMESTAMP_MS, self.bare(values[TIMESTAMP_MS])),
            attempt=self.attempt_of(values),
            exception=read_text(EXCEPTION_TYPE, self.bare(values[EXCEPTION_TYPE])),
        )
