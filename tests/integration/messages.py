"""Messages for the retry topic, and one sidecar that the tests of a module share."""

from __future__ import annotations

import ctypes
import http.client
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaError, Message, Producer

from sidecar.clock import SystemClock
from tests.broker import Read, partitions_of, read_committed
from tests.integration.sidecars import Sidecar, Sidecars, Stage, set_stage

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
    """Where a message lies, and its timestamp."""

    partition: int
    offset: int
    timestamp_ms: int


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
    **settings: str,
) -> Iterator[World]:
    """Yield a running sidecar with topics of its own.

    Args:
        bootstrap: the broker.
        folder: for state and log.
        partitions: of the input topic.
        origins: makes further topics.
        settings: see Sidecar.
    """
    stage = set_stage(bootstrap, partitions)
    if origins is not None:
        origins(stage)
    sidecars = Sidecars(folder)
    try:
        yield World(stage, sidecars.start("one", stage, **settings))
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


def now_ms() -> int:
    """Return the wall time."""
    return SystemClock().wall_ms()


def scrape(sidecar: Sidecar) -> str:
    """Return what /metrics says."""
    connection = http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=10)
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


def send_with_raw_header(
    bootstrap: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes]], times: int = 1
) -> None:
    """Send to partition 0 with header names that need not be UTF-8, which the Python client can not write."""
    library = _librdkafka()
    text = ctypes.create_string_buffer(512)
    conf = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), text, 512)
    client = library.rd_kafka_new(0, conf, text, 512)
    assert client, text.value
    handle = library.rd_kafka_topic_new(client, topic.encode(), None)
    for _ in range(times):
        collection = library.rd_kafka_headers_new(len(headers))
        for name, content in headers:
            library.rd_kafka_header_add(collection, name, len(name), content, len(content))
        parts = (_Part * 4)()
        parts[0].kind, parts[0].value.pointer = 2, handle  # RD_KAFKA_VTYPE_RKT
        parts[1].kind, parts[1].value.number = 3, 0  # RD_KAFKA_VTYPE_PARTITION
        parts[2].kind, parts[2].value.memory = 4, _Memory(value, len(value))  # RD_KAFKA_VTYPE_VALUE
        parts[3].kind, parts[3].value.pointer = 10, collection  # RD_KAFKA_VTYPE_HEADERS
        error = library.rd_kafka_produceva(client, parts, 4)
        assert not error, library.rd_kafka_error_string(error)
    assert library.rd_kafka_flush(client, 30_000) == 0
    library.rd_kafka_topic_destroy(handle)
    library.rd_kafka_destroy(client)


class _Memory(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Value(ctypes.Union):
    _fields_ = (
        ("number", ctypes.c_int32),
        ("pointer", ctypes.c_void_p),
        ("memory", _Memory),
        ("room", ctypes.c_char * 64),
    )


class _Part(ctypes.Structure):
    """rd_kafka_vu_t."""

    _fields_ = (("kind", ctypes.c_int), ("value", _Value))


def _librdkafka() -> ctypes.CDLL:
    """Return the library that confluent-kafka's wheel brings along."""
    beside = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    found = sorted(beside.glob("librdkafka*.so*"))
    library = ctypes.CDLL(str(found[0]) if found else "librdkafka.so.1")
    for name in ("conf_new", "new", "topic_new", "headers_new", "produceva"):
        getattr(library, f"rd_kafka_{name}").restype = ctypes.c_void_p
    library.rd_kafka_error_string.restype = ctypes.c_char_p
    void, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    library.rd_kafka_conf_set.argtypes = [void, text, text, text, size]
    library.rd_kafka_new.argtypes = [ctypes.c_int, void, text, size]
    library.rd_kafka_topic_new.argtypes = [void, text, void]
    library.rd_kafka_headers_new.argtypes = [size]
    library.rd_kafka_header_add.argtypes = [void, text, ctypes.c_ssize_t, text, ctypes.c_ssize_t]
    library.rd_kafka_produceva.argtypes = [void, void, size]
    library.rd_kafka_error_string.argtypes = [void]
    library.rd_kafka_flush.argtypes = [void, ctypes.c_int]
    library.rd_kafka_topic_destroy.argtypes = [void]
    library.rd_kafka_destroy.argtypes = [void]
    return library


def end_offset_of(bootstrap: str, topic: str) -> int:
    """Return how many records a topic has, markers included."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return sum(
            consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, n), timeout=15)[1]
            for n in range(partitions_of(bootstrap, topic))
        )
    finally:
        consumer.close()
