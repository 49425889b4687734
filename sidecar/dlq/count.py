"""Counts of dead letters by what their headers say and by the hour of their death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import DlqRecord

KINDS: Final = ("reason", "origin", "exception", "attempt", "group", "hour")
NAMES_MAX: Final = 10_000
"""The most names of one kind: senders can make up any number of names."""
OTHERS: Final = "(others)"
"""The names beyond those that are kept."""
_NAME_CHARS: Final = 300


class Count:
    """Counts dead letters by each kind, and keeps the first of each reason.

    Args:
        wanted: The filter for dead letters.
        examples: The number of records to keep of each reason.
        names_max: The most names of one kind.
    """

    def __init__(self, wanted: DeadLetterFilter, examples: int = 0, names_max: int = NAMES_MAX) -> None:
        self._matches = wanted.matcher()
        self._examples = examples
        self._names_max = names_max
        self.total = 0
        self.read = 0
        self.by: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        self.first: dict[str, list[DlqRecord]] = {}

    def add(self, records: Iterable[DlqRecord]) -> None:
        """Count the matching records."""
        for record in records:
            self.read += 1
            if self._matches(record.dead_letter):
                self._add(record)

    def _add(self, record: DlqRecord) -> None:
        dead_letter = record.dead_letter
        self.total += 1
        attempt = "" if dead_letter.attempt is None else str(dead_letter.attempt)
        names = (
            dead_letter.reason,
            dead_letter.origin,
            dead_letter.exception,
            attempt,
            dead_letter.group,
            shown_hour(record.timestamp_ms),
        )
        for kind, name in zip(KINDS, names, strict=True):
            counter = self.by[kind]
            short = name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}…"
            counter[short if short in counter or len(counter) < self._names_max else OTHERS] += 1
        if self._examples and (dead_letter.reason in self.first or len(self.first) < self._names_max):
            first = self.first.setdefault(dead_letter.reason, [])
            if len(first) < self._examples:
                first.append(record)

    def sorted(self) -> dict[str, dict[str, int]]:
        """Return the counts by `by_` and the kind; a record without a name counts under the empty name."""
        return {f"by_{kind}": sorted_names(kind, counter) for kind, counter in self.by.items()}

    def to_json(self, topic: str) -> dict[str, Any]:
        """Return the counts as JSON."""
        answer: dict[str, Any] = {"topic": topic, "read": self.read, "total": self.total, **self.sorted()}
        if self._examples:
            answer["examples"] = {reason: [each.to_json() for each in first] for reason, first in self.first.items()}
        return answer


def sorted_names(kind: str, counter: Counter[str]) -> dict[str, int]:
    """Return hours and attempts in their order, all others by count."""
    if kind == "hour":
        return dict(sorted(counter.items()))
    if kind == "attempt":
        return dict(sorted(counter.items(), key=lambda item: (len(item[0]), item[0])))
    return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))


def shown_hour(at_ms: int) -> str:
    """Return the hour of an instant as `2026-01-01T08:00Z`; empty for what no calendar holds."""
    try:
        return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:00Z") if at_ms >= 0 else ""
    except (OverflowError, ValueError, OSError):
        return ""
