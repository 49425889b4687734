"""Handlers of confluent-kafka consumers: what fails goes to the retry topic, and offsets are committed after that."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.aio import AIOConsumer

from retry_sidecar.aio import AsyncRetrying
from retry_sidecar.consumed import Consumed
from retry_sidecar.progress import DELIVERY_TIMEOUT_S, REMEMBERED_MAX, Progress, Result, RetryNotDelivered
from retry_sidecar.record import RetryRecord
from retry_sidecar.topic import Delivery, RetryTopic

_NEEDED: Final[dict[str, tuple[bool | str, str]]] = {
    "enable.auto.commit": (False, "otherwise messages are committed that are neither handled nor on the retry topic"),
    "isolation.level": ("read_committed", "otherwise deliveries of aborted transactions are handled too"),
}


def consumer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a consumer for Retrying: the given one, which commits nothing by itself.

    A consumer does not show its configuration, so nothing can check it later.

    Args:
        config: The properties of the consumer; `enable.auto.commit` and `isolation.level` are set unless given.

    Raises:
        ValueError: One of the two has another value than retries need.
    """
    for name, (wanted, why) in _NEEDED.items():
        given = config.get(name, wanted)
        if str(given).lower() != str(wanted).lower():
            raise ValueError(f"{name}={given}: it must be {str(wanted).lower()}, {why}")
    return {**{name: wanted for name, (wanted, _) in _NEEDED.items()}, **config}


class Retrying:
    """Sends what a handler cannot handle to the retry topic, and commits a message when it is handled or safe there.

        retrying = Retrying(consumer, producer, group="shop")

        @retrying
        def handle(message: Message) -> None: ...

        while running:
            with retrying:  # commits once, when the block ends
                for message in consumer.consume(500, timeout=1.0):
                    handle(message)

    Without the `with`, each call of the handler waits for its own confirmation and commit. Deliveries for other
    consumer groups and repeats are skipped. One thread uses it, the one that uses the consumer.

    Args:
        consumer: A consumer with `enable.auto.commit` false and `isolation.level` read_committed, as consumer_config
            makes sure.
        producer: The producer for the retry topic; set `enable.idempotence`.
        group: The consumer's `group.id`.
        topic: The retry topic.
        retry_on: The errors that send a message to the retry topic. Any other leaves the handler's call, its message
            is not committed, and all further calls raise RetryingStopped.
        delay_ms: Returns the delay of a message that failed, in milliseconds; None: the policy's delay.
        qualified_names: Whether `retry-exception` has the module before the class name.
        remember: The number of timer ids by which repeats are recognised; 0: repeats are not skipped.
        delivery_timeout_s: The longest wait for a confirmation of the retry topic, in seconds.
    """

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        *,
        group: str,
        topic: str = "retry",
        retry_on: tuple[type[BaseException], ...] = (Exception,),
        delay_ms: Callable[[Message, BaseException], int | None] | None = None,
        qualified_names: bool = True,
        remember: int = REMEMBERED_MAX,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._group = group
        self._retry_on = retry_on
        self._delay_ms = delay_ms
        self._retries = RetryTopic(producer, topic, qualified_names=qualified_names)
        self._topic = topic
        self._timeout_s = delivery_timeout_s
        self._progress = Progress(group, remember)
        # The reports of deliveries, None for those that are confirmed: another thread may poll the producer.
        self._reports: list[KafkaError | None] = []
        self._sent = 0
        self._in_block = False

    def __call__(self, handler: Callable[[Message], object]) -> Callable[[Message], Result]:
        """Return the handler with retries; its calls return the result of the message.

        A call raises what the handler raises beside `retry_on`; RetryNotDelivered and RetryingStopped; KafkaException
        for a message that is an error, and when the commit fails: what is not committed is read again.
        """

        @functools.wraps(handler)
        def handle(message: Message) -> Result:
            result = self._take(message, handler)
            if not self._in_block:
                self._settle()
            return result

        return handle

    def __enter__(self) -> Retrying:
        if self._in_block:
            raise RuntimeError("this block is within another one of the same object: blocks cannot be nested")
        self._in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for confirmations, then commit; also when the block fails, for the messages before the one that failed.

        Raises:
            RetryNotDelivered: The retry topic did not confirm; nothing of the block is committed.
            KafkaException: The commit failed.
        """
        self._in_block = False
        self._settle()

    def _take(self, message: Message, handler: Callable[[Message], object]) -> Result:
        if (failure := message.error()) is not None:
            raise KafkaException(failure)
        came = Consumed.of(message)
        if (skipped := self._progress.begin(came)) is not None:
            return skipped
        try:
            result = self._handle(message, handler)
        except BaseException as error:
            self._progress.stop(f"{came.topic}-{came.partition}@{came.offset} failed with {type(error).__name__}")
            raise
        self._progress.finish(came)
        return result

    def _handle(self, message: Message, handler: Callable[[Message], object]) -> Result:
        try:
            handler(message)
        except self._retry_on as error:
            self._send_back(message, error)
            return Result.SENT_BACK
        return Result.HANDLED

    def _send_back(self, message: Message, error: BaseException) -> None:
        delay_ms = None if self._delay_ms is None else self._delay_ms(message, error)
        send = functools.partial(
            self._retries.send_back,
            message,
            error,
            delay_ms=delay_ms,
            group=self._group,
            on_delivery=self._delivered,
        )
        try:
            send()
        except BufferError:
            self._producer.flush(self._timeout_s)
            send()
        self._sent += 1
        self._producer.poll(0)

    def _delivered(self, delivery: Delivery) -> None:
        self._reports.append(delivery.error)

    def _settle(self) -> None:
        if len(self._reports) < self._sent:
            self._producer.flush(self._timeout_s)
        refused = next((error.str() for error in self._reports if error is not None), "")
        if refused or len(self._reports) < self._sent:
            why = refused or f"no confirmation within {self._timeout_s:g} s"
            text = f"a message did not reach {self._topic}: {why}"
            self._progress.stop(text)
            raise RetryNotDelivered(text)
        self._reports.clear()
        self._sent = 0
        if offsets := self._progress.offsets():
            self._consumer.commit(offsets=_places(offsets), asynchronous=False)
            self._progress.committed(offsets)


class AIORetrying(AsyncRetrying[Message]):
    """The asyncio form of Retrying, for confluent-kafka's AIOConsumer and its plain Producer.

    The producer is the plain one because AIOProducer cannot send headers; waiting for it takes a thread.

    Args:
        consumer: A consumer with `enable.auto.commit` false and `isolation.level` read_committed, as consumer_config
            makes sure.
        producer: The producer for the retry topic.
        **options: See AsyncRetrying.
    """

    def __init__(self, consumer: AIOConsumer, producer: Producer, **options: Any) -> None:
        super().__init__(**options)
        self._consumer = consumer
        self._producer = producer

    async def _send(self, topic: str, record: RetryRecord) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        delivered: asyncio.Future[None] = loop.create_future()

        def report(error: KafkaError | None, _: Message) -> None:
            loop.call_soon_threadsafe(_resolve, delivered, error)

        headers: list[tuple[str, str | bytes | None]] = [*record.headers]
        produce = functools.partial(
            self._producer.produce, topic, value=record.value, key=record.key, headers=headers, on_delivery=report
        )
        try:
            produce()
        except BufferError:
            await self._flush()
            produce()
        return delivered

    async def _flush(self) -> None:
        await asyncio.to_thread(self._producer.flush, self._timeout_s)

    async def _commit(self, offsets: dict[tuple[str, int], int]) -> None:
        await self._consumer.commit(offsets=_places(offsets), asynchronous=False)

    def _check(self, message: Message) -> None:
        if (failure := message.error()) is not None:
            raise KafkaException(failure)


def _resolve(delivered: asyncio.Future[None], error: KafkaError | None) -> None:
    if delivered.done():
        return
    if error is None:
        delivered.set_result(None)
    else:
        delivered.set_exception(KafkaException(error))


def _places(offsets: dict[tuple[str, int], int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
