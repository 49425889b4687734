"""A real broker and the real adapters, as the contract suites use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from confluent_kafka import Producer as Client

from sidecar.clock import Clock, SystemClock
from sidecar.kafka import config
from sidecar.kafka.admin.catalogue import Catalogue
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.admin.offsets import Brokers
from sidecar.kafka.changelog import ChangelogReader
from sidecar.kafka.fences import Fences
from sidecar.kafka.input import InputConsumer, Rebalanced
from sidecar.kafka.origin_search import OriginSearch, Wanted
from sidecar.kafka.producer import TransactionalProducer
from sidecar.kafka.writer import Writer
from sidecar.runtime.ports import Producer
from sidecar.runtime.transaction.commit import Committer
from sidecar.settings import Settings
from tests import broker
from tests.contract.side import WAIT_S, Fields, Seen
from tests.waiting import eventually

T = TypeVar("T")


class RealSide:
    """Implements `tests.contract.side.Side`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.topic, app_id = broker.unique("retry"), broker.unique("app")
        # Sizes are judged without compression, as on the other side.
        client = {"compression.type": "none"}
        self._settings = replace(
            Settings(bootstrap_servers=bootstrap, streams_app_id=app_id, input_topic=self.topic), client=client
        )
        self.changelog = self._settings.changelog_topic
        self.clock: Clock = SystemClock()
        self._quiet = {"logger": config.quiet_logger()}
        self._ends = ExitStack()
        # Ended here, not by the garbage collector: on the client's own thread the library aborts the process.
        self._admin = self._ends.enter_context(Admin(self._settings, config.quiet_logger()))

    def create(self, name: str, partitions: int, max_bytes: int = 1_000_000, *, compacted: bool = False) -> None:
        # As the status topic has it; nothing else here depends on it.
        stamped = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(max_bytes)}
        cleanup = {"cleanup.policy": "compact"} if compacted else {}
        broker.create_topic(self._bootstrap, name, partitions, {**stamped, **cleanup})

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(WAIT_S)

    def recreate(self, name: str, partitions: int) -> None:
        broker.make_topic_anew(self._bootstrap, name, partitions)

    def name(self, prefix: str) -> str:
        return broker.unique(prefix)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Fields = ()) -> None:
        client = Client({"bootstrap.servers": self._bootstrap})
        given: list[tuple[str, str | bytes | None]] = [*headers]
        client.produce(topic, value, key, partition, headers=given)
        assert client.flush(WAIT_S) == 0

    def committed(self, topic: str, until: Callable[[Sequence[Seen]], bool]) -> Sequence[Seen]:
        def enough(records: list[broker.Read]) -> bool:
            return until(_seen(records))

        return _seen(broker.read_committed(self._bootstrap, [topic], WAIT_S, enough))

    def eventually(self, ask: Callable[[], T], what: str) -> T:
        return eventually(ask, WAIT_S, what)

    def producer(self, transactional_id: str, batch_bytes: int = 1_000_000) -> Producer:
        properties = config.transactional_producer(self._settings, transactional_id, batch_bytes)
        made = TransactionalProducer({**properties, **self._quiet}, self.clock)
        self._ends.callback(made.close)
        return made

    def consumer(self, listener: Rebalanced, static_id: str | None = None) -> InputConsumer:
        fences = Fences(self.clock, static_id, config.transaction_timeout_s(self._settings), lambda: True)
        properties = {**config.input_consumer(self._settings, static_id), **self._quiet}
        made = InputConsumer(properties, self.topic, listener, fences)
        self._ends.callback(made.close)
        return made

    def brokers(self) -> Brokers:
        return Brokers(self._admin, {**config.committed_reader(self._settings), **self._quiet})

    def reader(self) -> ChangelogReader:
        made = ChangelogReader({**config.changelog_reader(self._settings), **self._quiet}, self.changelog)
        self._ends.callback(made.close)
        return made

    def search(self, wanted: Sequence[Wanted]) -> OriginSearch:
        return OriginSearch(config.origin_reader(self._settings), self.topic, lambda _topic: True, wanted)

    def writer(self) -> Writer:
        return Writer(config.status_producer(self._settings))

    def executor(self) -> Committer:
        made = Committer(self.clock)
        self._ends.callback(made.close)
        return made

    def catalogue(self) -> Catalogue:
        return Catalogue(self._admin)

    def close(self) -> None:
        self._ends.close()


def _seen(records: Sequence[broker.Read]) -> list[Seen]:
    ordered = sorted(records, key=lambda each: (each.partition, each.offset))
    return [Seen(each.partition, each.key, each.value, [*each.headers]) for each in ordered]
