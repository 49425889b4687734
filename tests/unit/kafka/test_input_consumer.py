"""The consumer of the input topic: headers that cannot be read, and what the group metadata says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from sidecar.engine import hot
from sidecar.errors import InvariantViolated
from sidecar.kafka.input import Records, decode_membership, headers_of
from sidecar.model import Headers, Record
from tests.integration.raw_producer import produce_raw
from tests.waiting import eventually

TOPIC = "t"
ROUNDS = 60
"""Enough for the interpreter to replace a call by its quick form, which checks less."""


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[str]:
    """The client library's own cluster in memory: good for records, never for guarantees."""
    producer = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    producer.flush(1)  # the cluster lives as long as this client


def consumed(bootstrap: str, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []

    def read() -> bool:
        messages.extend(consumer.consume(count, 0.1))
        return len(messages) >= count

    eventually(read, 30, "all messages are read")
    consumer.close()
    assert all(message.error() is None for message in messages)
    return messages


def test_headers_that_cannot_be_read_are_none_and_never_blamed_on_another_message(mock_cluster: str) -> None:
    """A message is asked once: at the second time the library hands out what it had begun to build."""
    bad = [(b"a", b"1"), (b"\xff\xfe", b"2")]
    for headers in ([(b"a", b"1"), (b"a", b"2")], bad, [(b"a", b"1"), (b"a", b"2")]):
        produce_raw(mock_cluster, TOPIC, 0, b"bad" if headers is bad else b"good", headers, ROUNDS)
    for message in consumed(mock_cluster, TOPIC, 3 * ROUNDS):
        read = headers_of(message)
        value = message.value()  # a pending exception would surface here
        assert (value, read) in ((b"good", [("a", b"1"), ("a", b"2")]), (b"bad", None))


@pytest.mark.parametrize("kind", [Records, *([hot.consume.Records] if hot.COMPILED else [])])
def test_messages_become_records_and_errors_are_reported(mock_cluster: str, kind: type[Records]) -> None:
    topic = f"records-{kind.__module__}"
    bad = [(b"a", b"1"), (b"\xff\xfe", b"2")]
    for headers in ([(b"a", b"1"), (b"a", b"2"), (b"b", b"")], bad, []):
        produce_raw(mock_cluster, topic, 0, b"bad" if headers is bad else b"good", headers, ROUNDS)
    messages = consumed(mock_cluster, topic, 3 * ROUNDS)
    error = Message(topic=topic, partition=7, error=KafkaError(KafkaError._PARTITION_EOF))
    reported: list[tuple[KafkaError, int | None]] = []
    read = kind([messages[0], error, *messages[1:]], lambda error, partition: reported.append((error, partition)))
    found = list(read)
    assert reported == [(error.error(), 7)]
    assert [record.offset for record in found] == list(range(3 * ROUNDS))
    assert all(type(record) is Record for record in found)
    assert all(record.partition == 0 and record.key is None and record.timestamp_ms > 0 for record in found)
    good: Headers = [("a", b"1"), ("a", b"2"), ("b", b"")]
    assert [record.headers for record in found] == [good] * ROUNDS + [None] * ROUNDS + [[]] * ROUNDS
    assert {record.value for record in found} == {b"good", b"bad"}
    assert read.most_headers == 3


def test_a_message_without_headers_has_an_empty_list(mock_cluster: str) -> None:
    producer = Producer({"bootstrap.servers": mock_cluster})
    producer.produce("bare", b"v", partition=0)
    producer.flush(10)
    (message,) = consumed(mock_cluster, "bare", 1)
    assert headers_of(message) == []


@pytest.mark.parametrize(
    ("metadata", "generation", "member"),
    [
        (b"CGMDv2:" + (7).to_bytes(4, "little") + b"group\0member-1\0\0", 7, b"member-1"),
        (b"CGMDv2:" + (-1).to_bytes(4, "little", signed=True) + b"group\0\0\0", -1, b""),
    ],
)
def test_generation_and_member_are_read_from_the_metadata(metadata: bytes, generation: int, member: bytes) -> None:
    assert decode_membership(metadata)[0] == generation


def test_the_installed_library_gives_metadata_of_the_known_form(mock_cluster: str) -> None:
    consumer = Consumer({"bootstrap.servers": mock_cluster, "group.id": "g"})
    generation, member = decode_membership(consumer.consumer_group_metadata())
    assert (generation, member) == (-1, b"")
    consumer.close()


@pytest.mark.parametrize("metadata", [b"CGMDv3:xxxxgroup\0m", b"", "text", None, object()])
def test_metadata_of_an_unknown_form_refuses_to_go_on(metadata: object) -> None:
    """Sent on unread it could let a transaction through that nothing fences."""
    with pytest.raises(InvariantViolated, match="unknown form"):
        decode_membership(metadata)
