"""One redrive from its start to its end, for the command and for HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from sidecar.clock import Clock, SystemClock
from sidecar.contract import dialects_of
from sidecar.contract.redrive import RedriveTerms
from sidecar.dlq.discards import Discard, DiscardLog, Place
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import (
    KafkaDeadLetterReader,
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
from sidecar.errors import CommandFailed
from sidecar.kafka.admin.cluster import Admin, Topic
from sidecar.settings import Settings

TAKEN_AT_ONCE: Final = 8
"""The partitions of the DLQ that are taken over at once."""


def take_over(
    settings: Settings, run: RunIdentity, retry_topic: Topic, whole: Mapping[int, OffsetRange], *, restart: bool
) -> dict[int, OffsetRange]:
    """End every other process of a run, commit where it begins, and return what is ahead of it.

    The start is committed before anything is sent: the same command starts there again, whatever the time is.

    Args:
        settings: The settings, which name the topics and the brokers.
        run: The run.
        retry_topic: The retry topic as the cluster describes it.
        whole: The ranges of the command.
        restart: Begin again where the ranges begin.

    Raises:
        CommandFailed: A partition cannot be taken over, or its progress is of another topic.
    """

    def one(number: int) -> OffsetRange:
        with closing(RedriveProducer(settings, run, number, retry_topic)) as producer:
            producer.take_over()
            # Only now: no other process can move it any more.
            stopped = None if restart else where_run_stopped(settings, run, [number])[number]
            ahead = still_ahead({number: whole[number]}, {number: stopped}, run.name, settings.dlq_topic)[number]
            if stopped is None:
                producer.send([], {number: ahead.start}, membership_of(settings, run))
            return ahead

    with ThreadPoolExecutor(TAKEN_AT_ONCE, "redrive-take-over") as pool:
        return dict(zip(whole, pool.map(one, whole), strict=True))


@dataclass(slots=True)
class RedriveJob:
    """Looks at what a run would send, and sends it.

    Raises:
        CommandFailed: A topic or a permission is missing.
    """

    settings: Settings
    wanted: DeadLetterFilter
    terms: RedriveTerms
    limits: RedriveLimits
    run: RunIdentity
    since_ms: int | None = None
    until_ms: int | None = None
    restart: bool = False
    only: tuple[int, int] | None = None
    """The partition and the offset of the only record to take; None: all that match."""
    clock: Clock = field(default_factory=SystemClock)
    tally: Tally = field(init=False, default_factory=Tally)
    """The counts so far."""
    sent: int = field(init=False, default=0)
    """The number of records in committed transactions."""
    remaining: int | None = field(init=False, default=None)
    """The number of offsets that are not read yet; None before the start."""
    handled_before: int = field(init=False, default=0)
    """The number of offsets that earlier starts of the run have passed."""
    admin: Admin = field(init=False)
    whole: dict[int, OffsetRange] = field(init=False)
    retry_topic: Topic = field(init=False)

    def __post_init__(self) -> None:
        self.admin = Admin(self.settings)
        self.retry_topic = require_topic(self.admin, self.settings.input_topic, "WRITE")
        whole = offset_ranges(self.settings, self.admin, self.since_ms, self.until_ms)
        self.whole = whole if self.only is None else _narrowed(whole, *self.only, self.settings.dlq_topic)

    @property
    def offsets(self) -> int:
        """The number of offsets in the range of the job, those that the run has passed included."""
        return sum(offsets.end - offsets.start for offsets in self.whole.values())

    def look(self, stopping: Callable[[], bool], advanced: Callable[[int], None]) -> bool:
        """Count what a run would do, and change nothing; return False when a stop was requested.

        Args:
            stopping: Returns whether to stop.
            advanced: Called with the number of remaining offsets.
        """
        policy, limit = self._new_policy(self._discards()), self.limits.limit
        self.tally = Tally()
        with closing(self._reader(self._ahead())) as reader:
            while not reader.done:
                if stopping():
                    return False
                for record in reader.read():
                    self.tally.add(record, policy.decide(record))
                    if limit is not None and self.tally.redriven >= limit:
                        return True
                self.remaining = reader.remaining
                advanced(self.remaining)
        return True

    def carry_out(self, stopping: Callable[[], bool], advanced: Callable[[int], None]) -> bool:
        """Run the redrive, one partition after the other; return False when a stop was requested.

        What was sent is committed with the progress.

        Raises:
            CommandFailed: The run cannot continue.
        """
        self.tally, self.sent = Tally(), 0
        discards = self._discards()
        ahead = take_over(self.settings, self.run, self.retry_topic, self.whole, restart=self.restart)
        self._note_ahead(ahead)
        before: RedriveRun | None = None
        for number in [number for number, offsets in ahead.items() if offsets.start < offsets.end]:
            offsets = ahead.pop(number)
            rest = sum(each.end - each.start for each in ahead.values())
            with closing(RedriveProducer(self.settings, self.run, number, self.retry_topic)) as producer:
                producer.take_over()
                # Another process may have had it since.
                start = max(offsets.start, next_of_run(self.settings, self.run, number))
                offsets = offsets._replace(start=start, end=max(start, offsets.end))
                with closing(self._reader({number: offsets})) as reader:
                    policy = self._new_policy(discards)
                    before = RedriveRun(reader, producer, policy, self.limits, stopping, self.clock, before)
                    if not self._run(before, rest, advanced):
                        return False
            if before.at_limit:
                break
        return True

    def _run(self, redrive_run: RedriveRun, rest: int, advanced: Callable[[int], None]) -> bool:
        """Run the redrive of a partition; return False when a stop was requested.

        Args:
            redrive_run: The run.
            rest: The number of offsets of later partitions.
            advanced: As in `carry_out`.
        """
        self.tally = redrive_run.tally

        def noted(remaining: int) -> None:
            self.remaining, self.sent = remaining + rest, redrive_run.sent
            advanced(self.remaining)

        try:
            return redrive_run.run(noted)
        finally:
            self.sent = redrive_run.sent

    def _new_policy(self, discards: Mapping[Place, Discard]) -> RedrivePolicy:
        return RedrivePolicy(self.settings, self.retry_topic, self.wanted, self.terms, self.clock, discards)

    def _discards(self) -> Mapping[Place, Discard]:
        return DiscardLog(self.settings, self.admin, self.clock).read()

    def _reader(self, ahead: Mapping[int, OffsetRange]) -> KafkaDeadLetterReader:
        return KafkaDeadLetterReader(self.settings, ahead, self.run.group_id, dialects_of(self.settings.dialects))

    def _ahead(self) -> dict[int, OffsetRange]:
        stopped = {} if self.restart else where_run_stopped(self.settings, self.run, list(self.whole))
        ahead = still_ahead(self.whole, stopped, self.run.name, self.settings.dlq_topic)
        self._note_ahead(ahead)
        return ahead

    def _note_ahead(self, ahead: Mapping[int, OffsetRange]) -> None:
        self.remaining = sum(offsets.end - offsets.start for offsets in ahead.values())
        self.handled_before = self.offsets - self.remaining


def _narrowed(whole: dict[int, OffsetRange], partition: int, offset: int, topic: str) -> dict[int, OffsetRange]:
    """Return the range of one record. Raises CommandFailed when it is not in the log."""
    log = whole.get(partition)
    if log is None or not log.first <= offset < log.last:
        raise CommandFailed(f"topic {topic} has no record {partition}-{offset}: it was deleted, or never existed")
    return {partition: log._replace(start=offset, end=offset + 1)}
