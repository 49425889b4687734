"""The reader of the status topic against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from sidecar.clock import SystemClock
from sidecar.kafka import config
from sidecar.kafka.status_reader import LOOK_EVERY_S, StatusRead, StatusReader
from sidecar.settings import Settings
from tests.broker import create_topic
from tests.clocks import HandClock
from tests.integration.sidecars import LOG_APPEND_TIME
from tests.waiting import eventually

pytestmark = pytest.mark.broker


@contextmanager
def reading(bootstrap: str, topic: str, clock: HandClock) -> Iterator[StatusReader]:
    """Follow a topic that is its own input topic."""
    settings = Settings(bootstrap_servers=bootstrap)
    reader = StatusReader({**config.status_reader(settings), "logger": config.quiet_logger()}, topic, topic, clock)
    try:
        yield reader
    finally:
        reader.close()


def write(bootstrap: str, topic: str, partition: int, *values: bytes | None, transactional: bool = False) -> None:
    """Write values under one key; with `transactional` in a transaction that is aborted."""
    own = {"transactional.id": f"{topic}-writer"} if transactional else {}
    producer = Producer({"bootstrap.servers": bootstrap, **own})
    if transactional:
        producer.init_transactions(15)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, b"p/%d" % partition, partition, headers=[("a", b"1"), ("a", b"2")])
    assert producer.flush(15) == 0
    if transactional:
        producer.abort_transaction(15)


def read_until(reader: StatusReader, done: Callable[[list[StatusRead]], bool], what: str) -> list[StatusRead]:
    records: list[StatusRead] = []

    def enough() -> bool:
        records.extend(reader.read(0.1))
        return done(records)

    try:
        eventually(enough, 20, what)
    except AssertionError as late:
        raise AssertionError(f"{late}; {reader.error=}, {records=}") from late
    return records


def test_all_that_is_there_is_read_then_what_comes_then_new_partitions(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name, 3, LOG_APPEND_TIME)
    began_ms = SystemClock().wall_ms()
    write(bootstrap, topic_name, 0, b"first", None, b"second")
    write(bootstrap, topic_name, 1, b"aborted", transactional=True)
    clock = HandClock()
    with reading(bootstrap, topic_name, clock) as reader:
        there = read_until(reader, lambda _: reader.caught_up, "it has caught up, with an empty partition too")
        assert [(each.key, each.value, each.headers, each.live) for each in there] == [
            (b"p/0", b"first", {"a": b"2"}, False),
            (b"p/0", b"second", {"a": b"2"}, False),
        ], "no tombstone, nothing aborted"
        assert all(abs(each.stamped_ms - began_ms) < 60_000 for each in there)
        assert (reader.input_partitions, reader.error) == (3, "")
        assert reader.cluster_id

        write(bootstrap, topic_name, 2, b"third")
        came = read_until(reader, bool, "what is written is read")
        assert [(each.partition, each.value, each.live) for each in came] == [(2, b"third", True)]

        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_partitions([NewPartitions(topic_name, 4)])[topic_name].result(15)
        write(bootstrap, topic_name, 3, b"fourth")
        clock.now_s += LOOK_EVERY_S
        grown = read_until(reader, bool, "the new partition is read")
        assert [(each.partition, each.value) for each in grown] == [(3, b"fourth")]
        read_until(reader, lambda _: reader.caught_up, "it has caught up with it")
        assert reader.input_partitions == 4


def test_times_that_a_writer_chose_are_not_taken(bootstrap: str, topic_name: str) -> None:
    create_topic(bootstrap, topic_name)
    write(bootstrap, topic_name, 0, b"first")
    with reading(bootstrap, topic_name, HandClock()) as reader:
        assert read_until(reader, lambda _: reader.caught_up, "it has caught up") == []


def test_a_topic_that_is_not_there_yet_is_awaited(bootstrap: str, topic_name: str) -> None:
    clock = HandClock()
    with reading(bootstrap, topic_name, clock) as reader:

        def missing() -> bool:
            clock.now_s += 1
            assert reader.read(0.1) == []
            return topic_name in reader.error

        eventually(missing, 20, "it is named")
        assert (reader.caught_up, reader.input_partitions) == (False, None)
        create_topic(bootstrap, topic_name, 1, LOG_APPEND_TIME)

        def caught_up(_: object) -> bool:
            clock.now_s += 1
            return reader.caught_up

        assert read_until(reader, caught_up, "it is found") == []
        assert reader.error == ""


@pytest.mark.timeout(60)
def test_brokers_that_are_away_are_no_error(topic_name: str) -> None:
    with reading("127.0.0.1:1", topic_name, HandClock()) as reader:
        assert reader.read(0.1) == []
        assert reader.error
        assert not reader.caught_up
