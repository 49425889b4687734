"""The first start of a group on a real broker: where it begins to read, and a changelog that another program wrote."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sidecar.clock import SystemClock
from sidecar.errors import BrokerUnavailable, CommandFailed, SettingsInvalid
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.admin.first_start import has_nothing_to_read, place_new_group
from sidecar.kafka.admin.topics import check_topics, ensure_topics
from sidecar.settings import Settings
from tests.broker import create_topic
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

RETRY_INFO = {"timeStamp": 1_700_000_000_000, "originTopic": "orders", "retryAttempt": 1, "payload": {"id": 7}}


@pytest.fixture
def settings(bootstrap: str, unique: Callable[[str], str]) -> Settings:
    """Settings with a retry topic and a DLQ of this test's own."""
    made = Settings(
        bootstrap_servers=bootstrap,
        streams_app_id=unique("app"),
        input_topic=unique("retry"),
        dlq_topic=unique("dlq"),
    )
    # Some of the records are of 1970: by default the broker may delete them at any time.
    create_topic(bootstrap, made.input_topic, 2, {"retention.ms": "-1"})
    create_topic(bootstrap, made.dlq_topic, 1, {"retention.ms": "-1"})
    return made


def _send(settings: Settings, topic: str, records: list[tuple[int, bytes | None, bytes | None, int]]) -> None:
    """Send (partition, key, value, timestamp) each."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "linger.ms": 0})
    for partition, key, value, timestamp_ms in records:
        producer.produce(topic, value, key, partition, timestamp=timestamp_ms)
    assert producer.flush(20) == 0


def _committed(settings: Settings) -> list[int]:
    consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": settings.group_id})
    try:
        found = consumer.committed([TopicPartition(settings.input_topic, each) for each in range(2)], 20)
        return [each.offset for each in found]
    finally:
        consumer.close()


def _placed(settings: Settings, start_at: str | int | None = None, *, was_empty: bool = False) -> str:
    admin = Admin(settings)
    given = dataclasses.replace(settings, start_at=start_at)
    facts = ensure_topics(admin, settings)
    said: list[str] = []

    def answered() -> bool:
        # On a broker that has just started the group's coordinator is some seconds behind the topics.
        try:
            said.append(place_new_group(admin, given, facts, 20, was_empty=was_empty))
        except BrokerUnavailable:
            return False
        return True

    eventually(answered, 60, "the coordinator answers")
    return said[0]


def test_a_new_group_begins_where_the_operator_says_and_is_never_moved_again(settings: Settings) -> None:
    _send(settings, settings.input_topic, [(0, b"k", b"v", at_ms) for at_ms in (1_000, 2_000, 3_000)])
    with pytest.raises(SettingsInvalid) as refused:
        _placed(settings)
    (line,) = refused.value.problems
    assert line.startswith(f"START_AT: is not set, the group {settings.group_id} is new")
    assert "3 records" in line
    assert all(word in line for word in ("latest (they stay unread", "earliest (all are read", "instant"))
    assert _committed(settings) == [-1001, -1001]

    said = _placed(settings, 2_000)
    assert "of 3 records that are on it 1 stay unread" in said
    assert _committed(settings) == [1, 0]

    # A group that has read before is asked nothing, and no setting moves it.
    assert _placed(settings) == ""
    assert _placed(settings, "latest") == ""
    assert _committed(settings) == [1, 0]


@pytest.mark.parametrize(("start_at", "offsets"), [("latest", [2, 1]), ("earliest", [0, 0])])
def test_the_ends_of_the_topic_are_latest_and_earliest(settings: Settings, start_at: str, offsets: list[int]) -> None:
    _send(settings, settings.input_topic, [(0, None, None, 1), (0, None, None, 2), (1, None, None, 3)])
    assert settings.group_id in _placed(settings, start_at)
    assert _committed(settings) == offsets


def test_an_empty_topic_needs_no_decision_then_or_later(settings: Settings) -> None:
    assert "of 0 records" in _placed(settings)
    # What is sent while no instance runs is read: the group is not new any more.
    _send(settings, settings.input_topic, [(0, b"k", b"v", 1_000)])
    assert _placed(settings) == ""
    assert _committed(settings) == [0, 0]


@pytest.mark.parametrize("start_at", [None, "latest"])
def test_all_that_was_sent_since_the_topic_was_seen_empty_is_read(settings: Settings, start_at: str | None) -> None:
    admin = Admin(settings)
    assert has_nothing_to_read(admin, dataclasses.replace(settings, input_topic=settings.input_topic + "-not-made"))
    assert has_nothing_to_read(admin, settings)
    _send(settings, settings.input_topic, [(1, b"k", b"v", 1_000)])
    assert not has_nothing_to_read(admin, settings)
    assert "1 records that are on it 0 stay unread" in _placed(settings, start_at, was_empty=True)
    assert _committed(settings) == [0, 0]


def test_a_group_with_members_or_with_a_changelog_is_not_new(settings: Settings) -> None:
    facts = ensure_topics(Admin(settings), settings)
    _send(settings, settings.input_topic, [(0, b"k", b"v", 1_000)])
    member = Consumer(
        {"bootstrap.servers": settings.bootstrap_servers, "group.id": settings.group_id, "enable.auto.commit": False}
    )
    try:
        member.subscribe([settings.input_topic])
        eventually(lambda: member.poll(0.2) is None and bool(member.assignment()), 40, "the member has joined")
        latest = dataclasses.replace(settings, start_at="latest")
        assert place_new_group(Admin(settings), latest, facts, 20) == ""
        assert _committed(settings) == [-1001, -1001]
    finally:
        member.close()
    _send(settings, settings.changelog_topic, [(1, b"c", b"v", 1_000)])
    assert _placed(settings) == ""


def test_a_changelog_of_ibm_is_recognised_before_anything_changes(settings: Settings) -> None:
    value = json.dumps(RETRY_INFO).encode()
    # As Kafka Streams makes it: with the broker's limit of record sizes, and fewer partitions than the retry topic.
    create_topic(settings.bootstrap_servers, settings.changelog_topic, 1, {"cleanup.policy": "compact"})
    _send(settings, settings.changelog_topic, [(0, b"c", value, SystemClock().wall_ms())])
    with pytest.raises(CommandFailed) as refused:
        ensure_topics(Admin(settings), settings)
    said = str(refused.value)
    assert "partition 0 has a record of IBM's kafka-retry at offset 0" in said
    assert "STORE_NAME=wheel" in said
    assert "retry-sidecar migrate ibm" in said
    assert "max.message.bytes" not in said
    shown = AdminClient({"bootstrap.servers": settings.bootstrap_servers}).list_topics(timeout=20).topics
    assert len(shown[settings.changelog_topic].partitions) == 1
    assert settings.status_topic not in shown
    _, problems = check_topics(Admin(settings), settings)
    assert [each.wrong[:43] for each in problems if each.topic == settings.changelog_topic] == [
        "it is the changelog of another program (par"
    ]
    ensure_topics(Admin(settings), dataclasses.replace(settings, store_name="wheel"))


def test_the_sidecar_refuses_to_start_and_starts_once_it_is_told(stage: Stage, sidecars: Sidecars) -> None:
    producer = Producer({"bootstrap.servers": stage.bootstrap})
    producer.produce(stage.input_topic, b"v", b"k", headers=[("retry-origin-topic", stage.origin.encode())])
    assert producer.flush(20) == 0
    asked = sidecars.make("asked", stage, START_AT="")
    asked.start()
    assert asked.wait(120) == 2
    assert "START_AT: is not set" in asked.log
    told = sidecars.start("told", stage, START_AT="latest")
    assert "group_placed" in told.log
    assert told.stop() == 0
    # The decision is the group's: a later start needs none.
    later = sidecars.start("later", stage, START_AT="")
    assert later.pending() == 0
