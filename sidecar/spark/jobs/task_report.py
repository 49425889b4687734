"""The report of a redrive task: the dead letters of one partition, and what the task did with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from sidecar.contract.dead_letter import DeadLetter
from sidecar.contract.dialects.dialect import Dialect
from sidecar.contract.redrive import Skipped, SkipReason
from sidecar.dlq.reader import DlqRecord
from sidecar.dlq.redrive import FIRST, FIRST_SKIPPED, Tally
from sidecar.errors import invariant
from sidecar.model import Headers


class DeadLetterSummary(NamedTuple):
    """A dead letter without its payload."""

    partition: int
    offset: int
    timestamp_ms: int
    headers: Headers | None

    def record(self, dialects: Sequence[Dialect]) -> DlqRecord:
        """Return the record as the commands show it."""
        said = DeadLetter(self.headers, dialects)
        return DlqRecord(self.partition, self.offset, self.timestamp_ms, None, None, self.headers, said)


class TaskReport(msgspec.Struct, frozen=True):
    """The report of a task to the driver."""

    partition: int
    read: int = 0
    filtered: int = 0
    redriven: int = 0
    passed: int = 0
    """The dead letters before the run's progress: an earlier try of the task, or another process, handled them."""
    skipped: dict[str, dict[str, int]] = {}
    first: list[DeadLetterSummary] = []
    first_skipped: list[tuple[DeadLetterSummary, Skipped]] = []
    failure: str = ""
    """The reason why the task stopped; empty: it reached the end."""


@dataclass(slots=True)
class RedriveReport:
    """The report of all tasks together."""

    tally: Tally = field(default_factory=Tally)
    passed: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    """The partitions of the DLQ whose task stopped, and why."""


def combined(reports: Iterable[TaskReport], dialects: Sequence[Dialect]) -> RedriveReport:
    """Return the reports of all tasks as one."""
    total = RedriveReport()
    tally = total.tally
    for each in sorted(reports, key=lambda each: each.partition):
        tally.read += each.read
        tally.filtered += each.filtered
        tally.redriven += each.redriven
        total.passed += each.passed
        if each.failure:
            total.failures[each.partition] = each.failure
        tally.first += [shown.record(dialects) for shown in each.first[: FIRST - len(tally.first)]]
        shown_skipped = Counter(skipped.why for _, skipped in tally.first_skipped)
        for shown, skipped in each.first_skipped:
            shown_skipped[skipped.why] += 1
            if shown_skipped[skipped.why] <= FIRST_SKIPPED:
                tally.first_skipped.append((shown.record(dialects), skipped))
        for why, by_reason in each.skipped.items():
            tally.skipped.setdefault(SkipReason(why), Counter()).update(by_reason)
    return total


def task_report_of(partition: int, tally: Tally, passed: int = 0, failure: str = "") -> TaskReport:
    """Return the tally of a task without payloads."""
    return TaskReport(
        partition=partition,
        read=tally.read,
        filtered=tally.filtered,
        redriven=tally.redriven,
        passed=passed,
        skipped={why.value: dict(by_reason) for why, by_reason in tally.skipped.items()},
        first=[_shown(each) for each in tally.first],
        first_skipped=[(_shown(record), skipped) for record, skipped in tally.first_skipped],
        failure=failure,
    )


def _shown(record: DlqRecord) -> DeadLetterSummary:
    return DeadLetterSummary(record.partition, record.offset, record.timestamp_ms, record.headers)


class ArrowDeadLetterReader:
    """Reads the dead letters of one partition from Spark, and skips those before the run's progress.

    Args:
        partition: A partition of the DLQ.
        slices: The dead letters in the order of offsets.
        start: The run's next offset.
        end: The end of the source, exclusive.
        membership: The metadata of the run's group, for a transaction.
    """

    def __init__(
        self, partition: int, slices: Iterator[Sequence[DlqRecord]], start: int, end: int, membership: bytes
    ) -> None:
        self._partition = partition
        self._slices = slices
        self._start = start
        # A run that is past the end stays there.
        self._end = max(start, end)
        self._next = start
        self._membership = membership
        self.passed = 0
        self.done = False

    @property
    def remaining(self) -> int:
        """The number of offsets that are not read yet."""
        return self._end - self._next

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """The offset after the last record read."""
        return {self._partition: self._next}

    @property
    def membership(self) -> bytes:
        """The metadata of the run's group, for a transaction."""
        return self._membership

    def read(self) -> Sequence[DlqRecord]:
        """Return the next dead letters."""
        records = next(self._slices, None)
        if records is None:
            # Only transaction markers follow the last record.
            self.done, self._next = True, self._end
            return ()
        invariant(
            all(each.partition == self._partition for each in records),
            "a task handles one partition of the DLQ",
            partition=self._partition,
            came=sorted({each.partition for each in records}),
        )
        ahead = [each for each in records if each.offset >= self._start]
        self.passed += len(records) - len(ahead)
        if ahead:
            self._next = ahead[-1].offset + 1
        return ahead
