"""The parts of the loop without a broker: consumer and producer in memory, and what stands around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from unittest.mock import Mock

from sidecar.contract import DIALECTS
from sidecar.engine.ingest import Ingest
from sidecar.engine.partition import State
from sidecar.engine.ports import Origin, Outgoing
from sidecar.engine.read_ahead import Ahead
from sidecar.engine.rows import Identity
from sidecar.errors import TransactionFailed
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.kafka.config import BATCH_BYTES
from sidecar.kafka.fences import Fences
from sidecar.kafka.producer import Refused, Unwritten, Waits
from sidecar.model import Headers, Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.runtime.assignment import Assignment
from sidecar.runtime.fetching import Fetching
from sidecar.runtime.jobs import Jobs
from sidecar.runtime.partitions.buffer import Buffer
from sidecar.runtime.ports import Producer
from sidecar.runtime.transaction.commit import Committer
from sidecar.runtime.transaction.failures import Failures
from sidecar.runtime.transaction.limits import Limits
from sidecar.settings import Settings
from tests.clocks import NOW_MS, HandClock
from tests.simulation.fakes.membership import pack

FACTS = TopicFacts("cluster", 3, 2, "input-id", "changelog-id", 1_000_000, 1_000_000, 1_000_000)
"""The input topic has three partitions, changelog and status topic have two."""


MEMBER = pack("member", 1)
"""Of the group, as the client library writes it."""


class ScriptedConsumer:
    """Implements `sidecar.runtime.ports.Consumer`."""

    def __init__(self) -> None:
        self.refusal = ""
        self.waits: Callable[[], None] = lambda: None
        """Called where a poll waits."""
        self.member: bytes | None = MEMBER
        self.records: list[Record] = []
        self.ends: dict[int, int] = {}
        self.sought: dict[int, int] = {}
        self.calls: list[tuple[str, list[int]]] = []
        """Pauses and resumes, in their order."""

    def poll(self, limit: int, timeout_s: float) -> Iterator[Iterator[Record]]:
        self.waits()
        taken, self.records = self.records[:limit], self.records[limit:]
        yield iter(taken)

    def pause(self, partitions: Collection[int]) -> None:
        self.calls.append(("pause", sorted(partitions)))

    def resume(self, partitions: Collection[int]) -> None:
        self.calls.append(("resume", sorted(partitions)))

    def seek(self, partition: int, offset: int) -> None:
        self.sought[partition] = offset

    def end_offsets(self) -> Mapping[int, int]:
        return self.ends

    def membership(self) -> bytes | None:
        return self.member

    def close(self) -> None:
        self.member = None


class MemoryProducer:
    """Implements `sidecar.runtime.ports.Producer`; keeps what was committed last."""

    batch_bytes = BATCH_BYTES
    refused: Sequence[Refused] = ()
    unwritten: Sequence[Unwritten] = ()
    unwritten_for: Mapping[int, str] = MappingProxyType({})
    delivered_to = frozenset[tuple[str, int]]()
    accepted: Mapping[tuple[str, int], int] = MappingProxyType({})

    def __init__(self) -> None:
        self.next_changelog_offsets: dict[int, int] = {}
        self.fails: TransactionFailed | None = None
        """How the next commit ends."""
        self.committed: tuple[list[Outgoing], dict[int, int]] = [], {}
        """Fires and input offsets."""
        self.aborted = self.closed = False
        self._open: tuple[list[Outgoing], dict[int, int]] = [], {}
        self._ends = Counter[int]()

    def init(self, timeout_s: float) -> None:
        self.aborted = self.closed = False

    def begin(self) -> None:
        self._open = [], {}
        self.next_changelog_offsets = {}

    def write_changelog(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes | None]]) -> Waits:
        self._ends[partition] += len(records)
        self.next_changelog_offsets[partition] = self._ends[partition]
        yield from ()

    def write_outcomes(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes, Headers]]) -> Waits:
        yield from ()

    def write_outgoing(self, partition: int, records: Iterable[Outgoing], *, traced: bool) -> Waits:
        self._open[0].extend(records)
        yield from ()

    def send_offsets(
        self, topic: str, offsets: Mapping[int, int], membership: bytes, metadata: Mapping[int, str] = {}
    ) -> None:
        self._open[1].update(offsets)

    def commit(self) -> None:
        if self.fails is not None:
            raise self.fails
        self.committed = self._open

    def abort(self) -> None:
        self.aborted = True

    def give_up(self) -> bool:
        return False

    def claim(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class LoopHarness:
    """All parts, put together as the loop does it."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.consumer = ScriptedConsumer()
        self.origins = {"orders": Origin(4, 1_000_000)}
        self.components = Mock()
        self.components.settings, self.components.clock, self.components.facts = Settings(), self.clock, FACTS
        self.components.catalogue.origins = self.origins
        self.components.catalogue.unknown = {}
        self.components.closed.closed = {}
        self.components.recovery.identity = Identity("cluster", "changelog-id")
        self.components.spans = None
        self.producer = MemoryProducer()
        self.made_for = 0, 0
        """Bytes of a batch, and ms for a record, of the producer that was made last."""
        self.components.make_producer = self._make_producer
        self.components.make_executor = partial(Committer, self.clock)
        self.components.ingest = _ingest(self.origins)
        self.buffer = Buffer(self.components.ingest)
        self.ahead = Ahead()
        self.fetching = Fetching(self.consumer, self.buffer, self.clock, ingests=True)
        self.assignment = Assignment(FACTS, self.fetching, self.buffer, self.ahead, self.components.recovery)
        self.failures = Failures(self.clock, Fences(self.clock, None, 20.0, lambda: True))
        self.limits = Limits(self.components.settings, self.components.catalogue, FACTS)
        self.jobs = Jobs(self.components, self.assignment, self.failures, self.limits)

    def _make_producer(self, batch_bytes: int, timeout_ms: int) -> Producer:
        self.made_for = batch_bytes, timeout_ms
        return self.producer

    def run(self, *numbers: int) -> None:
        """Own these partitions, with their restore over."""
        self.assignment.assign(numbers)
        self.assignment.to_recover -= set(numbers)
        for partition in self.assignment.owned(numbers):
            partition.transition_to(State.RESTORING)
            partition.transition_to(State.RUNNING)
            self.buffer.begin(partition.number, 0)

    def ingest(self, partition: int, *offsets: int, origin: str = "orders") -> set[str]:
        """Consume such records; return the origins that the broker must be asked for."""
        self.consumer.records = [record(partition, each, origin) for each in offsets]
        return self.fetching.poll(0)


def record(partition: int, offset: int, origin: str = "orders") -> Record:
    """Return a message that is to come back to an origin."""
    return Record(partition, offset, NOW_MS, b"k", b"v", [("retry-origin-topic", origin.encode())])


def _ingest(origins: Mapping[str, Origin]) -> Ingest:
    config = PolicyConfig(delays_ms=(1000,), max_delay_ms=86_400_000)
    return Ingest(Policy(config), list(DIALECTS.values()), origins, {}, input_topic="retry", app_id="app", forbidden={})
