"""The size of the DLQ as the brokers tell it, looked at once in a while."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sidecar.kafka.admin.dlq_size import LOOK_EVERY_S, DlqSize
from tests.broker import create_topic, unique
from tests.clocks import HandClock
from tests.waiting import eventually

WAIT_S = 30.0

pytestmark = pytest.mark.broker


class Look:
    """Looks, and keeps the last figure."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.clock = HandClock()
        self.records: int | None = None
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.size = DlqSize(self.admin, topic, self.clock, self.publish)

    def publish(self, _topic: str, records: int) -> None:
        self.records = records

    def finds(self, records: int) -> bool:
        """Advance once; return whether so many have been found."""
        self.size.advance()
        return self.records == records


def write(bootstrap: str, topic: str, letters: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(letters):
        producer.produce(topic, b"letter", partition=number % 2)
    assert producer.flush(WAIT_S) == 0


def test_it_follows_what_is_written_and_deleted_with_a_look_a_minute(bootstrap: str) -> None:
    topic = unique("dlq")
    create_topic(bootstrap, topic, 2)
    write(bootstrap, topic, 5)
    look = Look(bootstrap, topic)
    eventually(lambda: look.finds(5), WAIT_S, "the first look finds all")
    write(bootstrap, topic, 2)
    for _ in range(100):
        look.size.advance()
    assert look.records == 5, "the next look is not due"
    look.clock.now_s += LOOK_EVERY_S
    eventually(lambda: look.finds(7), WAIT_S, "the next look finds all")
    for future in look.admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        future.result(WAIT_S)
    look.clock.now_s += LOOK_EVERY_S
    eventually(lambda: look.finds(4), WAIT_S, "what was deleted does not count")


def test_a_topic_that_does_not_exist_gives_no_figure_and_is_looked_at_again(bootstrap: str) -> None:
    topic = unique("dlq")
    look = Look(bootstrap, topic)
    look.size.advance()
    eventually(lambda: look.size._described is not None and look.size._described.done(), WAIT_S, "an answer")
    look.size.advance()
    assert look.records is None
    create_topic(bootstrap, topic, 2)
    look.clock.now_s += LOOK_EVERY_S

    def found() -> bool:
        if look.size._described is None and look.size._bounds is None:
            look.clock.now_s += LOOK_EVERY_S
        return look.finds(0)

    eventually(found, WAIT_S, "it is found once it exists")
