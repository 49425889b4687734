"""Discards: dead letters that an operator has decided not to redrive, with who decided it and why.

A record of a DLQ cannot be deleted alone. So a discard is a record of a compacted topic, by DLQ, partition and offset;
lists and counts leave the dead letter out, and redrives skip it. Every process reads the topic to its end when it asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from sidecar.clock import Clock, SystemClock
from sidecar.contract.redrive import REASON_CHARS_MAX
from sidecar.dlq.reader import DlqRecord, OffsetRange
from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import (
    Admin,
    Deadline,
    NewTopic,
    Topic,
    await_partitions,
    create_topic,
    describe_topics,
)
from sidecar.kafka.log_reader import End, LogReader, Unread
from sidecar.kafka.writer import Writer, Written
from sidecar.model import Record
from sidecar.settings import Settings

DISCARDS_MAX: Final = 10_000
"""The most discards of one DLQ whose dead letters are still there."""
ASK_S: Final = 10.0
_READ_MAX: Final = 1_000
_POLL_S: Final = 0.2
_CONFIG: Final = {"cleanup.policy": "compact", "max.message.bytes": "1048588"}

Place = tuple[int, int]
"""The partition and the offset of a dead letter."""


class Discard(msgspec.Struct, frozen=True):
    """Why a dead letter is not to be redriven. The value of a record, as JSON."""

    who: str
    why: str
    at_ms: int
    died_ms: int
    """When the dead letter died: another record at its place, of a DLQ that was made anew, is another one."""


def discard_of(discards: Mapping[Place, Discard], record: DlqRecord) -> Discard | None:
    """Return the discard of a dead letter, None when it has none."""
    found = discards.get((record.partition, record.offset))
    return found if found is not None and found.died_ms == record.timestamp_ms else None


class DiscardLog:
    """The discards of one DLQ. Used by one thread at a time.

    Args:
        settings: The settings, which name the DLQ and the topic.
        admin: The admin client.
        clock: Stamps discards.
    """

    def __init__(self, settings: Settings, admin: Admin, clock: Clock | None = None) -> None:
        self._settings = settings
        self._admin = admin
        self._clock = clock or SystemClock()
        self._topic = settings.discards_topic

    def read(self, deadline: Deadline | None = None) -> dict[Place, Discard]:
        """Return all discards; none while the topic does not exist.

        Raises:
            BrokerUnavailable: No answer in time.
            CommandFailed: The topic may not be read.
        """
        deadline = deadline or Deadline(ASK_S, self._clock)
        if self._described("READ", deadline) is None:
            return {}
        found: dict[Place, Discard] = {}
        reader = config.dead_letter_reader(self._settings, f"{self._settings.group_id}-dlq-report")
        with LogReader(reader, self._topic) as log:
            log.start({0: 0})
            while not deadline.passed:
                for item in log.read(_READ_MAX, _POLL_S):
                    if isinstance(item, End):
                        return found
                    if isinstance(item, Unread):
                        self._check(item.error)
                    elif (place := self._place_of(item)) is not None:
                        found.pop(place, None)
                        if (discard := _parsed(item.value)) is not None:
                            found[place] = discard
        raise BrokerUnavailable(f"topic {self._topic}: was not read to its end within {ASK_S:g} s; try again")

    def add(self, records: Iterable[DlqRecord], who: str, why: str, log: Mapping[int, OffsetRange]) -> Discard:
        """Discard dead letters; return when and by whom. One that is discarded already gets the new reason.

        Args:
            records: The dead letters.
            who: Who decides it.
            why: The reason.
            log: The ranges of the DLQ: discards of what retention has deleted are taken away.

        Raises:
            ValueError: There would be too many.
            CommandFailed: The topic cannot be created or written.
        """
        deadline = Deadline(ASK_S, self._clock)
        self._ensure(deadline)
        known, at_ms = self.read(deadline), self._clock.wall_ms()
        made = Discard(who[:REASON_CHARS_MAX], why[:REASON_CHARS_MAX], at_ms, 0)
        new = {
            (each.partition, each.offset): msgspec.structs.replace(made, died_ms=each.timestamp_ms) for each in records
        }
        gone = [place for place in known if place[0] not in log or place[1] < log[place[0]].first]
        if len(known.keys() | new.keys()) - len(gone) > DISCARDS_MAX:
            raise ValueError(
                f"id: {self._settings.dlq_topic} has {len(known) - len(gone):,} discarded dead letters, and at most "
                f"{DISCARDS_MAX:,} are kept: take some back, or let retention delete them"
            )
        values: dict[Place, bytes | None] = dict.fromkeys(gone)
        values.update({place: msgspec.json.encode(discard) for place, discard in new.items()})
        self._write(values, deadline)
        return made

    def take_back(self, places: Iterable[Place]) -> list[Place]:
        """End discards; return those that there were. Raises CommandFailed."""
        deadline = Deadline(ASK_S, self._clock)
        known = self.read(deadline)
        there = [place for place in places if place in known]
        if there:
            self._write(dict.fromkeys(there), deadline)
        return there

    def _described(self, operation: str, deadline: Deadline) -> Topic | None:
        topic = describe_topics(self._admin, (self._topic,), deadline)[self._topic]
        if topic is None:
            return None
        if not isinstance(topic, Topic) or operation not in topic.operations:
            raise CommandFailed(
                f"topic {self._topic}: this user needs the permission {operation.capitalize()} on it; kafka-acls: "
                "docs/how-to/security.md"
            )
        return topic

    def _ensure(self, deadline: Deadline) -> None:
        """Create the topic if there is none: most sidecars never need it."""
        if self._described("WRITE", deadline) is not None:
            return
        try:
            new = NewTopic(self._topic, 1, self._settings.replication_factor or -1, _CONFIG)
            create_topic(self._admin, new, deadline)
        except KafkaFailed as error:
            raise CommandFailed(
                f"topic {self._topic}: does not exist and cannot be created: {error}. Somebody who may must run: "
                f"kafka-topics.sh --create --topic {self._topic} --partitions 1 --config cleanup.policy=compact"
            ) from error
        await_partitions(self._admin, self._topic, 1, deadline)

    def _place_of(self, record: Record) -> Place | None:
        topic, _, place = (record.key or b"").decode(errors="replace").partition("/")
        partition, _, offset = place.partition("-")
        if topic != self._settings.dlq_topic or not (partition.isdecimal() and offset.isdecimal()):
            return None
        return int(partition), int(offset)

    def _write(self, values: Mapping[Place, bytes | None], deadline: Deadline) -> None:
        reports: list[Written | KafkaFailed] = []
        writer = Writer(config.retry_producer(self._settings))
        for (partition, offset), value in values.items():
            key = f"{self._settings.dlq_topic}/{partition}-{offset}".encode()
            writer.write(self._topic, key, value, partition=0, report=reports.append)
        left = writer.flush(max(1.0, deadline.left_s))
        failures = [each for each in reports if isinstance(each, KafkaFailed)]
        if failures:
            raise CommandFailed(f"topic {self._topic}: {failures[0]}")
        if left:
            raise BrokerUnavailable(f"topic {self._topic}: {left} records were not confirmed in time; try again")

    def _check(self, error: KafkaFailed) -> None:
        if error.fatal or (error.denied and error.code != "GROUP_AUTHORIZATION_FAILED"):
            raise CommandFailed(f"topic {self._topic}: {error}")


def _parsed(value: bytes | None) -> Discard | None:
    """Return a discard; None for a tombstone, and for what no sidecar wrote."""
    try:
        return None if value is None else msgspec.json.decode(value, type=Discard)
    except (msgspec.MsgspecError, ValueError):
        return None
