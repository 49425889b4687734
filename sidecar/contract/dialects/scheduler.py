"""The parts that dialects of other programs have in common.

Their messages name a due time and a target, but no attempts: each goes out once. Where the record's key is the id of a
schedule, a later record with the same key replaces the earlier one, and one without a value takes it away.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from sidecar.contract.dialects.dialect import Check, Delays, HeaderValues, Message
from sidecar.contract.values import HeaderError, read_number, read_topic, shown
from sidecar.model import DUE_MS_MAX, RETRY_ID_BYTES_MAX, Headers, Record, Scope

SECONDS_MAX: Final = 99_999_999_999
"""The greatest number that is taken for epoch seconds, in the year 5138; as milliseconds it is in 1973."""
_SECONDS_MIN: Final = 1_000_000_000
"""The least number of milliseconds that is taken for a mistake: as seconds it is in 2001."""
_FOREIGN_PREFIXES: Final = ("retry-", "x-ibm-retry-")


class Scheduler:
    """What a dialect without attempts and without exceptions says of itself, unless it says otherwise."""

    names: AbstractSet[str] = frozenset()
    origin_header: str = ""
    exception_headers: tuple[str, ...] = ()
    attempt_header: str = ""
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
    reads_payload: bool = False

    def claims(self, values: HeaderValues) -> bool:
        """Return whether any of its headers is present: `parse` names those that are missing."""
        return not self.names.isdisjoint(values)

    def takes(self, record: Record, values: HeaderValues) -> bool:  # noqa: ARG002
        """Return False: a record without its headers is none of this dialect."""
        return False

    def origin_of(self, values: HeaderValues) -> bytes | None:
        """Return the value of the header that names the target; None without one."""
        return self.bare(values.get(self.origin_header)) if self.origin_header else None

    def scope_of(self, values: HeaderValues, code: int) -> Scope:
        """Return which timers a tombstone means: this dialect's, of the target that it names. Raises HeaderError."""
        target = self.origin_of(values)
        return Scope("" if target is None else read_topic(self.origin_header, target), dialects=(code,))

    def bare(self, value: bytes | None) -> bytes | None:
        """Return the value as it is."""
        return value

    def attempt_of(self, values: HeaderValues) -> int:  # noqa: ARG002
        """Return 0: nothing counts attempts."""
        return 0

    def render(
        self,
        headers: Headers,
        attempt: int,  # noqa: ARG002
        limit: int,  # noqa: ARG002
        timer_id: tuple[int, int, int],  # noqa: ARG002
        due_ms: int,  # noqa: ARG002
    ) -> Headers:
        """Return the headers as they came, which `delivered` may change."""
        return list(headers)

    def delivered(self, message: Message, timestamp_ms: int) -> Message:  # noqa: ARG002
        """Return the message as it is."""
        return message


def is_tombstone(record: Record, values: HeaderValues) -> bool:
    """Return whether a record has a key only, and no headers of a retry."""
    return not record.value and bool(record.key) and not has_retry_headers(values)


def has_retry_headers(values: HeaderValues) -> bool:
    """Return whether any header has a name of profile native or ibm."""
    return any(name.startswith(_FOREIGN_PREFIXES) for name in values)


def schedule_id(key: bytes | None) -> bytes:
    """Return the record's key as an id. Raises HeaderError."""
    if not key or len(key) > RETRY_ID_BYTES_MAX:
        raise HeaderError(
            f"the record's key {shown(key)} is the id of the schedule: allowed are 1 to {RETRY_ID_BYTES_MAX} bytes"
        )
    try:
        key.decode()
    except UnicodeDecodeError:
        raise HeaderError(f"the record's key {shown(key)} is the id of the schedule: allowed is UTF-8 text") from None
    return key


def read_epoch_s(name: str, value: bytes | None) -> int:
    """Return epoch milliseconds from a text in epoch seconds. Raises HeaderError, for milliseconds too."""
    number = read_number(name, value)
    if number > SECONDS_MAX:
        raise HeaderError(
            f"{name}={number} is in seconds since 1970, and this number looks like milliseconds: allowed are 0 to "
            f"{SECONDS_MAX}"
        )
    return number * 1000


def read_epoch_ms(name: str, value: bytes | None) -> int:
    """Return epoch milliseconds from a text. Raises HeaderError, for seconds too."""
    return checked_epoch_ms(name, read_number(name, value, DUE_MS_MAX))


def checked_epoch_ms(name: str, number: int) -> int:
    """Return a number of epoch milliseconds. Raises HeaderError when it looks like seconds."""
    if _SECONDS_MIN <= number <= SECONDS_MAX:
        raise HeaderError(
            f"{name}={number} is in milliseconds since 1970, and this number looks like seconds: allowed is a time "
            f"after {SECONDS_MAX}"
        )
    return number


def with_headers(headers: Headers, given: Headers) -> Headers:
    """Return the headers with others behind them, in place of those of the same name."""
    names = {name for name, _ in given}
    return [*(header for header in headers if header[0] not in names), *given]
