"""The tests' broker, and the few things they do to it beside what they test."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sidecar.devbroker.local_broker import LocalBroker
from sidecar.devbroker.local_cluster import LocalCluster
from sidecar.errors import CommandFailed
from tests.waiting import Patience

_RPC_S = 15.0
_BROKERS_DEFAULT = -1
_CONTAINER_IMAGE = "confluentinc/cp-kafka:8.1.0"

Headers = tuple[tuple[str, bytes | None], ...]


class Read(NamedTuple):
    """One committed record, as a read_committed consumer sees it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """Return the value of the only header of that name; KeyError when there is none, or more than one."""
        values = [value for key, value in self.headers if key == name]
        if len(values) != 1:
            raise KeyError(f"{name}: {len(values)} of them in {self.headers}")
        return values[0]


@contextmanager
def any_broker() -> Iterator[str]:
    """Yield the address of a broker: SIDECAR_TEST_BOOTSTRAP, else a local one, else a container.

    Raises:
        CommandFailed: There is none; says why.
    """
    if given := os.environ.get("SIDECAR_TEST_BOOTSTRAP"):
        AdminClient({"bootstrap.servers": given}).list_topics(timeout=_RPC_S)
        yield given
        return
    local = LocalBroker()
    try:
        local.start()
    except CommandFailed as error:
        local.stop()
        with _container(because=str(error)) as bootstrap:
            yield bootstrap
        return
    try:
        yield local.bootstrap_servers
    finally:
        local.stop()


@contextmanager
def local_broker(
    port: int = 0, properties: Mapping[str, str] | None = None, data_dir: Path | None = None, also_port: int = 0
) -> Iterator[LocalBroker]:
    """Yield a local broker that runs for the caller alone; where none can start the test is skipped, or fails.

    With `also_port` it has a second listener there, named ALSO.
    """
    broker = LocalBroker(port, data_dir, properties=properties)
    if also_port:
        broker.also_listen(also_port, also_port)
    try:
        broker.start()
    except CommandFailed as error:
        broker.stop()
        no_broker(str(error))
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def local_cluster(data_dir: Path | None = None) -> Iterator[LocalCluster]:
    """Yield a cluster of three nodes for the caller alone; where none can start the test is skipped, or fails."""
    cluster = LocalCluster(data_dir=data_dir)
    try:
        cluster.start()
    except CommandFailed as error:
        cluster.stop()
        no_broker(str(error))
    try:
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def _container(because: str) -> Iterator[str]:
    if not _docker_answers():
        raise CommandFailed(f"the local broker cannot start ({because}) and no Docker engine answers")
    from testcontainers.community.kafka import KafkaContainer

    with KafkaContainer(_CONTAINER_IMAGE).with_kraft() as container:
        yield container.get_bootstrap_server()


def no_broker(why: str) -> None:
    """Skip, or fail when a broker is required."""
    text = f"no Kafka for this test: {why}; name one with SIDECAR_TEST_BOOTSTRAP"
    if os.environ.get("SIDECAR_REQUIRE_BROKER") == "1":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


def _docker_answers() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        return subprocess.run([docker, "info"], capture_output=True, timeout=10, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def unique(prefix: str = "t") -> str:
    """Return a name that no other test uses, legal for topics, groups and ids."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def create_topic(bootstrap: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic and return when every partition has a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, num_partitions=partitions, replication_factor=_BROKERS_DEFAULT, config=dict(config or {}))
    admin.create_topics([topic], operation_timeout=_RPC_S)[name].result(_RPC_S)


def make_topic_anew(bootstrap: str, name: str, partitions: int) -> None:
    """Delete a topic and create it at once: who reads it may see nothing in between."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(_RPC_S)
    create_topic(bootstrap, name, partitions)


def partitions_of(bootstrap: str, topic: str) -> int:
    """Return how many partitions a topic has; 0 when there is none of that name."""
    return len(
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=_RPC_S).topics[topic].partitions
    )


def read_committed(
    bootstrap: str,
    topics: Sequence[str],
    deadline_s: float = 30.0,
    until: Callable[[list[Read]], bool] | None = None,
    *,
    starts: Mapping[int, int] | None = None,
    isolation: str = "read_committed",
) -> list[Read]:
    """Read all that is committed, from the beginning, without a group.

    Args:
        bootstrap: the broker.
        topics: existing topics.
        deadline_s: seconds until the test fails.
        until: reads on until this holds for all records so far. Without it reading ends at the last stable offset
            that each partition had when its end was reached.
        starts: the only partitions to read, and the offset to begin at in each.
        isolation: `read_uncommitted` also reads what is open or aborted, up to the end.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("reader"),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            # An end is only told by an answer without records, which never comes while there are new ones meanwhile.
            "fetch.wait.max.ms": 100,
        }
    )
    try:
        places = [
            TopicPartition(topic, number, offset)
            for topic in topics
            for number, offset in (starts or dict.fromkeys(range(partitions_of(bootstrap, topic)), 0)).items()
        ]
        consumer.assign(places)
        return _drain(consumer, {(place.topic, place.partition) for place in places}, deadline_s, until)
    finally:
        consumer.close()


def _drain(
    consumer: Consumer,
    unfinished: set[tuple[str, int]],
    deadline_s: float,
    until: Callable[[list[Read]], bool] | None,
) -> list[Read]:
    records: list[Read] = []
    patience = Patience(deadline_s)
    while not patience.is_over():
        for message in consumer.consume(10_000, timeout=0.1):
            error = message.error()
            if error is None:
                records.append(_read(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard((message.topic() or "", message.partition() or 0))
            else:
                raise KafkaException(error)
        if until(records) if until is not None else not unfinished:
            return records
    raise AssertionError(f"not within {deadline_s:g} s: {len(records)} records read, ends not reached: {unfinished}")


def _read(message: Message) -> Read:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return Read(
        topic,
        partition,
        offset,
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs),
    )
