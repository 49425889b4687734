"""Reads the outcomes of control records from the status topic, from a place on that is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sidecar.contract.status import parse_outcome_key
from sidecar.errors import CommandFailed
from sidecar.kafka import config
from sidecar.kafka.arrivals import arrivals
from sidecar.kafka.cluster import Deadline, is_away
from sidecar.kafka.status_reader import StatusRead
from sidecar.settings import Settings

READ_RECORDS: Final = 1_000


class OutcomeRead(NamedTuple):
    """A record with the key of an outcome."""

    control_id: str
    input_offset: int
    """Of the control record."""
    read: StatusRead


class OutcomeReader:
    """A consumer of its own, assigned by hand, of committed records only; used by one thread."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.status_topic
        self._token = settings.api_token
        self._consumer = Consumer(dict(config.status_reader(settings)), logger=config.quiet_logger())
        self._unread: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()

    def start(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on."""
        self._consumer.assign([TopicPartition(self._topic, each, offset) for each, offset in offsets.items()])
        self._unread = set(offsets)

    def start_at(self, partitions: Iterable[int], at_ms: int, deadline: Deadline) -> None:
        """Read these partitions from the first record on that is not older.

        Raises:
            CommandFailed: They cannot be asked for it.
        """
        wanted = [TopicPartition(self._topic, each, at_ms) for each in partitions]
        try:
            found = self._consumer.offsets_for_times(wanted, deadline.left_s)
        except KafkaException as error:
            raise CommandFailed(f"topic {self._topic}: {error.args[0].str()}") from error
        self.start({each.partition: each.offset for each in found})

    @property
    def caught_up(self) -> bool:
        """Whether every partition has been read to its end once."""
        return not self._unread

    def read(self, timeout_s: float) -> list[OutcomeRead]:
        """Return what has come, waiting so long for the first record.

        Raises:
            CommandFailed: The topic cannot be read.
        """
        found = []
        for message in arrivals(self._consumer, READ_RECORDS, timeout_s):
            error = message.error()
            if error is None:
                if (named := parse_outcome_key(message.key())) is not None and (read := StatusRead.of(message)):
                    found.append(OutcomeRead(*named, read))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._unread.discard(message.partition() or 0)
            elif not is_away(error):
                raise CommandFailed(f"topic {self._topic} cannot be read: {error.str()}")
        return found

    def is_signed(self, read: StatusRead) -> bool:
        """Return whether a record is to be trusted."""
        return read.is_signed(self._topic, self._token)
