"""Reads the outcomes of control records from the status topic, from given offsets on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Self

from sidecar.contract.status import parse_outcome_key
from sidecar.errors import CommandFailed, KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Deadline
from sidecar.kafka.log_reader import End, LogReader, Unread
from sidecar.kafka.status_reader import StatusRead
from sidecar.settings import Settings

READ_RECORDS: Final = 1_000


class OutcomeRead(NamedTuple):
    """A record with the key of an outcome."""

    control_id: str
    input_offset: int
    """Input offset of the control record."""
    read: StatusRead


class OutcomeReader:
    """A separate, manually assigned consumer of committed records; used by one thread."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.status_topic
        self._token = settings.api_token
        self._log = LogReader(config.status_reader(settings), self._topic)
        self._unread: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        self._log.close()

    def start(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on."""
        self._log.start(offsets)
        self._unread = set(offsets)

    def start_at(self, partitions: Iterable[int], at_ms: int, deadline: Deadline) -> None:
        """Read these partitions from the first record at or after `at_ms`.

        Raises:
            CommandFailed: They cannot be asked for it.
        """
        try:
            self.start(self._log.offsets_at(partitions, at_ms, deadline.left_s))
        except KafkaFailed as error:
            raise CommandFailed(f"topic {self._topic}: {error}") from error

    @property
    def caught_up(self) -> bool:
        """Whether every partition has been read to its end once."""
        return not self._unread

    def read(self, timeout_s: float) -> list[OutcomeRead]:
        """Return the available outcomes, after waiting for the first record.

        Raises:
            CommandFailed: The topic cannot be read.
        """
        found = []
        for read in self._log.read(READ_RECORDS, timeout_s):
            if isinstance(read, End):
                self._unread.discard(read.partition)
            elif isinstance(read, Unread):
                if not read.error.away:
                    raise CommandFailed(f"topic {self._topic} cannot be read: {read.error}")
            elif (named := parse_outcome_key(read.key)) is not None and (record := StatusRead.of(read)):
                found.append(OutcomeRead(*named, record))
        return found

    def is_signed(self, read: StatusRead) -> bool:
        """Return whether a record has a valid signature."""
        return read.is_signed(self._topic, self._token)
