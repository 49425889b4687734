"""The counts of `spark report`: retries and dead letters, by their headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.contract.dead_letter import DeadLetter
from sidecar.contract.dialects.dialect import Dialect
from sidecar.contract.dialects.registry import parse
from sidecar.model import Record, Request, Schedule
from sidecar.policy import Policy

HOUR_MS: Final = 3_600_000
HOURS_MAX: Final = 14 * 24
"""The most hours that are shown, the latest ones; the others are counted together."""


class Kind(StrEnum):
    """The kind of a counted record."""

    RETRY = "retry"
    """A record of the retry topic that becomes a timer: each attempt is one."""
    DEAD = "dead-letter"


class CountKey(NamedTuple):
    """The key by which records are counted."""

    kind: Kind
    origin: str
    exception: str
    attempt: int | None
    """The retries already made; None when the header cannot be read."""
    hour_ms: int | None
    """The start of the hour of the record's timestamp."""
    reason: str
    """The reason of a dead letter."""


class Dimension(StrEnum):
    """A dimension of the report."""

    REASON = "reason"
    ORIGIN = "origin"
    EXCEPTION = "exception"
    ATTEMPT = "attempt"
    HOUR = "hour"

    @property
    def column(self) -> str:
        return "hour_ms" if self is Dimension.HOUR else self.value


class NameCounts(NamedTuple):
    """The counts of the names of a dimension."""

    shown: Sequence[tuple[str, int]] = ()
    """Attempts and hours in their order, all others by count; an hour in epoch milliseconds, no name as empty text."""
    other_names: int = 0
    """The number of names that are not shown."""
    others: int = 0
    """The count of these names together."""


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of a report."""

    totals: Mapping[Kind, int]
    by: Mapping[Dimension, Mapping[Kind, NameCounts]]


def retry_of(record: Record, policy: Policy, dialects: Sequence[Dialect]) -> CountKey | None:
    """Return the key of a record of the retry topic; None for one that becomes no timer."""
    request = parse(record, dialects)
    if not isinstance(request, Request):
        return None
    verdict = policy.decide(request, record.timestamp_ms, record.timestamp_ms, record.partition, record.offset)
    if not isinstance(verdict, Schedule):
        return None
    return CountKey(Kind.RETRY, request.origin, request.exception or "", request.attempt, _hour_ms(record), "")


def death_of(record: Record, dialects: Sequence[Dialect]) -> CountKey:
    """Return the key of a record of the DLQ."""
    said = DeadLetter(record.headers, dialects)
    return CountKey(Kind.DEAD, said.origin, said.exception, said.attempt, _hour_ms(record), said.reason)


def _hour_ms(record: Record) -> int | None:
    return None if record.timestamp_ms < 0 else record.timestamp_ms - record.timestamp_ms % HOUR_MS
