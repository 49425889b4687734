"""Profile `ibm`: the headers of IBM's kafka-retry, so that its users change nothing but the image.

Its users' JSON header mappers wrap values in double quotes, so quotes around a value mean nothing.
"""

from __future__ import annotations

from typing import Final

from sidecar.contract.dialects.dialect import HeaderValues
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
    """The dialect of the headers `x-ibm-retry-*`."""

    name: Final = "ibm"
    code: Final = 2
    origin_header: Final = ORIGIN_TOPIC

    def claims(self, values: HeaderValues) -> bool:
        """Return whether any of its headers is there: one that lacks another is told which."""
        return not NAMES.isdisjoint(values)

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection:
        """Read the headers; any bytes give a request or a rejection."""
        try:
            if record.headers is not None and len(values) != len(record.headers):
                refuse_repeats(record.headers, NAMES)
            return _request(values)
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


def unquoted(value: bytes | None) -> bytes | None:
    """Return the value without the double quotes around it."""
    return None if value is None else value.strip(b'"')


def _request(values: HeaderValues) -> Request:
    missing = [name for name in _REQUIRED if name not in values]
    if missing:
        raise HeaderError(
            f"{', '.join(missing)} missing: a record with x-ibm-retry headers needs {', '.join(_REQUIRED)}",
            Reason.MISSING_HEADER,
        )
    return Request(
        Ibm.code,
        read_topic(ORIGIN_TOPIC, unquoted(values[ORIGIN_TOPIC])),
        base_ms=read_number(TIMESTAMP_MS, unquoted(values[TIMESTAMP_MS])),
        attempt=_attempts(values[ATTEMPTS]) if ATTEMPTS in values else 0,
        exception=read_text(EXCEPTION_TYPE, unquoted(values[EXCEPTION_TYPE])),
    )


def _attempts(value: bytes | None) -> int:
    text = unquoted(value)
    if text is None:
        raise HeaderError(f"{ATTEMPTS}={shown(value)}: allowed are ASCII digits")
    # A blank value counts as none at IBM too.
    return read_number(ATTEMPTS, text) if text.strip() else 0
