"""A consumer group without members, as commands need it that write what its instances write."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline
from sidecar.kafka.admin.offsets import Committed, committed_of
from sidecar.kafka.errors import failed
from sidecar.kafka.probes import describe_group
from sidecar.settings import Settings

WAIT_S: Final = 45.0
"""The transaction of a killed instance is over by then."""


def require_no_members(admin: Admin, settings: Settings, wait_s: float = WAIT_S) -> None:
    """Make sure that no instance is in the group.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: There are members.
    """
    try:
        group = describe_group(admin, settings, Deadline(wait_s))
    except KafkaFailed as error:
        raise CommandFailed(f"the group {settings.group_id} cannot be described: {error}") from error
    if group is not None and group.members:
        hosts = ", ".join(group.hosts)
        raise CommandFailed(
            f"the group {settings.group_id} has {group.members} members ({hosts}): stop all instances first; only one "
            "process may write for it meanwhile. One with an INSTANCE_ID stays a member after its end until its "
            "session is over (CLIENT_SESSION_TIMEOUT_MS)"
        )


def stable_offsets(settings: Settings, partitions: Sequence[int], wait_s: float = WAIT_S) -> dict[int, Committed]:
    """Return the committed offset of each partition that has one, once no transaction is open on them.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: The cluster refuses.
    """
    deadline = Deadline(wait_s)
    wanted = [TopicPartition(settings.input_topic, each) for each in partitions]
    with closing(Consumer(config.committed_reader(settings), logger=config.quiet_logger())) as consumer:
        while True:
            try:
                found = committed_of(consumer, wanted)
                if (error := next((each.error for each in found if each.error is not None), None)) is not None:
                    raise KafkaException(error)
            except KafkaException as cause:
                why = failed(cause.args[0])
                if not why.away and why.code != "UNSTABLE_OFFSET_COMMIT":
                    raise CommandFailed(f"the offsets of {settings.group_id} cannot be read: {why}") from cause
                if deadline.passed:
                    raise BrokerUnavailable(f"the offsets of {settings.group_id} cannot be read: {why}") from cause
                deadline.pause()
            else:
                return {
                    each.partition: Committed(each.offset, each.metadata or "") for each in found if each.offset >= 0
                }
