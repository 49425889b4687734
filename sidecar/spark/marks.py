"""Marks: how far a partition step got, in the last checkpoint of its partition in the changelog.

A partition step sends the output of several plans. The mark of the last one committed has a digest of everything that
the step had sent by then: a micro-batch that Spark runs again continues behind it, and only if it would send the same.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from sidecar.changelog.codec import Checkpoint, decode_checkpoint_as
from sidecar.errors import SidecarError
from sidecar.spark.stream.wire import Closing, Packed, StatusRecord, unframed

OUTCOME: Final = b"o/"
"""The prefix of the keys of outcomes; every other record of the status topic is published again soon."""
CLOSINGS_MAX: Final = 8
"""The most topics that a mark names as closed: it is written with each transaction."""
ALL: Final = "*"
"""The name for all origins, when there are more."""

_TOPICS: Final = re.compile(r"TopicsRefuse: .*\[topics ([A-Za-z0-9+/=]+)\]")


class TopicsRefuse(SidecarError):
    """Some topics refuse records of a micro-batch, which has to be decided again with these topics closed.

    A worker raises it, and Spark passes only its text to the driver.

    Args:
        closed: Topic to a `Closure`.
        said: The broker's reason.
    """

    def __init__(self, closed: Mapping[str, str], said: str) -> None:
        names = ", ".join(sorted(closed)[:CLOSINGS_MAX])
        packed = b64encode(msgspec.json.encode(closed)).decode()
        super().__init__(f"{len(closed)} topics take no records: {names}: {said} [topics {packed}]")

    @staticmethod
    def read(text: str) -> dict[str, str]:
        """Return the closed topics in the text of a failure, empty when it is another failure."""
        found = _TOPICS.search(text)
        return {} if found is None else msgspec.json.decode(b64decode(found[1]), type=dict[str, str])


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """What the transactions of a Spark checkpoint have sent for an input partition."""

    sequence: int
    """The sequence that the partition step had reached."""
    checkpoint: str
    """The id of the Spark checkpoint that wrote it."""
    batch: int = -1
    """The micro-batch; -1: it was made from a state."""
    digest: str = ""
    """The digest of what the step had sent."""
    writer: str = ""
    """The id of the producer's owner."""
    closings: list[Closing] = []
    """The topics that the step treated as closed beside those of its state."""
    ahead: int = 0
    """The plans of the next step that were sent already."""
    ahead_digest: str = ""
    """The digest of these plans."""
    ahead_ms: int = 0
    """The instant of the last of these plans: all that was due by then is sent."""
    next_input_offset: int = 0
    """The input offset that was committed with it."""

    @property
    def reached(self) -> int:
        """The sequence up to which all is sent."""
        return self.sequence + self.ahead


class MarkedCheckpoint(Checkpoint, array_like=True, frozen=True):
    """A checkpoint in the changelog: where the Spark engine began with the partition, and what it has sent since."""

    mark: Mark | None = None

    @property
    def reached(self) -> int:
        """The sequence up to which all is sent."""
        return self.sequence if self.mark is None else self.mark.reached


_decoder: Final = msgspec.msgpack.Decoder(MarkedCheckpoint)


def decode_marked(value: bytes) -> MarkedCheckpoint:
    """Return a checkpoint with its mark, None in one of the embedded engine. Raises FormatUnknown, RecordCorrupt."""
    return decode_checkpoint_as(value, _decoder)


class Digest:
    """The digest of what a partition step sends; it does not depend on how the records are cut into lists."""

    def __init__(self) -> None:
        self._hash = sha256()

    def add(self, packed: Packed, status_records: Iterable[StatusRecord]) -> None:
        """Add what is sent, except the counts."""
        self._hash.update(packed.content)
        self._hash.update(unframed([(each.key, each.value) for each in status_records if each.key.startswith(OUTCOME)]))

    def __str__(self) -> str:
        return self._hash.hexdigest()[:32]


class ReplayClosings(NamedTuple):
    """The topics that the steps of a replayed micro-batch treat as closed."""

    now_ms: int = -1
    """The instant of that micro-batch."""
    closings: tuple[tuple[int, Sequence[Closing]], ...] = ()
    """The closings by input partition."""
    others: Sequence[Closing] = ()
    """The closings of all other input partitions."""

    def of(self, partition: int, now_ms: int) -> Sequence[Closing]:
        """Return the topics that a step treats as closed beside those of its state."""
        return dict(self.closings).get(partition, self.others) if now_ms == self.now_ms else ()


def replay_closings(now_ms: int, batch: int, marks: Mapping[int, Mark], refusing: Mapping[str, str]) -> ReplayClosings:
    """Return the topics that the steps of a replayed micro-batch treat as closed.

    Args:
        now_ms: The instant of the micro-batch.
        batch: The number of the micro-batch.
        marks: The marks by input partition.
        refusing: Topics that refused its records, and why; they are closed for what is not committed yet.
    """
    many = len(refusing) > CLOSINGS_MAX
    fresh = {ALL: next(iter(refusing.values()))} if many else dict(refusing)
    closings = []
    for partition, mark in marks.items():
        if mark.batch == batch or mark.ahead:
            decided = mark.closings if mark.batch == batch else []
            known = {each.topic for each in decided}
            more = [Closing(name, why, mark.reached) for name, why in fresh.items() if name not in known]
            closings.append((partition, [*decided, *more]))
    return ReplayClosings(now_ms, tuple(closings), [Closing(name, why, -1) for name, why in fresh.items()])
