"""The requests of `spark run` to the brokers before it opens a session."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer

from sidecar.changelog.codec import Checkpoint
from sidecar.clock import SystemClock
from sidecar.devbroker.local_broker import LocalBroker
from sidecar.kafka import log_reader
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.startup_retry import await_brokers
from sidecar.settings import Settings
from sidecar.spark import group
from tests.broker import create_topic, unique

pytestmark = pytest.mark.broker


def test_a_broker_that_has_no_coordinator_yet_is_waited_for(own_broker: LocalBroker) -> None:
    settings = Settings(
        bootstrap_servers=own_broker.bootstrap_servers, streams_app_id=unique("app"), create_topics=True
    )
    admin = Admin(settings)
    asked = await_brokers(lambda: group.idle_topics(admin, settings), settings, SystemClock(), threading.Event().wait)
    assert asked is not None
    assert asked.partitions > 0
    assert group.committed(settings, asked.partitions) == {}
    assert group.last_checkpoints(settings, asked.partitions) == {}


def test_of_a_long_changelog_only_the_end_is_read(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(bootstrap_servers=bootstrap, streams_app_id=unique("app"))
    create_topic(bootstrap, settings.changelog_topic, 4)
    group.write_checkpoints(settings, {3: Checkpoint(sequence=3)})
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in (0, 1):
        for at in range(20_000):
            producer.produce(settings.changelog_topic, b"a block", b"b%d" % at, number)
    assert producer.flush(60) == 0
    group.write_checkpoints(settings, {0: Checkpoint(sequence=1), 1: Checkpoint(sequence=2)})
    for at in range(1_500):
        producer.produce(settings.changelog_topic, b"behind it", b"c%d" % at, 1)
    assert producer.flush(60) == 0
    Counting.records = 0
    monkeypatch.setattr(log_reader, "Consumer", Counting)
    found = group.last_checkpoints(settings, 4)
    assert {number: each.sequence for number, each in found.items()} == {0: 1, 1: 2, 3: 3}
    assert Counting.records < 4_000, "of one partition the last 2,336 are read, in three parts"


class Counting(Consumer):
    """Counts what it reads."""

    records = 0

    def consume(self, *arguments: Any, **named: Any) -> list[Message]:
        messages: list[Message] = super().consume(*arguments, **named)
        Counting.records += len(messages)
        return messages

    def poll(self, *arguments: Any, **named: Any) -> Message | None:
        message: Message | None = super().poll(*arguments, **named)
        Counting.records += message is not None
        return message
