"""What the driver asks of the state, and what a task answers, as they travel between the two."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from sidecar.engine.selection import Selection

Place = tuple[int, int, int]
"""Stored due, partition and offset: a position in the order of a list."""


class BoardAddress(NamedTuple):
    """Where the driver listens for the tasks of its query."""

    host: str
    port: int
    secret: str
    """Known to the driver and its executors alone."""


class ListPending(msgspec.Struct, frozen=True, tag="list", array_like=True):
    """Asks for the first messages of each partition in due order."""

    selection: Selection
    due_from_ms: int
    due_to_ms: int
    """Exclusive; both bounds are of the stored due."""
    limit: int
    after: Place | None


class FindPending(msgspec.Struct, frozen=True, tag="find", array_like=True):
    """Asks for one message by its timer id."""

    partition: int
    offset: int
    first_ms: int


class FindNamed(msgspec.Struct, frozen=True, tag="named", array_like=True):
    """Asks for all messages of a retry id."""

    retry_id: bytes


Wish = ListPending | FindPending | FindNamed


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A wish, and who has not answered it yet."""

    number: int
    wish: Wish
    partitions: list[int]


class PartitionAnswer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The answer for one partition."""

    number: int
    """The number of the question."""
    partition: int
    batch: int
    """The micro-batch whose state it shows."""
    instant_ms: int
    """The instant of this micro-batch."""
    entries: list[bytes] = []
    """The messages in due order; of a list without their payloads."""
    reached: Place | None = None
    """All up to here is covered; None: there is nothing behind."""
    examined: int = 0
    truncated: bool = False
    refusal: str = ""
    """Why the partition cannot be read; empty when it was."""


class Poll(msgspec.Struct, frozen=True, array_like=True, tag="poll"):
    """A task asks what there is to answer."""

    secret: str
    batch: int


class Answers(msgspec.Struct, frozen=True, array_like=True, tag="answers"):
    """A task answers."""

    answers: list[PartitionAnswer]


encode: Final = msgspec.msgpack.Encoder().encode
_questions: msgspec.msgpack.Decoder[list[Question]] = msgspec.msgpack.Decoder(list[Question])
_said: msgspec.msgpack.Decoder[Poll | Answers] = msgspec.msgpack.Decoder(Poll | Answers)


def decode_questions(value: bytes) -> list[Question]:
    """Return what the driver asks. Raises msgspec.DecodeError."""
    return _questions.decode(value)


def decode_said(value: bytes) -> Poll | Answers:
    """Return what a task says. Raises msgspec.DecodeError."""
    return _said.decode(value)
