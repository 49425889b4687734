"""A redrive's run: what becomes of each dead letter, and how those that go are sent, each once."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sidecar.clock import Clock
from sidecar.contract import dialects_of
from sidecar.contract.redrive import RedriveTerms, Skipped, SkipReason, share_of
from sidecar.contract.redrive import redrive as redriven_headers
from sidecar.contract.sizes import record_bytes
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import DlqRecord, OffsetRange, RedriveProducer, RunIdentity
from sidecar.engine.ports import Outgoing
from sidecar.errors import CommandFailed
from sidecar.kafka.cluster import Topic
from sidecar.model import ANY_PARTITION
from sidecar.settings import Settings

BATCH_MAX: Final = 500
"""Records in a transaction."""
NOTE_EVERY_S: Final = 1.0
"""How far a run has come is noted so often while there is nothing to send."""
WAIT_S: Final = 0.05
FIRST: Final = 10
FIRST_SKIPPED: Final = 5
"""Of each kind of those that stay."""


class RedrivePolicy:
    """Says what becomes of each dead letter.

    Args:
        settings: Name the retry topic and the profiles.
        retry_topic: As the cluster describes it.
        wanted: Which are meant.
        terms: On what terms.
        clock: What the delay counts from.
    """

    def __init__(
        self, settings: Settings, retry_topic: Topic, wanted: DeadLetterFilter, terms: RedriveTerms, clock: Clock
    ) -> None:
        self._topic = retry_topic
        self._matches = wanted.matcher()
        self._terms = terms
        self._clock = clock
        self._dialects = dialects_of(settings.profiles)

    def decide(self, record: DlqRecord) -> Outgoing | Skipped | None:
        """Return the record for the retry topic, why there is none, or None when it is not meant."""
        if not self._matches(record.dead_letter):
            return None
        # By place, not by count: a run that goes on does not begin the spread anew.
        now_ms, share = self._clock.wall_ms(), share_of(record.offset + record.partition)
        headers = redriven_headers(record.headers, self._terms, now_ms=now_ms, share=share, dialects=self._dialects)
        if isinstance(headers, Skipped):
            return headers
        size, most = record_bytes(record.key, record.value, headers), self._topic.max_message_bytes
        if size > most:
            return Skipped(SkipReason.TOO_LARGE, f"{size} bytes; {self._topic.name} takes {most} (max.message.bytes)")
        return Outgoing(self._topic.name, self._partition(record), record.key, record.value, headers, 0, b"")

    def _partition(self, record: DlqRecord) -> int:
        """Return where it came from: there its order with others of its key is kept, and its id is looked for."""
        came_from = record.dead_letter.came_from
        if came_from is None or came_from.topic != self._topic.name or came_from.partition >= self._topic.partitions:
            return ANY_PARTITION
        return came_from.partition


@dataclass(slots=True)
class Tally:
    """What became of them."""

    read: int = 0
    filtered: int = 0
    redriven: int = 0
    skipped: dict[SkipReason, Counter[str]] = field(default_factory=dict)
    """Why they stay, by the reason for which they died."""
    first: list[DlqRecord] = field(default_factory=list)
    first_skipped: list[tuple[DlqRecord, Skipped]] = field(default_factory=list)

    def add(self, record: DlqRecord, verdict: Outgoing | Skipped | None) -> None:
        """Count one."""
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
        """Return it for programs."""
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
    """How much, and how fast."""

    limit: int | None
    per_second: float | None


class DeadLetterReader(Protocol):
    """Reads dead letters, each once."""

    @property
    def done(self) -> bool:
        """Whether all has been read."""
        ...

    @property
    def remaining(self) -> int:
        """How many offsets are ahead."""
        ...

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """The offset behind all that was read, by partition."""
        ...

    @property
    def membership(self) -> bytes:
        """What names the group of the run to a transaction."""
        ...

    def read(self) -> Sequence[DlqRecord]:
        """Return what comes next, empty when nothing came at once."""
        ...


class RedriveRun:
    """Carries a run through what a reader has.

    Args:
        reader: From where the run goes on.
        redrive: Which has taken the run over.
        judge: Says what becomes of each.
        pace: How much, and how fast.
        stopping: Says whether it should end.
        clock: Measures the rate.
    """

    def __init__(
        self,
        reader: DeadLetterReader,
        redrive: RedriveProducer,
        policy: RedrivePolicy,
        limits: RedriveLimits,
        stopping: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._reader = reader
        self._redrive = redrive
        self._policy = policy
        self._limits = limits
        self._stopping = stopping
        self._clock = clock
        self.tally = Tally()
        self.sent = 0
        """Records in transactions that are committed."""
        self._ahead: deque[DlqRecord] = deque()
        self._offsets = dict(reader.next_offsets)
        self._noted: Mapping[int, int] = {}
        self._began_s = self._noted_s = clock.monotonic_s()

    def run(self, advanced: Callable[[int], None]) -> bool:
        """Send all; return False when it was told to stop: what was sent is noted then.

        Args:
            advanced: Told how many offsets are ahead, after each transaction.

        Raises:
            CommandFailed: It cannot go on.
        """
        # The place where the run begins is noted first: who repeats the command begins there, whatever the time is.
        self._commit([])
        pause = threading.Event()
        while not self._finished():
            if self._stopping():
                return False
            if not self._ahead:
                self._ahead.extend(self._reader.read())
            if room := self._room():
                outgoing = self._next(room)
                if outgoing or self._clock.monotonic_s() - self._noted_s >= NOTE_EVERY_S:
                    self._commit(outgoing)
                advanced(self._reader.remaining + len(self._ahead))
            else:
                pause.wait(WAIT_S)
        self._commit([])
        return True

    def _finished(self) -> bool:
        if self._limits.limit is not None and self.tally.redriven >= self._limits.limit:
            return True
        return self._reader.done and not self._ahead

    def _room(self) -> int:
        room = BATCH_MAX
        if self._limits.limit is not None:
            room = min(room, self._limits.limit - self.tally.redriven)
        if self._limits.per_second is not None:
            earned = int((self._clock.monotonic_s() - self._began_s) * self._limits.per_second) + 1
            room = min(room, earned - self.tally.redriven)
        return max(0, room)

    def _next(self, room: int) -> list[Outgoing]:
        """Take up to so many records to send, and go past those that stay."""
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

    def _commit(self, outgoing: list[Outgoing]) -> None:
        if not outgoing and self._offsets == self._noted:
            return
        self._redrive.send(outgoing, self._offsets, self._reader.membership)
        self.sent += len(outgoing)
        self._noted = dict(self._offsets)
        self._noted_s = self._clock.monotonic_s()


def still_ahead(
    whole: Mapping[int, OffsetRange], stopped: Mapping[int, int | None], run: str, topic: str
) -> dict[int, OffsetRange]:
    """Return what a run still has before it.

    Args:
        whole: What the command is about.
        stopped: The run's next offset by partition, None where it never was.
        run: For an error.
        topic: For an error.

    Raises:
        CommandFailed: It stopped behind the end: this is another topic of the same name.
    """
    ahead = {}
    for number, offsets in whole.items():
        at = stopped.get(number)
        if at is not None and at > offsets.last:
            raise CommandFailed(
                f"{run} stopped at offset {at} of partition {number}, and {topic} ends at {offsets.last}: it was made "
                "anew; begin the run anew by --restart"
            )
        start = offsets.start if at is None else max(at, offsets.first)
        # Where the run is behind --until already, it stays.
        ahead[number] = offsets._replace(start=start, end=max(start, offsets.end))
    return ahead
