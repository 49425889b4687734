"""Consumed messages, whichever client library read them, and what their headers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from retry_sidecar.headers import (
    ATTEMPT,
    GROUP,
    TIMER_ID,
    Header,
    Headers,
    foreign_attempts,
    names_topic,
    number,
    text,
)


class ConfluentMessage(Protocol):
    """The part of `confluent_kafka.Message` that this package reads."""

    def topic(self) -> str | None:
        """Return the topic."""

    def partition(self) -> int | None:
        """Return the partition."""

    def offset(self) -> int | None:
        """Return the offset."""

    def key(self) -> Any:
        """Return the key."""

    def value(self) -> Any:
        """Return the value."""

    def headers(self) -> Any:
        """Return the headers."""


class AiokafkaRecord(Protocol):
    """The part of `aiokafka.ConsumerRecord` that this package reads."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def partition(self) -> int:
        """The partition."""

    @property
    def offset(self) -> int:
        """The offset."""

    @property
    def key(self) -> Any:
        """The key."""

    @property
    def value(self) -> Any:
        """The value."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The headers."""


class Consumed(NamedTuple):
    """A consumed message."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @classmethod
    def of(cls, message: AnyMessage) -> Consumed:
        """Return a message of any of the libraries in this form.

        Raises:
            TypeError: Key or value are no bytes, because the consumer deserializes them.
        """
        if isinstance(message, Consumed):
            return message
        if callable(message.topic):
            found = cls(
                message.topic() or "",
                message.partition() or 0,
                message.offset() or 0,
                message.key(),
                message.value(),
                _pairs(message.headers()),
            )
        else:
            found = cls(
                message.topic,
                message.partition,
                message.offset,
                message.key,
                message.value,
                _pairs(message.headers),
            )
        for name, value in (("key", found.key), ("value", found.value)):
            if not isinstance(value, bytes | None):
                raise TypeError(
                    f"the {name} is {type(value).__name__}: allowed are bytes or None, as a consumer without "
                    "deserializers returns them"
                )
        return found


AnyMessage = Consumed | ConfluentMessage | AiokafkaRecord


def is_for_group(message: AnyMessage, group: str) -> bool:
    """Return whether a message is for this consumer group: not when it is a delivery for another group that failed.

    A group header that was copied with the origin of another topic does not count.
    """
    came = Consumed.of(message)
    failed = dict(came.headers).get(GROUP)
    return failed is None or failed == group.encode() or not names_topic(came.headers, came.topic)


def attempt_of(message: AnyMessage) -> int:
    """Return the retries already made; 0 for a message that is no delivery, or copied its headers from one."""
    came = Consumed.of(message)
    attempt = number(dict(came.headers).get(ATTEMPT)) if names_topic(came.headers, came.topic) else None
    return attempt or foreign_attempts(came.headers, came.topic) or 0


def timer_id_of(message: AnyMessage) -> str | None:
    """Return the timer id of a delivery; None for other messages, and for those that copied it from one."""
    came = Consumed.of(message)
    return text(dict(came.headers).get(TIMER_ID)) if names_topic(came.headers, came.topic) else None


def _pairs(headers: Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None) -> list[Header]:
    if not headers:
        return []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
