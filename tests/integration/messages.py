"""Messages for the retry topic, and one sidecar that the tests of a module share."""

from __future__ import annotations

import http.client
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from sidecar.clock import SystemClock
from tests.broker import Read, read_committed
from tests.integration.sidecars import ANSWER_S, PLAIN, READY_S, Command, Sidecar, Sidecars, Stage, set_stage

Pairs = list[tuple[str, bytes | None]]
WAIT_S = 60.0


class Given(NamedTuple):
    """A message to send."""

    value: bytes | None = b"v"
    key: bytes | None = None
    headers: Pairs | None = None
    partition: int = 0
    timestamp_ms: int = 0
    """0: the time of sending."""


class Sent(NamedTuple):
    """The location of a message, and its timestamp."""

    partition: int
    offset: int
    timestamp_ms: int


class Launch(NamedTuple):
    """The options with which a sidecar runs."""

    command: Command
    ready_s: float
    """Longest time until it is ready."""


EMBEDDED: Final = Launch(PLAIN, READY_S)


class World(NamedTuple):
    """A stage with a sidecar on it."""

    stage: Stage
    sidecar: Sidecar

    def send(self, *messages: Given) -> list[Sent]:
        """Send to the input topic and return when all are delivered."""
        return send(self.stage.bootstrap, self.stage.input_topic, *messages)

    def fired(self, marker: bytes, count: int = 1, topic: str = "", deadline_s: float = WAIT_S) -> list[Read]:
        """Return the records of an origin topic with this header `test`, once there are as many."""
        return _marked(self.stage.bootstrap, topic or self.stage.origin, marker, count, deadline_s)

    def dead(self, marker: bytes, count: int = 1) -> list[Read]:
        """Return the dead letters with this header `test`, once there are as many."""
        return _marked(self.stage.bootstrap, self.stage.dlq_topic, marker, count, WAIT_S)


@contextmanager
def one_sidecar(
    bootstrap: str,
    folder: Path,
    *,
    partitions: int = 2,
    origins: Callable[[Stage], None] | None = None,
    launch: Launch = EMBEDDED,
    **settings: str,
) -> Iterator[World]:
    """Yield a running sidecar with its own topics.

    Args:
        bootstrap: the broker.
        folder: for state and log.
        partitions: of the input topic.
        origins: makes further topics.
        launch: how it is run.
        settings: see Sidecar.
    """
    stage = set_stage(bootstrap, partitions)
    if origins is not None:
        origins(stage)
    sidecars = Sidecars(folder)
    try:
        one = sidecars.make("one", stage, **settings)
        one.start(launch.command)
        one.await_ready(launch.ready_s)
        yield World(stage, one)
    finally:
        sidecars.end()


def send(bootstrap: str, topic: str, *messages: Given) -> list[Sent]:
    """Send in one go and return, in the order given, when all are delivered."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "message.max.bytes": 10_000_000, "enable.idempotence": True}
    )
    sent: dict[int, Sent] = {}
    for number, each in enumerate(messages):

        def delivered(error: KafkaError | None, message: Message, number: int = number) -> None:
            assert error is None, error
            sent[number] = Sent(message.partition() or 0, message.offset() or 0, message.timestamp()[1])

        headers: Any = each.headers
        producer.produce(
            topic,
            each.value,
            each.key,
            headers=headers,
            partition=each.partition,
            timestamp=each.timestamp_ms,
            on_delivery=delivered,
        )
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    return [sent[number] for number in range(len(messages))]


def native(stage: Stage, marker: bytes, delay_ms: int, *more: tuple[str, bytes | None]) -> Pairs:
    """Return the headers of a message for the stage's origin, with one by which tests find it."""
    ours: Pairs = [("retry-origin-topic", stage.origin.encode()), ("retry-delay-ms", b"%d" % delay_ms)]
    return [*ours, ("test", marker), *more]


def marked(records: Sequence[Read], marker: bytes) -> list[Read]:
    """Return the records with this header `test`."""
    return [record for record in records if ("test", marker) in record.headers]


def _marked(bootstrap: str, topic: str, marker: bytes, count: int, deadline_s: float) -> list[Read]:
    return marked(
        read_committed(bootstrap, [topic], deadline_s, until=lambda seen: len(marked(seen, marker)) >= count), marker
    )


def names(record: Read) -> list[str]:
    """Return the names of a record's headers, in order."""
    return [name for name, _ in record.headers]


def noise(size: int, seed: int = 0) -> bytes:
    """Return bytes that no compression makes less."""
    return random.Random(seed).randbytes(size)


def now_ms() -> int:
    """Return the wall time."""
    return SystemClock().wall_ms()


def scrape(sidecar: Sidecar) -> str:
    """Return what /metrics says."""
    connection = http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def murmur2_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Java's default partitioner takes for a key."""
    length, seed, m = len(key), 0x9747B28C, 0x5BD1E995
    h = seed ^ length
    for at in range(0, length - length % 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & 0xFFFFFFFF
        k = (k ^ k >> 24) * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ k
    tail = key[length - length % 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions
