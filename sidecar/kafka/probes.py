"""Probes what a sidecar needs of its cluster besides the topics: transactions, the group, a matching clock."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin._acl import AclOperation

from sidecar.clock import Clock
from sidecar.contract.status import CLOCK_KEY
from sidecar.errors import BrokerUnavailable, KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline, answer, unavailable
from sidecar.kafka.clock_guard import Skew
from sidecar.kafka.errors import failed
from sidecar.kafka.writer import Writer, Written
from sidecar.settings import Settings

_MEASUREMENTS = 4


class ConsumerGroup(NamedTuple):
    """The consumer group as the cluster describes it."""

    state: str
    members: int
    hosts: tuple[str, ...]
    """Of the members, each once."""
    operations: frozenset[str]


def try_transactions(admin: Admin, settings: Settings, transactional_id: str, deadline: Deadline) -> None:
    """Begin and abort an empty transaction.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: The cluster refuses; the permission Write on the transactional id may be missing.
    """
    producer = Producer(config.transactional_producer(settings, transactional_id), logger=config.quiet_logger())
    try:
        producer.init_transactions(deadline.left_s)
        producer.begin_transaction()
        producer.abort_transaction(deadline.left_s)
    except KafkaException as cause:
        error = failed(cause.args[0])
        if error.away:
            raise unavailable(admin, str(error)) from cause
        raise error from cause


def measure_clock(settings: Settings, clock: Clock, deadline: Deadline) -> Skew:
    """Compare this machine's clock with the broker's, by records on the status topic that the broker stamps.

    The broker stamps a record between our sending it and our hearing of it; the quickest of a few trips is taken.

    Raises:
        BrokerUnavailable: No report in time.
        KafkaFailed: The status topic cannot be written, or does not stamp with the broker's time.
    """
    writer = Writer(config.status_producer(settings))
    trips = [_trip(writer, settings.status_topic, clock, deadline) for _ in range(_MEASUREMENTS)]
    return min(trips, key=lambda skew: skew.error_ms)


def describe_group(admin: Admin, settings: Settings, deadline: Deadline) -> ConsumerGroup | None:
    """Return the consumer group; None when it does not exist yet.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: The cluster refuses; the permission Describe on the group may be missing.
    """
    while True:
        future = admin.describe_consumer_groups(
            [settings.group_id], include_authorized_operations=True, request_timeout=deadline.left_s
        )[settings.group_id]
        try:
            found = answer(admin, future, deadline)
        except BrokerUnavailable:
            # A cluster without groups needs a moment to create the internal topic for the first one.
            if deadline.passed:
                raise
            deadline.pause(0.5)
            continue
        except KafkaFailed as error:
            if error.code == "GROUP_ID_NOT_FOUND":
                return None
            raise
        operations = frozenset(AclOperation(operation).name for operation in found.authorized_operations or ())
        hosts = sorted({member.host for member in found.members})
        return ConsumerGroup(found.state.name, len(found.members), tuple(hosts), operations)


def _trip(writer: Writer, topic: str, clock: Clock, deadline: Deadline) -> Skew:
    reports: list[Written | KafkaFailed] = []
    sent_ms = clock.wall_ms()
    writer.write(topic, CLOCK_KEY, None, partition=0, report=reports.append)
    while not reports:
        if deadline.passed:
            raise BrokerUnavailable(f"no record could be written to topic {topic} in time")
        writer.poll(min(0.5, deadline.left_s))
    heard_ms = clock.wall_ms()
    written = reports[0]
    if isinstance(written, KafkaFailed):
        raise written
    if written.broker_ms is None:
        raise KafkaFailed("the topic does not stamp with LogAppendTime", code="INVALID_TIMESTAMP")
    return Skew.of(sent_ms=sent_ms, acknowledged_ms=heard_ms, broker_ms=written.broker_ms)
