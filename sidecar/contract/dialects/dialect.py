"""What a header dialect is: the names and words in which a sender says what it wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sidecar.model import Headers, Record, Rejection, Request

HeaderValues = Mapping[str, bytes | None]
"""`dict(headers)`: the last value of each name. It is shorter than the headers when a name repeats."""


class Dialect(Protocol):
    """Reads requests in one set of header names and writes fired records in the same."""

    @property
    def name(self) -> str:
        """Return the name that the setting PROFILES knows it by."""
        ...

    @property
    def code(self) -> int:
        """Return the number that is stored with each timer. Never reused for another dialect."""
        ...

    @property
    def origin_header(self) -> str:
        """Return the header that names the origin topic."""
        ...

    def claims(self, values: HeaderValues) -> bool:
        """Return whether a record with these headers speaks this dialect."""
        ...

    def parse(self, record: Record, values: HeaderValues) -> Request | Rejection:
        """Read the headers of a record that this dialect claims. Never raises, whatever the bytes are.

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
            headers: As they came.
            attempt: Retries made before this one.
            limit: Attempts allowed in all.
            timer_id: The fields of its TimerId.
            due_ms: The instant that was asked for, which a deferral or a clock step does not change.
        """
        ...
