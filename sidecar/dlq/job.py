"""One redrive from its start to its end, for the command and for HTTP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from sidecar.clock import Clock, SystemClock
from sidecar.contract import dialects_of
from sidecar.contract.redrive import RedriveTerms
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import (
    KafkaDeadLetterReader,
    OffsetRange,
    RedriveProducer,
    RunIdentity,
    offset_ranges,
    require_topic,
    where_run_stopped,
)
from sidecar.dlq.redrive import RedriveLimits, RedrivePolicy, RedriveRun, Tally, still_ahead
from sidecar.errors import CommandFailed
from sidecar.kafka.admin.cluster import Admin, Topic
from sidecar.settings import Settings


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
        policy, limit = self._new_policy(), self.limits.limit
        self.tally = Tally()
        with closing(self._reader()) as reader:
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
        """Run the redrive; return False when a stop was requested, with the progress committed.

        Raises:
            CommandFailed: The run cannot continue.
        """
        with closing(RedriveProducer(self.settings, self.run, self.retry_topic)) as producer:
            producer.take_over()
            with closing(self._reader()) as reader:
                redrive_run = RedriveRun(reader, producer, self._new_policy(), self.limits, stopping, self.clock)
                self.tally = redrive_run.tally

                def noted(remaining: int) -> None:
                    self.remaining, self.sent = remaining, redrive_run.sent
                    advanced(remaining)

                try:
                    return redrive_run.run(noted)
                finally:
                    self.sent = redrive_run.sent

    def _new_policy(self) -> RedrivePolicy:
        return RedrivePolicy(self.settings, self.retry_topic, self.wanted, self.terms, self.clock)

    def _reader(self) -> KafkaDeadLetterReader:
        ahead = self._ahead()
        self.handled_before = self.offsets - sum(offsets.end - offsets.start for offsets in ahead.values())
        reader = KafkaDeadLetterReader(self.settings, ahead, self.run.group_id, dialects_of(self.settings.dialects))
        self.remaining = reader.remaining
        return reader

    def _ahead(self) -> dict[int, OffsetRange]:
        if self.restart:
            return self.whole
        stopped = where_run_stopped(self.settings, self.run, list(self.whole))
        return still_ahead(self.whole, stopped, f"run {self.run.name}", f"topic {self.settings.dlq_topic}")


def _narrowed(whole: dict[int, OffsetRange], partition: int, offset: int, topic: str) -> dict[int, OffsetRange]:
    """Return the range of one record. Raises CommandFailed when it is not in the log."""
    log = whole.get(partition)
    if log is None or not log.first <= offset < log.last:
        raise CommandFailed(f"topic {topic} has no record {partition}-{offset}: it was deleted, or never existed")
    return {partition: log._replace(start=offset, end=offset + 1)}
