"""Recognises a changelog that another program wrote, before anything is changed."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from sidecar.changelog.codec import decode_key
from sidecar.changelog.ibm import retry_info
from sidecar.errors import BrokerUnavailable, FormatUnknown
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Deadline, Topic
from sidecar.settings import Settings

_READ_S = 0.2


def foreign_records(settings: Settings, changelog: Topic, deadline: Deadline) -> str:
    """Return what a changelog contains that no sidecar wrote, for a person; empty if nothing.

    It looks at the first record of each partition. What cannot be read is left to the restore, which says why.

    Raises:
        BrokerUnavailable: No answer in time.
    """
    properties: dict[str, Any] = {
        **config.changelog_reader(settings),
        "isolation.level": "read_uncommitted",  # an open transaction must not hold this up
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "queued.max.messages.kbytes": 1_024,
        "fetch.message.max.bytes": 65_536,
    }
    unseen = set(range(changelog.partitions))
    with closing(Consumer(properties, logger=config.quiet_logger())) as consumer:
        consumer.assign([TopicPartition(changelog.name, each, OFFSET_BEGINNING) for each in unseen])
        while unseen:
            message = consumer.poll(_READ_S)
            if message is not None and (number := message.partition()) in unseen:
                if message.error() is None and (said := _foreign(message.key(), message.value())):
                    return f"partition {number} has {said} at offset {message.offset()}"
                unseen.remove(number)
                consumer.incremental_unassign([TopicPartition(changelog.name, number)])
            elif unseen and deadline.passed:
                raise BrokerUnavailable(f"the changelog {changelog.name} cannot be read: no answer in time")
    return ""


def _foreign(key: bytes | None, value: bytes | None) -> str:
    # The value first: any text can be a key of IBM's, also one that looks like a key of ours.
    if value is not None and retry_info(value) is not None:
        return "a record of IBM's kafka-retry"
    try:
        decode_key(key)
    except FormatUnknown:
        return "a record that no sidecar wrote"
    return ""
