"""Profile `timebridge`: the headers of martavoi/kafka-timebridge.

From its source, github.com/martavoi/kafka-timebridge: `timebridge/acceptor.go` (what is read) and
`timebridge/scheduler.go` (what is sent): key, value and all headers but these two.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from sidecar.contract.dialects.dialect import HeaderValues
from sidecar.contract.dialects.scheduler import Scheduler, with_headers
from sidecar.contract.values import HeaderError, read_topic, refuse_repeats, shown
from sidecar.model import Headers, Reason, Record, Rejection, Request

WHEN: Final = "X-Timebridge-When"
WHERE: Final = "X-Timebridge-Where"

NAMES: Final = frozenset({WHEN, WHERE})
"""Every header that a message may have once."""
_rfc3339 = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII).fullmatch


class Timebridge(Scheduler):
    """The dialect of the headers `X-Timebridge-*`."""

    name: Final = "timebridge"
    code: Final = 6
    names = NAMES
    origin_header = WHERE

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection:
        """Read the headers; any bytes give a request or a rejection."""
        try:
            refuse_repeats(record.headers or [], NAMES)
            missing = [name for name in (WHEN, WHERE) if name not in values]
            if missing:
                raise HeaderError(f"{missing[0]} missing: profile timebridge needs both", Reason.MISSING_HEADER)
            return Request(self.code, read_topic(WHERE, values[WHERE]), due_ms=read_instant(WHEN, values[WHEN]))
        except HeaderError as error:
            return Rejection(error.reason, error.detail)

    def render(
        self,
        headers: Headers,
        attempt: int,  # noqa: ARG002
        limit: int,  # noqa: ARG002
        timer_id: tuple[int, int, int],  # noqa: ARG002
        due_ms: int,  # noqa: ARG002
    ) -> Headers:
        """Return the headers without those two."""
        return [header for header in headers if header[0] not in NAMES]

    def redriven(self, headers: Headers, due_ms: int, *, keep_attempts: bool, to_origin: str) -> Headers:  # noqa: ARG002
        """Return the headers with a new instant."""
        fresh: Headers = [(WHEN, shown_instant(due_ms))]
        if to_origin:
            fresh.append((WHERE, to_origin.encode()))
        return with_headers(headers, fresh)


def read_instant(name: str, value: bytes | None) -> int:
    """Return epoch milliseconds of an RFC 3339 text, rounded up: a message is never early. Raises HeaderError."""
    match = _rfc3339(value or b"")
    try:
        if match is None:
            raise ValueError(value)
        second, fraction, zone = match.groups()
        at = datetime.fromisoformat((second + zone).decode())
        ms = int(at.timestamp()) * 1000
    except (ValueError, OverflowError):
        raise HeaderError(f"{name}={shown(value)}: allowed is an RFC 3339 time such as 2026-12-25T10:00:00Z") from None
    return max(0, ms - (-int((fraction or b"0").ljust(9, b"0")) // 1_000_000))


def shown_instant(at_ms: int) -> bytes:
    """Return epoch milliseconds as RFC 3339 text; the last instant that it can name for a later one."""
    try:
        at = datetime.fromtimestamp(at_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return b"9999-12-31T23:59:59Z"
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z".encode()
