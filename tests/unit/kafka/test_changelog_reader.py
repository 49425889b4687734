"""Errors of the changelog reader; real brokers test the reading elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from sidecar.errors import KafkaFailed
from sidecar.kafka.changelog import ChangelogReader

TOPIC = "app-changelog"


class Given:
    """A record or an error, as the library hands it out."""

    def __init__(self, partition: int | None, code: int | None = None, topic: str | None = TOPIC) -> None:
        self._partition = partition
        self._error = None if code is None else KafkaError(code, "Fetch from broker 1 failed")
        self._topic = topic

    def partition(self) -> int | None:
        return self._partition

    def topic(self) -> str | None:
        return self._topic

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return 7

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> None: ...

    def timestamp(self) -> tuple[int, int]:
        return 1, 5


class Consumer:
    """Hands out what the test sets."""

    given: list[Given]
    asked: list[str]
    assigned: list[tuple[int, int]]

    def __init__(self, _config: dict[str, Any]) -> None:
        Consumer.given = []
        Consumer.asked = []
        Consumer.assigned = []

    def list_topics(self, topic: str, _timeout_s: float) -> None:
        Consumer.asked.append(topic)

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        Consumer.assigned += [(each.partition, each.offset) for each in places]

    def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
        return [TopicPartition(each.topic, each.partition, 7 if each.partition else -1001) for each in places]

    def incremental_unassign(self, _places: list[TopicPartition]) -> None: ...

    def close(self) -> None: ...

    def poll(self, _timeout_s: float) -> Given | None:
        return Consumer.given.pop(0) if Consumer.given else None

    def consume(self, _limit: int, timeout_s: float) -> list[Given]:
        assert timeout_s == 0, "it waits for the last record of a slice"
        given, Consumer.given = Consumer.given, []
        return given


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> ChangelogReader:
    monkeypatch.setattr("sidecar.kafka.log_reader.Consumer", Consumer)
    made = ChangelogReader({}, TOPIC)
    made.start(0, 0)
    made.start(1, 0)
    return made


def read(reader: ChangelogReader, *given: Given) -> set[int]:
    Consumer.given = list(given)
    return set(reader.read(0))


def test_the_leaders_of_the_topic_are_known_before_a_partition_is_read(reader: ChangelogReader) -> None:
    """Else the library looks for them up to a second later."""
    reader.close()
    assert Consumer.asked == [TOPIC]


def test_a_partition_that_may_not_be_read_says_why_until_it_is_read(reader: ChangelogReader) -> None:
    """A restore that waits for a permission would wait without a word."""
    assert read(reader, Given(0, KafkaError.TOPIC_AUTHORIZATION_FAILED), Given(1)) == {1}
    assert (reader.error_of(0), reader.error_of(1)) == ("Fetch from broker 1 failed", "")
    assert read(reader) == set()
    assert reader.error_of(0)
    assert read(reader, Given(0)) == {0}
    assert reader.error_of(0) == ""


def test_what_was_wrong_is_forgotten_with_the_partition(reader: ChangelogReader) -> None:
    read(reader, Given(0, KafkaError.TOPIC_AUTHORIZATION_FAILED))
    reader.stop(0)
    read(reader, Given(0, KafkaError.TOPIC_AUTHORIZATION_FAILED))
    reader.start(0, 0)
    assert reader.error_of(0) == ""


def test_a_topic_that_was_made_anew_is_read_by_a_new_client(reader: ChangelogReader) -> None:
    """The library would ask the former leaders for ever: their epochs are higher."""
    reader.start(2, 3, "former")
    reader.start(2, 3, "former")
    assert Consumer.assigned == [(0, 0), (1, 0), (2, 3), (2, 3)]
    reader.start(2, 0, "new")
    assert Consumer.assigned == [(0, 0), (1, 7), (2, 0)], "a new client, which reads on with the others"
    reader.start(2, 1)
    assert Consumer.assigned[-1] == (2, 1)
    assert len(Consumer.assigned) == 4, "no new client where the id is not known"
    reader.close()


def test_an_error_of_a_broker_is_no_partitions(reader: ChangelogReader) -> None:
    read(reader, Given(None, KafkaError._TRANSPORT, topic=None))
    assert (reader.error_of(0), reader.error_of(1)) == ("", "")


def test_a_position_that_is_gone_is_reported_once_and_what_ends_the_reader_is_raised(reader: ChangelogReader) -> None:
    read(reader, Given(1, KafkaError._AUTO_OFFSET_RESET))
    assert (reader.take_lost(), reader.take_lost(), reader.error_of(1)) == ([1], [], "")
    for partition in (0, None):
        with pytest.raises(KafkaFailed):
            read(reader, Given(partition, KafkaError._FATAL))
