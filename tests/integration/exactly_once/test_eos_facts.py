"""The facts that exactly once rests on: what broker and client library really do, tested on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from sidecar.clock import SystemClock
from sidecar.devbroker.local_broker import LocalBroker
from sidecar.kafka.admin.offsets import Committed, CommittedOffsets, LogBounds
from sidecar.kafka.fences import Fences
from sidecar.kafka.input import InputConsumer, decode_membership
from sidecar.model import Record
from tests.broker import create_topic, read_committed, unique
from tests.integration.raw_producer import produce_raw
from tests.waiting import eventually

pytestmark = pytest.mark.broker

WAIT_S = 20.0


def transactional(bootstrap: str, transactional_id: str = "") -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id or unique("tx"),
            "transaction.timeout.ms": 20_000,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


@contextmanager
def consumer(bootstrap: str, group: str = "", **more: Any) -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group or unique("group"),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )
    try:
        yield made
    finally:
        made.close()


def joined(member: Consumer, topic: str) -> bytes:
    """Return the group metadata of a consumer once it has joined."""
    member.subscribe([topic])

    def joined() -> bool:
        member.poll(0.1)
        return bool(member.assignment())

    eventually(joined, WAIT_S, "it has joined")
    metadata: Any = member.consumer_group_metadata()
    assert isinstance(metadata, bytes)
    return metadata


def first_message(reader: Consumer) -> Message:
    message = eventually(lambda: reader.poll(0.1), WAIT_S, "a message comes")
    assert message is not None
    assert message.error() is None, message.error()
    return message


def produced(producer: Producer, topic: str, count: int, partition: int = 0) -> list[int]:
    """Produce, and return the offsets of the delivery reports once all are there."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() if message.offset() is not None else -1)  # type: ignore[arg-type]

    for number in range(count):
        producer.produce(topic, b"%d" % number, b"key", partition, on_delivery=delivered)
    producer.flush(WAIT_S)
    assert len(offsets) == count
    return offsets


def failure(call: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaException) as raised:
        call()
    error: KafkaError = raised.value.args[0]
    return error


def bounds(bootstrap: str, topic: str) -> tuple[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its answers die with it
    asked = LogBounds(admin, {topic: [0]})
    eventually(asked.done, WAIT_S, "the broker has said the bounds")
    found = asked.result()
    assert found is not None
    return found[topic, 0]


# Membership


def test_group_metadata_tells_generation_and_member_id(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    with consumer(bootstrap) as member:
        assert decode_membership(member.consumer_group_metadata())[0] < 0, "before it has joined"

        generation, member_id = decode_membership(joined(member, topic_name))

        assert generation > 0
        assert member_id.decode() == member.memberid()


def test_a_stale_generation_fences_offsets_but_not_an_empty_list(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    group = unique("group")
    with consumer(bootstrap, group) as former:
        stale: Any = joined(former, topic_name)
    with consumer(bootstrap, group) as present:
        joined(present, topic_name)
        producer = transactional(bootstrap)

        producer.begin_transaction()
        produced(producer, topic_name, 1)
        named = [TopicPartition(topic_name, 0, 1)]
        error = failure(lambda: producer.send_offsets_to_transaction(named, stale, WAIT_S))
        assert error.code() in {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID}
        assert (error.fatal(), error.retriable(), error.txn_requires_abort()) == (False, False, True)
        producer.abort_transaction(WAIT_S)

        producer.begin_transaction()
        produced(producer, topic_name, 1)
        producer.send_offsets_to_transaction([], stale, WAIT_S)
        producer.commit_transaction(WAIT_S)

    records = read_committed(bootstrap, [topic_name], until=bool)
    assert len(records) == 1, "committed in spite of the stale generation: never send an empty list"


def test_the_position_is_invalid_until_the_first_message(bootstrap: str, topic_name: str) -> None:
    """So the offsets that are committed must be kept by ourselves."""
    create_topic(bootstrap, topic_name)
    produced(Producer({"bootstrap.servers": bootstrap}), topic_name, 3)
    with consumer(bootstrap) as reader:
        place = TopicPartition(topic_name, 0, 1)
        reader.assign([place])
        assert reader.position([place])[0].offset == OFFSET_INVALID == -1001

        reader.pause([place])
        assert reader.position([place])[0].offset == OFFSET_INVALID

        reader.resume([place])
        message = first_message(reader)
        assert reader.position([place])[0].offset == (message.offset() or 0) + 1 == 2

        reader.seek(TopicPartition(topic_name, 0, 0))
        assert reader.position([place])[0].offset == OFFSET_INVALID


def test_a_seek_while_paused_holds_when_it_is_resumed(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    produced(Producer({"bootstrap.servers": bootstrap}), topic_name, 10)
    with consumer(bootstrap) as reader:
        place = TopicPartition(topic_name, 0, 0)
        reader.assign([place])
        reader.pause([place])
        reader.seek(TopicPartition(topic_name, 0, 7))
        reader.resume([place])

        message = first_message(reader)

    assert message.offset() == 7


# Targets


def test_the_delivery_report_says_where_the_next_record_goes_and_the_marker_takes_one(
    bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    producer = transactional(bootstrap)
    producer.begin_transaction()
    offsets = produced(producer, topic_name, 5)
    assert bounds(bootstrap, topic_name) == (0, offsets[-1] + 1)

    producer.commit_transaction(WAIT_S)
    eventually(lambda: bounds(bootstrap, topic_name) == (0, 6), WAIT_S, "the marker is written")


def test_only_read_uncommitted_sees_the_end_of_an_open_transaction(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    producer = transactional(bootstrap)
    producer.begin_transaction()
    produced(producer, topic_name, 5)
    ask: Any = AdminClient({"bootstrap.servers": bootstrap}).list_offsets
    place = TopicPartition(topic_name, 0)
    spec: Any = OffsetSpec

    def end(isolation: IsolationLevel) -> int:
        answer = ask({place: spec.latest()}, isolation_level=isolation)
        return int(answer[place].result(WAIT_S).offset)

    assert end(IsolationLevel.READ_COMMITTED) == 0
    assert end(IsolationLevel.READ_UNCOMMITTED) == 5
    assert bounds(bootstrap, topic_name) == (0, 5)
    producer.abort_transaction(WAIT_S)


def test_committed_offsets_are_not_returned_while_a_transaction_is_open_on_them(
    bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    group = unique("group")
    reader = {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed"}
    with consumer(bootstrap, group) as member:
        metadata: Any = joined(member, topic_name)
        producer = transactional(bootstrap)
        producer.begin_transaction()
        produced(producer, topic_name, 1)
        producer.send_offsets_to_transaction([TopicPartition(topic_name, 0, 1)], metadata, WAIT_S)

        asked = CommittedOffsets(reader, topic_name, [0])
        eventually(asked.done, WAIT_S, "the question came to an end")
        assert asked.result() == {}

        producer.commit_transaction(WAIT_S)

        def told() -> dict[int, Committed | None]:
            again = CommittedOffsets(reader, topic_name, [0])
            eventually(again.done, WAIT_S, "the question came to an end")
            return again.result()

        assert eventually(told, WAIT_S, "the offsets are stable") == {0: Committed(1, "")}


def test_a_second_producer_of_the_same_id_fences_the_first(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    same = unique("tx")
    first = transactional(bootstrap, same)
    first.begin_transaction()
    produced(first, topic_name, 1)
    second = transactional(bootstrap, same)

    error = failure(lambda: first.commit_transaction(WAIT_S))

    assert error.code() == KafkaError._FENCED
    assert (error.fatal(), error.retriable(), error.txn_requires_abort()) == (True, False, False)
    second.begin_transaction()
    produced(second, topic_name, 1)
    second.commit_transaction(WAIT_S)
    assert len(read_committed(bootstrap, [topic_name], until=bool)) == 1, "what the first left open is aborted"


# Headers


class Nobody:
    """Ignores rebalances."""

    def assigned(self, partitions: object) -> None: ...
    def revoked(self, partitions: object) -> None: ...
    def lost(self, partitions: object) -> None: ...
    def offset_lost(self, partition: int) -> None: ...
    def broker_error(self, text: str) -> None: ...


def test_header_names_that_are_not_utf_8_are_reported_for_their_own_record_only(
    bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    produce_raw(bootstrap, topic_name, 0, b"before", [(b"name", b"1")])
    produce_raw(bootstrap, topic_name, 0, b"strange", [(b"fine", b"1"), (b"\xff\xfe", b"2")])
    produce_raw(bootstrap, topic_name, 0, b"after", [(b"name", b"\xff")])
    properties = {
        "bootstrap.servers": bootstrap,
        "group.id": unique("group"),
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "partition.assignment.strategy": "cooperative-sticky",
    }
    reader = InputConsumer(properties, topic_name, Nobody(), Fences(SystemClock(), None, 20.0, lambda: True))
    try:
        eventually(lambda: _read(reader, 1) or reader.membership(), WAIT_S, "it has joined")
        eventually(lambda: _resumed(reader), WAIT_S, "it has its partition")
        records: list[Record] = []

        def three() -> bool:
            records.extend(_read(reader, 10))
            return len(records) == 3

        eventually(three, WAIT_S, "three records come")
    finally:
        reader.close()

    assert [(each.value, each.headers) for each in records] == [
        (b"before", [("name", b"1")]),
        (b"strange", None),
        (b"after", [("name", b"\xff")]),
    ]


def _read(reader: InputConsumer, limit: int) -> list[Record]:
    return [record for records in reader.poll(limit, 0.2) for record in records]


def _resumed(reader: InputConsumer) -> bool:
    _read(reader, 1)
    try:
        reader.seek(0, 0)
    except KafkaException:
        return False
    reader.resume([0])
    return True


# Compaction


def test_an_aborted_record_does_not_replace_a_committed_one_when_the_log_is_compacted() -> None:
    """A block's key is written again only by a transaction that cannot commit; compaction must know that."""
    with LocalBroker(properties={"log.cleaner.backoff.ms": "200"}) as broker:
        bootstrap, topic = broker.bootstrap_servers, unique("changelog")
        create_topic(
            bootstrap,
            topic,
            config={
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.01",
                "segment.ms": "200",
                "delete.retention.ms": "0",
            },
        )
        producer = transactional(bootstrap)
        _write(producer, topic, {b"block": b"committed", b"replaced": b"old"}, commit=True)
        _write(producer, topic, {b"block": b"aborted"}, commit=False)
        _write(producer, topic, {b"replaced": b"new"}, commit=True)

        def compacted() -> list[bytes | None]:
            # Only what is not in the last segment is compacted: each record here rolls it.
            _write(producer, topic, {b"roll": b""}, commit=True)
            values = [each.value for each in read_committed(bootstrap, [topic]) if each.key != b"roll"]
            return values if b"old" not in values else []

        assert eventually(compacted, 60, "the log is compacted") == [b"committed", b"new"]


def _write(producer: Producer, topic: str, records: dict[bytes, bytes], *, commit: bool) -> None:
    producer.begin_transaction()
    for key, value in records.items():
        producer.produce(topic, value, key, 0)
    producer.flush(WAIT_S)
    if commit:
        producer.commit_transaction(WAIT_S)
    else:
        producer.abort_transaction(WAIT_S)


def test_committed_offsets_can_be_asked_for_while_the_coordinator_is_still_loading() -> None:
    """The first question to a broker that has just started; the admin client's own call ends the process there."""
    with LocalBroker() as broker:
        reader = {"bootstrap.servers": broker.bootstrap_servers, "isolation.level": "read_committed"}
        asked = [CommittedOffsets({**reader, "group.id": f"group-{n}"}, "nothing", [0]) for n in range(8)]
        eventually(lambda: all(each.done() for each in asked), WAIT_S, "the questions came to an end")


def deleted(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(WAIT_S)
    eventually(lambda: topic not in admin.list_topics(timeout=WAIT_S).topics, WAIT_S, "the topic is gone")


def test_a_transaction_that_wrote_to_a_topic_deleted_meanwhile_is_committed(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    create_topic(bootstrap, other := unique("kept"))
    producer = transactional(bootstrap)
    producer.begin_transaction()
    produced(producer, topic_name, 1)
    produced(producer, other, 1)
    deleted(bootstrap, topic_name)
    producer.commit_transaction(WAIT_S)
    assert len(read_committed(bootstrap, [other], until=bool)) == 1
    create_topic(bootstrap, topic_name)
    assert read_committed(bootstrap, [topic_name]) == []


def test_what_is_acknowledged_for_a_recreated_topic_is_in_the_new_one(bootstrap: str, topic_name: str) -> None:
    """The producer knows the former topic of that name, and the leader is the same: nothing goes to the old one."""
    create_topic(bootstrap, topic_name)
    producer, reports = transactional(bootstrap), list[KafkaError | None]()
    for value in (b"1", b"2", b"3"):
        producer.begin_transaction()
        produced(producer, topic_name, 1)
        producer.commit_transaction(WAIT_S)
        deleted(bootstrap, topic_name)
        create_topic(bootstrap, topic_name)
        producer.begin_transaction()
        producer.produce(topic_name, value, partition=0, on_delivery=lambda error, _: reports.append(error))
        if producer.flush(WAIT_S) == 0 and reports.pop() is None:
            producer.commit_transaction(WAIT_S)
            found = read_committed(bootstrap, [topic_name], until=bool)
            assert [record.value for record in found] == [value]
        else:
            producer = transactional(bootstrap)
