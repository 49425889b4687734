"""Reads messages of the retry topic a second time: a fire that its origin refuses is a dead letter as it came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.clock import SystemClock
from sidecar.kafka import config
from sidecar.kafka.input import headers_of
from sidecar.model import NO_TIMESTAMP, Record
from sidecar.settings import Settings

WAIT_S: Final = 10.0
"""For all of them: a whole micro-batch of an origin that is gone must not hold up the others for ever."""
READ_RECORDS: Final = 500
GAP_RECORDS: Final = 5_000
"""So many others are read rather than leapt over."""

Position = tuple[int, int]
"""Partition and offset."""


def read_input_records(settings: Settings, positions: Iterable[Position]) -> dict[Position, Record]:
    """Return the records at these places, but those that the topic does not hold any more or that take too long."""
    wanted: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(set(positions)):
        wanted[partition].append(offset)
    found: dict[Position, Record] = {}
    until_s = SystemClock().monotonic_s() + WAIT_S
    reader = Consumer(dict(config.committed_reader(settings)), logger=config.quiet_logger())
    try:
        for partition, offsets in wanted.items():
            _read(reader, settings.input_topic, partition, offsets, found, until_s)
    except KafkaException:
        return found
    finally:
        reader.close()
    return found


def _read(
    reader: Consumer, topic: str, partition: int, offsets: list[int], found: dict[Position, Record], until_s: float
) -> None:
    clock, left = SystemClock(), offsets[::-1]
    position: int | None = None
    while left and (left_s := until_s - clock.monotonic_s()) > 0:
        if position is None or left[-1] - position > GAP_RECORDS:
            position = left[-1]
            reader.assign([TopicPartition(topic, partition, position)])
        for message in reader.consume(READ_RECORDS, min(left_s, 0.1)):
            if message.error() is not None:
                left.pop()  # the log begins further on by now
                position = None
                break
            offset = message.offset() or 0
            while left and left[-1] < offset:
                left.pop()
            if left and left[-1] == offset:
                kind, timestamp_ms = message.timestamp()
                stamped_ms = timestamp_ms if kind else NO_TIMESTAMP
                key, value, headers = message.key(), message.value(), headers_of(message)
                found[partition, offset] = Record(partition, offset, stamped_ms, key, value, headers)
                left.pop()
            position = offset + 1
