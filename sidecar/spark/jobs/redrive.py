"""`spark redrive`: sends dead letters to the retry topic again, all partitions of the DLQ at once, each once in a run.

A Spark task handles one partition as `dlq redrive` does, which handles one after the other, under the same
transactional id: one transaction holds the records that it sends and its progress. It starts at the partition's
progress, not where Spark says: so a task that Spark tries again continues where the first try stopped, and a try that
was thought dead can commit nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa

from sidecar.clock import SystemClock
from sidecar.contract import dialects_of
from sidecar.contract.dead_letter import DeadLetter
from sidecar.contract.redrive import RedriveTerms
from sidecar.dlq.discards import Discard, DiscardLog, Place
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.job import take_over
from sidecar.dlq.reader import (
    DlqRecord,
    OffsetRange,
    RedriveProducer,
    RunIdentity,
    membership_of,
    next_of_run,
    offset_ranges,
    require_topic,
    where_run_stopped,
)
from sidecar.dlq.redrive import RedriveLimits, RedrivePolicy, RedriveRun, Tally, still_ahead
from sidecar.errors import SidecarError
from sidecar.kafka.admin.cluster import Admin, Topic
from sidecar.kafka.range_reader import Range
from sidecar.model import Record
from sidecar.settings import Settings
from sidecar.spark.jobs.arrow import batch_of, schema_of
from sidecar.spark.jobs.job import job_session
from sidecar.spark.jobs.task_report import ArrowDeadLetterReader, RedriveReport, TaskReport, combined, task_report_of
from sidecar.spark.source.batch import LogReading, read_log

_REPORT: Final = "payload binary"
SLICE_RECORDS: Final = 500
"""The dead letters that are in memory at once, with their payloads."""


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """The dead letters to redrive, and the terms."""

    settings: Settings
    wanted: DeadLetterFilter
    terms: RedriveTerms
    run: RunIdentity
    discards: Mapping[Place, Discard] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """The Spark application that runs the job; see `open_session`."""

    master: str | None
    conf: Mapping[str, str]


class SparkRedrive:
    """A redrive by Spark, to the end of the DLQ as it is now.

    Args:
        request: The dead letters to redrive, and the terms.
        target: The Spark application that runs the job.
        since_ms: The start: the first record that died then or later; None: the beginning.
        until_ms: The end, exclusive: the first record that died then or later; None: the end of the partition.
        restart: Start the run from the beginning.

    Raises:
        SidecarError: A topic or a permission is missing, or an option cannot be used.
    """

    def __init__(
        self, request: RedriveRequest, target: SparkTarget, *, since_ms: int | None, until_ms: int | None, restart: bool
    ) -> None:
        settings = request.settings
        self._target = target
        self._restart = restart
        admin = Admin(settings)
        self._request = replace(request, discards=DiscardLog(settings, admin).read())
        self._retry_topic = require_topic(admin, settings.input_topic, "WRITE")
        self._whole = offset_ranges(settings, admin, since_ms, until_ms)

    def look(self) -> RedriveReport:
        """Return what a run would do; changes nothing."""
        settings, run = self._request.settings, self._request.run
        stopped = {} if self._restart else where_run_stopped(settings, run, list(self._whole))
        ahead = still_ahead(self._whole, stopped, run.name, settings.dlq_topic)
        return self._go_through(ahead, _Looking(self._request, self._retry_topic))

    def carry_out(self) -> RedriveReport:
        """Run the redrive."""
        settings, run = self._request.settings, self._request.run
        ahead = take_over(settings, run, self._retry_topic, self._whole, restart=self._restart)
        ends = {number: offsets.end for number, offsets in ahead.items()}
        return self._go_through(ahead, _Sending(self._request, self._retry_topic, ends))

    def _go_through(self, ahead: Mapping[int, OffsetRange], step: _Looking | _Sending) -> RedriveReport:
        settings, target = self._request.settings, self._target
        some = {number: offsets for number, offsets in ahead.items() if offsets.start < offsets.end}
        dialects = dialects_of(settings.dialects)
        if not some:
            return RedriveReport()
        topic = settings.dlq_topic
        name = f"{settings.streams_app_id}-redrive-{self._request.run.name}"
        with job_session(name, target.master, target.conf) as session:
            # One task for each partition: two would fence each other.
            ranges = [Range(topic, number, offsets.start, offsets.end) for number, offsets in sorted(some.items())]
            reading = LogReading(
                settings=settings, ranges=ranges, step=step, schema=_REPORT, slice_records=SLICE_RECORDS
            )
            rows = read_log(session, reading).collect()
        return combined((msgspec.msgpack.decode(bytes(row["payload"]), type=TaskReport) for row in rows), dialects)


class _Looking:
    """Counts what a run would do with the dead letters of a partition."""

    def __init__(self, request: RedriveRequest, retry_topic: Topic) -> None:
        self._request = request
        self._retry_topic = retry_topic

    def __call__(self, slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
        policy, tally, partition = _policy(self._request, self._retry_topic), Tally(), 0
        for records in _records(slices, self._request.settings):
            for record in records:
                partition = record.partition
                tally.add(record, policy.decide(record))
        yield from _row(task_report_of(partition, tally))


class _Sending:
    """Runs the redrive of a partition."""

    def __init__(self, request: RedriveRequest, retry_topic: Topic, ends: Mapping[int, int]) -> None:
        self._request = request
        self._retry_topic = retry_topic
        self._ends = ends

    def __call__(self, slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
        found = _records(slices, self._request.settings)
        if (first := next(found, None)) is not None:
            yield from _row(self._carried_out(first[0].partition, chain([first], found)))

    def _carried_out(self, partition: int, slices: Iterator[Sequence[DlqRecord]]) -> TaskReport:
        request, run = self._request, self._request.run
        reader: ArrowDeadLetterReader | None = None
        redrive_run: RedriveRun | None = None
        failure = ""
        try:
            with closing(RedriveProducer(request.settings, run, partition, self._retry_topic)) as redrive:
                # First, so that no other try of this task can commit after the progress is read.
                redrive.take_over()
                start = next_of_run(request.settings, run, partition)
                membership = membership_of(request.settings, run)
                reader = ArrowDeadLetterReader(partition, slices, start, self._ends[partition], membership)
                policy = _policy(request, self._retry_topic)
                redrive_run = RedriveRun(
                    reader, redrive, policy, RedriveLimits(None, None), lambda: False, SystemClock()
                )
                redrive_run.run(lambda _: None)
        except SidecarError as error:
            # Not raised: Spark would try the task again, which would end the process that has taken over.
            failure = str(error)
        tally = redrive_run.tally if redrive_run is not None else Tally()
        # The tally also counts the records of a transaction that failed.
        tally.redriven = redrive_run.sent if redrive_run is not None else 0
        return task_report_of(partition, tally, reader.passed if reader is not None else 0, failure)


def _policy(request: RedriveRequest, retry_topic: Topic) -> RedrivePolicy:
    return RedrivePolicy(request.settings, retry_topic, request.wanted, request.terms, SystemClock(), request.discards)


def _records(slices: Iterator[Sequence[Record]], settings: Settings) -> Iterator[Sequence[DlqRecord]]:
    """Yield the dead letters of each slice that has any."""
    dialects = dialects_of(settings.dialects)
    for records in slices:
        if records:
            yield [DlqRecord(*record, DeadLetter(record.headers, dialects)) for record in records]


def _row(report: TaskReport) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = [(msgspec.msgpack.encode(report),)]
    return batch_of(rows, schema_of(_REPORT))
