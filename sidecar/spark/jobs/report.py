"""What `spark report` counts: retries and dead letters, by all that their headers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.contract.dead_letter import read_dead_letter
from sidecar.contract.dialects.dialect import Dialect
from sidecar.contract.dialects.registry import parse
from sidecar.model import Record, Request, Schedule
from sidecar.policy import Policy

HOUR_MS: Final = 3_600_000
HOURS_MAX: Final = 14 * 24
"""Shown of all, the latest; the others count together."""


class Kind(StrEnum):
    """What is counted."""

    RETRY = "retry"
    """A record of the retry topic that was asked to wait: each attempt is one."""
    DEAD = "dead-letter"


class CountKey(NamedTuple):
    """What is counted together."""

    kind: Kind
    origin: str
    exception: str
    attempt: int | None
    """Retries already made; None when that cannot be read."""
    hour_ms: int | None
    """Begin of the hour of the record's timestamp."""
    reason: str
    """Of a dead letter."""


class Dimension(StrEnum):
    """What is counted by."""

    REASON = "reason"
    ORIGIN = "origin"
    EXCEPTION = "exception"
    ATTEMPT = "attempt"
    HOUR = "hour"

    @property
    def column(self) -> str:
        return "hour_ms" if self is Dimension.HOUR else self.value


class NameCounts(NamedTuple):
    """How often each name of a dimension was met."""

    shown: Sequence[tuple[str, int]] = ()
    """Attempts and hours in their order, all others by count; an hour as epoch milliseconds, nothing as empty text."""
    other_names: int = 0
    """How many are not shown."""
    others: int = 0
    """How often they were met, together."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was counted."""

    totals: Mapping[Kind, int]
    by: Mapping[Dimension, Mapping[Kind, NameCounts]]


def retry_of(record: Record, policy: Policy, dialects: Sequence[Dialect]) -> CountKey | None:
    """Return what a record of the retry topic counts as; None for one that was not to wait."""
    request = parse(record, dialects)
    if not isinstance(request, Request):
        return None
    verdict = policy.decide(request, timestamp_ms=record.timestamp_ms, arrived_ms=record.timestamp_ms)
    if not isinstance(verdict, Schedule):
        return None
    return CountKey(Kind.RETRY, request.origin, request.exception or "", request.attempt, _hour_ms(record), "")


def death_of(record: Record, dialects: Sequence[Dialect]) -> CountKey:
    """Return what a record of the DLQ counts as."""
    said = read_dead_letter(record.headers, dialects)
    return CountKey(Kind.DEAD, said.origin, said.exception, said.attempt, _hour_ms(record), said.reason)


def _hour_ms(record: Record) -> int | None:
    return None if record.timestamp_ms < 0 else record.timestamp_ms - record.timestamp_ms % HOUR_MS
