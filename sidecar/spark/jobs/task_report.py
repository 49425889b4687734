"""The part of a task in a redrive: the dead letters of one partition, and what was done with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from sidecar.contract.dead_letter import read_dead_letter
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
        """Return it as the commands show it."""
        said = read_dead_letter(self.headers, dialects)
        return DlqRecord(self.partition, self.offset, self.timestamp_ms, None, None, self.headers, said)


class TaskReport(msgspec.Struct, frozen=True):
    """What a task did, as it goes to the driver."""

    partition: int
    read: int = 0
    filtered: int = 0
    redriven: int = 0
    passed: int = 0
    """Behind which the run was already: an earlier try of the task has dealt with them, or another process."""
    skipped: dict[str, dict[str, int]] = {}
    first: list[DeadLetterSummary] = []
    first_skipped: list[tuple[DeadLetterSummary, Skipped]] = []
    failure: str = ""
    """Why it could not go on; empty: it came to the end."""


@dataclass(slots=True)
class RedriveReport:
    """What all tasks did."""

    tally: Tally = field(default_factory=Tally)
    passed: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    """Why a partition of the DLQ could not be gone through to its end."""


def combined(report: Iterable[TaskReport], dialects: Sequence[Dialect]) -> RedriveReport:
    """Return what all tasks did together."""
    outcome = RedriveReport()
    tally = outcome.tally
    for each in sorted(report, key=lambda each: each.partition):
        tally.read += each.read
        tally.filtered += each.filtered
        tally.redriven += each.redriven
        outcome.passed += each.passed
        if each.failure:
            outcome.failures[each.partition] = each.failure
        tally.first += [shown.record(dialects) for shown in each.first[: FIRST - len(tally.first)]]
        shown_skipped = Counter(skipped.why for _, skipped in tally.first_skipped)
        for shown, skipped in each.first_skipped:
            shown_skipped[skipped.why] += 1
            if shown_skipped[skipped.why] <= FIRST_SKIPPED:
                tally.first_skipped.append((shown.record(dialects), skipped))
        for why, by_reason in each.skipped.items():
            tally.skipped.setdefault(SkipReason(why), Counter()).update(by_reason)
    return outcome


def task_report_of(partition: int, tally: Tally, passed: int = 0, failure: str = "") -> TaskReport:
    """Return a tally without payloads."""
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
    """The dead letters of one partition, as they come from Spark; those that a run is past are passed over.

    Args:
        partition: Of the DLQ.
        slices: The letters, in their order.
        start: The run's next offset.
        end: Exclusive: so far the source reads.
        membership: Names the group of the run to a transaction.
    """

    def __init__(
        self, partition: int, slices: Iterator[Sequence[DlqRecord]], start: int, end: int, membership: bytes
    ) -> None:
        self._partition = partition
        self._slices = slices
        self._start = start
        # Where the run is behind the end already, it stays.
        self._end = max(start, end)
        self._next = start
        self._membership = membership
        self.passed = 0
        self.done = False

    @property
    def remaining(self) -> int:
        """How many offsets are ahead."""
        return self._end - self._next

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """The offset behind all that was read."""
        return {self._partition: self._next}

    @property
    def membership(self) -> bytes:
        """What names the group of the run to a transaction."""
        return self._membership

    def read(self) -> Sequence[DlqRecord]:
        """Return what comes next."""
        records = next(self._slices, None)
        if records is None:
            # What stands behind the last record are markers of transactions.
            self.done, self._next = True, self._end
            return ()
        invariant(
            all(each.partition == self._partition for each in records), "a task goes through one partition of the DLQ"
        )
        ahead = [each for each in records if each.offset >= self._start]
        self.passed += len(records) - len(ahead)
        if ahead:
            self._next = ahead[-1].offset + 1
        return ahead
