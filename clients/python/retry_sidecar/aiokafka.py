"""Handlers of aiokafka consumers: what fails goes to the retry topic, and offsets are committed after that."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from retry_sidecar.aio import AsyncRetrying
from retry_sidecar.consumed import AiokafkaRecord
from retry_sidecar.record import RetryRecord


class AiokafkaRetrying(AsyncRetrying[AiokafkaRecord]):
    """AsyncRetrying for aiokafka.

    Args:
        consumer: A consumer with `enable_auto_commit=False` and `isolation_level="read_committed"`; neither is
            aiokafka's default. Others raise ValueError.
        producer: A started producer without serializers.
        **options: See AsyncRetrying.
    """

    def __init__(self, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, **options: Any) -> None:
        super().__init__(**options)
        # aiokafka has no public way to ask; a version that keeps them elsewhere is not checked.
        if getattr(consumer, "_enable_auto_commit", False):
            raise ValueError(
                "enable_auto_commit=True: it must be False, otherwise messages are committed that are neither handled "
                "nor on the retry topic"
            )
        if (level := getattr(consumer, "_isolation_level", "read_committed")) != "read_committed":
            raise ValueError(
                f"isolation_level={level!r}: it must be 'read_committed', otherwise deliveries of aborted "
                "transactions are handled too"
            )
        self._consumer = consumer
        self._producer = producer

    async def _send(self, topic: str, record: RetryRecord) -> asyncio.Future[Any]:
        sent: asyncio.Future[Any] = await self._producer.send(
            topic, key=record.key, value=record.value, headers=record.headers
        )
        return sent

    async def _flush(self) -> None:
        await self._producer.flush()

    async def _commit(self, offsets: dict[tuple[str, int], int]) -> None:
        await self._consumer.commit(
            {TopicPartition(topic, partition): offset for (topic, partition), offset in offsets.items()}
        )
