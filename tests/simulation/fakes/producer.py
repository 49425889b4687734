"""The transactional producer of a simulated world: the real adapter, on a simulated client library."""

from __future__ import annotations

from sidecar.clock import Clock
from sidecar.kafka import config
from sidecar.kafka.producer import TransactionalProducer
from sidecar.settings import Settings
from tests.simulation.fakes.cluster import Cluster, Link
from tests.simulation.fakes.library import FakeLibrary


class FakeProducer(TransactionalProducer):
    """What the library says means what it means in production.

    Args:
        cluster: The brokers.
        link: The network to them.
        clock: Of the process.
        settings: Of the process.
        transactional_id: Fences others with the same one.
        batch_bytes: Largest size of a batch.
        message_timeout_ms: Longest time until a record is written.
    """

    def __init__(
        self,
        cluster: Cluster,
        link: Link,
        clock: Clock,
        settings: Settings,
        transactional_id: str,
        batch_bytes: int = config.BATCH_BYTES,
        message_timeout_ms: int = config.MESSAGE_TIMEOUT_MS,
    ) -> None:
        self.library: FakeLibrary

        def client(properties: config.Config) -> FakeLibrary:
            self.library = FakeLibrary(cluster, link, clock, properties)
            return self.library

        properties = config.transactional_producer(settings, transactional_id, batch_bytes, message_timeout_ms)
        super().__init__(properties, clock, client)
