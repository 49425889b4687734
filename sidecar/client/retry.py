"""Publishing to the retry topic, in the headers of profile `native`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from sidecar.contract.dead_letter import REDRIVES
from sidecar.contract.dialects import native
from sidecar.contract.dialects.registry import DEFAULT, DIALECTS
from sidecar.model import Headers, TimerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The retry request for one message. Only the origin is required."""

    origin: str
    """The topic that receives the message when it is due."""
    due_ms: int | None = None
    """The due time, in epoch milliseconds UTC."""
    delay_ms: int | None = None
    """The delay from the record's timestamp. Without both, the policy's delay for the attempt applies."""
    attempt: int | None = None
    """The retries already made."""
    max_attempts: int | None = None
    exception: str | None = None
    """The class name of the error, for the rules and the report."""
    group: str | None = None
    """The consumer group that failed."""
    origin_partition: int | None = None
    retry_id: str | None = None
    """The caller's id for the message, at most 256 bytes."""
    replace: bool = False
    """Whether the message replaces all pending ones with this `retry_id`."""

    def __post_init__(self) -> None:
        if self.due_ms is not None and self.delay_ms is not None:
            raise ValueError(f"due_ms={self.due_ms} and delay_ms={self.delay_ms}: allowed is one of them, or none")
        if self.replace and self.retry_id is None:
            raise ValueError("replace=True needs a retry_id, which says what to replace")

    def headers(self) -> Headers:
        """Return the headers of this request."""
        values: tuple[tuple[str, str | int | None], ...] = (
            (native.ORIGIN_TOPIC, self.origin),
            (native.DUE_MS, self.due_ms),
            (native.DELAY_MS, self.delay_ms),
            (native.ATTEMPT, self.attempt),
            (native.MAX_ATTEMPTS, self.max_attempts),
            (native.EXCEPTION, self.exception),
            (native.GROUP, self.group),
            (native.ORIGIN_PARTITION, self.origin_partition),
            (native.RETRY_ID, self.retry_id),
            (native.REPLACE, "true" if self.replace else None),
        )
        return [(name, str(value).encode()) for name, value in values if value is not None]


class Delivery(NamedTuple):
    """The delivery report of a message: the broker has it, or `error` says why not."""

    error: KafkaError | None
    partition: int
    offset: int
    timer_id: TimerId | None
    """The timer id, known when the message gives its `due_ms`. After the retry topic was deleted and recreated the
    sidecar shows another one, and accepts this one too."""


class RetryTopic:
    """Sends to the retry topic with the application's producer, which the application polls and flushes.

        retries = RetryTopic(producer)
        try:
            handle(message)
        except PaymentDeclined as error:
            retries.send_back(message, error)

    Commit the message's offset only when its delivery is confirmed, or in the producer's transaction.
    """

    def __init__(self, producer: Producer, topic: str = "retry") -> None:
        self._producer = producer
        self._topic = topic

    def send(
        self,
        retry: Retry,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        """Hand a message to the producer.

        Args:
            retry: The retry request.
            key: The key; it comes back unchanged, as do value and headers.
            value: The value; None is a message like any other.
            headers: The application's headers.
            on_delivery: Called from the producer's `poll` or `flush`.

        Raises:
            BufferError: The producer's queue is full: poll it and try again.
        """

        def report(error: KafkaError | None, message: Message) -> None:
            if on_delivery is not None:
                on_delivery(_delivery(error, message, retry.due_ms))

        self._producer.produce(
            self._topic, value=value, key=key, headers=[*headers, *retry.headers()], on_delivery=report
        )

    def send_back(
        self,
        message: Message,
        error: BaseException | None = None,
        *,
        due_ms: int | None = None,
        delay_ms: int | None = None,
        group: str | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        """Send a consumed message that failed, to be delivered again to the topic that it was consumed from.

        Headers that name another origin were copied from a message of that topic: what they say of retries does not
        apply to this message, so it is sent without them, as at its first attempt.

        Args:
            message: The message as consumed; its key, value, other headers and attempts are kept. A header of the
                sidecar that is not UTF-8 is left out.
            error: The error; its class name goes into `retry-exception`.
            due_ms: The due time; without it `delay_ms`, or else the policy's delay.
            delay_ms: The delay from the time of sending.
            group: The consumer's group; without it the one in the headers stays.
            on_delivery: As in `send`.

        Raises:
            BufferError: As in `send`.
        """
        topic = message.topic() or ""
        came = _headers(message)
        gone = _REPLACED if _is_of(came, topic) else _REPLACED | _HISTORY
        kept = [header for header in came if header[0] not in gone]
        retry = Retry(
            origin=topic,
            due_ms=due_ms,
            delay_ms=delay_ms,
            attempt=None if native.ATTEMPT in dict(kept) else _foreign_attempts(dict(came), topic),
            exception=None if error is None else type(error).__name__,
            group=group or _text(dict(kept).get(native.GROUP)),
        )
        headers = [header for header in kept if header[0] != native.GROUP]
        self.send(retry, key=message.key(), value=message.value(), headers=headers, on_delivery=on_delivery)


_FOREIGN = tuple(DIALECTS[name] for name in DEFAULT if name != native.Native.name)
_REPLACED = frozenset(
    {native.ORIGIN_TOPIC, native.DUE_MS, native.DELAY_MS, native.EXCEPTION, native.REPLACE}.union(
        *(dialect.names for dialect in _FOREIGN)
    )
)
"""The headers that `send_back` writes or leaves out: it uses one dialect, and the sidecar refuses duplicates."""
_HISTORY = native.NAMES | {REDRIVES}
"""The headers for the retries of one message on one topic."""


def is_for_group(message: Message, group: str) -> bool:
    """Return whether a message is for this consumer group: not when it is a delivery for another group that failed.

    A group header that was copied with the origin of another topic does not count.
    """
    came = _headers(message)
    failed = dict(came).get(native.GROUP)
    return failed is None or failed == group.encode() or not _is_of(came, message.topic() or "")


def _is_of(headers: Headers, topic: str) -> bool:
    """Return whether the retry headers are for this topic: they name no other origin."""
    return all(value == topic.encode() for name, value in headers if name == native.ORIGIN_TOPIC)


def _foreign_attempts(came: dict[str, bytes | None], topic: str) -> int | None:
    """Return the attempts in headers of another dialect; None unless they are for this topic."""
    for dialect in _FOREIGN:
        count = dialect.bare(came.get(dialect.attempt_header)) or b""
        if dialect.bare(came.get(dialect.origin_header)) == topic.encode() and count.isdigit():
            return int(count[:9])  # far beyond every limit
    return None


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]


def _text(value: bytes | None) -> str | None:
    """Return the text of a header; None when it is missing or cannot be read."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _delivery(error: KafkaError | None, message: Message, due_ms: int | None) -> Delivery:
    if error is not None:
        return Delivery(error, -1, -1, None)
    partition, offset = message.partition() or 0, message.offset() or 0
    return Delivery(None, partition, offset, None if due_ms is None else TimerId(partition, offset, due_ms))
