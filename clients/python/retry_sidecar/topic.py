"""Publishing to the retry topic with a producer of confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from retry_sidecar.headers import Headers, Retry
from retry_sidecar.record import retry_record

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer


class Delivery(NamedTuple):
    """The delivery report of a message: the broker has it, or `error` says why not."""

    error: KafkaError | None
    partition: int
    offset: int
    timer_id: str | None
    """The timer id, known when the message gives its `due_ms`. After the retry topic was deleted and recreated the
    sidecar shows another one, and accepts this one too."""


class RetryTopic:
    """Sends to the retry topic with the application's producer, which the application polls and flushes.

        retries = RetryTopic(producer)
        try:
            handle(message)
        except PaymentDeclined as error:
            retries.send_back(message, error)

    Commit the message's offset only when its delivery is confirmed, or in the producer's transaction;
    `retry_sidecar.confluent.Retrying` does the former.

    Args:
        producer: The application's producer.
        topic: The retry topic.
        qualified_names: Whether `retry-exception` has the module before the class name.
    """

    def __init__(self, producer: Producer, topic: str = "retry", *, qualified_names: bool = True) -> None:
        self._producer = producer
        self._topic = topic
        self._qualified_names = qualified_names

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
        self._produce(key, value, [*headers, *retry.headers()], retry.due_ms, on_delivery)

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

        Args:
            message: The message as consumed.
            error: The error; its class name goes into `retry-exception`.
            due_ms: The due time; without it `delay_ms`, or else the policy's delay.
            delay_ms: The delay from the time of sending.
            group: The consumer's group; without it the one in the headers stays.
            on_delivery: As in `send`.

        Raises:
            BufferError: As in `send`.
        """
        key, value, headers = retry_record(
            message, error, due_ms=due_ms, delay_ms=delay_ms, group=group, qualified_names=self._qualified_names
        )
        self._produce(key, value, headers, due_ms, on_delivery)

    def _produce(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        due_ms: int | None,
        on_delivery: Callable[[Delivery], None] | None,
    ) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            if on_delivery is not None:
                on_delivery(_delivery(error, message, due_ms))

        # Its type is that of headers with str values too, and lists are invariant.
        produced: list[tuple[str, str | bytes | None]] = [*headers]
        self._producer.produce(self._topic, value=value, key=key, headers=produced, on_delivery=report)


def _delivery(error: KafkaError | None, message: Message, due_ms: int | None) -> Delivery:
    if error is not None:
        return Delivery(error, -1, -1, None)
    partition, offset = message.partition() or 0, message.offset() or 0
    return Delivery(None, partition, offset, None if due_ms is None else f"{partition}-{offset}-{due_ms}")
