"""Polls a consumer for the messages that are already there."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, Message

from sidecar.kafka.errors import translated


def poll_batch(consumer: Consumer, limit: int, timeout_s: float) -> Sequence[Message]:
    """Return the messages and errors that have come, waiting so long for the first. Raises KafkaFailed.

    Args:
        consumer: Assigned by hand.
        limit: Most messages after the first.
        timeout_s: Longest wait.
    """
    # poll() returns with the first record, consume() only with the last one.
    with translated():
        first = consumer.poll(timeout_s)
        return () if first is None else (first, *consumer.consume(limit, 0))
