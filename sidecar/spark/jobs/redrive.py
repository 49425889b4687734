"""`spark redrive`: sends dead letters to the retry topic again, all partitions of the DLQ at once, each once in a run.

A Spark task handles one partition as `dlq redrive` handles all: one transaction holds the records that it sends and its
progress. It starts at the partition's progress, not where Spark says: so a task that Spark tries again continues where
the first try stopped, and a try that was thought dead can commit nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa

from sidecar.clock import SystemClock
from sidecar.contract import dialects_of
from sidecar.contract.dead_letter import DeadLetter
from sidecar.contract.redrive import RedriveTerms
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import (
    DlqRecord,
    OffsetRange,
    RedriveProducer,
    RunIdentity,
    membership_of,
    offset_ranges,
    part_of,
    require_topic,
    where_run_stopped,
)
from sidecar.dlq.redrive import RedriveLimits, RedrivePolicy, RedriveRun, Tally, still_ahead
from sidecar.errors import CommandFailed, SidecarError
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
        self._request = request
        self._target = target
        self._restart = restart
        admin = Admin(settings)
        self._retry_topic = require_topic(admin, settings.input_topic, "WRITE")
        self._whole = offset_ranges(settings, admin, since_ms, until_ms)

    def look(self) -> RedriveReport:
        """Return what a run would do; changes nothing."""
        stopped = {} if self._restart else self._stopped()
        return self._go_through(self._ahead(stopped), _Looking(self._request, self._retry_topic))

    def carry_out(self) -> RedriveReport:
        """Run the redrive."""
        with closing(RedriveProducer(self._request.settings, self._request.run, self._retry_topic)) as redrive:
            # Ends a `dlq redrive` of this run, and another Spark redrive that has not committed its start yet.
            redrive.take_over()
            self._fence()
            stopped = {} if self._restart else self._stopped()
            ahead = self._ahead(stopped)
            # The start of the run is committed first: the same command starts there again, whatever the time is.
            begins = {number: offsets.start for number, offsets in ahead.items() if stopped.get(number) is None}
            if begins:
                redrive.send([], begins, membership_of(self._request.settings, self._request.run))
        ends = {number: offsets.end for number, offsets in ahead.items()}
        return self._go_through(ahead, _Sending(self._request, self._retry_topic, ends))

    def _stopped(self) -> dict[int, int | None]:
        return where_run_stopped(self._request.settings, self._request.run, list(self._whole))

    def _ahead(self, stopped: Mapping[int, int | None]) -> dict[int, OffsetRange]:
        topic = self._request.settings.dlq_topic
        return still_ahead(
            self._whole,
            {number: stopped.get(number) for number in self._whole},
            f"run {self._request.run.name}",
            f"topic {topic}",
        )

    def _fence(self) -> None:
        """End all tasks of the run that may still work, and settle what those that were killed have left open.

        The progress cannot be read before, and none of them may move it afterwards.
        """
        for number in self._whole:
            with closing(
                RedriveProducer(self._request.settings, part_of(self._request.run, number), self._retry_topic)
            ) as part:
                part.take_over()

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
        request = self._request
        run = part_of(request.run, partition)
        reader: ArrowDeadLetterReader | None = None
        redrive_run: RedriveRun | None = None
        failure = ""
        try:
            with closing(RedriveProducer(request.settings, run, self._retry_topic)) as redrive:
                # First, so that no other try of this task can commit after the progress is read.
                redrive.take_over()
                start = _progress(request.settings, run, partition)
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


def _progress(settings: Settings, run: RunIdentity, partition: int) -> int:
    at = where_run_stopped(settings, run, [partition])[partition]
    if at is None:
        raise CommandFailed(f"the progress of run {run.name} was deleted while it went on (group {run.group_id})")
    return at


def _policy(request: RedriveRequest, retry_topic: Topic) -> RedrivePolicy:
    return RedrivePolicy(request.settings, retry_topic, request.wanted, request.terms, SystemClock())


def _records(slices: Iterator[Sequence[Record]], settings: Settings) -> Iterator[Sequence[DlqRecord]]:
    """Yield the dead letters of each slice that has any."""
    dialects = dialects_of(settings.dialects)
    for records in slices:
        if records:
            yield [DlqRecord(*record, DeadLetter(record.headers, dialects)) for record in records]


def _row(report: TaskReport) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = [(msgspec.msgpack.encode(report),)]
    return batch_of(rows, schema_of(_REPORT))
