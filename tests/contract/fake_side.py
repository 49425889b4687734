"""The simulated cluster, as the contract suites use it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from sidecar.clock import Clock
from sidecar.kafka.admin.catalogue import Catalogue
from sidecar.kafka.fences import Fences
from sidecar.kafka.input import Rebalanced
from sidecar.kafka.origin_search import Wanted
from sidecar.runtime.ports import Brokers, ChangelogReader, Consumer, Executor, Producer, SearchQuestion, Writer
from sidecar.settings import Settings
from tests.contract.side import WAIT_S, Fields, Seen
from tests.simulation.fakes.asking import FakeBrokers, FakeChangelogReader
from tests.simulation.fakes.cluster import TRANSACTION_TIMEOUT_S, Cluster, Link
from tests.simulation.fakes.consumer import FakeConsumer
from tests.simulation.fakes.local import FakeAdmin, FakeExecutor, FakeWriter
from tests.simulation.fakes.logs import Row
from tests.simulation.fakes.producer import FakeProducer
from tests.simulation.fakes.searching import FakeSearch
from tests.simulation.fakes.timeline import InstanceClock, Timeline

SETTINGS = Settings(streams_app_id="app", client={"compression.type": "none"})
T = TypeVar("T")
STEP_S = 0.05


class FakeSide:
    """Implements `tests.contract.side.Side`."""

    topic = "retry"
    changelog = "changelog"

    def __init__(self) -> None:
        self._timeline = Timeline(random.Random(1))
        self._cluster = Cluster(self._timeline, random.Random(2))
        self._link = Link()
        self._names = 0
        self.clock: Clock = InstanceClock(self._timeline)

    def create(self, name: str, partitions: int, max_bytes: int = 1_000_000, *, compacted: bool = False) -> None:
        self._cluster.create(name, partitions, max_bytes, compacted=compacted)
        if name == self.topic:
            self._cluster.group.partitions = partitions

    def delete(self, name: str) -> None:
        self._cluster.delete(name)

    def recreate(self, name: str, partitions: int) -> None:
        self._cluster.delete(name)
        self.create(name, partitions)

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}-{self._names}"

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Fields = ()) -> None:
        self._cluster.send(topic, partition, Row(key, value, [*headers]), self._timeline.now_ms())

    def committed(self, topic: str, until: Callable[[Sequence[Seen]], bool]) -> Sequence[Seen]:
        def look() -> Sequence[Seen] | None:
            seen = [
                Seen(number, each.row.key, each.row.value, each.row.headers)
                for number, log in enumerate(self._cluster.topics[topic].logs)
                for each in log.read(log.start, 1_000)[0]
            ]
            return seen if until(seen) else None

        return self.eventually(look, f"{topic} has what it should") or []

    def eventually(self, ask: Callable[[], T], what: str) -> T:
        end_s = self._timeline.now_s + WAIT_S
        while not (answer := ask()):
            assert self._timeline.now_s < end_s, what
            self._timeline.advance(STEP_S)
        return answer

    def producer(self, transactional_id: str, batch_bytes: int = 1_000_000) -> Producer:
        clock = InstanceClock(self._timeline)
        return FakeProducer(self._cluster, self._link, clock, SETTINGS, transactional_id, batch_bytes)

    def consumer(self, listener: Rebalanced, static_id: str | None = None) -> Consumer:
        fences = Fences(InstanceClock(self._timeline), static_id, TRANSACTION_TIMEOUT_S, lambda: True)
        return FakeConsumer(*(self._cluster, self._link, self.topic, self.name("member"), listener, fences, static_id))

    def brokers(self) -> Brokers:
        return FakeBrokers(self._cluster, self._link)

    def reader(self) -> ChangelogReader:
        return FakeChangelogReader(self._cluster, self._link, self.changelog)

    def search(self, wanted: Sequence[Wanted]) -> SearchQuestion:
        rng = random.Random(3)
        return FakeSearch(self._cluster, self._link, rng, self.topic, lambda _topic: True, wanted)

    def writer(self) -> Writer:
        return FakeWriter(self._cluster, self._link)

    def executor(self) -> Executor:
        return FakeExecutor(self._timeline)

    def catalogue(self) -> Catalogue:
        return Catalogue(FakeAdmin(self._cluster, self._link))  # type: ignore[arg-type]  # as much of it as is used

    def close(self) -> None: ...
