"""The run of a redrive: decides on each dead letter, and sends each accepted one once."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from sidecar.clock import Clock
from sidecar.contract import dialects_of
from sidecar.contract.dead_letter import CONNECT_CLASS, REASON, DeadLetter
from sidecar.contract.dialects.native import GROUP, ORIGIN_TOPIC
from sidecar.contract.redrive import RedriveTerms, Skipped, SkipReason, share_of
from sidecar.contract.redrive import redrive as redriven_headers
from sidecar.contract.sizes import record_bytes
from sidecar.dlq.discards import Discard, Place, discard_of
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import DlqRecord, OffsetRange, RedriveProducer, RunIdentity
from sidecar.engine import hot
from sidecar.engine.ports import Outgoing
from sidecar.errors import CommandFailed
from sidecar.kafka.admin.cluster import Topic
from sidecar.model import ANY_PARTITION, Headers
from sidecar.settings import Settings

BATCH_MAX: Final = 10_000
"""The most records in a transaction."""
NOTE_EVERY_S: Final = 1.0
"""The time between two commits of the progress while there is nothing to send."""
WAIT_S: Final = 0.05
FIRST: Final = 10
FIRST_SKIPPED: Final = 5
"""The skipped records of each kind that are shown."""


class RedrivePolicy:
    """Decides on each dead letter.

    Args:
        settings: The settings, which name the retry topic and the profiles.
        retry_topic: The retry topic as the cluster describes it.
        wanted: The filter for dead letters.
        terms: The terms of the redrive.
        clock: The clock from which delays count.
        discards: The dead letters that stay because somebody has decided it.
    """

    def __init__(
        self,
        settings: Settings,
        retry_topic: Topic,
        wanted: DeadLetterFilter,
        terms: RedriveTerms,
        clock: Clock,
        discards: Mapping[Place, Discard] = MappingProxyType({}),
    ) -> None:
        self._discards = discards
        self._topic = retry_topic
        self._bytes_max = retry_topic.max_message_bytes
        self._matches = wanted.matcher()
        self._terms = terms
        self._clock = clock
        self._dialects = dialects_of(settings.dialects)
        self._plain = self._made_plain()

    def decide(self, record: DlqRecord) -> Outgoing | Skipped | None:
        """Return the record for the retry topic, why it is skipped, or None when the filter excludes it."""
        if self._discards and (discard := discard_of(self._discards, record)) is not None:
            skipped = Skipped(SkipReason.DISCARDED, f"{discard.who}: {discard.why}")
            return skipped if self._matches(record.dead_letter) else None
        if self._plain is not None:
            # By offset, not by count: a continued run does not restart the spread.
            share = share_of(record[1] + record[0]) if self._terms.spread_ms else 0.0
            sent = self._plain.again(record, self._terms.due_ms(self._clock.wall_ms(), share))
            if sent is not None:
                return sent or None
        return self.decide_any(record)

    def decide_any(self, record: DlqRecord) -> Outgoing | Skipped | None:
        """Return what `decide` does, by Python alone: the specification of what is compiled for it."""
        partition, offset, _, key, value, came, dead_letter = record
        if not self._matches(dead_letter):
            return None
        now_ms, share = self._clock.wall_ms(), share_of(offset + partition)
        headers = redriven_headers(
            came,
            self._terms,
            now_ms=now_ms,
            share=share,
            dialects=self._dialects,
            key=key,
            value=value,
            dead_letter=dead_letter,
        )
        if isinstance(headers, Skipped):
            return headers
        size, most = record_bytes(key, value, headers), self._bytes_max
        if size > most:
            return Skipped(SkipReason.TOO_LARGE, f"{size} bytes; {self._topic.name} takes {most} (max.message.bytes)")
        fields = (self._topic.name, self._partition(dead_letter), key, value, headers, 0, b"")
        return tuple.__new__(Outgoing, fields)  # a named tuple's own constructor takes twice as long

    def _made_plain(self) -> hot.redrive.Redriver | None:
        """Return what redrives plain dead letters; None where Python must decide on all."""
        terms = self._terms
        if not hot.COMPILED or terms.keep_attempts or terms.to_origin or not hot.reads_first("native", self._dialects):
            return None
        return hot.redrive.Redriver(
            self._judge,
            topic=self._topic.name,
            partitions=self._topic.partitions,
            bytes_max=self._bytes_max,
            max_redrives=terms.max_redrives,
        )

    def _judge(self, reason: bytes, origin: bytes, exception: bytes, group: bytes | None) -> bool | None:
        """Return whether a plain dead letter goes; False when the filter excludes it, None when it may stay."""
        headers: Headers = [(REASON, reason), (ORIGIN_TOPIC, origin), (CONNECT_CLASS, exception)]
        headers += [] if group is None else [(GROUP, group)]
        dead_letter = DeadLetter(headers, self._dialects)
        if not self._matches(dead_letter):
            return False
        again = redriven_headers(headers, self._terms, now_ms=0, share=0.0, dialects=self._dialects)
        return None if type(again) is Skipped else True

    def _partition(self, dead_letter: DeadLetter) -> int:
        """Return the partition it came from, which keeps its order and where its retry id is looked up."""
        came_from = dead_letter.came_from
        if came_from is None or came_from.topic != self._topic.name or came_from.partition >= self._topic.partitions:
            return ANY_PARTITION
        return came_from.partition


@dataclass(slots=True)
class Tally:
    """The counts of a redrive."""

    read: int = 0
    filtered: int = 0
    redriven: int = 0
    skipped: dict[SkipReason, Counter[str]] = field(default_factory=dict)
    """The skipped dead letters: why they stay, by the reason for which they died."""
    first: list[DlqRecord] = field(default_factory=list)
    first_skipped: list[tuple[DlqRecord, Skipped]] = field(default_factory=list)

    def add(self, record: DlqRecord, verdict: Outgoing | Skipped | None) -> None:
        """Count one dead letter."""
        self.read += 1
        if verdict is None:
            self.filtered += 1
        elif isinstance(verdict, Skipped):
            self.skipped.setdefault(verdict.why, Counter())[record.dead_letter.reason] += 1
            if self.skipped[verdict.why].total() <= FIRST_SKIPPED:
                self.first_skipped.append((record, verdict))
        else:
            self.redriven += 1
            if len(self.first) < FIRST:
                self.first.append(record)

    def to_json(self, run: RunIdentity, *, dry_run: bool) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {
            "run": run.name,
            "dry_run": dry_run,
            "read": self.read,
            "redriven": self.redriven,
            "filtered": self.filtered,
            "left": {why.value: dict(by_reason) for why, by_reason in self.skipped.items()},
            "first": [each.to_json() for each in self.first],
            "first_left": [
                {**record.to_json(), "why": skipped.why.value, "because": skipped.detail}
                for record, skipped in self.first_skipped
            ],
        }


@dataclass(frozen=True, slots=True)
class RedriveLimits:
    """The limits of a run: how many messages, and how many in a second."""

    limit: int | None
    per_second: float | None


class DeadLetterReader(Protocol):
    """A reader of dead letters, which reads each once."""

    @property
    def done(self) -> bool:
        """Whether all has been read."""
        ...

    @property
    def remaining(self) -> int:
        """The number of offsets that are not read yet."""
        ...

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """The offset after the last record read, by partition."""
        ...

    @property
    def membership(self) -> bytes:
        """The metadata of the run's group, for a transaction."""
        ...

    def read(self) -> Sequence[DlqRecord]:
        """Return the next records, empty when none came at once."""
        ...


class RedriveRun:
    """Runs a redrive over the records of a reader.

    Args:
        reader: The reader, at the run's progress.
        redrive: The producer, which has taken over what the reader reads.
        policy: Decides on each dead letter.
        limits: The limits of the run.
        stopping: Returns whether to stop.
        clock: Measures the rate.
        before: The run over the partitions before, whose counts and rate go on.
    """

    def __init__(
        self,
        reader: DeadLetterReader,
        redrive: RedriveProducer,
        policy: RedrivePolicy,
        limits: RedriveLimits,
        stopping: Callable[[], bool],
        clock: Clock,
        before: RedriveRun | None = None,
    ) -> None:
        self._reader = reader
        self._redrive = redrive
        self._policy = policy
        self._limits = limits
        self._stopping = stopping
        self._clock = clock
        self.tally: Tally = Tally() if before is None else before.tally
        self.sent: int = 0 if before is None else before.sent
        """The number of records in committed transactions."""
        self._ahead: deque[DlqRecord] = deque()
        self._offsets = dict(reader.next_offsets)
        self._noted: Mapping[int, int] = dict(self._offsets)
        self._committing: tuple[Future[None], int] | None = None
        """The transaction that is being committed, and its number of records."""
        self._noted_s = clock.monotonic_s()
        self._began_s: float = self._noted_s if before is None else before._began_s

    def run(self, advanced: Callable[[int], None]) -> bool:
        """Send all; return False when a stop was requested, with the progress committed.

        The next records are read and decided on while a transaction is committed.

        Args:
            advanced: Called after each transaction with the number of remaining offsets.

        Raises:
            CommandFailed: The run cannot continue.
        """
        with ThreadPoolExecutor(1, "redrive-commit") as commits:
            try:
                return self._go_through(commits, advanced)
            finally:
                self._settle()

    def _go_through(self, commits: Executor, advanced: Callable[[int], None]) -> bool:
        pause = threading.Event()
        while not self._finished():
            if self._stopping():
                return False
            if not self._ahead:
                self._ahead.extend(self._reader.read())
            if room := self._room():
                outgoing = self._next(room)
                if outgoing or self._clock.monotonic_s() - self._noted_s >= NOTE_EVERY_S:
                    self._commit(commits, outgoing)
                self._settle(wait=False)
            else:
                # Nothing is made ready meanwhile, and the status must not wait for the next record.
                self._settle()
                pause.wait(WAIT_S)
            advanced(self._reader.remaining + len(self._ahead))
        self._commit(commits, [])
        return True

    @property
    def at_limit(self) -> bool:
        """Whether as many are sent as the limit allows."""
        return self._limits.limit is not None and self.tally.redriven >= self._limits.limit

    def _finished(self) -> bool:
        return self.at_limit or (self._reader.done and not self._ahead)

    def _room(self) -> int:
        room = BATCH_MAX
        if self._limits.limit is not None:
            room = min(room, self._limits.limit - self.tally.redriven)
        if self._limits.per_second is not None:
            earned = int((self._clock.monotonic_s() - self._began_s) * self._limits.per_second) + 1
            room = min(room, earned - self.tally.redriven)
        return max(0, room)

    def _next(self, room: int) -> list[Outgoing]:
        """Return at most this many records to send, and skip those that stay."""
        outgoing: list[Outgoing] = []
        while self._ahead and len(outgoing) < room:
            record = self._ahead.popleft()
            self._offsets[record.partition] = record.offset + 1
            verdict = self._policy.decide(record)
            self.tally.add(record, verdict)
            if isinstance(verdict, Outgoing):
                outgoing.append(verdict)
        if not self._ahead:
            self._offsets.update(self._reader.next_offsets)
        return outgoing

    def _commit(self, commits: Executor, outgoing: list[Outgoing]) -> None:
        self._settle()
        if not outgoing and self._offsets == self._noted:
            return
        self._redrive.write(outgoing)
        self._noted = dict(self._offsets)
        self._committing = (
            commits.submit(self._redrive.commit, self._noted, self._reader.membership),
            len(outgoing),
        )
        self._noted_s = self._clock.monotonic_s()

    def _settle(self, *, wait: bool = True) -> None:
        """Wait for the transaction that is being committed, or look whether it is. Raises CommandFailed."""
        if self._committing is not None and (wait or self._committing[0].done()):
            (committed, count), self._committing = self._committing, None
            committed.result()
            self.sent += count


def check_origin(settings: Settings, to_origin: str) -> None:
    """Raise ValueError for a topic that no message can be redriven to; empty is the own origin of each."""
    if to_origin in settings.own_topics:
        raise ValueError(f"{to_origin} is no origin: name the topic that should receive the messages")
    fixed = redriven_headers([(REASON, b"fatal")], RedriveTerms(to_origin=to_origin), now_ms=0, share=0.0)
    if to_origin and isinstance(fixed, Skipped):
        raise ValueError(fixed.detail)


def still_ahead(
    whole: Mapping[int, OffsetRange], stopped: Mapping[int, int | None], run: str, topic: str
) -> dict[int, OffsetRange]:
    """Return the ranges that a run has not handled yet.

    Args:
        whole: The ranges of the command.
        stopped: The run's next offset by partition, None where it never was.
        run: The name of the run.
        topic: The name of the DLQ.

    Raises:
        CommandFailed: The run stopped after the end: this is another topic of the same name.
    """
    ahead = {}
    for number, offsets in whole.items():
        at = stopped.get(number)
        if at is not None and at > offsets.last:
            raise CommandFailed(
                f"run {run} stopped at offset {at} of partition {number}, and topic {topic} ends at {offsets.last}, so "
                "it was deleted and recreated: start the run from the beginning with --restart"
            )
        start = offsets.start if at is None else max(at, offsets.first)
        # A run that is past --died-to stays there.
        ahead[number] = offsets._replace(start=start, end=max(start, offsets.end))
    return ahead
