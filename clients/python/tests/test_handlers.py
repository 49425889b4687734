"""When handlers with retries commit, and when they refuse to go on; the examples show the same on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from retry_sidecar import Result, RetryingStopped, RetryNotDelivered
from retry_sidecar.confluent import AIORetrying, Retrying, consumer_config

Offsets = list[tuple[str, int, int]]
TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)


class SupplierDown(Exception):
    """An error that is worth a retry."""


class Consumer:
    """Keeps what is committed."""

    def __init__(self) -> None:
        self.commits: list[Offsets] = []

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert not asynchronous
        self.commits.append([(each.topic, each.partition, each.offset) for each in offsets])


class AIOConsumer(Consumer):
    """The same for asyncio."""

    async def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:  # type: ignore[override]
        super().commit(offsets=offsets, asynchronous=asynchronous)


class Producer:
    """Keeps what is produced, and reports it when it is flushed.

    Args:
        error: What every report says.
        capacity: The messages that it takes before it is flushed.
        answers: Whether it ever reports.
    """

    def __init__(self, error: KafkaError | None = None, capacity: int = 1_000, *, answers: bool = True) -> None:
        self.values: list[bytes] = []
        self._error = error
        self._capacity = capacity
        self._answers = answers
        self._reports: list[Callable[[KafkaError | None, Message], None]] = []

    def produce(self, topic: str, *, value: bytes, on_delivery: Callable[..., None], **_: Any) -> None:
        if len(self._reports) >= self._capacity:
            raise BufferError
        assert topic == "retry"
        self.values.append(value)
        self._reports.append(on_delivery)

    def poll(self, _: float) -> int:
        return 0

    def flush(self, _: float) -> int:
        if self._answers:
            for report in self._reports:
                report(self._error, Message(partition=0, offset=0))
            self._reports.clear()
        return len(self._reports)


def order(offset: int, error: KafkaError | None = None) -> Message:
    """Return a message with its offset as value."""
    return Message(topic="orders", partition=0, offset=offset, value=b"%d" % offset, error=error)


def handle(message: Message) -> None:
    """Fail for every odd offset, and unexpectedly for 9."""
    number = int(message.value() or b"")
    if number == 9:
        raise KeyError(number)
    if number % 2:
        raise SupplierDown


async def handle_async(message: Message) -> None:
    """Do the same, later for smaller offsets."""
    for _ in range(20 - int(message.value() or b"")):
        await asyncio.sleep(0)
    handle(message)


def retrying(consumer: Any, producer: Any, **options: Any) -> Retrying:
    return Retrying(consumer, producer, group="shop", retry_on=(SupplierDown,), **options)


def aio_retrying(consumer: Any, producer: Any, **options: Any) -> AIORetrying:
    return AIORetrying(consumer, producer, group="shop", retry_on=(SupplierDown,), **options)


def run_block(both: Retrying, *offsets: int) -> None:
    take = both(handle)
    with both:
        for offset in offsets:
            take(order(offset))


def test_a_block_commits_once_and_a_call_alone_commits_itself() -> None:
    consumer, producer = Consumer(), Producer()
    both = retrying(consumer, producer)
    take = both(handle)
    with both:
        assert [take(order(offset)) for offset in range(3)] == [Result.HANDLED, Result.SENT_BACK, Result.HANDLED]
        assert consumer.commits == []
    assert take(order(3)) is Result.SENT_BACK
    with both:
        pass
    assert consumer.commits == [[("orders", 0, 3)], [("orders", 0, 4)]]
    assert producer.values == [b"1", b"3"]


def test_an_unexpected_error_ends_the_block_which_commits_what_came_before() -> None:
    consumer, producer = Consumer(), Producer()
    both = retrying(consumer, producer)
    with pytest.raises(KeyError):
        run_block(both, 7, 8, 9, 10)
    assert consumer.commits == [[("orders", 0, 9)]]
    with pytest.raises(RetryingStopped, match="orders-0@9 failed with KeyError"):
        both(handle)(order(10))
    assert consumer.commits == [[("orders", 0, 9)]]


@pytest.mark.parametrize(
    ("producer", "why"),
    [(Producer(TIMED_OUT), "timed out"), (Producer(answers=False), "no confirmation within 60 s")],
    ids=["refused", "silent"],
)
def test_nothing_is_committed_without_a_confirmation(producer: Producer, why: str) -> None:
    consumer = Consumer()
    both = retrying(consumer, producer)
    with pytest.raises(RetryNotDelivered, match=f"did not reach retry: .*{why}"):
        run_block(both, 0, 1)
    with pytest.raises(RetryingStopped, match="did not reach retry"):
        both(handle)(order(2))
    assert consumer.commits == []


def test_a_full_queue_is_flushed() -> None:
    consumer, producer = Consumer(), Producer(capacity=1)
    both = retrying(consumer, producer)
    take = both(handle)
    with both:
        assert [take(order(offset)) for offset in (1, 3, 5)] == [Result.SENT_BACK] * 3
    assert producer.values == [b"1", b"3", b"5"]
    assert consumer.commits == [[("orders", 0, 6)]]


def test_a_message_that_is_an_error_is_raised_and_blocks_are_not_nested() -> None:
    both = retrying(Consumer(), Producer())
    with pytest.raises(KafkaException, match="_MSG_TIMED_OUT"):
        both(handle)(order(0, TIMED_OUT))
    with both, pytest.raises(RuntimeError, match="cannot be nested"):
        both.__enter__()


def test_the_delay_of_each_message_can_be_chosen() -> None:
    seen: list[tuple[bytes | None, str]] = []

    def delay_ms(message: Message, error: BaseException) -> int:
        seen.append((message.value(), type(error).__name__))
        return 5

    retrying(Consumer(), Producer(), delay_ms=delay_ms)(handle)(order(1))
    assert seen == [(b"1", "SupplierDown")]


def test_handlers_that_run_at_the_same_time_are_committed_up_to_the_first_that_is_not_done() -> None:
    async def play() -> None:
        consumer, producer = AIOConsumer(), Producer()
        both = aio_retrying(consumer, producer)
        take = both(handle_async)
        async with both:
            results = await asyncio.gather(*(take(order(offset)) for offset in range(4)))
        assert results == [Result.HANDLED, Result.SENT_BACK, Result.HANDLED, Result.SENT_BACK]
        assert sorted(producer.values) == [b"1", b"3"]
        with pytest.raises(KeyError):
            async with both:
                await asyncio.gather(*(take(order(offset)) for offset in (8, 9, 10)))
        assert consumer.commits == [[("orders", 0, 4)], [("orders", 0, 9)]]

    asyncio.run(play())


def test_calls_alone_that_run_at_the_same_time_commit_only_what_is_confirmed() -> None:
    async def play() -> None:
        consumer = AIOConsumer()
        take = aio_retrying(consumer, Producer(TIMED_OUT))(handle_async)
        results = await asyncio.gather(take(order(0)), take(order(1)), take(order(2)), return_exceptions=True)
        assert isinstance(results[1], RetryNotDelivered)
        assert all(offset <= 1 for commit in consumer.commits for _, _, offset in commit)

    asyncio.run(play())


def test_a_cancelled_wait_for_the_retry_topic_commits_nothing() -> None:
    async def play() -> None:
        consumer, producer = AIOConsumer(), Producer(answers=False)
        both = aio_retrying(consumer, producer)
        waiting = asyncio.ensure_future(both(handle_async)(order(1)))
        while not producer.values:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        both._timeout_s = 0
        with pytest.raises(RetryNotDelivered, match="no confirmation within 0 s"):
            await both(handle_async)(order(2))
        assert consumer.commits == []

    asyncio.run(play())


# Consumers


@pytest.mark.parametrize(
    ("name", "value"),
    [("enable.auto.commit", True), ("enable.auto.commit", "true"), ("isolation.level", "read_uncommitted")],
)
def test_a_consumer_that_loses_or_repeats_messages_is_refused_by_the_name_of_the_property(
    name: str, value: object
) -> None:
    with pytest.raises(ValueError, match=f"^{name}={value}: it must be (false|read_committed), otherwise "):
        consumer_config({"group.id": "shop", name: value})


@pytest.mark.parametrize("given", [{}, {"enable.auto.commit": "FALSE", "isolation.level": "read_committed"}])
def test_what_a_consumer_leaves_open_is_set_as_retries_need_it(given: dict[str, object]) -> None:
    made = consumer_config({"group.id": "shop", **given})
    assert made == {"enable.auto.commit": False, "isolation.level": "read_committed", "group.id": "shop", **given}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "enable_auto_commit=True: it must be False"),
        ({"enable_auto_commit": False}, "isolation_level='read_uncommitted': it must be 'read_committed'"),
        ({"enable_auto_commit": False, "isolation_level": "read_committed"}, None),
    ],
)
def test_an_aiokafka_consumer_is_looked_at(options: dict[str, Any], said: str | None) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    from retry_sidecar.aiokafka import AiokafkaRetrying

    producer: Any = None

    async def made() -> None:
        consumer = aiokafka.AIOKafkaConsumer(**options)
        try:
            AiokafkaRetrying(consumer, producer, group="shop")
        finally:
            await consumer.stop()

    if said is None:
        asyncio.run(made())
    else:
        with pytest.raises(ValueError, match=said):
            asyncio.run(made())
